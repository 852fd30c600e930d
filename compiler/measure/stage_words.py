"""What is said of a stage's numbers in a record: one `Check` for the results of a format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from compiler.decompose.numbers import Numbers
from compiler.measure.check import largest
from compiler.record import Check

Errors = tuple[float | None, float | None]
Named = Sequence[tuple[str, Any]]

FLOOR = 1e-3


def stage_check(found: Numbers, stage: str, graph: str, exact: Errors = (None, None)) -> Check:
    """Numbers of one format against eager's; `exact` are the absolute and relative error against float64."""
    several = found.count > 1
    subject = f"{found.count} results, {found.dtype}" if several else f"{found.worst}, {found.dtype}"
    worst = f"most at {found.worst}" if several and found.max_absolute else ""
    beyond = f"{found.beyond} beyond {found.tolerance:g}, as near to float64 as eager" if found.beyond else ""
    allowed = f"allowed {found.tolerance:g} of the largest magnitude" if found.verdict == "differs" else ""
    note = "; ".join(part for part in (worst, beyond, allowed, found.note) if part)
    return Check(
        subject, found.max_absolute, found.max_relative, found.verdict, note, stage, graph, *exact,
        dtype=found.dtype, tolerance=found.tolerance,
    )  # fmt: skip


def not_comparable(stage: str, graph: str, reason: str) -> Check:
    """What is said of a stage whose numbers can't be compared."""
    return Check("outputs and gradients", None, None, "not comparable", reason, stage, graph)


def distance(mine: Named, exact: Named | None, dtype: str) -> Errors:
    """The largest absolute and relative error against float64 of the tensors of a format; None where not known.

    Tensors that should be zero, or nearly, have no relative error to speak of: theirs is to `FLOOR` of the largest.
    """
    pairs = [
        (own, best)
        for (_, own), (_, best) in zip(mine, exact or (), strict=False)
        if isinstance(own, Tensor) and isinstance(best, Tensor) and str(own.dtype) == f"torch.{dtype}"
    ]
    if not pairs or any(not own.is_floating_point() or own.shape != best.shape for own, best in pairs):
        return None, None
    floor = FLOOR * max((largest(best) for _, best in pairs if best.numel()), default=0.0) or 1.0
    errors = [(largest(own.double() - best), max(largest(best), floor)) for own, best in pairs if own.numel()]
    return max((error for error, _ in errors), default=0.0), max((error / of for error, of in errors), default=0.0)


def on_cpu(named: Named) -> list[tuple[str, Any]]:
    return [(name, value.detach().cpu() if isinstance(value, Tensor) else value) for name, value in named]
