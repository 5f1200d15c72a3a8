"""Which tensors carry everything the logits know of the image: path counts in the autograd graph of one forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge

Edge = tuple[Node, int]
"""One tensor's identity in an autograd graph: the node that made it and the number of that node's output.

Two Python tensors with the same edge are the same value; after an in-place operation a Python tensor has another.
"""

_MODULUS = 2**127 - 1
"""Path counts grow like 2^depth; modulo a Mersenne prime, two different counts meet with probability 2^-127."""


def edge_of(tensor: Tensor) -> Edge:
    """The identity of `tensor` at this moment; it must require grad."""
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def inputs_of(node: Node) -> Iterator[Edge]:
    """The edges that `node` computes its outputs from."""
    return ((parent, number) for parent, number in node.next_functions if parent is not None)


def topological(edges: Sequence[Edge]) -> list[Node]:
    """Every node that `edges` depend on, inputs before what is computed from them; iterative, for deep graphs."""
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
    """The paths from the image to the logits, where only the image requires grad.

    A tensor t is a legal z_d of Eq. 2 (f = rest after t, and nothing else) exactly when every path runs through it:
    paths(logits -> t) * paths(t -> image) = paths(logits -> image).

    Args:
        logits: what the model answered.
        image: the leaf that the probe put in.
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
        self._to_logits: dict[Edge, int] = {self.logits: 1}
        from_node = {self.logits[0]: 1}
        for node in reversed(order):
            for edge in inputs_of(node):
                self._to_logits[edge] = (self._to_logits.get(edge, 0) + from_node[node]) % _MODULUS
                from_node[edge[0]] = (from_node.get(edge[0], 0) + from_node[node]) % _MODULUS
        self.total = self._to_image.get(self.logits[0], 0)

    def paths_through(self, edge: Edge) -> int:
        """How many paths from the image to the logits run through `edge`, modulo a large prime."""
        return self._to_logits.get(edge, 0) * self._to_image.get(edge[0], 0) % _MODULUS

    def is_used(self, edge: Edge) -> bool:
        """Whether `edge` lies on any path from the image to the logits."""
        return self.paths_through(edge) != 0

    def is_cut(self, edge: Edge) -> bool:
        """Whether every path from the image to the logits runs through `edge`."""
        return self.total != 0 and self.paths_through(edge) == self.total

    def around(self, edge: Edge) -> set[Edge]:
        """The tensors, not computed from `edge`, from which a path leads to the logits past `edge`."""
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
        """A topological order: what is computed from `edge` has a higher rank."""
        return self.rank[edge[0]]
