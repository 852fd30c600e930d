"""Check gradients against finite differences in float64, by calling the user's function again.

Every call gets copies of all tensors, floating-point ones in float64, and the same random numbers, so none of the
user's tensors is written to. A central difference (f(x + h) - f(x - h)) / 2h with h = ∛ε is off by about 1e-10.
Complex leaves are perturbed in both parts: the sum changes by Re(conj(gradient) · h), as torch defines gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from compiler.torch_api import autograd_nodes
from compiler.torch_api.eager import run_eagerly
from compiler.torch_api.pytrees import tree_leaves, tree_map
from compiler.torch_api.widened import wide

EACH = 64
"""Maximum number of elements perturbed one by one; a larger leaf is perturbed along random directions."""
DIRECTIONS = 4
STEP = 2.0**-17
_CONVERTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


@dataclass(frozen=True, slots=True)
class Difference:
    """Errors of one leaf's gradient.

    `error` compares float64 autograd with finite differences, `rounding` the run's gradient with float64 autograd. Each
    is the largest difference, divided by the largest gradient if that is above 1; None if unknown, with a `note`.
    `calls` counts function calls. `directions` counts random directions; 0 if each element was perturbed on its own.
    """

    leaf: str
    error: float | None
    rounding: float | None
    calls: int = 0
    directions: int = 0
    note: str = ""


def differences(
    function: Callable[[], Any],
    leaves: Mapping[str, Tensor],
    found: Mapping[str, Tensor | None],
    random: Tensor | None = None,
) -> tuple[Difference, ...]:
    """Check gradients of the sum of the function's results. Calls the function many times.

    `found` are the gradients to check; `random` is torch's RNG state before the call that computed them. Values that
    autograd treats as constants (detached, or read by `item()`) vary with the leaves here, which shows as an error.
    Raises any exception of the function.
    """
    names = [name for name in leaves if found.get(name) is not None]
    with torch.random.fork_rng(devices=[]):
        caller = _Caller(
            function, [leaves[name] for name in names], torch.get_rng_state() if random is None else random
        )
        reference = caller.gradients()
        return tuple(
            _difference(caller, index, name, reference[index], found[name]) for index, name in enumerate(names)
        )


def _difference(caller: _Caller, index: int, name: str, reference: Tensor | None, run: Tensor | None) -> Difference:
    assert run is not None
    if reference is None:
        return Difference(name, None, None, note="this leaf takes no part when the function is called again")
    count = reference.numel()
    if not count:
        return Difference(name, 0.0, 0.0)
    each = count <= EACH
    kind = torch.complex128 if reference.is_complex() else torch.float64
    directions = torch.eye(count, dtype=kind) if each else torch.randn(DIRECTIONS, count, dtype=kind)
    if each and reference.is_complex():
        directions = torch.cat((directions, 1j * directions))
    expected = (directions @ reference.conj().reshape(-1).cpu()).real
    measured = torch.stack([caller.slope(index, direction) for direction in directions])
    scale = max(1.0, float(expected.abs().max()))
    error = float((measured - expected).abs().max()) / scale
    rounding = float((wide(_dense(run)) - reference).abs().max()) / max(1.0, float(reference.abs().max()))
    calls, chosen = 2 * len(directions), 0 if each else DIRECTIONS
    if not (math.isfinite(error) and math.isfinite(rounding)):
        note = "NaN or infinity in the gradient, or in the function near the leaf"
        return Difference(name, None, None, calls, chosen, note)
    return Difference(name, error, rounding, calls, chosen)


@dataclass(frozen=True)
class _Caller:
    """Calls the function in float64 with perturbed leaves."""

    function: Callable[[], Any]
    leaves: Sequence[Tensor]
    random: Tensor

    def _total(self, leaves: Sequence[Tensor]) -> Tensor:
        torch.set_rng_state(self.random)
        with run_eagerly(), _in_double(list(zip(self.leaves, leaves, strict=True))):
            value = self.function()
        parts = [each for each in tree_leaves(value) if isinstance(each, Tensor) and each.is_floating_point()]
        return torch.stack([part.sum().double() for part in parts]).sum()

    def _copies(self) -> list[Tensor]:
        return [wide(leaf.detach()).clone() for leaf in self.leaves]

    def gradients(self) -> tuple[Tensor | None, ...]:
        leaves = [leaf.requires_grad_() for leaf in self._copies()]
        total = self._total(leaves)
        found = torch.autograd.grad(total, leaves, allow_unused=True)
        return tuple(None if each is None else _dense(each) for each in found)

    def slope(self, index: int, direction: Tensor) -> Tensor:
        ahead, behind = (self._total_at(index, direction * step) for step in (STEP, -STEP))
        return (ahead - behind) / (2 * STEP)

    def _total_at(self, index: int, by: Tensor) -> Tensor:
        leaves = self._copies()
        leaves[index] += by.reshape(leaves[index].shape).to(leaves[index].device)
        return self._total([leaf.requires_grad_() for leaf in leaves]).detach().cpu()


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


@contextmanager
def _in_double(moved: Sequence[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Run torch calls and custom autograd functions in float64; a TorchFunctionMode does not see the latter."""
    mode = _InDouble(moved)
    with autograd_nodes.around_custom_functions(mode.run), mode:
        yield


class _InDouble(TorchFunctionMode):
    """Converts the arguments of each torch call to float64; copies tensors made outside of the block."""

    def __init__(self, moved: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._known = {id(old): (old, new) for old, new in moved} | {id(new): (new, new) for _, new in moved}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.run(torch.Tensor.double if func in _CONVERTS else func, args, kwargs or {})

    def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call in float64 and return its result."""
        args, kwargs = tree_map(self._wide_argument, (args, dict(kwargs)))
        return tree_map(self._wide_result, function(*args, **kwargs))

    def _wide_argument(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return wide(value)
        if id(value) not in self._known:
            self._known[id(value)] = (value, wide(value.detach().clone()))
        return self._known[id(value)][1]

    def _wide_result(self, value: Any) -> Any:
        value = wide(value)
        if isinstance(value, Tensor):
            self._known[id(value)] = (value, value)
        return value
