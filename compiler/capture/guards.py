"""Guards as facts: what is checked, in words, and the source line that asked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from compiler.capture.guard_words import argument, is_internal, words
from compiler.record import Guard
from compiler.torch_api.dynamo import GuardFacts

_ASKED_BY = re.compile(r"\s*(?P<file>\S.*):(?P<line>\d+) in (?P<function>\S+)(?: \(.*\))?\s*", re.DOTALL)
_GLOBAL = ("GLOBAL_STATE", "TORCH_FUNCTION_MODE_STACK", "DEFAULT_DEVICE", "LAMBDA_GUARD")


def guards_of(frame: str, facts: Sequence[GuardFacts], names: Mapping[str, str]) -> tuple[Guard, ...]:
    """Guards of one frame. torch cuts the file names in its comments short; `names` gives the full ones their name."""
    return tuple(_guard(f"guard[{frame}].{index}", frame, fact, names) for index, fact in enumerate(facts))


def _guard(identity: str, frame: str, fact: GuardFacts, names: Mapping[str, str]) -> Guard:
    asked = next((match for part in fact.code if (match := _ASKED_BY.fullmatch(_comment(part)))), None)
    end = asked["file"].lstrip(".") if asked else ""
    file = next((name for path, name in names.items() if path.endswith(end)), end) if asked else ""
    code = tuple(dict.fromkeys(part.split("  #", 1)[0].strip() for part in fact.code))
    return Guard(
        id=identity,
        frame=frame,
        kind=fact.kind,
        source=fact.source,
        code=code,
        file=file,
        line=int(asked["line"]) if asked else 0,
        words=words(fact.kind, fact.source, code),
        argument=_about(fact.kind, fact.source, code),
        internal=is_internal(fact.kind, fact.source, code),
    )


def _about(kind: str, source: str, code: Sequence[str]) -> str:
    """The argument that a guard belongs to, "" where it is about the process or about several."""
    if kind not in _GLOBAL:
        return argument(source)
    named = {name for part in code for name in re.findall(r"L\['(\w+)'\]", part)}
    return named.pop() if kind == "LAMBDA_GUARD" and len(named) == 1 else ""


def _comment(part: str) -> str:
    """What stands after the last `#`; code can be very long (a line for each tensor), so it is not searched."""
    return part.rpartition("#")[2]
