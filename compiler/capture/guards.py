"""Guards as facts: the check in words, the source line that caused it, its cost, and its number of failures."""

from __future__ import annotations

import dis
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import NamedTuple, Protocol

from compiler.capture.guard_words import SymbolNames, argument, is_internal, words
from compiler.capture.sources import is_installed
from compiler.record import Guard
from compiler.record.capture_facts import AskedBy
from compiler.record.printed_code import RESUME_PREFIX

_ASKED_BY = re.compile(r"\s*(?P<file>\S[^:]*):(?P<line>\d+) in (?P<function>\S+)(?: \(.*\))?\s*", re.DOTALL)
_GLOBAL = ("GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "LAMBDA_GUARD")
Failed = Counter[tuple[str, str, str]]
"""Number of failures of a guard in calls that recompiled, by its kind, its source and the first part of its code."""
_ENTRY = re.compile(r"L\['(___stack\d+)'\]")


class LeafGuard(Protocol):
    """One check of compiled code, observed (`compiler.torch_api.guards.GuardFacts`) or logged."""

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def code(self) -> tuple[str, ...]: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def fails(self) -> int: ...
    @property
    def of_wrapper(self) -> bool: ...


class Asked(NamedTuple):
    """The source line that caused a guard; file "" and line 0 if torch does not record it."""

    file: str = ""
    line: int = 0
    own: bool = False
    """Whether the line is the user's own, not an installed package's."""


def guards_of(
    frame: str,
    facts: Sequence[LeafGuard],
    names: Mapping[str, str],
    sizes: SymbolNames,
    failed: Failed | None,
    stack: dict[str, str],
) -> tuple[Guard, ...]:
    """Guards of one frame. `names` maps full paths to names, as torch abbreviates file names in its comments.

    `sizes` are the names of symbolic sizes. `failed` are the known failures. `stack` maps torch's names for values on
    the stack (`___stack0`) to local variables.
    """
    tensors = {fact.source for fact in facts if fact.kind == "TENSOR_MATCH"}
    found = []
    for index, fact in enumerate(facts):
        guard = _guard(f"guard[{frame}].{index}", frame, fact, names, sizes, stack)
        is_of_tensor = guard.kind == "TYPE_MATCH" and guard.source in tensors
        found.append(replace(guard, internal=guard.internal or is_of_tensor))
    fails = _failures(facts, found, failed or Counter())
    return tuple(replace(guard, failed=count) for guard, count in zip(found, fails, strict=True))


def _failures(facts: Sequence[LeafGuard], guards: Sequence[Guard], failed: Failed) -> list[int]:
    """Number of failures of each guard.

    If another cache entry fits the call, torch counts failures by value, not by check. Such failures are attributed to
    the value's check with the most known failures, or else to its first check, preferably one that is not internal.
    """
    known = [_known_failures(fact, failed) for fact in facts]
    by_source: dict[str, list[int]] = {}
    for index, guard in enumerate(guards):
        by_source.setdefault(guard.source, []).append(index)
    blamed = {max(same, key=lambda n: (known[n], not guards[n].internal)) for same in by_source.values()}
    return [max(known[index], fact.fails) if index in blamed else known[index] for index, fact in enumerate(facts)]


def _known_failures(fact: LeafGuard, failed: Failed) -> int:
    if fact.kind == "NO_TENSOR_ALIASING":
        return failed[fact.kind, "", ""]
    if fact.kind == "LAMBDA_GUARD":
        return max((failed[fact.kind, "", part] for part in fact.code), default=0)
    return failed[fact.kind, fact.source, fact.code[0] if fact.code else ""]


def line_that_asked(comment: str, names: Mapping[str, str]) -> Asked | None:
    """Parse the source line in torch's comment on a guard (`code  # …/file.py:3 in f`); None if there is none."""
    asked = _ASKED_BY.fullmatch(comment.rpartition("#")[2])  # search only the comment, as code can be very long
    if asked is None:
        return None
    end, line = asked["file"].lstrip("(."), int(asked["line"])  # in brackets if no code of the user asked
    path = next((path for path in names if path.endswith(end)), "")
    return Asked(names[path], line, not is_installed(path)) if path else Asked(end, line)


def find_asker(frames: Sequence[tuple[str, str]]) -> AskedBy:
    """What asked for the value of a symbol, by the files and functions of torch's own frames at that moment."""
    if not frames:
        return ""
    is_traced = any(function == "evaluate_expr" and Path(file).name == "tensor.py" for file, function in frames)
    return "code" if is_traced else "operator"


def _guard(
    identity: str, frame: str, fact: LeafGuard, names: Mapping[str, str], sizes: SymbolNames, stack: dict[str, str]
) -> Guard:
    asked = next((found for part in fact.code if (found := line_that_asked(part, names))), Asked())
    code = tuple(dict.fromkeys(part.split("  #", 1)[0].strip() for part in fact.code))
    source, shown = with_names(fact.source, stack), tuple(with_names(part, stack) for part in code)
    return Guard(
        id=identity,
        frame=frame,
        kind=fact.kind,
        source=fact.source,
        code=code,
        file=asked.file,
        line=asked.line,
        words=words(fact.kind, source, shown, sizes),
        argument=_argument_of_guard(fact.kind, source, shown),
        internal=fact.of_wrapper or is_internal(fact.kind, fact.source, code, asked.own),
        symbols=sizes.symbols(fact.kind, fact.source, code),
        seconds=fact.seconds,
    )


def _argument_of_guard(kind: str, source: str, code: Sequence[str]) -> str:
    """The argument that a guard checks; "" if it checks global state or several arguments."""
    if kind not in _GLOBAL:
        return argument(source)
    named = {name for part in code for name in re.findall(r"L\['(\w+)'\]", part)}
    return named.pop() if kind == "LAMBDA_GUARD" and len(named) == 1 else ""


def stack_names(code: CodeType) -> dict[str, str]:
    """Map torch's name for the top of the stack (`___stack0`) to the local variable that it is stored to; {} if none.

    A resume function loads the stack's entries, and jumps to the instruction after the graph break.
    """
    if not code.co_name.startswith(RESUME_PREFIX):
        return {}
    top = ""
    listing = list(dis.get_instructions(code))
    for instruction in listing:
        if str(instruction.argval).startswith("___stack") and instruction.opname.startswith("LOAD_FAST"):
            top = str(instruction.argval)
        if instruction.opname.startswith("JUMP"):
            after = next((each for each in listing if each.offset == instruction.argval), None)
            return {top: _stored_local(after)} if top and after is not None and _stored_local(after) else {}
    return {}


def _stored_local(instruction: dis.Instruction) -> str:
    """The local variable to which an instruction stores the top of the stack; "" for any other instruction."""
    if not instruction.opname.startswith("STORE_FAST"):
        return ""
    first = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
    return str(first)


def with_names(text: str, names: dict[str, str]) -> str:
    """A guard's source or code with names of local variables in place of torch's names for the stack."""
    return _ENTRY.sub(lambda entry: f"L['{names.get(entry[1], entry[1])}']", text)
