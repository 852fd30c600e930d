"""Floating-point operations of one node of an FX graph, by formula.

- Matmuls, convolutions and attention: the formulas of `torch.utils.flop_counter`.
- Pointwise operations on floats: one for each element of the result, whatever the cost on hardware, or the number in
  `POINTWISE` for combined operations.
- Reductions and scans: the number in `REDUCTIONS` for each input element.
- Pooling: one for each element of each window.
- Nothing else counts: moving, converting and selecting (views, copies, casts, `where`, gather and scatter without
  adding), random numbers, integers and booleans.

If a size is symbolic, the count is 0 (unknown).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch

POINTWISE: dict[str, int] = {"fma": 2, "lerp": 3, "addcmul": 3, "addcdiv": 3, "silu": 5, "gelu": 8, "mish": 5}
"""Operations for each element of the result, if more than one."""

_ONE = (
    "sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin",
    "scatter_add", "index_add", "scatter_reduce",
)  # fmt: skip
_FOUR = (
    *("var", "var_mean", "std", "std_mean"),  # add for the mean; subtract, square, add
    *("logsumexp", "logcumsumexp", "prepare_softmax_online"),  # maximum; subtract, exponential, add
)
REDUCTIONS: dict[str, int] = {
    **dict.fromkeys(_ONE, 1), "linalg_vector_norm": 2, **dict.fromkeys(_FOUR, 4), "_softmax": 5, "_log_softmax": 5,
}  # fmt: skip
"""Operations for each input element."""

_CASTS = ("convert_element_type", "_to_copy", "clone", "copy", "copy_", "alias", "detach", "real", "imag")
_CHOICES = ("where", "fill", "fill_", "masked_fill", "isnan", "isinf", "isfinite")
MOVEMENT: frozenset[str] = frozenset(_CASTS + _CHOICES)
"""Pointwise operations without arithmetic."""

_POOLS = frozenset({"max_pool2d_with_indices", "_low_memory_max_pool_with_offsets", "avg_pool2d", "avg_pool3d"})


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """A tensor of the graph: the name of its dtype, and its shape, which may contain symbols."""

    dtype: str
    shape: tuple[Any, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 0 if the shape is symbolic."""
        return prod(self.shape) if all(isinstance(size, int) for size in self.shape) else 0

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat", "complex"))


@dataclass(frozen=True, slots=True)
class Node:
    """A call in an FX graph: its `target` (`aten.mul.Tensor`), its tensors, and its line of Python."""

    name: str
    target: str
    outputs: tuple[TensorFacts, ...]
    inputs: Mapping[str, TensorFacts]
    code: str = ""

    @property
    def operation(self) -> str:
        """Name of the operator: `mul` for `aten.mul.Tensor`."""
        parts = self.target.split(".")
        return parts[1] if len(parts) > 1 else parts[0]

    @property
    def elements(self) -> int:
        """Number of elements of the largest result."""
        return max((tensor.elements for tensor in self.outputs), default=0)

    @property
    def has_known_sizes(self) -> bool:
        return all(tensor.elements for tensor in (*self.outputs, *self.inputs.values()))

    @property
    def is_reduction(self) -> bool:
        return self.operation in REDUCTIONS

    @property
    def is_matmul(self) -> bool:
        """Whether the node can use tensor cores: its operator has a formula in `torch.utils.flop_counter`."""
        return _formula(self.target) is not None

    @property
    def is_view(self) -> bool:
        """Whether the result is a view of an input, which needs no computation."""
        return bool(getattr(_overload(self.target), "is_view", False))

    @property
    def is_float(self) -> bool:
        return any(tensor.is_float for tensor in (*self.outputs, *self.inputs.values()))


def flops_of(node: Node) -> int:
    """Floating-point operations of a node, by the rules in the module's docstring."""
    if node.is_matmul:
        return _by_formula(node)
    if not node.is_float or node.operation in MOVEMENT:
        return 0
    if node.is_reduction:
        return REDUCTIONS[node.operation] * max((tensor.elements for tensor in node.inputs.values()), default=0)
    if node.operation in _POOLS:
        return node.elements * _window(node) if node.has_known_sizes else 0
    if node.operation in POINTWISE or _is_pointwise(node.target):
        return POINTWISE.get(node.operation, 1) * node.elements
    return 0


@cache
def _overload(target: str) -> Any:
    """`torch.ops.aten.mul.Tensor` for "aten.mul.Tensor"; None if there is no such operator."""
    namespace, _, rest = target.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, namespace, None), packet, None) if packet else None
    return getattr(found, overload or "default", None)


def _is_pointwise(target: str) -> bool:
    overload = _overload(target)
    return overload is not None and torch.Tag.pointwise in overload.tags


@cache
def _formula(target: str) -> Any:
    from torch.utils.flop_counter import flop_registry

    return flop_registry.get(getattr(_overload(target), "overloadpacket", None))


def _by_formula(node: Node) -> int:
    try:
        return _formula_result(node) if node.has_known_sizes else 0
    except (AttributeError, IndexError, StopIteration, SyntaxError, TypeError, ValueError):
        return 0  # a damaged record: the node's code is not a valid call of its operator


def _formula_result(node: Node) -> int:
    args, kwargs = arguments(node)
    results: list[torch.Tensor | None] = [_meta(tensor) for tensor in node.outputs]
    if node.operation == "convolution_backward":
        of_graph = iter(results)
        results = [next(of_graph) if wanted else None for wanted in args[-1]]
        return int(_formula(node.target)(*args, **kwargs, out_val=results))
    return int(_formula(node.target)(*args, **kwargs, out_val=results[0] if len(results) == 1 else results))


def _window(node: Node) -> int:
    args, _ = arguments(node)
    window = args[1] if len(args) > 1 else 1
    return prod(window) if isinstance(window, Sequence) else window**2


def arguments(node: Node) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments in the node's code, with meta tensors. Raises ValueError if it is no call."""
    call = ast.parse(node.code.partition(" = ")[2].strip(), mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(f"{node.name} is not a call: {node.code.strip()}")
    known = {name: _meta(tensor) for name, tensor in node.inputs.items()}
    keywords = {word.arg: _value(word.value, known) for word in call.keywords if word.arg}
    return [_value(argument, known) for argument in call.args], keywords


def _value(argument: ast.expr, known: Mapping[str, torch.Tensor]) -> Any:
    """A literal or a tensor; None for anything else, which formulas do not use."""
    if isinstance(argument, ast.Name):
        return known.get(argument.id)
    if isinstance(argument, ast.List | ast.Tuple):
        return [_value(each, known) for each in argument.elts]
    try:
        return ast.literal_eval(argument)
    except ValueError:
        return None


def _meta(tensor: TensorFacts) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype), device="meta")
