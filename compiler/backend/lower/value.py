"""State and helpers of lowering rules: tensors as functions of coordinates, sizes as indices, new buffers and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from operator import add, floordiv, mod, mul
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import Node

from compiler.backend.ir import BackendError, Buffer, Extern, Kernel, Loop, Step, Strided
from compiler.backend.ir.expr import Expr, Load, Shape
from compiler.backend.ir.index import Index, Symbol, Var, product
from compiler.backend.ir.scalar import DTYPES, HALVES
from compiler.backend.torch_glue.index_bounds import settle_max_and_min, specialize_symbols, unbounded_symbols
from compiler.torch_api.fx import value_of

if TYPE_CHECKING:
    from compiler.backend.passes.context import Thresholds

Coordinates: TypeAlias = Callable[[Shape], Shape]
Value: TypeAlias = Callable[[Shape], Expr]
"""Function from the coordinates of an element to its expression."""
Rule: TypeAlias = Callable[..., Any]
"""Function that lowers a node to loops. Arguments: the lowering, and the node's tensors, sizes and numbers."""
_OPERATORS = {
    "Add": add, "Mul": mul, "Mod": mod, "PythonMod": mod,
    "FloorDiv": floordiv, "CleanDiv": floordiv, "IntTrueDiv": floordiv,
}  # fmt: skip
"""Index operations by the name of their SymPy class."""


class NoRuleError(Exception):
    """Raised if an operator, or this call of it, can't be lowered to loops; it becomes an extern call."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: a view of a buffer. `at` maps its coordinates to coordinates of the buffer, for loops;
    `strided` is the same view for extern calls.
    """

    buffer: str
    dtype: torch.dtype
    shape: Shape
    at: Coordinates
    strided: Strided

    def load(self, coordinates: Shape) -> Expr:
        """Load the element at these coordinates, one per dimension."""
        return Load(self.buffer, self.at(coordinates), checked_dtype(self.dtype))

    def dimension(self, dim: int) -> int:
        """Convert a dimension, which may be negative, to a non-negative one."""
        return dim % len(self.shape) if self.shape else 0


@dataclass(slots=True)
class Lowering:
    """The state of lowering: the program so far, and the current `node`.

    `starts` has storage offsets by buffer, in elements. `seeds` has the nodes that draw a seed, by seed buffer: one
    buffer for each device. `padded` caches padded operands of matmuls.
    """

    node: Node
    thresholds: Thresholds
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    starts: dict[str, Any] = field(default_factory=dict)
    mutated: set[str] = field(default_factory=set)
    seeds: dict[str, list[str]] = field(default_factory=dict)
    padded: dict[str, Tensor] = field(default_factory=dict)
    source: str = ""
    operator: str = ""

    @property
    def meta(self) -> Any:
        """Fake tensor of the node's result, a tuple for several results."""
        return value_of(self.node)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the node's result. Raises NoRuleError if loops do not support it."""
        return checked_dtype(self.meta.dtype)

    def view(self, tensor: Tensor, change: Coordinates, meta: Any = None) -> Tensor:
        """View of a tensor. `change` maps coordinates of the view to those of the tensor. `meta` is the view's
        fake tensor, by default the node's.
        """
        strided = self.place(tensor.buffer, self.meta if meta is None else meta)
        return replace(tensor, shape=strided.shape, at=lambda at: tensor.at(change(at)), strided=strided)

    def place(self, buffer: str, meta: Any) -> Strided:
        """Strided view of a buffer with the layout of the fake tensor `meta`."""
        start = index_of(meta.storage_offset() - self.starts.get(buffer, 0))
        return Strided(buffer, shape_of(meta.shape), strides_of(meta), start)

    def whole(self, name: str, meta: Any) -> Tensor:
        """Add a buffer with the layout of the fake tensor `meta`, and record its storage offset for views of it."""
        if meta.layout is torch.strided:
            self.starts[name] = meta.storage_offset()
        return self.add(Buffer(name, meta.dtype, shape_of(meta.shape), strides_of(meta), str(meta.device)))

    def add(self, buffer: Buffer) -> Tensor:
        """Add a buffer; returns it as a tensor."""
        self.buffers[buffer.name] = buffer
        strided = Strided(buffer.name, buffer.shape, buffer.strides, Index.of(0))
        return Tensor(buffer.name, buffer.dtype, buffer.shape, lambda coordinates: coordinates, strided)

    def fill(self, value: Value, suffix: str = "", meta: Any = None, dtype: torch.dtype | None = None) -> Tensor:
        """Add a buffer and a loop that fills it with `value`. The buffer has the layout of `meta`, by default of the
        node's result, and its dtype unless `dtype` is given.
        """
        meta, name = self.meta if meta is None else meta, f"{self.node.name}{suffix}"
        checked_dtype(meta.dtype)
        tensor = self.whole(name, meta)
        if overlaps(tensor.shape, tensor.strided.strides):
            raise NoRuleError("elements of its result share memory")
        if dtype is not None:
            tensor = self.add(replace(self.buffers[name], dtype=dtype))
        return self.store(tensor, value)

    def store(self, target: Tensor, value: Value, reduction: str = "", over: tuple[Var, ...] = ()) -> Tensor:
        """Add a loop that fills `target` with `value`, or with its reduction over `over`; returns `target`."""
        ranges, at = walk(target.shape, "i")
        self.append(Loop(target.buffer, ranges, at, value(at), reduction, over))
        return target

    def temporary(self, suffix: str, dtype: torch.dtype, shape: Shape, like: Tensor) -> Tensor:
        """Add a contiguous buffer for an intermediate value of the operator, on the device of `like`."""
        device = self.buffers[like.buffer].device
        return self.add(Buffer(f"{self.node.name}_{suffix}", dtype, shape, contiguous(shape), device))

    def append(self, loop: Loop) -> None:
        """Append a loop as a kernel of its own."""
        origins = (self.node.name,)
        loop = replace(loop, order=len(self.steps), origins=origins, source=self.source, operator=self.operator)
        self.steps.append(Kernel(loop.target, loop.ranges, loop.reduced, (loop,)))

    def call(self, name: str, function: Any, args: Iterable[Any], made: Any, **facts: Any) -> None:
        """Append an extern call. `made` names the buffers of its results."""
        step = Extern(name, function, tuple(args), (), made, origins=(self.node.name,), source=self.source)
        self.steps.append(replace(step, **facts))

    def call_library(self, args: Iterable[Any], made: Any, function: Any = None) -> None:
        """Append an extern call of the node's operator, or of another function, with lowered arguments."""
        function = function or self.node.target
        given = (arg.strided if isinstance(arg, Tensor) else arg for arg in args)
        self.call(str(function), function, given, made)


def walk(shape: Sequence[Index], prefix: str) -> tuple[tuple[Var, ...], Shape]:
    """Loop variables over a shape, and coordinates made of them: 0 for a dimension of size 1, which has no variable."""
    variables = {dim: Var(f"{prefix}{dim}", size) for dim, size in enumerate(shape) if size.constant != 1}
    return tuple(variables.values()), tuple(Index.of(variables.get(dim, 0)) for dim in range(len(shape)))


def contiguous(shape: Sequence[Index]) -> Shape:
    """Strides of a contiguous (row-major) tensor."""
    return tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))


def overlaps(shape: Sequence[Index], strides: Sequence[Index]) -> bool:
    """Whether elements of a tensor share memory, judged by its constant strides. Symbolic sizes count as 2, the
    smallest possible size, as torch specializes 0 and 1.
    """
    if any(size.constant == 0 for size in shape):
        return False
    steps = [
        (stride.constant, 1 if size.constant is None else size.constant - 1)
        for size, stride in zip(shape, strides, strict=True)
        if stride.constant is not None and size.constant != 1
    ]
    last = 0
    for stride, count in sorted(steps):
        if stride <= last:
            return True
        last += stride * count
    return False


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype to compute in: float32 for float16 and bfloat16, else the dtype itself.

    Raises NoRuleError if loops do not support the dtype.
    """
    return torch.float32 if dtype in HALVES else checked_dtype(dtype)


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype. Raises NoRuleError if loops do not support it."""
    if dtype not in DTYPES:
        raise NoRuleError(f"loops don't compute {str(dtype).removeprefix('torch.')}")
    return dtype


def index_of(size: Any, is_stride: bool = False) -> Index:
    """Convert an int or SymInt to an index. An expression that indices can't represent is specialized to its value in
    this call, with a guard. Raises BackendError if it can't be guarded.
    """
    if not isinstance(size, torch.SymInt):
        return Index.of(int(size))
    try:
        expression = settle_max_and_min(size, is_stride)
        return _index(expression, unbounded_symbols(size, expression))
    except BackendError:
        if (number := specialize_symbols(size)) is None:
            raise
        return Index.of(int(number))


def shape_of(sizes: Iterable[Any]) -> Shape:
    """Convert sizes to indices."""
    return tuple(map(index_of, sizes))


def strides_of(tensor: torch.Tensor) -> Shape:
    """Strides of a fake tensor, () for layouts without strides."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(index_of(stride, is_stride=True) for stride in strides)


@lru_cache(4096)
def _index(expression: Any, numbers: frozenset[str]) -> Index:
    """Convert a SymPy expression to an Index. `numbers` are the symbols that may be 0 or negative."""
    kind, args = expression.func.__name__, expression.args
    if expression.is_Integer:
        return Index.of(int(expression))
    if expression.is_Symbol:
        return Index.of(Symbol(str(expression), str(expression) not in numbers))
    if kind == "Pow" and args[1].is_Integer and args[1] > 0:
        return product([_index(args[0], numbers)] * int(args[1]))
    if kind in _OPERATORS:
        return reduce(_OPERATORS[kind], (_index(arg, numbers) for arg in args))
    raise BackendError(f"a size of this graph is {expression}, and indices have no {kind}")
