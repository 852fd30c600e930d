"""Guards as facts: what is checked, in words, the source line that asked for it, what it takes, how often it failed."""

from __future__ import annotations

import dis
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import NamedTuple

from compiler.capture.guard_words import OpenNames, argument, is_internal, words
from compiler.capture.sources import is_installed
from compiler.record import Guard
from compiler.torch_api.dynamo import RESUME_PREFIX
from compiler.torch_api.guards import GuardFacts

_ASKED_BY = re.compile(r"\s*(?P<file>\S[^:]*):(?P<line>\d+) in (?P<function>\S+)(?: \(.*\))?\s*", re.DOTALL)
_GLOBAL = ("GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "LAMBDA_GUARD")
Failed = Counter[tuple[str, str, str]]
"""How often a guard failed in calls that compiled anew, by its kind, source and the first part of its code."""
_ENTRY = re.compile(r"L\['(___stack\d+)'\]")


class Asked(NamedTuple):
    """The line that made torch check something; ("", 0) where torch does not say."""

    file: str = ""
    line: int = 0
    own: bool = False
    """Whether it is the user's own line, not one of an installed package."""


def guards_of(
    frame: str,
    facts: Sequence[GuardFacts],
    names: Mapping[str, str],
    sizes: OpenNames | None = None,
    failed: Failed | None = None,
    stack: dict[str, str] | None = None,
) -> tuple[Guard, ...]:
    """Guards of one frame. torch cuts the file names in its comments short; `names` gives the full ones their name.
    `sizes` are the names of what is left open, `failed` what is known of failures, `stack` the locals that values on
    the stack are stored to.
    """
    tensors = {fact.source for fact in facts if fact.kind == "TENSOR_MATCH"}
    found = [
        _guard(f"guard[{frame}].{index}", frame, fact, names, sizes or OpenNames(), stack or {})
        for index, fact in enumerate(facts)
    ]
    found = [
        replace(guard, internal=True) if guard.kind == "TYPE_MATCH" and guard.source in tensors else guard
        for guard in found
    ]
    fails = _failures(facts, found, failed or Counter())
    return tuple(replace(guard, failed=count) for guard, count in zip(found, fails, strict=True))


def _failures(facts: Sequence[GuardFacts], guards: Sequence[Guard], failed: Failed) -> list[int]:
    """How often each has failed. A call that other code fits compiles nothing: of those torch counts the values that
    failed, not the checks. They are put down to the check on it that is known to fail, or else to the first.
    """
    known = [_known_failures(fact, failed) for fact in facts]
    blamed: dict[str, int] = {}
    for index, guard in enumerate(guards):
        blamed.setdefault(guard.source, index)
        if (known[index], not guard.internal) > (
            known[blamed[guard.source]],
            not guards[blamed[guard.source]].internal,
        ):
            blamed[guard.source] = index
    return [
        max(count, fact.fails) if blamed[fact.source] == index else count
        for index, (fact, count) in enumerate(zip(facts, known, strict=True))
    ]


def _known_failures(fact: GuardFacts, failed: Failed) -> int:
    if fact.kind == "NO_TENSOR_ALIASING":
        return failed[fact.kind, "", ""]
    if fact.kind == "LAMBDA_GUARD":
        return max((failed[fact.kind, "", part] for part in fact.code), default=0)
    return failed[fact.kind, fact.source, fact.code[0] if fact.code else ""]


def line_that_asked(comment: str, names: Mapping[str, str]) -> Asked | None:
    """The line in torch's comment on a guard (`code  # …/file.py:3 in f`), None if it names none."""
    asked = _ASKED_BY.fullmatch(comment.rpartition("#")[2])  # code can be very long, so it is not searched
    if asked is None:
        return None
    end, line = asked["file"].lstrip("."), int(asked["line"])
    path = next((path for path in names if path.endswith(end)), "")
    return Asked(names[path], line, not is_installed(path)) if path else Asked(end, line)


def _guard(
    identity: str, frame: str, fact: GuardFacts, names: Mapping[str, str], sizes: OpenNames, stack: dict[str, str]
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
    """The argument that a guard belongs to, "" where it is about the process or about several."""
    if kind not in _GLOBAL:
        return argument(source)
    named = {name for part in code for name in re.findall(r"L\['(\w+)'\]", part)}
    return named.pop() if kind == "LAMBDA_GUARD" and len(named) == 1 else ""


def stack_names(code: CodeType) -> dict[str, str]:
    """The local that the value on top of the stack is stored to first, by torch's name for it (`___stack0`).

    A resume function loads the stack's entries, and jumps to the instruction after the one that broke the graph.
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
    """The local that an instruction stores the top of the stack to, "" if it does something else."""
    if not instruction.opname.startswith("STORE_FAST"):
        return ""
    first = instruction.argval[0] if isinstance(instruction.argval, tuple) else instruction.argval
    return str(first)


def with_names(text: str, names: dict[str, str]) -> str:
    """A guard's source or code with the locals' names in place of torch's."""
    return _ENTRY.sub(lambda entry: f"L['{names.get(entry[1], entry[1])}']", text)
