"""Differentiation rules: the gradients that a node of autograd's graph computes, as formulas and as our own code.

In a formula, `grad` is the gradient of the result, and `out` the result. The other names are the inputs of the forward
operation, as in torch/tools/autograd/derivatives.yaml. Σ sums over broadcast or reduced dims. If the forward operation
broadcasts an input, the gradient is summed to the input's shape; formulas leave that out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Gradient = Callable[["Local", Tensor], Tensor | None]
Derivative = Callable[["Local"], Any]


@dataclass(frozen=True)
class Local:
    """The values that a rule reads.

    `saved` are the tensors and numbers that the node saved; `s.other` is `saved["other"]`. `grads` are the gradients of
    all results. `inputs` are shape and dtype of each input, None for inputs that do not require grad.
    """

    saved: Mapping[str, Any]
    grads: Sequence[Tensor | None]
    inputs: Sequence[tuple[tuple[int, ...], torch.dtype] | None]

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.saved[name]
        except KeyError:
            raise AttributeError(f"the node saved no {name!r}; it saved {', '.join(self.saved)}") from None
        return as_signed_int(value)

    def size(self, index: int = 0) -> tuple[int, ...]:
        """Shape of an input that requires grad."""
        found = self.inputs[index]
        assert found is not None
        return found[0]


def as_signed_int(value: Any) -> Any:
    """Undo torch's conversion of negative dims to unsigned 64-bit numbers."""
    if isinstance(value, tuple):
        return tuple(as_signed_int(each) for each in value)
    wraps = isinstance(value, int) and not isinstance(value, bool) and value >= 2**63
    return value - 2**64 if wraps else value


@dataclass(frozen=True, slots=True)
class Slot:
    """One input of a forward operation: its gradient as a formula and as code.

    `gradient` returns None if the formula is in words only. For an elementwise operation, `derivative` is the factor by
    which the incoming gradient is multiplied.
    """

    name: str
    formula: str
    gradient: Gradient
    derivative: Derivative | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """The differentiation rule of one kind of backward node.

    `node` is the node's name (MulBackward0), `name` the rule's ("product rule"). `forward` is the forward operation as
    a formula. `many` marks operations on a list of tensors: the only slot serves all of these tensors, and its code
    reads the position of the current tensor from `s.index`.
    """

    node: str
    name: str
    forward: str
    slots: tuple[Slot, ...]
    many: bool = False

    @property
    def formula(self) -> str:
        """The rule as text: `out = self · other;  d self = grad · other;  d other = grad · self`."""
        return ";  ".join([f"out = {self.forward}", *(f"d {slot.name} = {slot.formula}" for slot in self.slots)])

    def slot(self, index: int) -> Slot | None:
        """The slot of the input at this position; None if the rule has none."""
        if self.many:
            return self.slots[0]
        return self.slots[index] if index < len(self.slots) else None

    def vjp(self, local: Local) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs; None for inputs that do not require grad or have no formula in code."""
        return tuple(self._gradient(local, index) for index in range(len(local.inputs)))

    def _gradient(self, local: Local, index: int) -> Tensor | None:
        slot, wanted = self.slot(index), local.inputs[index]
        grad = next((grad for grad in local.grads if grad is not None), None)
        if slot is None or wanted is None or grad is None:
            return None
        if self.many:
            local = Local({**local.saved, "index": index}, local.grads, local.inputs)
        shape, dtype = wanted
        found = slot.gradient(local, grad)
        if found is None:
            return None
        return (found if found.shape == shape else found.sum_to_size(shape)).to(dtype)


def each(name: str, formula: str, derivative: Derivative) -> Slot:
    """A slot of an elementwise operation, with the gradient `grad · formula`."""
    text = {"1": "grad", "-1": "-grad", "0": "0"}.get(formula, f"grad · {formula}")
    return Slot(name, text, lambda s, grad: grad * derivative(s), derivative)


def unary(node: str, name: str, forward: str, formula: str, derivative: Derivative) -> Rule:
    """The rule of an elementwise function of one tensor, with the gradient `grad · formula`."""
    return Rule(node, name, forward, (each("self", formula, derivative),))


def rule(node: str, name: str, forward: str, *slots: Slot) -> Rule:
    return Rule(node, name, forward, slots)


def moves(
    nodes: str, name: str, forward: str, formula: str, read: Callable[[Local, Tensor], Any], slot: str = "self"
) -> tuple[Rule, ...]:
    """Rules for operations whose results are elements of the input, or zeros.

    `nodes` are node names, separated by spaces. `read(s, x)` applies the operation to `x`. The gradient calls
    `read` on the positions of the elements, to find the position of each result in the input.
    """

    def gradient(s: Local, grad: Tensor) -> Tensor:
        count = math.prod(s.size())
        places = torch.arange(1, count + 1, dtype=torch.float64, device=grad.device).reshape(s.size())
        found = read(s, places)  # 0 for what came from no place
        pieces = [(found, grad)] if isinstance(found, Tensor) else zip(found, s.grads, strict=True)
        sums = torch.zeros(count + 1, dtype=grad.dtype, device=grad.device)
        for piece, its in pieces:
            if its is not None:
                sums.index_add_(0, piece.long().reshape(-1), its.reshape(-1).expand(piece.numel()))
        return sums[1:].reshape(s.size())

    return tuple(rule(node, name, forward, Slot(slot, formula, gradient)) for node in nodes.split())


def table(*rules: Rule) -> dict[str, Rule]:
    """Map node names to rules. Raises ValueError for duplicates."""
    found = {each_rule.node: each_rule for each_rule in rules}
    if len(found) != len(rules):
        raise ValueError("two rules are for the same node")
    return found
