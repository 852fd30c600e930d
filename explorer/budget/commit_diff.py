"""What changed between two runs in numbers, and the source lines behind each changed stage."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from compiler.record import Artifact, Record
from explorer.budget.compare import Change, changes_between
from explorer.budget.reports import report_rows
from explorer.reading.plain_text import columns
from explorer.reading.provenance import innermost_lines
from explorer.run.answers import Answer
from explorer.run.diff import ArtifactDiff, RunDiff, compared_rows

MOST_LINES = 6


@dataclass(frozen=True, slots=True)
class Behind:
    """A source line behind a change; `side` is "-" for a line of the first side, "+" for one of the second."""

    side: str
    file: str
    line: int
    code: str


def lines_behind(found: RunDiff) -> str:
    """The changed numbers, and for each changed stage the source lines that it came from, as text."""
    changes = [change for change in changes_between(found.before, found.after) if change.verdict != "same"]
    parts = ["\n".join(columns(report_rows(changes, with_limit=False)))] if changes else []
    source = {side: _source_lines(record) for side, record in (("-", found.before), ("+", found.after))}
    for each in found.artifacts:
        behind = _source_lines_behind(each, found, source) if each.stage != "source" else []
        if behind:
            shown = [f"  {one.side} {one.file}:{one.line}  {one.code}" for one in behind[:MOST_LINES]]
            more = [f"  … and {len(behind) - MOST_LINES} more lines"] if len(behind) > MOST_LINES else []
            parts.append("\n".join([f"{each.id}: {each.verdict}, because of", *shown, *more]))
    return "\n\n".join(parts)


def _source_lines(record: Record) -> dict[str, tuple[str, int, str]]:
    """File, line and code of each source line by id."""
    return {
        entity.id: (str(entity.attrs.get("file", "")), int(entity.attrs.get("line", 0)), entity.label)
        for artifact in record.of_stage("source")
        for entity in artifact.entities
    }


def _source_lines_behind(
    each: ArtifactDiff, found: RunDiff, source: dict[str, dict[str, tuple[str, int, str]]]
) -> list[Behind]:
    """The edited source lines of what is on one side only. A line that has only moved is not edited."""
    if not each.lines and each.before and each.after:
        return []
    rows = _changed_rows(each.before, each.after)
    lines = list(dict.fromkeys(
        Behind(side, *source[side][name])
        for side, artifact, record in (("-", each.before, found.before), ("+", each.after, found.after))
        if artifact is not None
        for name in _lines_of_rows(artifact, record, rows[side])
        if name in source[side]
    ))  # fmt: skip
    counts = {side: Counter(code for _, _, code in known.values()) for side, known in source.items()}
    return [one for one in lines if (counts[one.side] - counts["+" if one.side == "-" else "-"])[one.code]]


def _changed_rows(before: Artifact | None, after: Artifact | None) -> dict[str, list[int]]:
    """The rows, from 1, that only one side has."""
    old, new = (compared_rows(side) if side else [] for side in (before, after))
    found: dict[str, list[int]] = {"-": [], "+": []}
    texts = [[line for _, line in side] for side in (old, new)]
    for tag, first, last, start, end in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        if tag != "equal":
            found["-"] += [row for row, _ in old[first:last]]
            found["+"] += [row for row, _ in new[start:end]]
    return found


def _lines_of_rows(artifact: Artifact, record: Record, rows: list[int]) -> Iterator[str]:
    origins = innermost_lines(record)
    for row in rows:
        for name in artifact.lines.get(row, ()):
            yield from origins.get(name, ())


def diff_answer(found: RunDiff) -> Answer:
    """A diff for a program: changed numbers, then each artifact with its unified diff and the lines behind it."""
    source = {side: _source_lines(record) for side, record in (("-", found.before), ("+", found.after))}
    changes: list[Change] = [each for each in changes_between(found.before, found.after) if each.verdict != "same"]
    metrics = [
        {
            "id": f"metric.{each.id}", "metric": each.id, "before": each.before, "after": each.after,
            "unit": each.unit, "new": each.new, "gone": each.gone,
        }
        for each in changes
    ]  # fmt: skip
    artifacts = [
        {
            "id": each.id, "stage": each.stage, "verdict": each.verdict, "diff": "\n".join(each.lines),
            "because_of": _source_lines_behind(each, found, source) if each.stage != "source" else [],
        }
        for each in found.artifacts
    ]  # fmt: skip
    return Answer("diff", " -> ".join(found.names), {"capture": found.capture}, [*metrics, *artifacts])
