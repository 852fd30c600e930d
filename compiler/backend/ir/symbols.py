"""Where a program's symbolic sizes come from when it is called: a size that is passed, or a tensor's shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compiler.backend.ir import BackendError, Kernel, MatmulKernel, Program, Strided, leaves, strided_views
from compiler.backend.ir.expr import indices, parts
from compiler.backend.ir.index import Index, Symbol
from compiler.backend.ir.index_maps import atoms_of, indirects


@dataclass(frozen=True, slots=True)
class Source:
    """The argument at `position`: the size itself, or its shape or stride in dimension `dim`."""

    position: int
    what: Literal["size", "shape", "stride"]
    dim: int = 0

    def read(self, args: Sequence[Any]) -> int:
        """The size, of a call's arguments."""
        value = args[self.position]
        if self.what == "size":
            return int(value)
        return int(value.shape[self.dim] if self.what == "shape" else value.stride(self.dim))


def sources(program: Program) -> Mapping[str, Source]:
    """For each symbol that the program uses, where it is found. Raises BackendError for one that no argument has."""
    found: dict[str, Source] = {}
    for position, name in enumerate(program.inputs):
        buffer = program.by_name.get(name)
        if buffer is None:
            found[name] = Source(position, "size")
            continue
        places = [(size, Source(position, "shape", dim)) for dim, size in enumerate(buffer.shape)]
        places += [(stride, Source(position, "stride", dim)) for dim, stride in enumerate(buffer.strides)]
        for index, source in places:
            if isinstance(atom := index.atom, Symbol):
                found.setdefault(atom.name, source)
    used = {name: None for index in _used_indices(program) for name in symbols_of(index)}
    if missing := [name for name in used if name not in found]:
        raise BackendError(f"no argument of the graph says how large {', '.join(missing)} is")
    return {name: found[name] for name in used}


def symbols_of(index: Index) -> Iterator[str]:
    """The names of the symbols in an index, in order; those that a variable's size has, too."""
    for atom in atoms_of(index):
        if isinstance(atom, Symbol):
            yield atom.name


def symbols_and_checks(computed: Iterable[Index]) -> tuple[tuple[str, ...], bool]:
    """The names of the symbols in indices, sorted, and whether tensors hold some of the indices."""
    own = set(computed)
    return tuple(sorted({name for index in own for name in symbols_of(index)})), any(map(indirects, own))


def _used_indices(program: Program) -> Iterator[Index]:
    for buffer in program.buffers:
        if buffer.name not in program.inputs:
            yield from (*buffer.shape, *buffer.strides)
    calls = [(call.args, call.kwargs) for call in program.calls]
    yield from _of_views(strided_views((program.outputs, calls)))
    yield from (value for value in leaves((program.outputs, calls)) if isinstance(value, Index))
    for kernel in program.kernels:
        yield from kernel_indices(kernel, program)


def kernel_indices(kernel: Kernel, program: Program) -> Iterator[Index]:
    """All indices that a kernel computes: sizes of its ranges, and offsets of what it reads and writes."""
    yield from (var.size for var in (*kernel.ranges, *kernel.reduced))
    yield from _of_views(strided_views(kernel.call.args) if isinstance(kernel, MatmulKernel) else ())
    for loop in kernel.loops:
        if loop.target not in kernel.local:
            yield program.by_name[loop.target].offset(loop.place)
        for part in parts(loop.value):
            yield from indices(part)
    for name in {*kernel.reads, *kernel.writes}:
        yield from (*program.by_name[name].shape, *program.by_name[name].strides)


def _of_views(views: Iterable[Strided]) -> Iterator[Index]:
    for view in views:
        yield from (*view.shape, *view.strides, view.offset)
