"""Record the representation at each boundary of a SpearModel, with hooks that are removed afterwards."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from spear_hf.boundaries import Boundary
from spear_hf.boundaries.slots import register_at
from spear_hf.errors import DataError
from spear_hf.steering.model import SpearModel
from spear_hf.utils.batch import logits_of

CLASSIFIER = "classifier"  # the place of the classifier's input; those of the boundaries are "0", "1", ...


def pooled(z: Tensor, channel_axis: int) -> Tensor:
    """The mean of z over its positions: (B, C) of (B, C, H, W), (B, H, W, C) or (B, N, C); (B, C) stays as it is.

    >>> import torch
    >>> from spear_hf.analysis import pooled
    >>> pooled(torch.ones(2, 20, 3), channel_axis=-1).shape
    torch.Size([2, 3])
    """
    return z.movedim(channel_axis, 1).flatten(2).mean(2) if z.dim() > 2 else z


class Recording:
    """The pooled representations of all forwards so far; `recording` makes and fills one.

    >>> import torch
    >>> from spear_hf.analysis import Recording
    >>> record = Recording(["0"])
    >>> record.add("0", torch.ones(2, 3, 8, 8), channel_axis=1)
    >>> record.features()["0"].shape
    torch.Size([2, 3])

    Args:
        keys: the places that are recorded, from shallow to deep.
    """

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self._parts: defaultdict[str, list[Tensor]] = defaultdict(list)

    def add(self, key: str, z: Tensor, channel_axis: int) -> None:
        """Store the pooled representation of one batch, detached and on the CPU."""
        self._parts[key].append(pooled(z.detach().float(), channel_axis).cpu())

    def features(self) -> dict[str, Tensor]:
        """place -> (N, C) fp32, from shallow to deep; empty before the first forward."""
        return {key: torch.cat(self._parts[key]) for key in self.keys if self._parts[key]}


@contextmanager
def recording(model: SpearModel, *, classifier: str | None = None, steered: bool = True) -> Iterator[Recording]:
    """A context in which every forward of `model` adds its pooled z_0..z_L to the Recording; outputs do not change.

    Call the model inside, not `Spear.step`, which may run the network more than once.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.analysis import recording
    >>> model = get_spear_model(timm.create_model("test_resnet"))
    >>> with torch.no_grad(), recording(model) as record:
    ...     logits = model(torch.randn(2, 3, 32, 32))
    >>> list(record.features())
    ['0', '1', '2', '3', '4']

    Args:
        model: the steered model.
        classifier: path of a layer whose input is recorded under "classifier" too; see `find_classifier`.
        steered: True records the output of each RSP, False its input.
    """
    places = {b.key: b for b in model.boundaries}
    if classifier is not None:
        places[CLASSIFIER] = Boundary(len(places), CLASSIFIER, classifier, "in", channel_axis=-1)
    record = Recording(list(places))
    with ExitStack() as stack:
        for key, boundary in places.items():
            add = partial(record.add, key, channel_axis=boundary.channel_axis)
            # the RSP's hook is there already: a hook before it sees its input, one after it its output
            handle = register_at(model.base_model, boundary, add, prepend=not steered)
            stack.callback(handle.remove)
        yield record


def find_classifier(model: SpearModel, x: Tensor) -> str:
    """The path of the linear layer whose output is the logits.

    >>> import timm, torch
    >>> from spear_hf import get_spear_model
    >>> from spear_hf.analysis import find_classifier
    >>> find_classifier(get_spear_model(timm.create_model("test_resnet")), torch.randn(2, 3, 32, 32))
    'fc'

    Args:
        model: the steered model.
        x: (B, C, H, W), preprocessed.

    Raises:
        DataError: the logits are not the unchanged output of a linear layer.
    """
    outputs: dict[str, Tensor] = {}
    with ExitStack() as stack:
        for name, module in model.base_model.named_modules():
            if isinstance(module, nn.Linear):
                keep = partial(outputs.__setitem__, name)
                handle = register_at(model.base_model, Boundary(0, name, name), keep, prepend=False)
                stack.callback(handle.remove)
        with torch.no_grad(), model.disable_adapter():
            logits = logits_of(model(x))
    for name, output in reversed(outputs.items()):
        if output.data_ptr() == logits.data_ptr() and output.shape == logits.shape:
            return name
    raise DataError(
        f"the logits of {type(model.base_model).__name__} are the output of none of its {len(outputs)} linear layers; "
        "name the module whose input is to be recorded: classifier='path.of.module'"
    )
