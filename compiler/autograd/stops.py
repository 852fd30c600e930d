"""Record where gradients stop while the user's code runs, because autograd's graph does not show it.

Detached tensors, tensors computed under `torch.no_grad()` and frozen parameters are constants in the backward pass:
autograd's graph has no node for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from compiler.torch_api import autograd_nodes
from compiler.torch_api.fx import SourceFrame, dtype_name
from compiler.torch_api.pytrees import tree_leaves

Kind = Literal["detached", "no_grad", "frozen"]
_DETACHES = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]
MOST = 64
"""Maximum number of stops tracked for one tensor; a frozen network may have more parameters."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A gradient stop: `detach`, an operation under `no_grad` on a tensor that requires grad, or a frozen parameter.

    `parameter` is the `id` of the frozen parameter. `source` is the number of the node that the tensor was detached
    from; for a leaf it is None, and `leaf` is the leaf's `id`. `stack` has the user's frames, outermost first. `shape`
    and `dtype` are the tensor's.
    """

    kind: Kind
    op: str
    shape: tuple[int, ...]
    dtype: str
    source: int | None = None
    leaf: int | None = None
    parameter: int | None = None
    stack: tuple[SourceFrame, ...] = ()
    module: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """Gradient stops of the tensors that are read by the nodes numbered `first` to `end` (exclusive)."""

    first: int
    end: int
    stops: tuple[Stop, ...]


Where = Callable[[], tuple[str, tuple[SourceFrame, ...], str]]
"""Returns the called function's name, the user's stack and the module; called only for recorded calls."""


class Stops:
    """Tracks constants through the recorded torch calls."""

    def __init__(self) -> None:
        self._of: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.taken: list[Taken] = []

    def note_call(
        self, span: tuple[int, int], function: Callable[..., Any], given: Any, result: Any, where: Where
    ) -> None:
        """Record a finished call. `span` is the range of numbers, end exclusive, of the nodes that it made."""
        inputs = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
        constants = [each for each in inputs if not each.requires_grad]
        if span[1] > span[0]:
            if stops := self._stops_of(constants):
                self.taken.append(Taken(*span, stops))
            return
        made = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor) and _is_cut(each)]
        if made and (stops := self._new_stops(function, inputs, constants, made[0], where)):
            for each in made:
                self._of[each] = stops

    def _stops_of(self, constants: Sequence[torch.Tensor]) -> tuple[Stop, ...]:
        """The stops behind these tensors, and those of the frozen parameters among them."""
        found: dict[Stop, None] = {}
        for each in constants:
            for stop in self._of.get(each, ()):
                found[stop] = None
            if isinstance(each, torch.nn.Parameter):
                found[_frozen_stop(each)] = None
        return tuple(found)[:MOST]

    def _new_stops(
        self,
        function: Callable[..., Any],
        inputs: Sequence[torch.Tensor],
        constants: Sequence[torch.Tensor],
        made: torch.Tensor,
        where: Where,
    ) -> tuple[Stop, ...]:
        known = self._stops_of(constants)
        wanting = next((each for each in inputs if each.requires_grad), None)
        if wanting is None or any(stop.kind != "frozen" for stop in known):
            return known
        kind: Kind = "detached" if function in _DETACHES else "no_grad"
        if kind == "no_grad" and torch.is_grad_enabled():
            return known
        source = autograd_nodes.number_of(wanting.grad_fn) if wanting.grad_fn is not None else None
        leaf = id(wanting) if wanting.is_leaf else None
        op, stack, module = where()
        begun = Stop(kind, op, tuple(made.shape), dtype_name(made.dtype), source, leaf, None, stack, module)
        return (begun, *known)[:MOST]


def _is_cut(tensor: torch.Tensor) -> bool:
    """Whether a result could require grad but does not."""
    return not tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def _frozen_stop(parameter: torch.nn.Parameter) -> Stop:
    return Stop("frozen", "", tuple(parameter.shape), dtype_name(parameter.dtype), parameter=id(parameter))
