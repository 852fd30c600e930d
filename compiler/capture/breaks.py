"""Graph breaks as facts: where, what torch calls it, and what torch advises."""

from __future__ import annotations

import re

from compiler.capture.sources import SourceBook
from compiler.record import GraphBreak
from compiler.torch_api.dynamo import BreakFacts, break_registry

_EXPLANATION = re.compile(r"^\s*Explanation: (.*)$", re.MULTILINE)
_HINT = re.compile(r"^\s*Hint: (.*)$", re.MULTILINE)
_ID = re.compile(r"\bgb(\d{4})\b", re.IGNORECASE)


def graph_break(identity: str, frame: str, facts: BreakFacts, book: SourceBook) -> GraphBreak:
    """A break with its source line. The registry that ships with torch fills what the message leaves out."""
    known = break_registry().get(facts.kind, {})
    explanation, hints, gb_id = _EXPLANATION.search(facts.reason), _HINT.findall(facts.reason), _ID.search(facts.reason)
    for entry in facts.stack:
        book.line(entry.filename, entry.lineno or 0)
    last = facts.stack[-1] if facts.stack else None
    return GraphBreak(
        id=identity,
        frame=frame,
        kind=facts.kind,
        reason=book.shorten(facts.reason.strip()),
        file=book.name(last.filename) if last else "",
        line=(last.lineno or 0) if last else 0,
        function=last.name if last else "",
        code=(last.line or "") if last else "",
        explanation=explanation[1].strip() if explanation else str(known.get("Explanation", "")),
        hints=tuple(hint.strip() for hint in hints) or tuple(known.get("Hints", ())),
        gb_id=f"GB{gb_id[1]}" if gb_id else str(known.get("id", "")),
        stack=tuple(f"{book.name(entry.filename)}:{entry.lineno} in {entry.name}" for entry in facts.stack),
    )
