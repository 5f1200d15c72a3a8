"""Record what passes each boundary of a SpearModel, by hooks that are gone afterwards."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.boundaries import Boundary
from spear_hf.boundaries.slots import pick, pick_input
from spear_hf.errors import DataError
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of

CLASSIFIER = "classifier"  # the key of what enters the classifier; boundaries have theirs ("0", "1", ...)


def pooled(z: Tensor, channel_axis: int) -> Tensor:
    """The mean of z over its positions: (B, C) of (B, C, H, W), (B, H, W, C) or (B, N, C); (B, C) stays."""
    return z.movedim(channel_axis, 1).flatten(2).mean(2) if z.dim() > 2 else z


class Recording:
    """What has passed since the recording began.

    Args:
        keys: the places that are watched, shallow to deep.
    """

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self._parts: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, key: str, z: Tensor, channel_axis: int) -> None:
        """Keep the pooled representation of one batch, detached and on the CPU."""
        self._parts[key].append(pooled(z.detach().float(), channel_axis).cpu())

    def features(self) -> dict[str, Tensor]:
        """place -> (N, C) fp32, shallow to deep; empty before the first forward."""
        return {key: torch.cat(self._parts[key]) for key in self.keys if self._parts[key]}


@contextmanager
def recording(model: SpearModel, *, classifier: str | None = None, steered: bool = True) -> Iterator[Recording]:
    """Inside, every forward of `model` adds its pooled z_0..z_L to the Recording; outputs are not changed.

    Call the model inside, rather than `Spear.step`: a step may run the network more than once.

    Args:
        classifier: path of the layer whose input is recorded under "classifier" too; see `find_classifier`.
        steered: True records what the next stage is given, False what the RSP is given.
    """
    places = [(b.key, b) for b in model.boundaries]
    if classifier is not None:
        places.append((CLASSIFIER, Boundary(len(places), CLASSIFIER, classifier, "in", channel_axis=-1)))
    record = Recording([key for key, _ in places])
    with ExitStack() as stack:
        for key, boundary in places:
            module = model.base_model.get_submodule(boundary.module)
            stack.callback(_watch(module, _Watcher(record, key, boundary), first=not steered).remove)
        yield record


def find_classifier(model: SpearModel, x: Tensor) -> str:
    """The path of the linear layer whose output is the logits.

    Args:
        x: (B, C, H, W), as the model's processor makes it.

    Raises:
        DataError: the logits are no linear layer's output as it stands.
    """
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in model.base_model.named_modules():
            if isinstance(module, nn.Linear):
                stack.callback(module.register_forward_hook(_Keep(outputs, name)).remove)
        with torch.no_grad(), model.disable_adapter():
            logits = logits_of(model(x))
    for name, output in reversed(outputs.items()):
        if output.data_ptr() == logits.data_ptr() and output.shape == logits.shape:
            return name
    raise DataError(
        f"the logits of {type(model.base_model).__name__} are the output of none of its {len(outputs)} linear layers; "
        "name the module whose input is to be recorded: classifier='path.of.module'"
    )


class _Watcher:
    """The hook of one place: it looks and returns nothing."""

    def __init__(self, record: Recording, key: str, boundary: Boundary) -> None:
        self.record = record
        self.key = key
        self.boundary = boundary

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.record.add(self.key, pick(output, self.boundary.output_slot), self.boundary.channel_axis)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.record.add(self.key, pick_input(self.boundary, args, kwargs), self.boundary.channel_axis)


def _watch(module: nn.Module, watcher: _Watcher, *, first: bool) -> Any:
    """The handle; `first` runs it before the RSP's hook, which was there first."""
    if watcher.boundary.where == "in":
        return module.register_forward_pre_hook(watcher.before, prepend=first, with_kwargs=True)
    return module.register_forward_hook(watcher.after, prepend=first)


class _Keep:
    """A hook that keeps a layer's output."""

    def __init__(self, outputs: dict[str, Tensor], name: str) -> None:
        self.outputs = outputs
        self.name = name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.outputs[self.name] = output
