"""Which lines of a function certainly ran as plain Python, once it is known that it returned.

A line is certain if every way through the bytecode passes it: from the start to a return, or to or from an instruction
that is known to have run. Of branches nothing is said. Dominators as in Allen and Cocke, "A program data flow analysis
procedure" (1976), with a set of instructions as the bits of one int.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

_NEVER_GOES_ON = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_ALWAYS_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_OPENING = {"RESUME", "COPY_FREE_VARS", "MAKE_CELL"}  # on the line of `def`, which is no line of the body
_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@dataclass(frozen=True)
class Flow:
    """Control flow of one code object by instruction index; the last index is the end of all returns."""

    instructions: tuple[dis.Instruction, ...]
    after: tuple[tuple[int, ...], ...]

    @property
    def end(self) -> int:
        return len(self.instructions)

    def lines(self, passed: int) -> set[int]:
        """The lines of a set of instructions."""
        found = (each for number, each in enumerate(self.instructions) if passed >> number & 1)
        places = (each.positions for each in found if each.opname not in _OPENING)
        return {place.lineno for place in places if place is not None and place.lineno is not None}

    def on_line(self, line: int) -> list[int]:
        numbered = enumerate(self.instructions)
        return [number for number, each in numbered if each.positions and each.positions.lineno == line]


def lines_run(code: CodeType, known: Iterable[int] = (), *, whole: bool = True) -> tuple[int, ...]:
    """The lines that certainly ran, in order. `known` are lines that did; `whole` says that all of the function was
    plain Python, from its start to a return. Of generators and coroutines only what is known is said.
    """
    known = set(known)
    if code.co_flags & _PAUSES or not (whole or known):
        return tuple(sorted(known))
    flow = flow_of(code)
    before, behind = dominators(flow.after, 0), dominators(_predecessors(flow.after), flow.end)
    passed = before[flow.end] if whole else 0
    for line in known:
        passed |= _certain(flow.on_line(line), before if whole else None, behind)
    return tuple(sorted(known | flow.lines(passed)))


def _certain(numbers: Sequence[int], before: Sequence[int] | None, behind: Sequence[int]) -> int:
    """What is passed on every way to a line, and from it: a line may stand in the bytecode more than once, and which
    copy ran is not known.
    """
    if not numbers:
        return 0
    passed = behind[numbers[0]] if before is None else before[numbers[0]] | behind[numbers[0]]
    for number in numbers[1:]:
        passed &= behind[number] if before is None else before[number] | behind[number]
    return passed


def reachable_instructions(listing: dis.Bytecode, instructions: Sequence[dis.Instruction]) -> list[dis.Instruction]:
    """The instructions that some way from the start leads to, in order."""
    after = _flow(listing, tuple(instructions)).after
    seen, todo = {0}, [0]
    while todo:
        fresh = [number for number in after[todo.pop()] if number not in seen]
        seen.update(fresh)
        todo += fresh
    return [each for number, each in enumerate(instructions) if number in seen]


def flow_of(code: CodeType) -> Flow:
    """The control flow of code, with an edge to the handler where an exception may occur."""
    listing = dis.Bytecode(code)
    return _flow(listing, tuple(listing))


def _flow(listing: dis.Bytecode, instructions: tuple[dis.Instruction, ...]) -> Flow:
    place = {each.offset: number for number, each in enumerate(instructions)}
    handlers = [(entry.start, entry.end, place[entry.target]) for entry in listing.exception_entries]  # type: ignore[attr-defined]  # new in 3.11, not in typeshed
    after = [
        tuple(dict.fromkeys([*_successors(number, each, instructions, place), *_handlers(each.offset, handlers)]))
        for number, each in enumerate(instructions)
    ]
    return Flow(instructions, (*after, ()))


def _successors(
    number: int, instruction: dis.Instruction, instructions: Sequence[dis.Instruction], place: dict[int, int]
) -> list[int]:
    if instruction.opname in _RETURNS:
        return [len(instructions)]
    jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
    found = [place[instruction.argval]] if jumps and instruction.argval in place else []
    stops = instruction.opname in _NEVER_GOES_ON or instruction.opname in _ALWAYS_JUMPS
    return found if stops else [*found, number + 1]


def _handlers(offset: int, handlers: Iterable[tuple[int, int, int]]) -> list[int]:
    return [target for start, end, target in handlers if start <= offset < end]


def _predecessors(after: Sequence[Sequence[int]]) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in after]
    for number, targets in enumerate(after):
        for target in targets:
            before[target].append(number)
    return before


def dominators(after: Sequence[Sequence[int]], start: int) -> list[int]:
    """Dominators of each node as a bit set, itself included; 0 for unreachable nodes."""
    order = _reverse_postorder(after, start)
    reached = set(order)
    before = [[node for node in nodes if node in reached] for nodes in _predecessors(after)]
    everything = (1 << len(after)) - 1
    found = [everything if node in reached else 0 for node in range(len(after))]
    found[start] = 1 << start
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            common = everything
            for earlier in before[node]:
                common &= found[earlier]
            common |= 1 << node
            changed |= common != found[node]
            found[node] = common
    return found


def _reverse_postorder(after: Sequence[Sequence[int]], start: int) -> list[int]:
    """Nodes that can be reached, each before those behind it as far as loops allow."""
    seen, order, todo = {start}, [], [(start, iter(after[start]))]
    while todo:
        node, targets = todo[-1]
        fresh = next((target for target in targets if target not in seen), None)
        if fresh is None:
            order.append(node)
            todo.pop()
        else:
            seen.add(fresh)
            todo.append((fresh, iter(after[fresh])))
    return order[::-1]
