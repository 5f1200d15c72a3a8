"""Serve a classifier over HTTP to many cameras; each learns from its own images, and all share one model.

    python examples/serve.py --model examples/fashion_mnist/resnet --port 8000 --streams-folder runs/streams
    curl --data-binary @photo.jpg http://127.0.0.1:8000/predict/cam-1                  # predicts, then learns
    curl -F image=@photo.jpg "http://127.0.0.1:8000/predict/cam-1?learn=false"         # predicts
    curl http://127.0.0.1:8000/streams
    curl -X DELETE http://127.0.0.1:8000/streams/cam-1

Images that arrive within a few milliseconds take one step together. Streams are saved from time to time and at the end;
a server that was killed goes on from what was saved. The server has no passwords: it listens on this machine alone
unless --host says otherwise, and then belongs behind a proxy that knows its clients.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
import uvicorn
from embedded import MODEL, ModelOption
from filelock import FileLock, Timeout

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_processor
from spear_hf.cli import WeightOptions, expanded, script
from spear_hf.data.processor import load_class_names
from spear_hf.integrations.http_app import HttpLimits, create_app
from spear_hf.integrations.serving import BatchedService, StreamClassifier, check_saved
from spear_hf.utils.loopback import is_loopback


@expanded()
def main(
    weights: WeightOptions,
    config: SpearConfig,
    model: ModelOption = MODEL,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 8000,
    streams_folder: Annotated[Path, typer.Option(help="Where streams are saved.")] = Path("runs/streams"),
    max_streams: Annotated[int, typer.Option(help="Streams in memory; others are on disk.", min=1)] = 500,
    max_batch: Annotated[int, typer.Option(help="Images in a step.", min=1)] = 32,
    max_wait_ms: Annotated[float, typer.Option(help="How long an image waits for others.", min=0)] = 5.0,
    max_body_mb: Annotated[float, typer.Option(help="Size of a request.", min=0.001)] = 16.0,
    save_every: Annotated[float, typer.Option(help="Seconds between two saves.", min=0.1)] = 60.0,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")] = False,
) -> None:
    signal.signal(signal.SIGTERM, end)
    with owned(streams_folder):
        base = weights.load(model).to("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        learner = Spear(get_spear_model(base, config), max_streams_in_memory=max_streams, streams_folder=streams_folder)
        check_saved(learner.streams)
        classifier = StreamClassifier(learner, load_processor(base), load_class_names(base))
        service = BatchedService(
            classifier, max_batch=max_batch, max_wait_s=max_wait_ms / 1000, save_every_s=save_every
        )
        limits = HttpLimits(max_body_bytes=int(max_body_mb * 1e6))
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        print(f"{Path(model).name} answers on {address} ; Ctrl-C ends it", flush=True)
        if not is_loopback(host):
            print("every machine that reaches this address may teach and delete streams", flush=True)
        options = uvicorn.Config(
            create_app(service, limits, host=host),
            log_level="warning",
            limit_concurrency=4 * limits.max_requests,
            timeout_graceful_shutdown=10,
        )
        try:
            uvicorn.Server(options).run(sockets=[listening])
        finally:
            classifier.save()  # a second Ctrl-C makes uvicorn skip what the service does at its end


def end(*_: object) -> None:
    """SIGTERM is an ordinary end: the streams are saved."""
    raise SystemExit(0)


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """The folder of the streams, for this process alone; the lock goes with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SpearError(f"{folder} is used by another server; give this one its own --streams-folder") from None
    with lock:
        yield


app = script(main, __doc__)

if __name__ == "__main__":
    app()
