"""Sources of a program's symbolic sizes: arguments that are sizes, or the shapes and strides of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.backend.ir import BackendError, Kernel, Program, Strided, leaves
from compiler.backend.ir.expr import indices, parts
from compiler.backend.ir.index import Index, Symbol, atoms_of, indirects


@dataclass(frozen=True, slots=True)
class Source:
    """Source of a size: an argument that is the size itself (`what` is "size"), or the "shape" or "stride" of a tensor
    in dimension `dim`. `position` is the index of the argument.
    """

    position: int
    what: str
    dim: int = 0

    def read(self, args: Sequence[Any]) -> int:
        """Read the size from the arguments."""
        value = args[self.position]
        if self.what == "size":
            return int(value)
        return int(value.shape[self.dim] if self.what == "shape" else value.stride(self.dim))


def sources(program: Program) -> Mapping[str, Source]:
    """Source of each symbol that the program uses. Raises BackendError if no argument determines a symbol."""
    found: dict[str, Source] = {}
    for position, name in enumerate(program.inputs):
        if (buffer := program.by_name.get(name)) is None:
            found[name] = Source(position, "size")
            continue
        for what, sizes in (("shape", buffer.shape), ("stride", buffer.strides)):
            for dim, size in enumerate(sizes):
                if isinstance(atom := size.atom, Symbol):
                    found.setdefault(atom.name, Source(position, what, dim))
    used = dict.fromkeys(name for index in _used_indices(program) for name in symbols_of(index))
    if missing := [name for name in used if name not in found]:
        raise BackendError(f"no argument of the graph says how large {', '.join(missing)} is")
    return {name: found[name] for name in used}


def symbols_of(index: Index) -> Iterator[str]:
    """Names of the symbols in an index, in order."""
    return (atom.name for atom in atoms_of(index) if isinstance(atom, Symbol))


def symbols_and_checks(program: Program, *kernels: Kernel) -> tuple[tuple[str, ...], bool]:
    """Sorted names of the symbols that kernels use, and whether the kernels have indirect indices."""
    own = {index for kernel in kernels for index in _kernel_indices(kernel, program)}
    return tuple(sorted({name for index in own for name in symbols_of(index)})), any(map(indirects, own))


def _used_indices(program: Program) -> Iterator[Index]:
    for buffer in program.buffers:
        if buffer.name not in program.inputs:
            yield from (*buffer.shape, *buffer.strides)
    yield from _argument_indices((program.outputs, [(call.args, call.kwargs) for call in program.calls]))
    for kernel in program.kernels:
        yield from _kernel_indices(kernel, program)


def _kernel_indices(kernel: Kernel, program: Program) -> Iterator[Index]:
    """All indices that a kernel uses: sizes of ranges and buffers, strides, offsets and indices in expressions."""
    yield from (var.size for var in (*kernel.ranges, *kernel.reduced))
    yield from _argument_indices(kernel.operands)
    for loop in kernel.loops:
        if loop.target not in kernel.local:
            yield program.by_name[loop.target].offset(loop.place)
        for part in parts(loop.value):
            yield from indices(part)
    for name in {*kernel.reads, *kernel.writes}:
        yield from (*program.by_name[name].shape, *program.by_name[name].strides)


def _argument_indices(value: Any) -> Iterator[Index]:
    """Sizes, strides and offsets among the arguments of extern calls."""
    for leaf in leaves(value):
        if isinstance(leaf, Strided):
            yield from (*leaf.shape, *leaf.strides, leaf.offset)
        elif isinstance(leaf, Index):
            yield leaf
