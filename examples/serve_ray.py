"""The service of examples/serve.py on Ray Serve, which is how it grows past one machine.

    python examples/serve_ray.py --streams-folder /shared/streams --replicas 2
    curl -H "serve_multiplexed_model_id: cam-1" --data-binary @photo.jpg http://127.0.0.1:8000/

Every replica has the frozen model and the states of some streams. The header names the stream: `serve.multiplexed`
sends its images to the replica that holds its state, and keeps the most recently used states of each replica. A state
that leaves a replica is saved to the folder that all replicas share, and the next replica goes on from there.
`serve.batch` collects what arrives within a few milliseconds; one step serves all streams in it.
"""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from embedded import MODEL, ModelOption
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_base_model, load_processor
from spear_hf.cli import expanded, script
from spear_hf.data.processor import load_class_names
from spear_hf.integrations.serving import Reply, StreamClassifier, StreamImage
from spear_hf.learning.streams import Streams


class HeldStream:
    """A stream whose state is in this replica; when Ray drops the object, the state goes to the shared folder."""

    def __init__(self, learner: Spear, shared: Streams, name: str) -> None:
        self.learner, self.path, self.name = learner, shared.path(name), name
        if self.path.exists():
            learner.streams.load(name, self.path)

    def save(self) -> None:
        """Write the state, if an image of the stream was learned from."""
        if self.name in self.learner.streams:
            self.learner.streams[self.name].save(self.path, name=self.name)

    def __del__(self) -> None:  # Ray calls it when the stream leaves the replica, and when the replica ends
        with contextlib.suppress(KeyError):
            self.save()
            del self.learner.streams[self.name]


@serve.deployment
class Cameras:
    """One replica."""

    def __init__(self, model: str, folder: str) -> None:
        base = load_base_model(model)
        self.learner = Spear(get_spear_model(base, SpearConfig()))
        self.shared = Streams(self.learner.streams.make, folder=folder)
        self.classifier = StreamClassifier(self.learner, load_processor(base), load_class_names(base))

    @serve.multiplexed(max_num_models_per_replica=500)
    async def stream(self, name: str) -> HeldStream:
        """The state of this stream, in this replica."""
        return await asyncio.to_thread(HeldStream, self.learner, self.shared, name)

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def answer(self, images: list[StreamImage]) -> list[Reply]:
        """One step for the images that arrived together."""
        return await asyncio.to_thread(self.classifier.answer, images)

    async def __call__(self, request: Request) -> JSONResponse:
        name = serve.get_multiplexed_model_id()
        try:
            held = await self.stream(name)
            x = await asyncio.to_thread(self.classifier.prepare, await request.body())
        except SpearError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        reply: Any = await self.answer(StreamImage(x, name))
        await asyncio.to_thread(held.save)  # a replica that is killed loses no step that was answered
        return JSONResponse({**reply.content, "steps": self.learner.streams[name].num_steps}, status_code=reply.status)


@expanded()
def main(
    model: ModelOption = MODEL,
    streams_folder: Annotated[Path, typer.Option(help="Shared by all replicas.")] = Path("runs/streams"),
    port: Annotated[int, typer.Option(help="The port, on this machine.")] = 8000,
    replicas: Annotated[int, typer.Option(help="Copies of the model.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="End after so long; 0 never.", min=0)] = 0.0,
) -> None:
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    cameras = Cameras.options(num_replicas=replicas).bind(str(Path(model).resolve()), str(streams_folder.resolve()))
    serve.run(cameras)
    print(f"{Path(model).name} answers on http://127.0.0.1:{port} ; Ctrl-C ends it", flush=True)
    until = time.monotonic() + seconds if seconds else float("inf")
    try:
        while time.monotonic() < until:
            time.sleep(0.2)
    finally:
        serve.shutdown()


app = script(main, __doc__)

if __name__ == "__main__":
    app()
