"""Watch SPeaR learn in a browser: choose a corruption and a severity, and see each prediction before and after.

    python examples/demo.py                                          # the embedded model and images, offline
    python examples/demo.py --model examples/fashion_mnist/vit --tau 0.1
    python examples/demo.py --model timm/resnet50.tv_in1k --dataset /data/val --preset imagenet

Then open the address that it prints. The page is served on this machine alone.
"""

import base64
import copy
import json
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import torch
import typer
from embedded import IMAGES, MODEL, DatasetOption, ModelOption
from PIL import Image
from torch import Tensor

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.baselines import Source
from spear_hf.cli import ImageOptions, expanded, script
from spear_hf.data.corruptions import CORRUPTIONS
from spear_hf.data.processor import load_class_names
from spear_hf.evaluation.metrics import answers_of
from spear_hf.utils.loopback import is_own_request

HERE = Path(__file__).parent
SHOWN, TOP = 8, 5


SMALL_BATCHES = ImageOptions(corruptions="all", shuffle=True, preset="cifar", batch_size=32)


class Demo:
    """The source model and SPeaR on the same batches; every step takes the next batch."""

    def __init__(self, model: str, dataset: str, images: ImageOptions, config: SpearConfig) -> None:
        base = load_base_model(model)
        self.model_name, self.dataset, self.images = Path(model).name, dataset, images
        self.processor = load_processor(base)
        self.class_names = load_class_names(base)
        self.source = Source(copy.deepcopy(base))
        self.learner = Spear(get_spear_model(base, config))
        self.position = 0
        self.count()

    def count(self) -> dict[str, Any]:
        """Set the error counts to zero."""
        self.total, self.wrong = 0, {"before": 0, "after": 0}
        return {}

    def choices(self) -> dict[str, Any]:
        """The corruptions to choose from, and what the page says about the model."""
        status = f"{self.model_name}, {sum(p.numel() for p in self.learner.parameters())} numbers are learned"
        return {"corruptions": ["clean", *CORRUPTIONS], "tau": self.learner.config.tau, "status": status}

    @lru_cache(maxsize=8)  # noqa: B019  one demo lives as long as its process
    def stream(self, corruption: str, severity: float) -> Any:
        """All images under one corruption, as uint8."""
        images = self.images
        return load_stream(
            self.dataset,
            corruptions=corruption,
            severity=severity,
            preset=images.preset,
            batch_size=images.batch_size,
            seed=images.seed,
            shuffle=images.shuffle,
            class_names=self.class_names,
        )

    def step(self, corruption: str, severity: float) -> dict[str, Any]:
        """The next batch under a corruption: both predictions for it, and the record of the learning step."""
        stream = self.stream(corruption, severity)
        batch = stream.batch(self.position % len(stream))
        self.position += 1
        images, labels = batch["pixel_values"], batch["labels"]
        x = self.processor(images.numpy())
        logits = {"before": self.source.step(x), "after": self.learner.step(x)}
        self.total += len(labels)
        for name, found in logits.items():
            self.wrong[name] += int((answers_of(found) != labels).sum())
        assert self.learner.last is not None
        shown = [
            {"png": png(images[i]), "label": self.name(int(labels[i]))}
            | {name: self.top(found[i]) for name, found in logits.items()}
            for i in range(min(SHOWN, len(labels)))
        ]
        errors = {name: 100 * wrong / self.total for name, wrong in self.wrong.items()}
        return {"record": self.learner.last.to_dict(), "errors": errors, "total": self.total, "images": shown}

    def forget(self) -> dict[str, Any]:
        """Reset the RSPs to the identity."""
        self.learner.reset()
        return self.count()

    def top(self, logits: Tensor) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities."""
        found = logits.softmax(-1).topk(min(TOP, len(logits)))
        return [(self.name(int(c)), float(p)) for p, c in zip(found.values, found.indices, strict=True)]

    def name(self, number: int) -> str:
        """The last name of a class, which is the shortest."""
        return str(number) if self.class_names is None else self.class_names[number][-1]


def png(image: Tensor) -> str:
    """(H, W, 3) uint8 as a data URL."""
    file = BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


LONGEST_BODY = 10_000  # bytes; a request names a class and a few numbers


class Page(BaseHTTPRequestHandler):
    """GET / and /choices; POST /step, /forget and /count, one request at a time."""

    demo: Demo
    lock = Lock()
    timeout = 30  # seconds for a request to come; a client that sends nothing is let go

    def is_refused(self) -> bool:
        """Whether the request is for another host or from another page; it is answered then."""
        if is_own_request(self.headers.get("Host", ""), self.headers.get("Origin")):
            return False
        self.answer(403, json.dumps({"error": "this page is for its own machine; open it as 127.0.0.1"}).encode())
        return True

    def do_GET(self) -> None:
        if self.is_refused():
            return
        if self.path.split("?")[0] == "/":
            self.answer(200, (HERE / "demo.html").read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/choices":
            self.answer(200, json.dumps(self.demo.choices()).encode())
        else:
            self.answer(404, b"{}")

    def do_POST(self) -> None:
        if self.is_refused():
            return
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > LONGEST_BODY:
            self.close_connection = True
            self.answer(413, json.dumps({"error": f"a body has at most {LONGEST_BODY:,} bytes"}).encode())
            return
        body = self.rfile.read(int(length))
        actions = {"/step": self.demo.step, "/forget": self.demo.forget, "/count": self.demo.count}
        try:
            with self.lock:
                found = actions[self.path](**json.loads(body or b"{}"))
            self.answer(200, json.dumps(found).encode())
        except (SpearError, KeyError, TypeError, ValueError, RecursionError) as error:
            self.answer(400, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())

    def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@expanded(without=("corruptions", "severity", "protocol", "limit", "split", "num_workers"))
def main(
    config: SpearConfig,
    images: ImageOptions = SMALL_BATCHES,
    model: ModelOption = MODEL,
    dataset: DatasetOption = IMAGES,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = 7860,
) -> None:
    torch.manual_seed(images.seed)
    Page.demo = Demo(model, dataset, images, config)
    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    print(f"open http://127.0.0.1:{server.server_address[1]}/ ; Ctrl-C ends it", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


app = script(main, __doc__)

if __name__ == "__main__":
    app()
