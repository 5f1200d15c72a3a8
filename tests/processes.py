"""What test_processes.py runs in two processes, and in one to compare with: python tests/processes.py MODE FOLDER."""

import copy
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf import Spear, SpearConfig, get_spear_model, load_processor, load_stream
from spear_hf.baselines import BnAdapt, Source
from spear_hf.errors import SpearError
from spear_hf.evaluation.evaluate import evaluate
from spear_hf.utils.launch import start_accelerator
from tests.builders import TinyNet, TinyStream, images_and_labels, picture_rows

ROOT = Path(__file__).resolve().parents[1]
SIZES = (32, 5, 1, 1, 32)
# the gate is closed for the first two of these batches, then open
CONFIG = SpearConfig.paper(tau=0.64, learning_rate=0.01, boundaries="all", steps=2)
REMEMBERING = dataclasses.replace(
    CONFIG,
    tau=0.0,
    memory_images=16,
    domain_jump=1.1,
    alpha_images=40,
    learning_rate_batch=16,
    tta_views=4,
)


def run_in_two_processes(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A script of the tests, started by torchrun; the processes talk over gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, script, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )


def base() -> nn.Module:
    torch.manual_seed(0)
    net = TinyNet()
    for _ in range(3):
        net(torch.randn(16, 3, 32, 32) * 2 + 1)
    with torch.no_grad():
        net.fc.weight.mul_(8)  # more certain predictions, so that the gate closes for some batches
    return net.eval()


def learn(
    accelerator: Any,
    dtype: torch.dtype,
    sgd: bool,
    wrap: bool = False,
    config: SpearConfig = CONFIG,
    **options: Any,
) -> dict[str, Any]:
    """Steps over batches of 32, 5, 1, 1 and 32 images, each process with its slice of them."""
    model: nn.Module = get_spear_model(base().to(dtype), config)
    for parameter in model.adapter_parameters():
        parameter.data = parameter.data.to(dtype)
    tta = Spear(accelerator.prepare(model) if wrap else model, accelerator=accelerator, **options)
    if sgd:
        tta.optimizer = torch.optim.SGD(list(tta.parameters()), lr=0.05)
    answers, records = [], []
    for number, size in enumerate(SIZES):
        answers.append(tta.step(part(images_and_labels(number, size)[0].to(dtype), accelerator)))
        records.append(tta.last.to_dict() if tta.last else {})
    return {"answers": answers, "records": records, "rsp": tta.model.snapshot()}


def part(x: Tensor, accelerator: Any) -> Tensor:
    """This process's slice of the batch; the first processes get one image more where it does not divide evenly."""
    return x if accelerator is None else x.tensor_split(accelerator.num_processes)[accelerator.process_index]


def refused(accelerator: Any) -> dict[str, Any]:
    """A batch that holds NaN on the last process alone, then a good batch."""
    tta = Spear(get_spear_model(base(), CONFIG), accelerator=accelerator)
    x = part(images_and_labels(0, 32)[0], accelerator)
    try:
        tta.step(x * float("nan") if accelerator.process_index == accelerator.num_processes - 1 else x)
        message = ""
    except SpearError as error:
        message = f"{type(error).__name__}: {error}"
    return {"message": message, "moved": not torch.equal(tta.step(x), tta.model(x)), "steps": tta.num_steps}


def alone() -> str:
    """The error of a learner without an accelerator among several processes."""
    try:
        Spear(get_spear_model(base(), CONFIG))
    except SpearError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def evaluated(accelerator: Any, stream: TinyStream, checkpoint: Path | None = None) -> dict[str, Any]:
    net = base()
    methods = {
        "source": Source(copy.deepcopy(net), accelerator=accelerator),
        "alpha only": BnAdapt(copy.deepcopy(net), accelerator=accelerator),
        "SPeaR": Spear(get_spear_model(net, CONFIG), accelerator=accelerator),
    }
    report = evaluate(methods, stream, accelerator=accelerator, checkpoint=checkpoint, checkpoint_every=1)
    return {"rows": report.to_dict()["rows"], "adaptation": report.adaptation, "state": methods["SPeaR"].state_dict()}


def left_out(accelerator: Any) -> list[str]:
    """The images that a report says were left out: rows 1 and 6 of eight are empty."""
    from datasets import Dataset, Image

    cells = picture_rows(8).cast_column("image", Image(decode=False))["image"]
    holed = Dataset.from_dict({"image": [None if i in (1, 6) else cell["bytes"] for i, cell in enumerate(cells)]})
    processor = load_processor(base(), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), size=32)
    stream = load_stream(holed.cast_column("image", Image()), skip_broken=True, batch_size=8, processor=processor)
    report = evaluate({"source": Source(base(), accelerator=accelerator)}, stream, accelerator=accelerator)
    return report.provenance["left_out"]


class FatalStream(TinyStream):
    """Kills its process when batch 4 is requested."""

    def shard(self, rank: int, count: int) -> "TinyStream":
        shard = FatalStream(self.sizes, self.protocol)
        shard.rank, shard.count = rank, count
        return shard

    def batch(self, number: int) -> dict[str, Any]:
        if number == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(number)


def main(mode: str, folder: Path) -> None:
    torch.set_num_threads(1)
    accelerator = start_accelerator(cpu=True)
    if mode == "exact":
        found = {
            "count": accelerator.num_processes,
            "fp64": learn(accelerator, torch.float64, sgd=False),
            "fp32": learn(accelerator, torch.float32, sgd=False),
            "sgd": learn(accelerator, torch.float32, sgd=True),
            "wrapped": learn(accelerator, torch.float32, sgd=True, wrap=True),
            "remembering": learn(accelerator, torch.float64, sgd=False, config=REMEMBERING),
            "own, remembering": learn(
                accelerator, torch.float64, sgd=False, config=REMEMBERING, sync_batch_stats=False
            ),
            "own statistics": learn(accelerator, torch.float64, sgd=False, sync_batch_stats=False),
            "refused": refused(accelerator),
            "alone": alone(),
            "left out": left_out(accelerator),
            "report": evaluated(accelerator, TinyStream()),
        }
    else:
        found = evaluated(accelerator, FatalStream() if mode == "killed" else TinyStream(), folder / "checkpoint")
    torch.save(found, folder / f"{mode}_{accelerator.process_index}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
