"""Whether a level computes the numbers that eager does: the largest errors, by dtype, against a stated tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from compiler.measure.check import TOLERANCE, compared
from compiler.record import Check
from compiler.torch_api.pytrees import tree_leaves

Verdict = Literal["equal", "close", "differs", "not comparable"]
_ORDER = ("equal", "close", "differs", "not comparable")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The tensors of one dtype, `count` of them, against eager's. `max_relative` is to the largest magnitude of eager's
    tensor, and so is `tolerance`; errors are None where they are not finite. `worst` names the tensor that is meant.

    A tensor is "close" within the tolerance, or where it is about as near to the same computation in float64 as eager's
    own (`AS_NEAR`): rounding alone puts those farther apart, as where terms cancel. In float64 itself that is where the
    error is one of rounding for the largest tensor (`ROUNDINGS`). `beyond` counts these.
    """

    dtype: str
    count: int
    max_absolute: float | None
    max_relative: float | None
    tolerance: float
    verdict: str
    worst: str = ""
    note: str = ""
    beyond: int = 0


AS_NEAR = 3.0
"""At most so many times eager's distance to float64: TorchDynamo's accuracy checks allow 2 to 10 times (its `same`)."""

ROUNDINGS = 64
"""So many units in the last place of the largest magnitude."""

Named = Sequence[tuple[str, Any]]


def named_outputs(value: Any, name: str = "output") -> list[tuple[str, Any]]:
    """The values in a nest, numbered: `output 0`."""
    return [(f"{name} {index}", leaf) for index, leaf in enumerate(tree_leaves(value))]


def numbers(mine: Named, eager: Named, exact: Named | None = None) -> tuple[Numbers, ...]:
    """One `Numbers` for each dtype, in the order in which they come; values that are no tensors must be equal.

    `exact` is what the same computation gives in float64, where that is known.
    """
    found: dict[str, list[Check]] = {}
    rounding = ROUNDINGS * torch.finfo(torch.float64).eps * _largest(value for _, value in eager)
    for (name, theirs), (_, own), (_, best) in zip(eager, mine, exact or [("", None)] * len(eager), strict=True):
        if theirs is not None or own is not None:
            found.setdefault(_format(theirs), []).append(_check(name, own, theirs, best, rounding))
    return tuple(_worst(dtype, checks) for dtype, checks in found.items())


def _format(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def _largest(values: Iterable[Any]) -> float:
    """The largest magnitude in float64 tensors."""
    tensors = (value for value in values if isinstance(value, Tensor) and value.dtype == torch.float64)
    return max((float(tensor.abs().max()) for tensor in tensors if tensor.numel()), default=0.0)


def _check(name: str, mine: Any, theirs: Any, exact: Any, rounding: float) -> Check:
    if not (isinstance(mine, Tensor) and isinstance(theirs, Tensor)):
        return Check(name, 0.0, 0.0, "equal") if mine == theirs else Check(name, None, None, "differs", f"{mine!r}")
    if mine.dtype == theirs.dtype and mine.shape == theirs.shape and _same(mine, theirs):
        return Check(name, 0.0, 0.0, "equal")
    check = compared(name, _real(mine), _real(theirs), relative=True)
    if check.verdict != "differs" or not check.max_absolute:
        return check
    is_rounding = theirs.dtype == torch.float64 and check.max_absolute <= rounding
    if is_rounding or _is_as_near(mine, theirs, exact):
        return replace(check, verdict="close", note=_BEYOND)
    return check


def _is_as_near(mine: Tensor, theirs: Tensor, exact: Any) -> bool:
    if not isinstance(exact, Tensor) or exact.shape != mine.shape:
        return False
    return _distance(mine, exact) <= AS_NEAR * _distance(theirs, exact)


_BEYOND = "as near to float64 as eager"


def _distance(value: Tensor, exact: Tensor) -> float:
    return float((_real(value).double() - _real(exact).double()).abs().max())


def _same(mine: Tensor, theirs: Tensor) -> bool:
    """Equal, with NaN at the same places."""
    return torch.equal(mine, theirs) or bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())


def _real(value: Tensor) -> Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _worst(dtype: str, checks: Sequence[Check]) -> Numbers:
    worst = max(checks, key=lambda check: (_ORDER.index(check.verdict), check.max_relative or 0.0))
    note = worst.note if worst.verdict == "differs" and not worst.max_relative else ""
    return Numbers(
        dtype=dtype,
        count=len(checks),
        max_absolute=_most(check.max_absolute for check in checks),
        max_relative=_most(check.max_relative for check in checks),
        tolerance=_tolerance(dtype),
        verdict=worst.verdict,
        worst=worst.subject,
        note=note,
        beyond=sum(check.note == _BEYOND for check in checks),
    )


def _tolerance(dtype: str) -> float:
    known = {str(key).removeprefix("torch."): allowed for key, allowed in TOLERANCE.items()}
    return known.get(dtype, 0.0)


def _most(errors: Iterable[float | None]) -> float | None:
    known = list(errors)
    return None if any(error is None for error in known) else max(error for error in known if error is not None)


def not_comparable(dtype: str, reason: str) -> Numbers:
    """What is said where no comparison makes sense."""
    return Numbers(dtype, 0, None, None, 0.0, "not comparable", note=reason)


def worst_verdict(found: Iterable[Numbers]) -> str:
    """The worst verdict among some; "equal" of none."""
    return max((item.verdict for item in found), key=_ORDER.index, default="equal")
