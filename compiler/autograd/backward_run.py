"""One backward pass over an eager graph, watched: every gradient that goes into a node and comes out of it.

The pass is `torch.autograd.grad`: nothing is added to any `.grad`. Hooks of the user's run, and the backward of their
custom functions, as in any backward pass. Our own hooks are taken off again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from compiler.autograd.eager_graph import EagerGraph
from compiler.autograd.values import SHOWN, Value

CHECKED = 4096
"""Tensors of up to so many elements are kept, to check formulas and sums with."""

Tensors = tuple[torch.Tensor | None, ...]


class FreedGraphError(ValueError):
    """The graph's saved tensors were freed by an earlier backward pass."""


@dataclass
class BackwardRun:
    """By the name of a node: `incoming` gradients (one for each result), `outgoing` (one for each input), None where
    there is none; by the name of a leaf, its gradient. `tensors_in` and `tensors_out` hold those that are small.
    """

    shown: int = SHOWN
    checked: int = CHECKED
    order: list[str] = field(default_factory=list)
    incoming: dict[str, tuple[Value | None, ...]] = field(default_factory=dict)
    outgoing: dict[str, tuple[Value | None, ...]] = field(default_factory=dict)
    leaves: dict[str, Value | None] = field(default_factory=dict)
    tensors_in: dict[str, Tensors] = field(default_factory=dict)
    tensors_out: dict[str, Tensors] = field(default_factory=dict)
    leaf_tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)

    def values(self, tensors: Sequence[torch.Tensor | None]) -> tuple[Value | None, ...]:
        return tuple(None if each is None else Value.of_tensor(each, self.shown) for each in tensors)

    def small(self, tensors: Sequence[torch.Tensor | None]) -> Tensors:
        """Copies of the small tensors, as autograd may accumulate a gradient in place."""
        return tuple(None if each is None or each.numel() > self.checked else _copy(each) for each in tensors)

    def note_incoming(self, node: str, grads: Sequence[torch.Tensor | None]) -> None:
        """A node begins, with these gradients of its results."""
        self.order.append(node)
        self.incoming[node], self.tensors_in[node] = self.values(grads), self.small(grads)

    def note_outgoing(self, node: str, grads: Sequence[torch.Tensor | None], _: object) -> None:
        """A node ends, with these gradients of its inputs."""
        self.outgoing[node], self.tensors_out[node] = self.values(grads), self.small(grads)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    return detached.clone() if detached.layout == torch.strided else detached.to_dense()


def run_backward(
    graph: EagerGraph,
    outputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor] | None = None,
    shown: int = SHOWN,
    checked: int = CHECKED,
) -> BackwardRun:
    """Run the backward pass and watch it; the graph can be run again after it.

    `gradients` are those of the outputs; 1 for each element of each without them. Raises FreedGraphError where a pass
    has been run that freed the graph, and what the user's own hooks and functions raise.
    """
    watched = BackwardRun(shown, checked)
    leaves = [node for node in graph.nodes if node.leaf is not None]
    tensors = [node.leaf for node in leaves if node.leaf is not None]
    wanted = [output for output in outputs if output.requires_grad]
    with ExitStack() as stack:
        for node in graph.nodes:
            if node.kind not in ("accumulate", "outer"):
                stack.callback(node.function.register_prehook(partial(watched.note_incoming, node.name)).remove)
                stack.callback(node.function.register_hook(partial(watched.note_outgoing, node.name)).remove)
        found = differentiate(wanted, tensors, gradients)
    watched.leaf_tensors = {node.name: each for node, each in zip(leaves, watched.small(found), strict=True)}
    watched.leaves = {node.name: each for node, each in zip(leaves, watched.values(found), strict=True)}
    return watched


def differentiate(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor] | None = None
) -> Tensors:
    """`torch.autograd.grad`, beginning with these gradients of the outputs, or 1; the graph stays.

    Raises FreedGraphError where it is gone.
    """
    begin = list(gradients) if gradients is not None else [torch.ones_like(output) for output in outputs]
    try:
        return tuple(torch.autograd.grad(outputs, leaves, begin, retain_graph=True, allow_unused=True))
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise FreedGraphError(
            "this graph was freed by the backward pass that was run: what it saved is gone. Call backward with "
            "retain_graph=True, or give the function that builds the graph (a lambda) in place of its result"
        ) from None
