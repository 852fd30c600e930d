"""What rules of lowering work with: tensors as functions from coordinates to elements, and how new ones are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from compiler.backend.ir import Buffer, Extern, Kernel, Loop, Step, Strided
from compiler.backend.ir.expr import Expr, Load, Shape
from compiler.backend.ir.index import Index, Var
from compiler.backend.ir.scalar import DTYPES, HALVES
from compiler.backend.lower.sizes import index_of, shape_of, strides_of

Coordinates: TypeAlias = Callable[[Shape], Shape]
Rule: TypeAlias = Callable[..., Any]
"""What makes loops of a node: given the lowering, the node, and its arguments as tensors, sizes and numbers."""


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
        return Load(self.buffer, self.at(coordinates), self.dtype)


@dataclass(slots=True)
class Lowering:
    """A program while it is made. `starts` says where tensors start in their storages, in elements; `seeds` are
    buffers that are to be filled with seeds of random numbers, one for each device, and the nodes that each seed is of;
    `padded` are operands of products.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    starts: dict[str, Any] = field(default_factory=dict)
    mutated: set[str] = field(default_factory=set)
    seeds: dict[str, list[str]] = field(default_factory=dict)
    padded: dict[str, Tensor] = field(default_factory=dict)
    node: Node | None = None
    source: str = ""
    operator: str = ""

    def view(self, tensor: Tensor, change: Coordinates, meta: Any) -> Tensor:
        """A view: `change` takes its coordinates to the tensor's. `meta` is its fake tensor."""
        strided = self.place(tensor.buffer, meta)
        return replace(tensor, shape=strided.shape, at=lambda at: tensor.at(change(at)), strided=strided)

    def place(self, buffer: str, meta: Any) -> Strided:
        """Where a view of a buffer lies in memory. `meta` is its fake tensor."""
        start = index_of(meta.storage_offset() - self.starts.get(buffer, 0))
        return Strided(buffer, shape_of(meta.shape), strides_of(meta), start)

    def whole(self, name: str, meta: Any) -> Tensor:
        """A new buffer for all of a tensor like `meta`, its fake tensor, of which views say where they start."""
        if meta.layout is torch.strided:
            self.starts[name] = meta.storage_offset()
        buffer = Buffer(name, meta.dtype, shape_of(meta.shape), strides_of(meta), str(meta.device))
        return self.add(buffer)

    def add(self, buffer: Buffer) -> Tensor:
        """All of a new buffer."""
        self.buffers[buffer.name] = buffer
        strided = Strided(buffer.name, buffer.shape, buffer.strides, Index.of(0))
        return Tensor(buffer.name, buffer.dtype, buffer.shape, lambda coordinates: coordinates, strided)

    def fill(self, name: str, meta: Any, value: Callable[[Shape], Expr], dtype: torch.dtype | None = None) -> Tensor:
        """A loop that gives each element of a new buffer like `meta`, but for another dtype if given, its value."""
        checked_dtype(meta.dtype)
        tensor = self.whole(name, meta)
        if overlaps(tensor.shape, tensor.strided.strides):
            raise NoRuleError("elements of its result share memory")
        if dtype is not None:
            tensor = self.add(replace(self.buffers[name], dtype=dtype))
        variables, coordinates = walk(tensor.shape, "i")
        self.append(Loop(name, variables, coordinates, value(coordinates)))
        return tensor

    def temporary(self, suffix: str, dtype: torch.dtype, shape: Shape, like: Tensor) -> Tensor:
        """A contiguous buffer for what lies between two loops of one operator, on the device of another tensor."""
        assert self.node is not None
        device = self.buffers[like.buffer].device
        return self.add(Buffer(f"{self.node.name}_{suffix}", dtype, shape, contiguous(shape), device))

    def append(self, loop: Loop) -> None:
        """Make a loop the next step, a kernel of its own."""
        assert self.node is not None
        origins = (self.node.name,)
        loop = replace(loop, order=len(self.steps), origins=origins, source=self.source, operator=self.operator)
        self.steps.append(Kernel(loop.target, loop.ranges, loop.reduced, (loop,)))

    def call(self, function: Any, args: Sequence[Any], made: Any) -> None:
        """Make a call of PyTorch the next step: tensors among its arguments are given as they lie in memory."""
        assert self.node is not None
        given = tuple(arg.strided if isinstance(arg, Tensor) else arg for arg in args)
        self.steps.append(
            Extern(str(function), function, given, (), made, origins=(self.node.name,), source=self.source)
        )


def walk(shape: Sequence[Index], prefix: str) -> tuple[tuple[Var, ...], Shape]:
    """Variables over a shape, and the coordinates they make: dimensions of size 1 need none and are at 0."""
    coordinates = [
        Index.of(0) if size.constant == 1 else Index.of(Var(f"{prefix}{dim}", size)) for dim, size in enumerate(shape)
    ]
    atoms = [coordinate.atom for coordinate in coordinates]
    return tuple(atom for atom in atoms if isinstance(atom, Var)), tuple(coordinates)


def contiguous(shape: Sequence[Index]) -> Shape:
    """The strides of a tensor in row-major order."""
    strides, step = [], Index.of(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


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
    """The dtype in which values of a dtype are computed: float32 for float16 and bfloat16."""
    return torch.float32 if dtype in HALVES else dtype


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype. Raises NoRuleError for one that loops are not made for."""
    if dtype not in DTYPES:
        raise NoRuleError(f"loops don't compute {str(dtype).removeprefix('torch.')}")
    return dtype


def is_on_gpu(meta: Any) -> bool:
    """Whether a tensor, by its fake one, is a GPU's."""
    return bool(meta.device.type == "cuda")


def dimension(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    return dim % rank if rank else 0
