"""What is said of a stage's numbers in a record: one `Check` for the results of a format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from compiler.decompose.numbers import Numbers, numbers
from compiler.measure.check import largest, rounding
from compiler.record import Check

Errors = tuple[float | None, float | None]
Named = Sequence[tuple[str, Any]]

FLOOR = 1e-3


def stage_checks(mine: Named, eager: Named, best: Named | None, stage: str, graph: str) -> tuple[Check, ...]:
    """Results of a stage against eager's and `best`, the same in float64: a `Check` for each format. Whole numbers that
    are eager's are counted with the first.
    """
    found = numbers(mine, eager, best)
    exact = partial(distance, mine, best)
    whole = [item for item in found if item.verdict == "equal" and not _is_floating(item.dtype)]
    shown = [item for item in found if item not in whole] or whole[:1]
    others = [item for item in whole if item not in shown]
    told = (_stage_check(item, stage, graph, exact(item.dtype), others if item is shown[0] else ()) for item in shown)
    return tuple(_unless_rounding(check, eager) for check in told)


def _unless_rounding(check: Check, eager: Named) -> Check:
    """A check, "close" where its error is what is left where terms as large as other results cancel."""
    error = check.max_absolute if check.max_absolute_float64 is None else check.max_absolute_float64
    if check.verdict != "differs" or error is None or not _is_floating(check.dtype):
        return check
    dtype = getattr(torch, check.dtype)
    most = max((largest(value) for _, value in eager if _is_of(value, dtype)), default=0.0)
    if dtype.is_complex or error > rounding(dtype, most):
        return check
    return replace(check, verdict="close", note=f"rounding, where terms as large as other results cancel; {check.note}")


def _is_of(value: Any, dtype: torch.dtype) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype and value.numel() > 0


def _is_floating(dtype: str) -> bool:
    known = getattr(torch, dtype, None)
    return isinstance(known, torch.dtype) and (known.is_floating_point or known.is_complex)


def _stage_check(found: Numbers, stage: str, graph: str, exact: Errors, others: Sequence[Numbers] = ()) -> Check:
    """Numbers of one format, and in `others` such as are eager's."""
    count = found.count + sum(item.count for item in others)
    formats = " and ".join(item.dtype for item in (found, *others))
    subject = f"{count} results, {formats}" if count > 1 else f"{found.worst}, {formats}"
    worst = f"most at {found.worst}" if found.count > 1 and found.max_absolute else ""
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
