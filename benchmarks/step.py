"""The cost of an online step, compared with plain inference, a floor and Tent.

    python benchmarks/step.py                                   # all rows: ResNet-50, ViT-S/16, CIFAR ResNet-26
    python benchmarks/step.py --rows resnet50:16 --repeats 7 --output benchmarks/results/step.md

The floor of a step is one forward and one backward pass through the activations down to the first RSP. It is written by
hand for each model, without hooks and statistics. All methods of a row take turns, `--repeats` times, on the same
images and the same random weights; a number is the median. Seconds are CPU seconds of this process on a CPU, since
other processes disturb them least, and wall-clock seconds on a GPU. Memory is what the forward pass keeps for the
backward pass, without the weights.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import spear_hf.backbones.cifar  # noqa: F401  registers cifar_resnet26
from spear_hf import Spear, SpearConfig, get_spear_model
from spear_hf.baselines import BnAdapt, Tent
from spear_hf.learning.objective import normalized_entropy

ROWS = ("resnet50:16", "resnet50:64", "vit_small_patch16_224:16", "cifar_resnet26:200")
CYCLE = {"SPeaR, every 4th batch": 4}  # steps that are measured as one, and divided by their number
OPEN, SHUT = {"tau": 0.0, "hard_gate": False}, {"tau": 1.0, "hard_gate": True}

Step = Callable[[Tensor], Any]


# --- the floor: one forward to the logits and one gradient of two numbers for each channel of the stem ----------------


def resnet_parts(net: Any) -> tuple[Step, Step]:
    """timm's ResNet before and after z_0."""
    after = nn.Sequential(net.layer1, net.layer2, net.layer3, net.layer4)
    return (lambda x: net.maxpool(net.act1(net.bn1(net.conv1(x)))), lambda z: net.forward_head(after(z)))


def vit_parts(net: Any) -> tuple[Step, Step]:
    """timm's VisionTransformer before and after z_0."""
    before = lambda x: net.norm_pre(net.patch_drop(net._pos_embed(net.patch_embed(x))))  # noqa: E731
    return before, lambda z: net.forward_head(net.norm(net.blocks(z)))


def cifar_parts(net: Any) -> tuple[Step, Step]:
    """The CIFAR ResNet before and after z_0."""
    return (lambda x: F.relu(net.bn1(net.conv1(x))), lambda z: net.fc(net.stages(z).mean((2, 3))))


PARTS = {"ResNet": resnet_parts, "VisionTransformer": vit_parts, "CifarResNet": cifar_parts}


def floor_step(net: nn.Module) -> Step:
    """One forward pass, and the gradient of the mean entropy with respect to gamma and beta of the stem."""
    net = copy.deepcopy(net).requires_grad_(False)
    before, after = PARTS[type(net).__name__](net)

    def step(x: Tensor) -> None:
        with torch.no_grad():
            z = before(x)
        shape = [1] * z.dim()
        axis = 1 if z.dim() == 4 else 2
        shape[axis] = z.shape[axis]
        gamma, beta = torch.ones(shape, device=x.device), torch.zeros(shape, device=x.device)
        logits = after(z * gamma.requires_grad_() + beta.requires_grad_())
        torch.autograd.grad(normalized_entropy(logits).mean(), [gamma, beta])

    return step


# --- contenders ------------------------------------------------------------------------------------------------------


def contenders(net: nn.Module, compiled: bool) -> dict[str, Step]:
    """name -> one step; each has its own copy of the network."""

    def own() -> nn.Module:
        return copy.deepcopy(net)

    def spear(**settings: Any) -> Step:
        return Spear(get_spear_model(own(), SpearConfig(**settings))).step

    found: dict[str, Step] = {
        "inference": without_grad(own().requires_grad_(False)),
        "inference, identity RSPs": without_grad(get_spear_model(own(), SpearConfig(boundaries="all", alpha=0.0))),
        "floor": floor_step(net),
        "SPeaR, stem, no mixing": spear(boundaries="0", alpha=0.0, **OPEN),
        "SPeaR, stem": spear(boundaries="0", **OPEN),
        "SPeaR, default": spear(**OPEN),
        "SPeaR, all": spear(boundaries="all", **OPEN),
        "SPeaR, deepest": spear(boundaries=str(deepest(own())), **OPEN),
        "SPeaR, skipped": spear(**SHUT),
        "SPeaR, every 4th batch": spear(adapt_every=4, **OPEN),
        "SPeaR, every 4th image": spear(learn_stride=4, **OPEN),
        "Tent": Tent(own()).step,
    }
    if compiled:
        found["inference, compiled"] = without_grad(torch.compile(own().requires_grad_(False)))
        steered = get_spear_model(own(), SpearConfig(**OPEN))
        found["SPeaR, default, compiled"] = Spear(torch.compile(steered)).step
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules()):
        found["inference, mixed statistics"] = BnAdapt(own(), SpearConfig().alpha).step
    return found


def without_grad(model: nn.Module) -> Step:
    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return model(x)

    return step


def deepest(net: nn.Module) -> int:
    return max(b.depth for b in get_spear_model(net).boundaries)


# --- measuring -------------------------------------------------------------------------------------------------------


def seconds(step: Step, x: Tensor) -> float:
    """Seconds of one step: CPU seconds on a CPU, wall-clock seconds on a GPU."""
    if x.device.type == "cpu":
        began = time.process_time()
        step(x)
        return time.process_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    step(x)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def saved_bytes(step: Step, x: Tensor, owned: set[int]) -> int:
    """Memory that one step keeps for its backward pass: each storage once, without weights and images."""
    kept: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes(), tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step(x)
    return sum(size for address, (size, _) in kept.items() if address not in owned)


def measure(row: str, repeats: int, device: str, compiled: bool) -> dict[str, dict[str, float]]:
    """method -> {seconds, megabytes}."""
    name, batch = row.split(":")
    torch.manual_seed(0)
    net = timm.create_model(name, pretrained=False).eval().to(device)
    x = torch.randn(int(batch), *net.default_cfg["input_size"], device=device)
    steps = contenders(net, compiled)
    found = {}
    for label, step in steps.items():
        step(x)  # warm: allocator, kernels, and for a skipped step the gate's memory
        owned = {t.untyped_storage().data_ptr() for t in _tensors(step)} | {x.untyped_storage().data_ptr()}
        found[label] = {"megabytes": saved_bytes(step, x, owned) / 1e6}
    times: dict[str, list[float]] = {label: [] for label in steps}
    for _ in range(repeats):
        for label, step in steps.items():
            times[label] += [seconds(step, x) for _ in range(CYCLE.get(label, 1))]
    for label, several in times.items():
        whole = [sum(several[i : i + n]) / n for n in [CYCLE.get(label, 1)] for i in range(0, len(several), n)]
        found[label]["seconds"] = statistics.median(whole)
    return found


def _tensors(step: Any) -> list[Tensor]:
    """Weights and buffers of the model behind a step."""
    cells = [cell.cell_contents for cell in getattr(step, "__closure__", None) or ()]
    models = [m for m in (getattr(getattr(step, "__self__", None), "model", None), *cells) if isinstance(m, nn.Module)]
    return [t for m in models for t in (*m.parameters(), *m.buffers())]


def table(row: str, found: dict[str, dict[str, float]], device: str) -> Table:
    shown = Table(title=f"{row.replace(':', ', batch ')} on {device}: one step")
    for column in ("", "ms", "/ inference", "/ floor", "/ Tent", "saved MB", "saved / Tent"):
        shown.add_column(column, justify="left" if not column else "right")
    inference, floor, tent = (found[name]["seconds"] for name in ("inference", "floor", "Tent"))
    for label, figures in found.items():
        s, mb = figures["seconds"], figures["megabytes"]
        ratios = [f"{s / reference:.2f}" for reference in (inference, floor, tent)]
        shown.add_row(label, f"{1000 * s:.1f}", *ratios, f"{mb:.1f}", f"{mb / found['Tent']['megabytes']:.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), help="timm name:batch size")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes minutes to warm up")
    parser.add_argument("--output", type=Path, help="a text file to append the tables to")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    for row in args.rows:
        shown = table(row, measure(row, args.repeats, args.device, args.compile), where)
        Console().print(shown)
        if args.output:
            with args.output.open("a") as file:
                Console(file=file, width=120).print(shown)


if __name__ == "__main__":
    main()
