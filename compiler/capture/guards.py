"""Guards as facts: what is checked, and the source line that asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from compiler.record import Guard
from compiler.torch_api.dynamo import GuardFacts

_ASKED_BY = re.compile(r"#\s*(?P<file>[^\s#]+):(?P<line>\d+) in (?P<function>\S+)\s*$")


def guards_of(frame: str, facts: Sequence[GuardFacts], files: Iterable[str]) -> tuple[Guard, ...]:
    """Guards of one frame. torch shortens the file names in its comments; `files` are the full ones known."""
    known = list(files)
    return tuple(_guard(f"guard[{frame}].{index}", frame, fact, known) for index, fact in enumerate(facts))


def _guard(identity: str, frame: str, fact: GuardFacts, files: list[str]) -> Guard:
    asked = next((match for part in fact.code if (match := _ASKED_BY.search(part))), None)
    file = next((name for name in files if name.endswith(asked["file"].lstrip("."))), asked["file"]) if asked else ""
    code = tuple(part.split("  #", 1)[0].strip() for part in fact.code)
    return Guard(identity, frame, fact.kind, fact.source, code, file, int(asked["line"]) if asked else 0)
