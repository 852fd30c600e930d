"""Pass: kernels that share what they read or write become one, so that it is read once and need not be stored.

Greedy: of all pairs that share a buffer, the one that saves most bytes goes first, as long as it is legal. `legal` says
yes with the merged kernel, or why not. A producer and its consumer, siblings that read the same, what comes before and
after a reduction, and reductions of one shape are all the same case: two loop nests that can be walked as one. In the
end a kernel of rows is two again where it would meet memory in short runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import pairwise

from compiler.backend.context import Context
from compiler.backend.expr import Put
from compiler.backend.fit import Refusal, merged
from compiler.backend.index import product
from compiler.backend.index_maps import is_one_to_one
from compiler.backend.ir import Extern, Kernel, Loop, Program, Step
from compiler.backend.names import named, unique
from compiler.backend.one_hot import one_hot_sums
from compiler.backend.order import with_merged
from compiler.backend.sweeps import overwritten_early
from compiler.backend.traffic import LAUNCH, moved
from compiler.backend.triton_tiles import lost_in_rows

MOST_READERS = 32


def fuse(program: Program, ctx: Context) -> Program:
    """The program with kernels merged, until no two are worth it, and with what only they know made local."""
    graph = Steps.of(program)
    _merge_all(graph, graph.candidates, ctx)
    if ctx.processors:
        _merge_all(graph, graph.small, ctx)
    steps = localized(graph.sorted(), program)
    if ctx.processors:
        parted = [part for step in steps for part in _parted(step, program, ctx)]
        steps = localized(parted, program) if len(parted) > len(steps) else steps
    return one_hot_sums(program if steps == program.steps else program.with_steps(steps), ctx)


def _merge_all(graph: Steps, candidates: Callable[[Context], Iterator[Pair]], ctx: Context) -> None:
    """Merge pairs as long as there are any that are not refused. What a pair saves is known anew once one of them was
    merged with a third: a kernel goes to the neighbour that it shares most with in the end, not to the first one.
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
            if pair.saved and graph.saved(pair.first, pair.second, ctx) != pair.saved:
                continue  # there is a newer one
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
                if saved := graph.saved(first, second, ctx):
                    heappush(waiting, (-saved, first, second))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two steps, by their numbers, and the bytes that one kernel of both does not move."""

    first: int
    second: int
    saved: int

    @property
    def key(self) -> frozenset[int]:
        """The same for both orders."""
        return frozenset((self.first, self.second))

    @property
    def why(self) -> str:
        """What merging them is good for."""
        return f"saves {self.saved:,} bytes" if self.saved else "saves a launch: both are small"


def legal(graph: Steps, pair: Pair, ctx: Context) -> Kernel | Refusal:
    """The kernel that does what both do, or why there is none."""
    first, second = graph.steps[pair.first], graph.steps[pair.second]
    assert isinstance(first, Kernel)
    assert isinstance(second, Kernel)
    if graph.is_between(pair.first, pair.second):
        return Refusal("a step between them needs the first and is needed by the second")
    found = merged(first, second, ctx)
    there = {*map(id, first.loops), *map(id, second.loops)}
    if isinstance(found, Kernel) and not all(graph.is_certain(loop) for loop in found.loops if id(loop) not in there):
        return Refusal("it is not certain that what one of them writes is still written once")
    if isinstance(found, Kernel) and (name := graph.overwritten_early(found, pair)):
        return Refusal(f"{name} would be overwritten before all that reads it is done with it")
    return found


@dataclass(slots=True)
class Steps:
    """The steps while they are merged, by number. `needs` says which steps each needs at once, `before` all that it
    needs in the end, as bits. A merged kernel keeps the number of its later part, and stands where that stood.
    """

    program: Program
    steps: dict[int, Step]
    needs: dict[int, set[int]]
    before: dict[int, int]
    users: dict[str, list[int]] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> Steps:
        needs = needs_of(program)
        before: dict[int, int] = {}
        for number, needed in needs.items():
            before[number] = 0
            for other in needed:
                before[number] |= before[other] | 1 << other
        return Steps(program, dict(enumerate(program.steps)), needs, before, _users(program))

    def names(self, pair: Pair) -> tuple[str, ...]:
        """The loops of both, by their last targets."""
        return tuple(self.steps[number].targets[-1] for number in (pair.first, pair.second))

    def candidates(self, ctx: Context) -> Iterator[Pair]:
        """Pairs of kernels that share a buffer."""
        found: set[tuple[int, int]] = set()
        for name, users in self.users.items():
            kernels = [number for number in users if isinstance(self.steps[number], Kernel)]
            near = [(a, b) for a, b in pairwise(kernels) if b - a <= ctx.thresholds.fusion_distance]
            found.update(near)
            writers = [number for number in kernels if name in self.steps[number].targets]
            found.update((min(a, b), max(a, b)) for a in writers for b in kernels[:MOST_READERS] if a != b)
        for first, second in sorted(found):
            if saved := self.saved(first, second, ctx):
                yield Pair(first, second, saved)

    def small(self, ctx: Context) -> Iterator[Pair]:
        """Pairs of kernels of one shape and device that take a GPU less time than it takes to launch them."""
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

    def saved(self, first: int, second: int, ctx: Context) -> int:
        """The bytes that need not be read a second time, nor written if nothing else reads them."""
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
        """Whether a third step has to run after one of them and before the other."""
        return any(
            self.before[other] >> early & 1
            for early, late in ((first, second), (second, first))
            for other in self.needs[late]
            if other != early
        )

    def is_certain(self, loop: Loop) -> bool:
        """Whether it is known that a loop meets each element of its target once."""
        shape = self.program.by_name[loop.target].shape
        is_empty = any(size.constant == 0 for size in shape)
        return isinstance(loop.value, Put) or is_empty or is_one_to_one(loop.index, shape, loop.stored)

    def overwritten_early(self, kernel: Kernel, pair: Pair) -> str:
        """An input that the merged kernel writes before it has read all of it, "" if there is none."""
        if not (names := self.program.mutated.intersection(kernel.targets)):
            return ""
        own = {name for name in kernel.targets if pair.key.issuperset(self.users[name])}
        return overwritten_early(replace(kernel, local=frozenset(own - _kept(self.program))), names)

    def merge(self, pair: Pair, kernel: Kernel) -> None:
        """Put the merged kernel in the place of the second. Nobody asks for the first one's bit any more: it stays."""
        first, second = pair.first, pair.second
        self.steps[second] = kernel
        self.needs[second] = (self.needs[second] | self.needs.pop(first)) - {first, second}
        bit, own = 1 << first, 1 << second
        both = bit | own
        whole = (self.before.pop(first) | self.before[second]) & ~both
        del self.steps[first]
        self.before[second] = whole
        for number, before in self.before.items():
            if before & both:
                self.before[number] = before | whole | own
                if before & bit and first in self.needs[number]:
                    self.needs[number] = self.needs[number] - {first} | {second}
        for name in {*kernel.targets, *kernel.reads}:
            users = self.users[name]
            self.users[name] = sorted({second if user == first else user for user in users})

    def sorted(self) -> tuple[Step, ...]:
        """The steps so that each comes after what it needs, else in their order."""
        done: dict[int, Step] = {}
        for number in sorted(self.steps):
            self._place(number, done)
        return tuple(done.values())

    def _place(self, number: int, done: dict[int, Step]) -> None:
        waiting = [number]
        while waiting:
            last = waiting[-1]
            missing = [other for other in sorted(self.needs[last]) if other not in done]
            if missing:
                waiting += missing[::-1]
            else:
                done.setdefault(waiting.pop(), self.steps[last])


def _parted(step: Step, program: Program, ctx: Context) -> tuple[Step, ...]:
    """A kernel of rows as two, where rows meet memory in such short runs that this costs more than what is reduced
    takes to be read again: one of rows, and one of points, which meets memory in tiles, for what no reduction needs.
    """
    if not isinstance(step, Kernel) or not step.reduced or step.taken or not program.mutated.isdisjoint(step.targets):
        return (step,)
    needed: set[str] = set()
    for loop in reversed(step.loops):
        if loop.reduction or len(loop.ranges) == len(step.ranges) or loop.target in needed:
            needed |= {loop.target, *loop.reads}
    rows = replace(step, loops=tuple(loop for loop in step.loops if loop.target in needed))
    late = tuple(loop for loop in step.loops if loop.target not in needed)
    lost = lost_in_rows(step, program, ctx) if late else {}
    later = {name: bytes_ for name, bytes_ in lost.items() if name not in rows.reads and name not in rows.targets}
    again = sum(moved(name, rows, program, ctx) for name in rows.reads)
    if sum(later.values()) <= again + LAUNCH:
        return (step,)
    most = max(later, key=lambda name: later[name])
    why = f"rows would meet {most} in short runs, for the time of {sum(later.values()):,} bytes more"
    ctx.decide((step.targets[-1],), "parted", f"{why}; {again:,} are read again", bytes=again)
    return rows, _of_points(step, late, program, ctx)


def _of_points(step: Kernel, late: tuple[Loop, ...], program: Program, ctx: Context) -> Kernel:
    """Some loops of a kernel of rows as a kernel of points. Its ranges are merged where memory is walked so that all of
    the kernel's loops that are no rows meet, as values of theirs may be computed again; what is small does not count.
    """
    whole = tuple(loop for loop in step.loops if not loop.reduction and len(loop.ranges) > len(step.ranges))
    points = Kernel(step.name, step.ranges + step.reduced, (), whole)
    count = ctx.points(points.ranges)
    small = {name for name in points.reads if 2 * ctx.number(program.by_name[name].size) < count}
    kept = {loop.target for loop in late}
    merged = with_merged(points, program, small)
    return replace(merged, loops=tuple(loop for loop in merged.loops if loop.target in kept))


def _users(program: Program) -> dict[str, list[int]]:
    """The steps that name each buffer, in their order."""
    users: dict[str, list[int]] = {}
    for number, step in enumerate(program.steps):
        for name in sorted({*step.targets, *step.reads}):
            users.setdefault(name, []).append(number)
    return users


def needs_of(program: Program) -> dict[int, set[int]]:
    """For each step those that have to run before it: what writes its inputs, what still reads or writes what it
    overwrites, and the last call that is pinned if it is.
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


def _kept(program: Program) -> set[str]:
    """The buffers that are not local to any kernel."""
    return {*program.returned, *program.mutated, *program.inputs}


def localized(steps: Iterable[Step], program: Program) -> tuple[Step, ...]:
    """The steps with each kernel named after what it computes, and what only one kernel names local to it."""
    steps = tuple(steps)
    readers: dict[str, int] = {}
    for step in steps:
        for name in {*step.reads, *step.targets}:
            readers[name] = readers.get(name, 0) + 1
    kept = _kept(program)
    taken: set[str] = set()
    return tuple(_localized(step, readers, kept, taken) if isinstance(step, Kernel) else step for step in steps)


def _localized(kernel: Kernel, readers: dict[str, int], kept: set[str], taken: set[str]) -> Kernel:
    local = frozenset(name for name in kernel.targets if readers[name] == 1 and name not in kept)
    return replace(kernel, name=unique(named(kernel), taken), local=local)
