"""Lines of a function that certainly ran as plain Python, given that it returned.

A line certainly ran if every path through the bytecode passes it. Paths lead from the start to a return, or to or from
an instruction that is known to have run. Lines on only some paths are left out.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType

_NEVER_GOES_ON = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_ALWAYS_JUMPS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
_RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_OPENING = {"RESUME", "COPY_FREE_VARS", "MAKE_CELL"}  # on the line of `def`, which does not belong to the body
_PAUSES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def lines_run(code: CodeType, known: Iterable[int] = (), *, whole: bool = True) -> tuple[int, ...]:
    """Lines that certainly ran, in order.

    `known` are lines known to have run. `whole` is whether the whole function was plain Python, from its start to a
    return. For generators and coroutines, only `known` is returned.
    """
    known = set(known)
    if code.co_flags & _PAUSES or not (whole or known):
        return tuple(sorted(known))
    import networkx  # takes a tenth of a second, and functions without graph breaks do not need it

    listing = dis.Bytecode(code)
    instructions = list(listing)
    lines = [each.positions.lineno if each.positions else None for each in instructions]
    after = _successors_of_each(listing, instructions)
    end = len(instructions)
    flow = networkx.DiGraph()
    flow.add_nodes_from(range(end + 1))
    flow.add_edges_from((number, target) for number, targets in enumerate(after) for target in targets)
    trees = [networkx.immediate_dominators(flow.reverse(), end) | {end: None}]
    if whole:
        trees.append(networkx.immediate_dominators(flow, 0) | {0: None})
    passed = _dominators(trees[-1], end) if whole else set()
    for line in known:
        # A line may occur in the bytecode more than once, and it is unknown which copy ran.
        copies = (number for number, other in enumerate(lines) if other == line)
        ways = [set[int]().union(*(_dominators(tree, number) for tree in trees)) for number in copies]
        passed |= set.intersection(*ways) if ways else set()
    ran = {lines[number] for number in passed if number < end and instructions[number].opname not in _OPENING}
    return tuple(sorted(known.union(line for line in ran if line is not None)))


def _dominators(tree: Mapping[int, int | None], node: int) -> set[int]:
    """Nodes on the path from a dominator tree's root to `node`; empty if `node` is not in the tree."""
    found: set[int] = set()
    place = node if node in tree else None
    while place is not None:
        found.add(place)
        place = tree[place]
    return found


def reachable_instructions(listing: dis.Bytecode, instructions: Sequence[dis.Instruction]) -> list[dis.Instruction]:
    """Instructions that can be reached from the start, in order."""
    after = [*_successors_of_each(listing, instructions), ()]
    seen, todo = {0}, [0]
    while todo:
        fresh = [number for number in after[todo.pop()] if number not in seen]
        seen.update(fresh)
        todo += fresh
    return [each for number, each in enumerate(instructions) if number in seen]


def _successors_of_each(listing: dis.Bytecode, instructions: Sequence[dis.Instruction]) -> list[tuple[int, ...]]:
    """Indices of each instruction's successors and exception handlers; the index after the last stands for a return."""
    place = {each.offset: number for number, each in enumerate(instructions)}
    entries = listing.exception_entries  # type: ignore[attr-defined]  # new in 3.11, not in typeshed
    handlers = [(entry.start, entry.end, place[entry.target]) for entry in entries]
    found = []
    for number, each in enumerate(instructions):
        caught = [target for start, end, target in handlers if start <= each.offset < end]
        found.append(tuple(dict.fromkeys([*_successors(number, each, len(instructions), place), *caught])))
    return found


def _successors(number: int, instruction: dis.Instruction, end: int, place: Mapping[int, int]) -> list[int]:
    if instruction.opname in _RETURNS:
        return [end]
    jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
    found = [place[instruction.argval]] if jumps and instruction.argval in place else []
    stops = instruction.opname in _NEVER_GOES_ON or instruction.opname in _ALWAYS_JUMPS
    return found if stops else [*found, number + 1]
