"""Pass: fuse kernels that share buffers, so that shared inputs are read once and intermediate results are not stored.

The pass is greedy: of the legal pairs, it first fuses the pair that saves most bytes. `legal` returns the fused kernel
or the reason against fusion. Vertical fusion, horizontal fusion, and prologues and epilogues of reductions are all one
case: two loop nests that can run as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from heapq import heappop, heappush
from itertools import pairwise
from operator import or_

from compiler.backend.ir import Extern, Kernel, Loop, Program, Step
from compiler.backend.ir.expr import Put
from compiler.backend.ir.index import is_bijective, product
from compiler.backend.ir.sweeps import overwritten_early
from compiler.backend.passes.context import Context
from compiler.backend.passes.fit import Refusal, merge_kernels
from compiler.backend.passes.names import name_of, unique


def fuse(program: Program, ctx: Context) -> Program:
    """Fuse kernels until no pair is worth it, and make buffers local that only one kernel uses."""
    graph = Steps.from_program(program)
    _merge_all(graph, graph.candidates, ctx)
    if ctx.processors:
        _merge_all(graph, graph.small, ctx)
    steps = localize(graph.in_dependency_order(), program)
    return program if steps == program.steps else program.with_steps(steps)


def _merge_all(graph: Steps, candidates: Callable[[Context], Iterator[Pair]], ctx: Context) -> None:
    """Fuse pairs until all remaining ones are refused.

    After each fusion, the savings of other pairs with the fused kernel are updated, so that each kernel is fused with
    the kernel that it shares most bytes with.
    """
    refused: dict[frozenset[int], str] = {}
    while pairs := [pair for pair in candidates(ctx) if pair.key not in refused]:
        near: dict[int, set[int]] = {}
        for pair in pairs:
            near.setdefault(pair.first, set()).add(pair.second)
            near.setdefault(pair.second, set()).add(pair.first)
        waiting = sorted((-pair.saved, pair.first, pair.second) for pair in pairs)
        while waiting:
            minus, first, second = heappop(waiting)
            pair = Pair(first, second, -minus)
            if not pair.key <= graph.steps.keys() or pair.key in refused:
                continue
            if pair.saved and graph.saved_bytes(pair.first, pair.second, ctx) != pair.saved:
                continue  # stale: the pair was pushed again
            found = legal(graph, pair, ctx)
            if isinstance(found, Refusal):
                refused[pair.key] = found.why
                ctx.decide(graph.names(pair), "refused", found.why, bytes=pair.saved)
                continue
            ctx.decide(graph.names(pair), "fused", pair.why, bytes=pair.saved)
            graph.merge(pair, found)
            refused = {key: why for key, why in refused.items() if pair.second not in key}
            near[pair.second] = (near[pair.second] | near.pop(pair.first)) & graph.steps.keys() - {pair.second}
            for other in near[pair.second] if pair.saved else ():
                near[other].add(pair.second)
                first, second = sorted((other, pair.second))
                if saved := graph.saved_bytes(first, second, ctx):
                    heappush(waiting, (-saved, first, second))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps, by number, and the bytes that fusing them saves."""

    first: int
    second: int
    saved: int

    @property
    def key(self) -> frozenset[int]:
        """Set of both numbers, independent of their order."""
        return frozenset((self.first, self.second))

    @property
    def why(self) -> str:
        """Reason to fuse the two steps, as text."""
        return f"saves {self.saved:,} bytes" if self.saved else "saves a launch: both are small"


def legal(graph: Steps, pair: Pair, ctx: Context) -> Kernel | Refusal:
    """The fused kernel of a pair, or a Refusal if fusion is not legal."""
    first, second = graph.steps[pair.first], graph.steps[pair.second]
    assert isinstance(first, Kernel)
    assert isinstance(second, Kernel)
    if graph.is_between(pair.first, pair.second):
        return Refusal("a step between them needs the first and is needed by the second")
    found = merge_kernels(first, second, ctx)
    if isinstance(found, Refusal):
        return found
    unchanged = {*map(id, first.loops + second.loops)}
    if not all(id(loop) in unchanged or graph.is_certain(loop) for loop in found.loops):
        return Refusal("the merged loops are not certain to write each element once")
    if name := graph.overwritten_early(found, pair):
        return Refusal(f"{name} would be overwritten before its last read")
    return found


@dataclass(slots=True)
class Steps:
    """The steps during fusion, by number. A fused kernel gets the number of its second part.

    needs   direct dependencies of each step
    before  all dependencies of each step, as a bit set
    users   steps that read or write each buffer
    """

    program: Program
    steps: dict[int, Step]
    needs: dict[int, set[int]]
    before: dict[int, int]
    users: dict[str, list[int]]

    @staticmethod
    def from_program(program: Program) -> Steps:
        needs, steps = needs_of(program), dict(enumerate(program.steps))
        before: dict[int, int] = {}
        users: dict[str, list[int]] = {}
        for number, step in steps.items():
            before[number] = reduce(or_, (before[other] | 1 << other for other in needs[number]), 0)
            for name in sorted({*step.targets, *step.reads}):
                users.setdefault(name, []).append(number)
        return Steps(program, steps, needs, before, users)

    def names(self, pair: Pair) -> tuple[str, ...]:
        """The last target of each step, which names the step in decisions."""
        return tuple(self.steps[number].targets[-1] for number in (pair.first, pair.second))

    def candidates(self, ctx: Context) -> Iterator[Pair]:
        """Pairs of kernels that share a buffer, if fusing them saves bytes."""
        found: set[tuple[int, int]] = set()
        for name, users in self.users.items():
            kernels = [number for number in users if isinstance(self.steps[number], Kernel)]
            first = kernels[: ctx.thresholds.fusion_readers]
            writers = [number for number in kernels if name in self.steps[number].targets]
            found.update((a, b) for a, b in pairwise(kernels) if b - a <= ctx.thresholds.fusion_distance)
            found.update((min(a, b), max(a, b)) for a in writers for b in first if a != b)
        for early, late in sorted(found):
            if saved := self.saved_bytes(early, late, ctx):
                yield Pair(early, late, saved)

    def small(self, ctx: Context) -> Iterator[Pair]:
        """Pairs of kernels with equal ranges on one device that are small: each takes a GPU less time than a launch."""
        last: dict[tuple[str, ...], int] = {}
        for number, step in sorted(self.steps.items()):
            if not isinstance(step, Kernel):
                continue
            sizes = [var.size for var in (*step.ranges, *step.reduced)]
            if ctx.number(product(sizes)) <= ctx.thresholds.inline_points:
                device = self.program.by_name[step.targets[-1]].device
                shape = (device, *(size.key for size in sizes), str(len(step.reduced)))
                if shape in last:
                    yield Pair(last[shape], number, 0)
                last[shape] = number

    def saved_bytes(self, first: int, second: int, ctx: Context) -> int:
        """Bytes that fusion saves: shared buffers are read once, and not stored if nothing else uses them."""
        one, two = self.steps[first], self.steps[second]
        is_chain = bool(set(one.targets) & set(two.reads) or set(two.targets) & set(one.reads))
        if not is_chain and second - first > ctx.thresholds.fusion_distance:
            return 0
        total = 0
        for name in sorted({*one.targets, *one.reads} & {*two.reads, *two.targets}):
            buffer = self.program.by_name[name]
            size = ctx.number(buffer.size) * buffer.dtype.itemsize
            is_made = name in one.targets or name in two.targets
            gone = is_made and name not in self.program.returned and set(self.users[name]) == {first, second}
            total += 2 * size if gone else size
        return total

    def is_between(self, first: int, second: int) -> bool:
        """Whether another step must run between the two steps."""
        return any(
            self.before[other] >> early & 1
            for early, late in ((first, second), (second, first))
            for other in self.needs[late]
            if other != early
        )

    def is_certain(self, loop: Loop) -> bool:
        """Whether a loop is proven to write each element of its target once."""
        shape = self.program.by_name[loop.target].shape
        is_empty = any(size.constant == 0 for size in shape)
        return isinstance(loop.value, Put) or is_empty or is_bijective(loop.index, shape, loop.stored)

    def overwritten_early(self, kernel: Kernel, pair: Pair) -> str:
        """Name of a mutated input that the fused kernel overwrites before its last read, "" if there is none."""
        if not (names := self.program.mutated.intersection(kernel.targets)):
            return ""
        own = {name for name in kernel.targets if pair.key.issuperset(self.users[name])}
        return overwritten_early(replace(kernel, local=frozenset(own - _stored_buffers(self.program))), names)

    def merge(self, pair: Pair, kernel: Kernel) -> None:
        """Replace the second step of a pair by the fused kernel, and remove the first."""
        first, second = pair.first, pair.second
        self.steps[second] = kernel
        del self.steps[first]
        self.needs[second] = (self.needs[second] | self.needs.pop(first)) - {first, second}
        both = 1 << first | 1 << second
        whole = self.before[second] = (self.before.pop(first) | self.before[second]) & ~both
        for number, before in self.before.items():
            if before & both:
                self.before[number] = before | whole | 1 << second
                if first in self.needs[number]:
                    self.needs[number] = self.needs[number] - {first} | {second}
        for name in {*kernel.targets, *kernel.reads}:
            users = self.users[name]
            self.users[name] = sorted({second if user == first else user for user in users})

    def in_dependency_order(self) -> tuple[Step, ...]:
        """Steps in topological order; independent steps keep their order."""
        done: dict[int, Step] = {}
        waiting = sorted(self.steps, reverse=True)
        while waiting:
            last = waiting[-1]
            if missing := sorted(self.needs[last] - done.keys(), reverse=True):
                waiting += missing
            else:
                done.setdefault(waiting.pop(), self.steps[last])
        return tuple(done.values())


def needs_of(program: Program) -> dict[int, set[int]]:
    """Dependencies of each step, by number: writers of its inputs, earlier users of the buffers that it overwrites, and
    for a pinned call, the previous pinned call.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    pinned: int | None = None
    needs: dict[int, set[int]] = {}
    for number, step in enumerate(program.steps):
        overwritten = set(step.writes if isinstance(step, Extern) else step.taken)
        overwritten |= set(step.targets) & program.mutated
        needs[number] = {writer[name] for name in (*step.reads, *overwritten) if name in writer}
        needs[number] |= {reader for name in overwritten for reader in readers.get(name, ())}
        if isinstance(step, Extern) and step.pinned:
            needs[number] |= {pinned} if pinned is not None else set()
            pinned = number
        for name in step.reads:
            readers.setdefault(name, []).append(number)
        writer.update(dict.fromkeys((*step.targets, *overwritten), number))
        needs[number].discard(number)
    return needs


def _stored_buffers(program: Program) -> set[str]:
    """Buffers that can't be local to a kernel."""
    return {*program.returned, *program.mutated, *program.inputs}


def localize(steps: Iterable[Step], program: Program) -> tuple[Step, ...]:
    """Name each kernel after its operators, and make buffers local that only one kernel uses."""
    steps = tuple(steps)
    readers = Counter(name for step in steps for name in {*step.reads, *step.targets})
    kept = _stored_buffers(program)
    taken: set[str] = set()
    return tuple(_localize_kernel(step, readers, kept, taken) if isinstance(step, Kernel) else step for step in steps)


def _localize_kernel(kernel: Kernel, readers: Counter[str], kept: set[str], taken: set[str]) -> Kernel:
    local = frozenset(name for name in kernel.targets if readers[name] == 1 and name not in kept)
    return replace(kernel, name=unique(name_of(kernel), taken), local=local)
