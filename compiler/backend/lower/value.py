"""What rules of lowering work with: tensors as functions from coordinates to elements, sizes of torch as indices, and
how new buffers and loops are made.
"""

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
"""The element at a place."""
Rule: TypeAlias = Callable[..., Any]
"""What makes loops of a node: given the lowering, and the node's arguments as tensors, sizes and numbers."""
_OPERATORS = {
    "Add": add, "Mul": mul, "Mod": mod, "PythonMod": mod,
    "FloorDiv": floordiv, "CleanDiv": floordiv, "IntTrueDiv": floordiv,
}  # fmt: skip
"""What SymPy calls the operations that indices have."""


class NoRuleError(Exception):
    """An operator, or this call of it, has no loops: the message is the reason. It becomes a call of PyTorch."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the graph: memory of a buffer, seen through `at`, which takes its coordinates to the buffer's.

    `strided` is the same for calls of PyTorch. Views share the buffer and differ in these two.
    """

    buffer: str
    dtype: torch.dtype
    shape: Shape
    at: Coordinates
    strided: Strided

    def load(self, coordinates: Shape) -> Expr:
        """The element at these coordinates, as many as it has dimensions."""
        return Load(self.buffer, self.at(coordinates), checked_dtype(self.dtype))

    def dimension(self, dim: int) -> int:
        """A dimension counted from the front."""
        return dim % len(self.shape) if self.shape else 0


@dataclass(slots=True)
class Lowering:
    """The state of lowering: the program so far, and the current `node`.

    `starts` are storage offsets of tensors, in elements. `seeds` are the seed buffers, one for each device, and the
    nodes that use each seed. `padded` are padded operands of matmuls.
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
        """The fake tensor of the node's result; of several results a tuple."""
        return value_of(self.node)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the node's result. Raises NoRuleError for one that loops are not made for."""
        return checked_dtype(self.meta.dtype)

    def view(self, tensor: Tensor, change: Coordinates, meta: Any = None) -> Tensor:
        """A view: `change` takes its coordinates to the tensor's. `meta` is its fake tensor, by default the node's."""
        strided = self.place(tensor.buffer, self.meta if meta is None else meta)
        return replace(tensor, shape=strided.shape, at=lambda at: tensor.at(change(at)), strided=strided)

    def place(self, buffer: str, meta: Any) -> Strided:
        """The memory of a view of a buffer. `meta` is its fake tensor."""
        start = index_of(meta.storage_offset() - self.starts.get(buffer, 0))
        return Strided(buffer, shape_of(meta.shape), strides_of(meta), start)

    def whole(self, name: str, meta: Any) -> Tensor:
        """A new buffer for all of a tensor like `meta`, its fake tensor. Keeps where it starts, for views of it."""
        if meta.layout is torch.strided:
            self.starts[name] = meta.storage_offset()
        return self.add(Buffer(name, meta.dtype, shape_of(meta.shape), strides_of(meta), str(meta.device)))

    def add(self, buffer: Buffer) -> Tensor:
        """Add a buffer; return all of it as a tensor."""
        self.buffers[buffer.name] = buffer
        strided = Strided(buffer.name, buffer.shape, buffer.strides, Index.of(0))
        return Tensor(buffer.name, buffer.dtype, buffer.shape, lambda coordinates: coordinates, strided)

    def fill(self, value: Value, suffix: str = "", meta: Any = None, dtype: torch.dtype | None = None) -> Tensor:
        """A loop that gives each element of a new buffer its value. The buffer is like `meta`, by default the node's
        result, but for another dtype if given.
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
        """A loop that gives each element of a buffer its value, or what a reduction makes of it; returns the buffer."""
        ranges, at = walk(target.shape, "i")
        self.append(Loop(target.buffer, ranges, at, value(at), reduction, over))
        return target

    def temporary(self, suffix: str, dtype: torch.dtype, shape: Shape, like: Tensor) -> Tensor:
        """A contiguous buffer for an intermediate value of one operator, on the device of another tensor."""
        device = self.buffers[like.buffer].device
        return self.add(Buffer(f"{self.node.name}_{suffix}", dtype, shape, contiguous(shape), device))

    def append(self, loop: Loop) -> None:
        """Make a loop the next step, a kernel of its own."""
        origins = (self.node.name,)
        loop = replace(loop, order=len(self.steps), origins=origins, source=self.source, operator=self.operator)
        self.steps.append(Kernel(loop.target, loop.ranges, loop.reduced, (loop,)))

    def call(self, name: str, function: Any, args: Iterable[Any], made: Any, **facts: Any) -> None:
        """Make a call of PyTorch the next step. `made` names the buffers of its results."""
        step = Extern(name, function, tuple(args), (), made, origins=(self.node.name,), source=self.source)
        self.steps.append(replace(step, **facts))

    def call_library(self, args: Iterable[Any], made: Any, function: Any = None) -> None:
        """Call the node's operator, or another function: tensors are given as they lie in memory."""
        function = function or self.node.target
        given = (arg.strided if isinstance(arg, Tensor) else arg for arg in args)
        self.call(str(function), function, given, made)


def walk(shape: Sequence[Index], prefix: str) -> tuple[tuple[Var, ...], Shape]:
    """Variables over a shape, and the coordinates they make: dimensions of size 1 need none and are at 0."""
    variables = {dim: Var(f"{prefix}{dim}", size) for dim, size in enumerate(shape) if size.constant != 1}
    return tuple(variables.values()), tuple(Index.of(variables.get(dim, 0)) for dim in range(len(shape)))


def contiguous(shape: Sequence[Index]) -> Shape:
    """The strides of a tensor in row-major order."""
    return tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))


def overlaps(shape: Sequence[Index], strides: Sequence[Index]) -> bool:
    """Whether a tensor has elements that share memory, as far as strides that are numbers say. Sizes that are not are 2
    at the least: torch has other code for 0 and 1.
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
    """The dtype to compute in for a dtype: float32 for float16 and bfloat16.

    Raises NoRuleError if loops do not support the dtype.
    """
    return torch.float32 if dtype in HALVES else checked_dtype(dtype)


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype. Raises NoRuleError for one that loops are not made for."""
    if dtype not in DTYPES:
        raise NoRuleError(f"loops don't compute {str(dtype).removeprefix('torch.')}")
    return dtype


def index_of(size: Any, is_stride: bool = False) -> Index:
    """An int or SymInt as an index. What indices have no arithmetic for is held to the value of this call, by a guard;
    where there can be none, it raises BackendError.
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
    """Sizes as indices."""
    return tuple(map(index_of, sizes))


def strides_of(tensor: torch.Tensor) -> Shape:
    """The strides of a fake tensor, none where it has another layout."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return tuple(index_of(stride, is_stride=True) for stride in strides)


@lru_cache(4096)
def _index(expression: Any, numbers: frozenset[str]) -> Index:
    """Convert a SymPy expression. `numbers` are the symbols that may be 0 or negative."""
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
