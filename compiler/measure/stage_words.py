"""What is said of a stage's numbers in a record: one `Check` for the results of a format."""

from __future__ import annotations

from compiler.decompose.numbers import Numbers
from compiler.record import Check

Errors = tuple[float | None, float | None]


def stage_check(found: Numbers, stage: str, graph: str, exact: Errors = (None, None)) -> Check:
    """Numbers of one format against eager's; `exact` are the absolute and relative error against float64."""
    several = found.count > 1
    subject = f"{found.count} outputs and gradients, {found.dtype}" if several else f"{found.worst}, {found.dtype}"
    worst = f"most at {found.worst}" if several and found.max_absolute else ""
    beyond = f"{found.beyond} beyond {found.tolerance:g}, as near to float64 as eager" if found.beyond else ""
    allowed = f"allowed {found.tolerance:g} of the largest magnitude" if found.verdict == "differs" else ""
    note = "; ".join(part for part in (worst, beyond, allowed, found.note) if part)
    return Check(subject, found.max_absolute, found.max_relative, found.verdict, note, stage, graph, *exact)


def not_comparable(stage: str, graph: str, reason: str) -> Check:
    """What is said of a stage whose numbers can't be compared."""
    return Check("outputs and gradients", None, None, "not comparable", reason, stage, graph)
