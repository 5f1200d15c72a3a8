"""Watch SPeaR learn, in a browser: choose a corruption and a severity, and see every answer before and after.

    python examples/demo.py                                          # the embedded model and images, offline
    python examples/demo.py --model examples/fashion_mnist/vit --tau 0.1
    python examples/demo.py --model timm/resnet50.tv_in1k --dataset /data/val --preset imagenet

Then open the address that it prints. The page is served on this machine alone.
"""

import base64
import copy
import json
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import HfArgumentParser

from spear_hf import Spear, SpearConfig, SpearError, get_spear_model, load_base_model, load_processor, load_stream
from spear_hf.baselines import Source
from spear_hf.data.corruptions import CORRUPTIONS
from spear_hf.data.processor import load_class_names
from spear_hf.evaluation.metrics import answers_of

HERE = Path(__file__).parent
SHOWN, TOP = 8, 5


def about(text: str, default: Any) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class DemoArguments:
    """What to watch."""

    model: str = about("A model folder, a Hub id or a timm name.", str(HERE / "fashion_mnist" / "resnet"))
    dataset: str = about("A parquet or folder path, or a Hub id.", str(HERE / "fashion_mnist" / "test.parquet"))
    preset: str = about('Constants for the image size: "imagenet", "cifar" or "tiny".', "cifar")
    batch_size: int = about("Images in a batch.", 32)
    seed: int = about("Of the order and of the corruptions.", 0)
    port: int = about("Where the page is; 0 takes a free one.", 7860)


class Demo:
    """The source and SPeaR on the same batches, which differ from step to step."""

    def __init__(self, config: SpearConfig, run: DemoArguments) -> None:
        base = load_base_model(run.model)
        self.run, self.processor = run, load_processor(base)
        self.class_names = load_class_names(base)
        self.source = Source(copy.deepcopy(base))
        self.learner = Spear(get_spear_model(base, config))
        self.position = 0
        self.count()

    def count(self) -> dict[str, Any]:
        """Begin to count errors anew."""
        self.total, self.wrong = 0, {"before": 0, "after": 0}
        return {}

    def choices(self) -> dict[str, Any]:
        """What the page offers, and what it says of the model."""
        status = f"{Path(self.run.model).name}, {sum(p.numel() for p in self.learner.parameters())} numbers are learned"
        return {"corruptions": ["clean", *CORRUPTIONS], "tau": self.learner.config.tau, "status": status}

    @lru_cache(maxsize=8)  # noqa: B019  one demo lives as long as its process
    def stream(self, corruption: str, severity: float) -> Any:
        """All images under one corruption, as uint8."""
        run = self.run
        return load_stream(
            run.dataset,
            corruptions=corruption,
            severity=severity,
            preset=run.preset,
            batch_size=run.batch_size,
            seed=run.seed,
            class_names=self.class_names,
        )

    def step(self, corruption: str, severity: float) -> dict[str, Any]:
        """The next batch under a corruption: both answers to it, and what was learned from it."""
        stream = self.stream(corruption, severity)
        batch = stream.batch(self.position % len(stream))
        self.position += 1
        images, labels = batch["pixel_values"], batch["labels"]
        x = self.processor(images.numpy())
        logits = {"before": self.source.step(x), "after": self.learner.step(x)}
        self.total += len(labels)
        for name, found in logits.items():
            self.wrong[name] += int((answers_of(found, stream.class_subset) != labels).sum())
        assert self.learner.last is not None
        shown = [
            {"png": png(images[i]), "label": self.name(int(labels[i]))}
            | {name: self.top(found[i]) for name, found in logits.items()}
            for i in range(min(SHOWN, len(labels)))
        ]
        errors = {name: 100 * wrong / self.total for name, wrong in self.wrong.items()}
        return {"record": self.learner.last.to_dict(), "errors": errors, "total": self.total, "images": shown}

    def forget(self) -> dict[str, Any]:
        """Back to the identity."""
        self.learner.reset()
        return self.count()

    def top(self, logits: Tensor) -> list[tuple[str, float]]:
        """The most probable classes with their probabilities."""
        found = logits.softmax(-1).topk(min(TOP, len(logits)))
        return [(self.name(int(c)), float(p)) for p, c in zip(found.values, found.indices, strict=True)]

    def name(self, number: int) -> str:
        """The last, the shortest, of a class's names."""
        return str(number) if self.class_names is None else self.class_names[number][-1]


def png(image: Tensor) -> str:
    """(H, W, 3) uint8 as a data URL."""
    file = BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class Page(BaseHTTPRequestHandler):
    """GET / is the page, GET /choices what it offers; POST /step and /forget do it, one after the other."""

    demo: Demo
    lock = Lock()

    def do_GET(self) -> None:
        if self.path.split("?")[0] == "/":
            self.answer(200, (HERE / "demo.html").read_bytes(), "text/html; charset=utf-8")
        elif self.path == "/choices":
            self.answer(200, json.dumps(self.demo.choices()).encode())
        else:
            self.answer(404, b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), 10_000))
        actions = {"/step": self.demo.step, "/forget": self.demo.forget, "/count": self.demo.count}
        try:
            with self.lock:
                found = actions[self.path](**json.loads(body or b"{}"))
            self.answer(200, json.dumps(found).encode())
        except (SpearError, KeyError, TypeError, ValueError) as error:
            self.answer(400, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())

    def answer(self, status: int, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


def main() -> None:
    parser = HfArgumentParser((SpearConfig, DemoArguments), description=__doc__)  # pyright: ignore[reportArgumentType]
    config, run = parser.parse_args_into_dataclasses()
    torch.manual_seed(run.seed)
    Page.demo = Demo(config, run)
    server = ThreadingHTTPServer(("127.0.0.1", run.port), Page)
    print(f"open http://127.0.0.1:{server.server_address[1]}/ ; Ctrl-C ends it", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    try:
        main()
    except SpearError as error:
        sys.exit(f"{type(error).__name__}: {error}")
