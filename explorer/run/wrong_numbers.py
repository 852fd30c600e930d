"""Where a wrong number comes from: a custom operator, code that asks whether it is compiled, or one operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from compiler.record import Record, Span
from explorer.findings.diagnosis import Diagnosis, Diagnostic, Support

if TYPE_CHECKING:
    from explorer.run.run import Run

_ASKS: Final = re.compile(r"\b(is_compiling|is_dynamo_compiling|is_exporting)\(\)")
_TOGETHER: Final = (
    "Each operation agrees with eager mode if its value is kept: it is how operations are compiled together."
)
_AROUND: Final = (
    "The captured graph differs in eager mode too: something was evaluated while TorchDynamo read the code, and is a "
    "constant in the graph."
)


@dataclass(frozen=True)
class _Cause:
    """What makes numbers wrong, in words, with its place and a change if they are known."""

    words: str
    file: str = ""
    line: int = 0
    code: str = ""
    fix: str = ""


def locate_wrong_numbers(run: Run, found: Diagnosis, paths: Mapping[str, str]) -> Diagnosis:
    """Add the cause, and its line, to findings of wrong numbers that have no line."""
    written = _undeclared_write(run)
    if written is None and all(each.line for each in found.findings if each.kind == "wrong number"):
        return found
    if written is not None:  # it explains all of them
        found = _with_first_wrong_number(found)
    cause = written or (_cause_in_captured_graph(run.record) if _differs_when_captured(run.record) else _operation(run))
    file = paths.get(cause.file, cause.file)
    span = Span(file, cause.line, cause.line, code=cause.code) if cause.line else None

    def add(each: Diagnostic) -> Diagnostic:
        evidence = (*each.evidence, Support(cause.words, "measured"))
        return replace(each, evidence=evidence, file=file, line=cause.line, span=span, fix=cause.fix or each.fix)

    def needs_cause(each: Diagnostic) -> bool:
        return each.kind == "wrong number" and (written is not None or not each.line)

    return replace(found, findings=tuple(add(each) if needs_cause(each) else each for each in found.findings))


def _with_first_wrong_number(found: Diagnosis) -> Diagnosis:
    wrong = [each for each in found.findings if each.kind == "wrong number"]
    return replace(found, findings=tuple(each for each in found.findings if each not in wrong[1:]))


def _undeclared_write(run: Run) -> _Cause | None:
    from compiler.numerics.undeclared_writes import undeclared_writes

    entities = {each.id: each for artifact in run.record.of_stage("captured") for each in artifact.entities}
    for graph, kept in run.kept.items():
        if kept.eager is None or kept.arguments is None:
            continue
        for node, argument in undeclared_writes(kept.eager, kept.arguments):
            entity = entities.get(f"captured[{graph}].{node.name}")
            attrs = entity.attrs if entity is not None else {}
            return _Cause(
                f"{node.target} changes its argument {argument}, which its schema does not declare: the compiler "
                "assumes that the values stay.",
                str(attrs.get("file", "")), int(attrs.get("line", 0)), str(attrs.get("code", "")),
                f"Declare it where the operator is defined: mutates_args=({argument!r},); or let it change a copy.",
            )  # fmt: skip
    return None


def _differs_when_captured(record: Record) -> bool:
    return any(check.verdict == "differs" and check.stage == "captured" for check in record.checks)


def _cause_in_captured_graph(record: Record) -> _Cause:
    """The line that asks whether it is compiled; without one, that capture is the cause."""
    for artifact in record.of_stage("source"):
        for entity in artifact.entities:
            if (asked := _ASKS.search(entity.label)) and not artifact.attrs.get("installed"):
                file, line = str(entity.attrs.get("file", "")), int(entity.attrs.get("line", 0))
                fix = "Compute the same in both ways, or leave the question out."
                return _Cause(f"{_AROUND} `{asked[0]}` is True there.", file, line, entity.label, fix)
    return _Cause(_AROUND)


def _operation(run: Run) -> _Cause:
    """The first operation whose compiled value differs from eager's."""
    from compiler.calls.explored import Explored  # these import torch
    from compiler.numerics.across.snapshot import SnapshotError
    from compiler.numerics.across.values import compare_with_eager

    try:
        compared = compare_with_eager(Explored(run.record, None, run.kept, run.call))
    except SnapshotError as error:
        return _Cause(f"Values of operations are not compared: {error}")
    if compared.first is None:
        return _Cause(_TOGETHER)
    place = compared.first.operation
    return _Cause(f"Compiled, {compared.verdict}.", place.file, place.line, place.code)
