"""Pass, for GPUs: reorder steps to lower peak memory.

Takes the best of three greedy orders: forward, backward, and backward then forward. Forward, a step that frees more
than it allocates runs as early as possible. Backward, a step that allocates more than it frees runs as late as
possible. All other steps keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from compiler.backend.ir import Extern, Program
from compiler.backend.passes.context import Context
from compiler.backend.passes.fuse import needs_of
from compiler.backend.passes.schedule import Sizes, bytes_of_buffers, peak_bytes

Needs = Mapping[int, set[int]]


def reorder(program: Program, ctx: Context) -> Program:
    """Reorder the steps for the lowest peak memory, if that is below `reorder_percent` of the current peak."""
    if not ctx.processors or len(program.steps) < 3:
        return program
    sizes = bytes_of_buffers(program, ctx)
    most = peak_bytes(program, sizes, ctx)
    best, least = program, most * ctx.thresholds.reorder_percent // 100
    if least <= _bytes_of_any_order(program, sizes, ctx):
        return program
    for other in other_orders(program, sizes, ctx.donated):
        if (held := peak_bytes(other, sizes, ctx)) < least:
            best, least = other, held
    if best is not program:
        names = tuple(step.targets[-1] for step in best.steps if step.targets)
        ctx.decide(names, "reordered", f"{least:,} bytes are held at once, not {most:,}", bytes=most - least)
    return best


def _bytes_of_any_order(program: Program, sizes: Sizes, ctx: Context) -> int:
    """Lower bound of peak memory in any order: operands and results of the largest extern call, in bytes."""
    made = {name for step in program.steps for name in step.targets} | ctx.donated
    used = (made.intersection((*call.targets, *call.reads)) for call in program.calls)
    return max((sum(sizes[name] for name in names) for names in used), default=0)


@dataclass(slots=True)
class _Memory:
    """Lifetime of a buffer: from the first step in `begins` (the start if empty) to the last step in `ends` (the end if
    empty). `left` is the number of steps in `ends` that have not run.
    """

    size: int
    begins: frozenset[int]
    ends: frozenset[int]
    is_held: bool = False
    left: int = 0

    def __post_init__(self) -> None:
        self.is_held, self.left = not self.begins, len(self.ends)

    def from_the_end(self, last: int) -> _Memory:
        """Lifetime in reversed time, with steps counted from the last one."""
        begins, ends = (frozenset(last - number for number in group) for group in (self.ends, self.begins))
        return _Memory(self.size, begins, ends)


def other_orders(program: Program, sizes: Sizes, given: frozenset[str]) -> Iterator[Program]:
    """The program with its steps in other orders; none if mutated buffers may have aliases.

    `given` are donated inputs, freed after their last read.
    """
    is_written = program.mutated or any(call.writes for call in program.calls)
    if is_written and any(call.aliases for call in program.calls):
        return  # a mutated buffer may have aliases
    for changes in ((False,), (True,), (True, False)):
        found = program
        for is_from_the_end in changes:
            greedy = _from_the_end if is_from_the_end else _greedy
            places = greedy(needs_of(found), _memories(found, sizes, given))
            found = found.with_steps(tuple(found.steps[number] for number in places))
        yield found


def _from_the_end(needs: Needs, memories: Sequence[_Memory]) -> list[int]:
    """Greedy order in reversed time: a buffer lives from its last reader to its writer."""
    last = len(needs) - 1
    users: dict[int, set[int]] = {number: set() for number in range(last + 1)}
    for number, needed in needs.items():
        for other in needed:
            users[last - other].add(last - number)
    found = _greedy(users, [memory.from_the_end(last) for memory in memories])
    return [last - number for number in reversed(found)]


def _memories(program: Program, sizes: Mapping[str, int], given: frozenset[str]) -> list[_Memory]:
    makers: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    for number, step in enumerate(program.steps):
        written = step.targets if isinstance(step, Extern) else step.writes
        makers.update((name, number) for name in written if name not in program.mutated)
        for name in step.reads:
            readers.setdefault(name, set()).add(number)
    found = []
    for name in (*makers, *given):
        begins = frozenset([makers[name]]) if name in makers else frozenset[int]()
        ends = frozenset() if name in program.returned else frozenset(readers.get(name, begins))
        found.append(_Memory(sizes[name], begins, ends))
    return found


class _Queue:
    """A queue of steps: first steps that free more than they allocate, then the others in their original order.

    `cost` has the bytes that each step allocates minus the bytes that it frees.
    """

    def __init__(self, needed: Needs, memories: Sequence[_Memory]) -> None:
        self.waiting = {number: len(others) for number, others in needed.items()}
        self.cost = dict.fromkeys(needed, 0)
        self.named: dict[int, list[_Memory]] = {number: [] for number in needed}
        self.users: dict[int, list[int]] = {number: [] for number in needed}
        self.freeing: list[tuple[int, int]] = []
        self.ready: list[int] = []
        for memory in memories:
            for number in memory.begins | memory.ends:
                self.named[number].append(memory)
            for number in memory.begins:
                self.cost[number] += memory.size
            if memory.left == 1:
                self.cost[next(iter(memory.ends))] -= memory.size
        for number, others in needed.items():
            for other in others:
                self.users[other].append(number)
            if not others:
                self.can_run(number)

    def can_run(self, number: int) -> None:
        heappush(self.ready, number)
        self.lower(number, 0)

    def lower(self, number: int, by: int) -> None:
        """Lower the cost of a step by some bytes."""
        self.cost[number] -= by
        if self.waiting[number] == 0 and self.cost[number] < 0:
            heappush(self.freeing, (self.cost[number], number))

    def pop(self) -> int:
        while self.freeing:
            cost, number = heappop(self.freeing)
            if self.waiting[number] == 0 and self.cost[number] == cost:
                return number
        while self.waiting[number := heappop(self.ready)]:
            pass
        return number

    def run(self) -> int:
        """Run the next step: update the costs of other steps, and queue steps that become ready. Returns its number."""
        number = self.pop()
        self.waiting[number] = -1
        for memory in self.named[number]:
            if number in memory.begins and not memory.is_held:
                memory.is_held = True
                for other in memory.begins - {number}:
                    self.lower(other, memory.size)
            memory.left -= number in memory.ends
            if memory.left == 1 and number in memory.ends:
                (last,) = (other for other in memory.ends if self.waiting[other] >= 0)
                self.lower(last, memory.size)
        for user in self.users[number]:
            self.waiting[user] -= 1
            if not self.waiting[user]:
                self.can_run(user)
        return number


def _greedy(needed: Needs, memories: Sequence[_Memory]) -> list[int]:
    queue = _Queue(needed, memories)
    return [queue.run() for _ in needed]
