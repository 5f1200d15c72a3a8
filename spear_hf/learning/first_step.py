"""Learning that cannot happen is said at the first step, before anything is learned."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spear_hf.backbones.fingerprint import Fingerprint
from spear_hf.backbones.tensors import quantized_layers
from spear_hf.config import differences
from spear_hf.errors import InputError, LaunchError
from spear_hf.utils.distributed import ProcessGroup


def refuse_probabilities(logits: Tensor) -> None:
    """Raise InputError for outputs whose rows are non-negative and sum to 1.

    >>> import torch
    >>> from spear_hf.learning.first_step import refuse_probabilities
    >>> refuse_probabilities(torch.tensor([[2.0, -1.0]]))

    Raises:
        InputError: the outputs are probabilities; their softmax would be nearly uniform, and nothing true is learned.
    """
    rows = logits.detach().float()
    if len(rows) and bool((rows >= 0).all()) and bool(((rows.sum(1) - 1).abs() < 1e-3).all()):
        raise InputError(
            "the model's outputs are probabilities, each row sums to 1, and allowed are logits; take the softmax off, "
            "or let the model return torch.log(probabilities)"
        )


def refuse_no_gradient(logits: Tensor, values: Mapping[str, Tensor], base: nn.Module) -> None:
    """Raise InputError unless the graph of the logits leads back to every RSP value; nothing is computed.

    >>> import torch
    >>> from torch import nn
    >>> from spear_hf.learning.first_step import refuse_no_gradient
    >>> gamma = torch.ones(2, requires_grad=True)
    >>> refuse_no_gradient(gamma * 3, {"0.gamma": gamma}, nn.Identity())

    Args:
        logits: computed with gradients enabled.
        values: "<boundary key>.gamma" and ".beta" -> leaves, or parts of one.
        base: for the message.

    Raises:
        InputError: a layer behind an RSP passes no gradient: int8 weights, no_grad, detach, or numpy in a forward.
    """
    reached = _reached(logits)
    lost = sorted({key.rsplit(".", 1)[0] for key, value in values.items() if _edge(value) not in reached})
    if not lost:
        return
    integer = quantized_layers(base)
    why, way_out = "a layer behind it has no gradient (no_grad, detach)", ""
    if integer:
        name, library = next(iter(integer.items()))
        why = f"its layer {name} is quantised by {library} for inference alone"
        way_out = ' with check_base="warn"'
    raise InputError(
        f"no gradient reaches the RSPs at boundaries {lost}, so they could not learn: {why}; learn on the float model "
        f"and load the adapter onto this one{way_out}, or choose later boundaries"
    )


def _edge(value: Tensor) -> tuple[Any, int]:
    """What stands for a tensor in a graph: its node and which of the node's outputs it is."""
    return (value.grad_fn, value.output_nr) if value.grad_fn is not None else (id(value), 0)


def _reached(logits: Tensor) -> set[tuple[Any, int]]:
    found: set[tuple[Any, int]] = set()
    waiting = [] if logits.grad_fn is None else [logits.grad_fn]
    nodes = set(waiting)
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            found.add((id(leaf), 0))
        if "NotImplemented" in node.name():  # of an operator without a derivative, such as int8 matrix products
            continue
        for following, number in node.next_functions:
            if following is not None:
                found.add((following, number))
                if following not in nodes:
                    nodes.add(following)
                    waiting.append(following)
    return found


def refuse_other_ranks(
    processes: ProcessGroup, config: Mapping[str, Any], base: Mapping[str, Any], values: Mapping[str, Tensor]
) -> None:
    """Raise LaunchError, on every process, unless all of them learn the same thing.

    Args:
        processes: all of them call this.
        config: of the learner.
        base: facts with the fingerprint of the base.
        values: what the RSPs begin with.

    >>> from spear_hf.learning.first_step import refuse_other_ranks
    >>> from spear_hf.utils.distributed import ProcessGroup
    >>> refuse_other_ranks(ProcessGroup(), {}, {}, {})

    Raises:
        LaunchError: another configuration, base or adapter; it says which process, and what differs.
    """
    if processes.count == 1:
        return
    start = {key: value.detach().float().cpu() for key, value in values.items()}
    first, *others = processes.gathered([(dict(config), dict(base), start)])
    for rank, (other_config, other_base, other_start) in enumerate(others, 1):
        if differ := differences(other_config, first[0]):
            what = f"another configuration ({differ.replace(', here ', ', on process 0 ')})"
        elif apart := _apart(first[1], other_base):
            what = f"another base model ({apart})"
        elif first[2].keys() != other_start.keys() or any(
            not torch.equal(value, other_start[key]) for key, value in first[2].items()
        ):
            what = "an adapter of other values"
        else:
            continue
        raise LaunchError(
            f"process {rank} has {what} than process 0, and together they learn one adapter; give all processes the "
            "same model and configuration"
        )


def _apart(first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    return Fingerprint.from_dict(first["fingerprint"]).difference(Fingerprint.from_dict(other["fingerprint"]))
