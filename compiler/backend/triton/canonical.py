"""Rename a kernel so that kernels that do the same are equal: a model's layers have the same kernels under other names.

So each of these is compiled, and loaded, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from compiler.backend.ir import ComboKernel, Kernel, Loop, MatmulKernel, Program, Strided, map_leaves, strided_views
from compiler.backend.ir.expr import Expr, Load, Put, rebuilt
from compiler.backend.ir.index import Index
from compiler.backend.ir.index_maps import substitute
from compiler.backend.passes.names import without_number


def canonical_program(kernel: Kernel, program: Program) -> tuple[Program, Mapping[str, int]]:
    """A program of the kernel alone under canonical names, and the buffers that it is given from another start.

    Those are the buffers of which it reads one element only: it reads their first element instead.
    """
    starts = dict(_single_elements(kernel, program))
    names = {name: f"b{number}" for number, name in enumerate(dict.fromkeys(_names_in_order(kernel)))}
    renamed = _Renaming(names, starts).kernel(kernel)
    buffers = (replace(program.by_name[name], name=new, reuses="") for name, new in names.items())
    return Program("", tuple(buffers), (), (renamed,), ()), starts


def _names_in_order(kernel: Kernel) -> Iterator[str]:
    if isinstance(kernel, MatmulKernel):
        yield from (view.buffer for view in strided_views(kernel.call.args))
    yield from kernel.buffers
    yield from kernel.targets
    yield from kernel.taken


def _single_elements(kernel: Kernel, program: Program) -> Iterator[tuple[str, int]]:
    own = {*kernel.targets, *kernel.taken, *(kernel.call.reads if isinstance(kernel, MatmulKernel) else ())}
    for name in kernel.reads:
        places = {program.by_name[name].offset(index).constant for index in kernel.places(name)}
        if name not in own and len(places) == 1 and (start := places.pop()) is not None:
            yield name, start


class _Renaming:
    def __init__(self, names: Mapping[str, str], starts: Mapping[str, int]) -> None:
        self.names, self.starts = names, starts

    def kernel(self, kernel: Kernel) -> Kernel:
        loops = tuple(self.loop(loop, order) for order, loop in enumerate(kernel.loops))
        local = frozenset(map(self.names.__getitem__, kernel.local))
        found = replace(kernel, name=without_number(kernel.name), loops=loops, local=local)
        if isinstance(found, ComboKernel):
            return replace(found, parts=tuple(map(self.kernel, found.parts)))
        if isinstance(found, MatmulKernel):
            call = replace(found.call, args=map_leaves(found.call.args, self.argument), origins=(), source="")
            return replace(found, call=replace(call, outputs=self.names[found.made]))
        return found

    def argument(self, leaf: object) -> object:
        return replace(leaf, buffer=self.names[leaf.buffer]) if isinstance(leaf, Strided) else leaf

    def loop(self, loop: Loop, order: int) -> Loop:
        value, target = self.value(loop.value), self.names[loop.target]
        return replace(loop, target=target, value=value, order=order, origins=(), source="", operator="")

    def value(self, value: Expr) -> Expr:
        if isinstance(value, Put):
            index = tuple(substitute(one, {}, self.value) for one in value.index)
            return replace(value, onto=self.names[value.onto], index=index, value=self.value(value.value))
        return rebuilt(value, self.load)

    def load(self, part: Expr) -> Expr | None:
        if not isinstance(part, Load):
            return None
        if part.buffer in self.starts:
            return Load(self.names[part.buffer], (Index.of(0),) * len(part.index), part.dtype)
        return Load(self.names[part.buffer], tuple(substitute(one, {}, self.value) for one in part.index), part.dtype)
