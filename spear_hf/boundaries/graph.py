"""Which tensors carry everything that the logits know of the image, by path counts in the autograd graph of a forward.

In the probe the weights are frozen and only the image requires grad, so the autograd graph of the logits is the data
flow from image to logits, and a tensor requires grad exactly if it depends on the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Edge = tuple[Node, int]
"""A tensor's identity in an autograd graph: the node that computed it, and which output of that node it is.

Two Python tensors with the same edge have the same value. An in-place operation gives a tensor another edge. Edges keep
their nodes alive, which comparing them needs: a node whose last reference is gone may get another Python object.
"""

_MODULUS = 2**127 - 1
"""Path counts double with each residual block. Counted modulo a large prime (a Mersenne prime) they stay small numbers,
and two different counts agree with probability 2^-127."""


def edge_of(tensor: Tensor) -> Edge:
    """The identity of `tensor` at this moment; it must require grad.

    >>> import torch
    >>> from spear_hf.boundaries.graph import edge_of
    >>> x = torch.ones(2, requires_grad=True) * 2
    >>> edge_of(x) == edge_of(x.relu_())
    False
    """
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def inputs_of(node: Node) -> Iterator[Edge]:
    """The edges that `node` computes its outputs from.

    >>> import torch
    >>> from spear_hf.boundaries.graph import edge_of, inputs_of
    >>> x = torch.ones(2, requires_grad=True)
    >>> list(inputs_of(edge_of(2 * x)[0])) == [edge_of(x)]
    True
    """
    return ((parent, number) for parent, number in node.next_functions if parent is not None)


def topological(edges: Sequence[Edge]) -> list[Node]:
    """Every node that `edges` depend on, theirs included, each after the nodes that it depends on.

    Iterative, because the graph of a deep network exceeds Python's recursion limit.

    >>> import torch
    >>> from spear_hf.boundaries.graph import edge_of, topological
    >>> [node.name().rpartition("::")[2] for node in topological([edge_of(torch.ones(2, requires_grad=True) * 2)])]
    ['AccumulateGrad', 'MulBackward0']
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, Iterator[Edge]]] = []
    for root, _ in edges:
        if root not in seen:
            seen.add(root)
            stack.append((root, inputs_of(root)))
        while stack:
            node, parents = stack[-1]
            parent = next((parent for parent, _ in parents if parent not in seen), None)
            if parent is None:
                order.append(node)
                stack.pop()
            else:
                seen.add(parent)
                stack.append((parent, inputs_of(parent)))
    return order


class DataFlow:
    """The paths from the image to the logits in a forward where only the image requires grad.

    A tensor t is a possible z_d of Eq. 2 (the logits are a function of t alone) exactly if every path runs through it,
    that is, if t is a cut: paths(image -> t) * paths(t -> logits) = paths(image -> logits).

    Args:
        logits: what the model answered.
        image: the leaf that the forward started from.

    >>> import torch
    >>> from spear_hf.boundaries.graph import DataFlow, edge_of
    >>> image = torch.ones(2, requires_grad=True)
    >>> x = image * 2
    >>> branch = x.exp()
    >>> flow = DataFlow(x + branch, image)
    >>> flow.is_cut(edge_of(x)), flow.is_cut(edge_of(branch))
    (True, False)
    """

    def __init__(self, logits: Tensor, image: Tensor) -> None:
        self.logits, self.image = edge_of(logits), edge_of(image)
        order = topological([self.logits])
        self.rank = {node: i for i, node in enumerate(order)}
        self._to_image: dict[Node, int] = {}
        for node in order:
            if node == self.image[0]:
                self._to_image[node] = 1
            else:
                self._to_image[node] = sum(self._to_image[parent] for parent, _ in inputs_of(node)) % _MODULUS
        # By edge rather than by node: of a node with several outputs (split) each output is a tensor of its own.
        self._to_logits: dict[Edge, int] = {self.logits: 1}
        from_node = {self.logits[0]: 1}
        for node in reversed(order):
            for edge in inputs_of(node):
                self._to_logits[edge] = (self._to_logits.get(edge, 0) + from_node[node]) % _MODULUS
                from_node[edge[0]] = (from_node.get(edge[0], 0) + from_node[node]) % _MODULUS
        self.total = self._to_image.get(self.logits[0], 0)

    def is_used(self, edge: Edge) -> bool:
        """Whether any path from the image to the logits runs through `edge`."""
        return self._paths_through(edge) != 0

    def is_cut(self, edge: Edge) -> bool:
        """Whether every path from the image to the logits runs through `edge`."""
        return self.total != 0 and self._paths_through(edge) == self.total

    def around(self, edge: Edge) -> set[Edge]:
        """The tensors, not computed from `edge`, from which a path leads to the logits past `edge`.

        Empty if `edge` is a cut; otherwise these are what bypasses it.
        """
        dependent = {edge[0]}
        for node in self.rank:
            if any(parent in dependent for parent, _ in inputs_of(node)):
                dependent.add(node)
        reached: set[Edge] = set()
        pending = [self.logits]
        while pending:
            for other in inputs_of(pending.pop()[0]):
                if other != edge and other not in reached:
                    reached.add(other)
                    pending.append(other)
        return {other for other in reached if other[0] not in dependent}

    def depends(self, edge: Edge, on: set[Edge]) -> bool:
        """Whether `edge` was computed from any of `on`."""
        nodes = {node for node, _ in on}
        return any(node in nodes for node in topological([edge]))

    def rank_of(self, edge: Edge) -> int:
        """The place of `edge` in a topological order; what is computed from `edge` has a higher rank."""
        return self.rank[edge[0]]

    def _paths_through(self, edge: Edge) -> int:
        """How many paths from the image to the logits run through `edge`, modulo a large prime."""
        return self._to_logits.get(edge, 0) * self._to_image.get(edge[0], 0) % _MODULUS
