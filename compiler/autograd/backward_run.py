"""Run one backward pass over an eager graph and record each node's incoming and outgoing gradients.

The pass is `torch.autograd.grad`: nothing is added to any `.grad`. As in any backward pass, the user's hooks and the
backward of their custom functions run. Our own hooks are removed afterwards.
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
"""Maximum number of elements of a tensor kept to check formulas and sums."""

Tensors = tuple[torch.Tensor | None, ...]


class FreedGraphError(ValueError):
    """Raised if an earlier backward pass freed the graph's saved tensors."""


@dataclass
class BackwardRun:
    """The gradients of one backward pass, by node name.

    `incoming` has one gradient for each result of the forward operation, `outgoing` one for each input; None if there
    is none. `leaves` has the gradient of each leaf. `tensors_in` and `tensors_out` hold small gradients as tensors.
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
        """Copies of the small tensors, None for others; autograd may accumulate into the originals in place."""
        return tuple(None if each is None or each.numel() > self.checked else _copy(each) for each in tensors)

    def note_incoming(self, node: str, grads: Sequence[torch.Tensor | None]) -> None:
        """Record a node's incoming gradients."""
        self.order.append(node)
        self.incoming[node], self.tensors_in[node] = self.values(grads), self.small(grads)

    def note_outgoing(self, node: str, grads: Sequence[torch.Tensor | None], _: object) -> None:
        """Record a node's outgoing gradients."""
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
    """Run the backward pass and record its gradients. The graph can be run again afterwards.

    `gradients` are the gradients of the outputs, by default ones. Raises FreedGraphError if an earlier pass freed the
    graph, and any exception of the user's hooks and custom functions.
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
    """Gradients of the leaves by `torch.autograd.grad`; the graph is retained. `gradients` are ones by default.

    Raises FreedGraphError if the graph was freed.
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
