"""A rule of differentiation: what a node of autograd's graph computes, as a formula and as code of our own.

`grad` in a formula is the gradient of the result, `out` the result, the other names are the inputs of the forward
operation, as torch/tools/autograd/derivatives.yaml names them. Σ sums over what was broadcast or reduced. A gradient
is summed down to the shape of its input where the forward operation broadcast that; no formula repeats it.
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
    """The values that a rule reads: tensors and numbers that the node saved (`s.other` is `saved["other"]`), the
    gradients of all results, and shape and dtype of the inputs, None for inputs that require no grad.
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
        """Shape of an input that wants a gradient."""
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
    """One input of the forward operation: its gradient as a formula, and as code.

    The code gives None where a formula is in words alone. `derivative` is there where each element of the result
    depends on one element of the input: what the incoming gradient is multiplied by.
    """

    name: str
    formula: str
    gradient: Gradient
    derivative: Derivative | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """The derivative of one kind of node (`node`: MulBackward0). `forward` is the forward operation as a formula.

    `many` marks operations on a list of tensors: the one slot stands for each of them, and its code is told which
    (`index`) by the name of the slot it runs for.
    """

    node: str
    name: str
    forward: str
    slots: tuple[Slot, ...]
    many: bool = False

    @property
    def formula(self) -> str:
        """`out = self · other;  d self = grad · other;  d other = grad · self`."""
        return ";  ".join([f"out = {self.forward}", *(f"d {slot.name} = {slot.formula}" for slot in self.slots)])

    def slot(self, index: int) -> Slot | None:
        """The rule for an input, or None."""
        if self.many:
            return self.slots[0]
        return self.slots[index] if index < len(self.slots) else None

    def vjp(self, local: Local) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, None for those that require no grad or have no rule."""
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
    """A slot of an elementwise operation: `grad · formula`."""
    text = {"1": "grad", "-1": "-grad", "0": "0"}.get(formula, f"grad · {formula}")
    return Slot(name, text, lambda s, grad: grad * derivative(s), derivative)


def unary(node: str, name: str, forward: str, formula: str, derivative: Derivative) -> Rule:
    """The rule of an elementwise function of one tensor: `grad · formula`."""
    return Rule(node, name, forward, (each("self", formula, derivative),))


def rule(node: str, name: str, forward: str, *slots: Slot) -> Rule:
    return Rule(node, name, forward, slots)


def moves(
    nodes: str, name: str, forward: str, formula: str, read: Callable[[Local, Tensor], Any], slot: str = "self"
) -> tuple[Rule, ...]:
    """Rules of nodes (names with spaces between) whose results are elements of their input, or zeros.

    `read(s, x)` gives the results for an input `x`, so it also tells which place each element was read from.
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
    """Rules by the name of their node. Raises ValueError for duplicates."""
    found = {each_rule.node: each_rule for each_rule in rules}
    if len(found) != len(rules):
        raise ValueError("two rules are for the same node")
    return found
