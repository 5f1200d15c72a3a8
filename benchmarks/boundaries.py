"""Find the stage boundaries of every image classifier in timm, transformers and torchvision.

    python benchmarks/boundaries.py walk  WORK.jsonl [--population timm] [--part 1/2] [--names resnet50 ...]
    python benchmarks/boundaries.py table WORK.jsonl

Models are built on the meta device, as architectures without weights. Each line of the work file is one name. Names in
the file are skipped, so the walk can be stopped, resumed and divided. A second, independent test (`is_wrong`) checks
the boundaries that the search proved: at one random depth if feature_info was used as it is, else at every depth.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES

from spear_hf.boundaries import Boundary, search_boundaries
from spear_hf.boundaries.inputs import ProbeInputs, candidate_inputs
from spear_hf.boundaries.probe_forward import device_of, dtype_of, forward, held_still
from spear_hf.boundaries.slots import register_at

Builder = Callable[[], nn.Module]


def timm_models() -> Iterator[tuple[str, Builder]]:
    """Every name of `timm.list_models()`; a model that has no head by default is built with ten classes."""

    def build(name: str) -> nn.Module:
        with torch.device("meta"):
            model = timm.create_model(name)
            return model if getattr(model, "num_classes", 1) else timm.create_model(name, num_classes=10)

    families = [timm.list_models(module=module) for module in timm.list_modules()]
    first_of_each_family_first = [name for row in zip_longest(*families) for name in row if name]
    for name in first_of_each_family_first:
        yield name, lambda name=name: build(name)


def transformers_models() -> Iterator[tuple[str, Builder]]:
    """Every class of transformers' image-classification mapping, with its default configuration or a tiny one."""

    def build(name: str) -> nn.Module:
        kind = getattr(transformers, name)
        if name.startswith("Dinat"):
            stand_in_for_natten()
        with torch.device("cpu" if name.startswith(ON_CPU) else "meta"):
            model = kind(kind.config_class(**SETTINGS.get(name, {})))
        for parameter in model.parameters():
            if not parameter.is_meta and not parameter.any():  # ShieldGemma 2's projection of the image starts at zero
                nn.init.normal_(parameter, std=0.02)
        return model

    for names in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.values():
        for name in [names] if isinstance(names, str) else names:
            yield name, lambda name=name: build(name)


def torchvision_models() -> Iterator[tuple[str, Builder]]:
    """Every builder of torchvision's classification models (RegNet reads values while it is built: no meta device)."""

    def build(name: str) -> nn.Module:
        settings = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(name, **settings).to("meta")

    for name in torchvision.models.list_models(module=torchvision.models):
        yield name, lambda name=name: build(name)


TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
PERCEIVER = {
    "num_latents": 16,
    "d_latents": 32,
    "num_blocks": 1,
    "num_self_attends_per_block": 4,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 1,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "ImageGPTForImageClassification": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "PerceiverForImageClassificationLearned": PERCEIVER,
    "PerceiverForImageClassificationFourier": PERCEIVER,
    "PerceiverForImageClassificationConvProcessing": PERCEIVER,
    "TimmWrapperForImageClassification": {"architecture": "resnet18"},
    "Siglip2ForImageClassification": {"vision_config": TINY | {"num_patches": 16, "patch_size": 4}},
    "ShieldGemma2ForImageClassification": {
        "vision_config": TINY | {"image_size": 32, "patch_size": 8},
        "text_config": TINY | {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": 20000},
        "mm_tokens_per_image": 4,
        "image_token_index": 19999,
    },
}
ON_CPU = ("ImageGPT", "Perceiver", "Siglip2", "ShieldGemma2")
"""Models that cannot be built on the meta device: they read input values, or build constants on another device."""


def inputs_for(name: str) -> dict[str, torch.Tensor] | None:
    """A batch for ShieldGemma 2, which takes a prompt around the image; its configuration does not say so."""
    if not name.startswith("ShieldGemma2"):
        return None
    tokens = torch.tensor([[2, 19999, 19999, 19999, 19999, 5, 6]] * 2)
    return {
        "pixel_values": torch.randn(2, 3, 32, 32),
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "token_type_ids": (tokens == 19999).long(),
    }


def stand_in_for_natten() -> None:
    """Replace natten's two CUDA functions, which Dinat needs, by functions with the same shapes and data flow."""
    from transformers.models.dinat import modeling_dinat

    def scores(query: torch.Tensor, key: torch.Tensor, bias: torch.Tensor, size: int, dilation: int) -> torch.Tensor:
        return (query * key).sum(-1, keepdim=True).expand(*query.shape[:-1], size * size) + bias.sum()

    def context(weights: torch.Tensor, value: torch.Tensor, size: int, dilation: int) -> torch.Tensor:
        return (weights.mean(-1, keepdim=True) * value).permute(0, 3, 2, 1, 4)

    modeling_dinat.natten2dqkrpb, modeling_dinat.natten2dav = scores, context
    modeling_dinat.requires_backends = lambda *args: None


POPULATIONS = {"timm": timm_models, "transformers": transformers_models, "torchvision": torchvision_models}


class Cutter:
    """The hook of one boundary; it detaches the tensor, so that the next layers get it as if it were an input."""

    def __init__(self, boundary: Boundary) -> None:
        self.boundary, self.fired = boundary, 0

    def cut(self, z: torch.Tensor) -> torch.Tensor:
        self.fired += 1
        return z.detach()


def is_wrong(model: nn.Module, boundaries: Sequence[Boundary], depths: Sequence[int], inputs: ProbeInputs) -> str:
    """Why the boundaries are wrong, or "". If the tensors of one depth are detached, no graph may lead to the image."""
    for depth in depths:
        cutters = [Cutter(b) for b in boundaries if b.depth == depth]
        handles = [register_at(model, cutter.boundary, cutter.cut) for cutter in cutters]
        with held_still(model):
            logits, _ = forward(model, inputs)
        for handle in handles:
            handle.remove()
        if logits.requires_grad:
            return f"the image reaches the logits around depth {depth}"
        if any(cutter.fired != 1 for cutter in cutters):
            return f"depth {depth} fired {[cutter.fired for cutter in cutters]} times"
    return ""


def accepted_inputs(model: nn.Module, inputs: Any) -> ProbeInputs:
    """The first candidate input that the model accepts."""
    for candidate in candidate_inputs(model, inputs):
        placed = candidate.on(device_of(model), dtype_of(model))
        try:
            with held_still(model):
                forward(model, placed)
        except Exception:
            continue
        return placed
    raise ValueError("no inputs")


def examine(name: str, build: Builder) -> dict[str, Any]:
    """The line of one model in the work file."""
    started = time.process_time()
    row: dict[str, Any] = {"name": name}
    try:
        model = build()
    except Exception as error:
        return row | {"source": "not built", "reason": f"{type(error).__name__}: {error}"[:300]}
    row["class"] = f"{type(model).__module__}.{type(model).__name__}"
    built = time.process_time()
    try:
        found = search_boundaries(model, strict=False, inputs=inputs_for(name))
    except Exception as error:
        return row | {"source": "refused", "reason": f"{type(error).__name__}: {error}"}
    row["seconds"] = round(time.process_time() - built, 2)
    depths = sorted({b.depth for b in found.boundaries})
    if found.source == "metadata":
        depths = random.Random(name).sample(depths, 1)
    reason = is_wrong(model, found.boundaries, depths, accepted_inputs(model, inputs_for(name)))
    row |= {
        "source": "wrong" if reason else found.source,
        "reason": reason or "; ".join(found.notes),
        "boundaries": [b.to_dict() for b in found.boundaries],
        "shapes": [list(shape) for shape in found.shapes],
        "build_seconds": round(built - started, 2),
    }
    return row


def walk(work: Path, populations: Sequence[str], part: str, names: Sequence[str]) -> None:
    """Append a line to `work` for every model that it does not hold yet."""
    done = {(row["population"], row["name"]) for row in read(work)}
    number, parts = map(int, part.split("/"))
    for population in populations:
        models = [(name, build) for name, build in POPULATIONS[population]() if not names or name in names]
        for name, build in models[number - 1 :: parts]:
            if (population, name) in done:
                continue
            row = {"population": population} | examine(name, build)
            with work.open("a") as file:
                file.write(json.dumps(row) + "\n")


def read(work: Path) -> list[dict[str, Any]]:
    """The lines of a work file; none if there is no file yet."""
    return [json.loads(line) for line in work.read_text().splitlines()] if work.exists() else []


SOURCES = ("metadata", "repaired", "structural", "joint", "partial", "refused", "not built", "wrong")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: how many models of each population each source served, and every model that failed."""
    lines = [f"| population | models | {' | '.join(SOURCES)} | complete |", "|---|" + "---:|" * (len(SOURCES) + 2)]
    for population in POPULATIONS:
        found = [row["source"] for row in rows if row["population"] == population]
        if found:
            counts = [found.count(source) for source in SOURCES]
            complete = f"{100 * sum(counts[:4]) / len(found):.1f} %"
            lines.append(f"| {population} | {len(found)} | {' | '.join(map(str, counts))} | {complete} |")
    seconds = sorted(row["seconds"] for row in rows if "seconds" in row)
    if seconds:
        lines += ["", f"CPU seconds of a search: median {seconds[len(seconds) // 2]:.2f}, largest {seconds[-1]:.1f}."]
    rest = [row for row in rows if row["source"] not in SOURCES[:4]]
    lines += ["", "The rest: " + ("none." if not rest else "")]
    lines += [f"- {row['population']} {row['name']}: {row['source']}, {row['reason']}" for row in rest]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["walk", "table"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--population", choices=list(POPULATIONS), nargs="*", default=list(POPULATIONS))
    parser.add_argument("--part", default="1/1", help="i/n: the i-th of n interleaved parts")
    parser.add_argument("--names", nargs="*", default=[])
    args = parser.parse_args()
    if args.command == "walk":
        torch.set_grad_enabled(True)
        walk(args.work, args.population, args.part, args.names)
    else:
        print(table(read(args.work)))
