"""Run a call in float64, operator by operator, with the random numbers of another run.

Narrower floating-point results become float64. Mutated tensors and views keep their dtype: a converted copy would not
share memory with the original.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import native_batch_norm_backward
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.torch_api.decomposition_tables import is_operator, is_random
from compiler.torch_api.pytrees import tree_leaves, tree_map

FORMULAS: dict[Any, Any] = {torch.ops.aten.native_batch_norm_backward.default: native_batch_norm_backward}
"""Operators whose own kernels may be wrong in any dtype, and their formulas.

With a batch of 1, the kernel on a CPU reads an incoming gradient that is not contiguous as if it were (torch 2.13).
"""

Drawn = tuple[str, bool, list[Tensor]]
"""(random operator, whether it drew random numbers, its results); attention without dropout draws none."""


def random_state() -> tuple[bytes, ...]:
    """The states of the default generators of the CPU and of all GPUs."""
    states = [torch.random.get_rng_state()]
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return tuple(bytes(state.numpy().tobytes()) for state in states)


class Recording(TorchDispatchMode):
    """Records random operators and their results in `drawn`; for higher-order operators only whether they drew."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[Drawn] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nested = not is_operator(func)
        if not (nested or is_random(func)):
            return func(*args, **(kwargs or {}))
        before = random_state()
        result = func(*args, **(kwargs or {}))
        tensors = [] if nested else [leaf.detach().clone() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        drew = random_state() != before
        self.drawn.append((str(func), drew, tensors if drew else []))
        return result


class Widened(TorchDispatchMode):
    """Runs operators in float64. Raises WidenedError if random numbers are drawn inside an operator or a body.

    `uses_formulas` is whether an operator was computed by its formula.
    """

    supports_higher_order_operators = True

    def __init__(self, drawn: Sequence[Drawn]) -> None:
        super().__init__()
        self._drawn = iter(drawn)
        self.uses_formulas = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_operator(func):
            if self._next_draw(func) is not None:
                raise WidenedError(f"{func} draws its random numbers inside")
            args, kwargs = tree_map(wide, (args, kwargs))
            return tree_map(wide, func(*args, **kwargs))
        if is_random(func) and (results := self._next_draw(func)) is not None:
            return _given_result(func, args, results)
        if _is_view(func):
            return func(*args, **kwargs)
        changed = {id(value) for value in _changed_arguments(func, args, kwargs)}
        args, kwargs = tree_map(lambda value: value if id(value) in changed else wide(value), (args, kwargs))
        self.uses_formulas |= func in FORMULAS
        result = FORMULAS.get(func, func)(*args, **kwargs)
        return result if changed else tree_map(wide, result)

    def _next_draw(self, func: Any) -> list[Tensor] | None:
        """Results of the other run's next random operator; None if it drew no numbers. Raises WidenedError."""
        name, drew, results = next(self._drawn, ("", True, []))
        if name != str(func):
            raise WidenedError(f"{func} draws random numbers where {name or 'nothing'} did before")
        return results if drew else None


class WidenedError(RuntimeError):
    """A call can't be run in float64; the message says why."""


def _given_result(func: Any, args: Any, results: list[Tensor]) -> Any:
    """The result of a random operator with the random numbers of the other run."""
    if str(func) == "aten.native_dropout.default":
        return wide(args[0]) * results[1] / (1 - args[1]), results[1]
    if func.overloadpacket.__name__.removesuffix("_") not in _DRAWS:
        raise WidenedError(f"{func} draws its random numbers inside")
    return args[0].copy_(results[0]) if func._schema.is_mutable else wide(results[0])


_DRAWS = frozenset({
    "bernoulli", "uniform", "normal", "random", "exponential", "geometric", "cauchy", "log_normal", "multinomial",
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "poisson", "binomial",
})  # fmt: skip
"""Operators that return the drawn numbers themselves, without further differentiable computation."""


def wide(value: Any) -> Any:
    """Convert a floating-point or complex tensor or dtype to double precision; return other values unchanged."""
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    if isinstance(value, Tensor) and value.dtype in _WIDE:
        return value.to(_WIDE[value.dtype])
    return value


def wide_leaf(value: Any) -> Any:
    """Convert a tensor with `wide` and detach it, keeping requires_grad; return other values unchanged."""
    return wide(value.detach()).requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def _is_view(func: Any) -> bool:
    return any(item.alias_info is not None and not item.alias_info.is_write for item in func._schema.returns)


def _changed_arguments(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The arguments that an operator writes to."""
    for place, item in enumerate(func._schema.arguments):
        if item.alias_info is not None and item.alias_info.is_write:
            value = kwargs.get(item.name) if item.kwarg_only or place >= len(args) else args[place]
            yield from tree_leaves(value)
