"""Pass: inline cheap expressions into their readers, so that their values need not be stored.

Readers that load each element once are left to `fuse`, which computes nothing twice. The other readers are broadcasts,
gathers, pads and concatenations. An expression is inlined into all of these or none, because its value is stored as
long as one reader loads it. Expressions without loads are inlined into all readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_

from compiler.backend.ir import Extern, Kernel, Loop, Program
from compiler.backend.ir.expr import Expr, Load, Put, cost, loads, with_loads
from compiler.backend.ir.index import is_bijective
from compiler.backend.passes.context import Context
from compiler.backend.passes.simplify import fold, remove_unused, value_at


def inline(program: Program, ctx: Context) -> Program:
    """Inline cheap expressions, from the last loop to the first."""
    state = _Inlining.from_program(program)
    for kernel in reversed(program.kernels):
        if len(kernel.loops) == 1:
            state.consider(state.loops[kernel.targets[0]], ctx)
    if not state.changed:
        return program
    changed = {id(kernel): state.kernel(kernel) for kernel in program.kernels}
    return remove_unused(program, tuple(changed.get(id(step), step) for step in program.steps), ctx)


@dataclass(slots=True)
class _Inlining:
    program: Program
    loops: dict[str, Loop]
    readers: dict[str, set[str]]
    stored: frozenset[str]
    changed: set[str] = field(default_factory=set)

    @staticmethod
    def from_program(program: Program) -> _Inlining:
        loops = {loop.target: loop for kernel in program.kernels for loop in kernel.loops}
        readers: dict[str, set[str]] = {}
        for loop in loops.values():
            for name in loop.reads:
                readers.setdefault(name, set()).add(loop.target)
        found = _Inlining(program, loops, readers, program.passed | program.returned | program.mutated)
        found.stored |= found.values_across_calls()
        return found

    def values_across_calls(self) -> set[str]:
        """Values that an extern call depends on, and that a loop after the call reads again, each element once.

        The loop depends on the call, so the values are stored across the call anyway. Inlining them would require their
        inputs to be stored, too.
        """
        bits: dict[str, int] = {}
        needs: dict[str, int] = {}
        called: dict[str, int] = {}
        found: set[str] = set()
        for step in self.program.steps:
            if isinstance(step, Extern):
                before = reduce(or_, (needs[name] for name in step.reads if name in needs), 0)
                called.update(dict.fromkeys(step.targets, before))
            for target in step.targets:
                made = [] if isinstance(step, Extern) else loads(self.loops[target].value)
                known = [load for load in made if load.buffer in needs]
                called[target] = reduce(or_, (called[load.buffer] for load in known), called.get(target, 0))
                bits[target] = 1 << len(bits)
                needs[target] = reduce(or_, (needs[load.buffer] for load in known), bits[target] | called[target])
                late = (load for load in known if bits[load.buffer] & called[target])
                found.update(load.buffer for load in late if self.is_once(load, self.loops[target]))
        return found

    def kernel(self, kernel: Kernel) -> Kernel:
        loops = tuple(self.loops[target] for target in kernel.targets)
        return kernel if self.changed.isdisjoint(kernel.targets) else replace(kernel, loops=loops)

    def consider(self, producer: Loop, ctx: Context) -> None:
        """Inline a loop's value into its readers, if it is cheap enough."""
        readers = [self.loops[name] for name in sorted(self.readers.get(producer.target, ()))]
        is_fixed = self.program.mutated & {producer.target, *producer.reads}
        if producer.reduction or isinstance(producer.value, Put) or is_fixed:
            return
        is_free = not loads(producer.value)
        if not is_free:
            readers = [reader for reader in readers if not self.is_exact(producer, reader)]
        if not readers or (not is_free and producer.target in self.stored):
            return
        names = (producer.target, *(reader.target for reader in readers))
        if why := self.refusal(producer, readers, is_free, ctx):
            ctx.decide(names, "not inlined", why)
            return
        for reader in readers:
            self.put(producer, reader)
        if not self.readers[producer.target] and producer.target not in self.stored:
            for load in loads(producer.value):
                self.readers[load.buffer].discard(producer.target)
        ctx.decide(names, "inlined", f"costs {cost(producer.value)}", cost=cost(producer.value))

    def refusal(self, producer: Loop, readers: Iterable[Loop], is_free: bool, ctx: Context) -> str:
        """Reason not to inline a value, "" if there is none."""
        price, limits = cost(producer.value), ctx.thresholds
        for reader in readers:
            sites = [load for load in loads(reader.value) if load.buffer == producer.target]
            if cost(reader.value) + price * len(sites) > limits.inline_total:
                return f"{reader.target} would cost more than {limits.inline_total}"
            is_cheap = is_free or self.is_small(producer, ctx) or self.is_single(producer, reader, sites, ctx)
            if price > (limit := limits.inline_cost_once if is_cheap else limits.inline_cost):
                return f"costs {price}, more than {limit}"
        return ""

    def is_exact(self, producer: Loop, reader: Loop) -> bool:
        """Whether the reader loads each element once: then fusion avoids the store, too."""
        return all(self.is_once(load, reader) for load in loads(reader.value) if load.buffer == producer.target)

    def is_once(self, load: Load, reader: Loop) -> bool:
        shape = self.program.by_name[load.buffer].shape
        return any(is_bijective(load.index, shape, space) for space in (reader.space, reader.ranges))

    def is_single(self, producer: Loop, reader: Loop, sites: list[Load], ctx: Context) -> bool:
        """Whether the value has a single load, executed at most twice per element on average."""
        is_only = len(sites) == 1 and len(self.readers[producer.target]) == 1
        return is_only and ctx.points(reader.space) <= 2 * ctx.points(producer.ranges)

    def is_small(self, producer: Loop, ctx: Context) -> bool:
        """Whether a kernel of the producer alone would take a GPU less time than a launch."""
        return bool(ctx.processors) and ctx.points(producer.ranges) <= ctx.thresholds.inline_points

    def put(self, producer: Loop, reader: Loop) -> None:
        def change(load: Load) -> Expr | None:
            return value_at(producer, load.index) if load.buffer == producer.target else None

        value, origins = fold(with_loads(reader.value, change)), dict.fromkeys(producer.origins + reader.origins)
        self.loops[reader.target] = replace(reader, value=value, origins=tuple(origins))
        self.changed.add(reader.target)
        self.readers[producer.target].discard(reader.target)
        for load in loads(producer.value):
            self.readers[load.buffer].add(reader.target)
