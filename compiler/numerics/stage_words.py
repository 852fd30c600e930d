"""Summarize a stage's results for a record: one `Check` for each dtype, with the user's names of inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compiler.capture.guard_words import input_name
from compiler.numerics.policy.by_dtype import Named, Numbers, numbers
from compiler.record import Artifact, Check

"""Usual names for the module that is called, which are dropped; other names are kept."""


def stage_checks(mine: Named, eager: Named, best: Named | None, stage: str, graph: str) -> tuple[Check, ...]:
    """Compare a stage's results with eager's and with `best`, the results in float64: one `Check` for each dtype.

    Integers and booleans equal to eager's are counted with the first dtype.
    """
    found = numbers(mine, eager, best)
    whole = [item for item in found if item.verdict == "equal" and not _is_floating(item.dtype)]
    shown = [item for item in found if item not in whole] or whole[:1]
    others = [item for item in whole if item not in shown]
    return tuple(_stage_check(item, stage, graph, others if item is shown[0] else ()) for item in shown)


def _is_floating(dtype: str) -> bool:
    known = getattr(torch, dtype, None)
    return isinstance(known, torch.dtype) and (known.is_floating_point or known.is_complex)


def _stage_check(found: Numbers, stage: str, graph: str, others: Sequence[Numbers] = ()) -> Check:
    """The `Check` of one dtype; `others` are results of other dtypes, equal to eager's, that are counted with it."""
    count = found.count + sum(item.count for item in others)
    formats = " and ".join(item.dtype for item in (found, *others))
    subject = f"{count} results, {formats}" if count > 1 else f"{found.worst}, {formats}"
    worst = f"most at {found.worst}" if found.count > 1 and found.max_absolute else ""
    beyond = f"{found.beyond} beyond {found.tolerance:g}, as near to float64 as eager" if found.beyond else ""
    allowed = (
        f"allowed {found.tolerance:g} of the largest magnitude"
        if found.verdict == "differs" and found.max_relative is not None
        else ""
    )
    note = "; ".join(part for part in (worst, beyond, allowed, found.note) if part)
    return Check(
        subject, found.max_absolute, found.max_relative, found.verdict, note, stage, graph,
        found.max_absolute_float64, found.max_relative_float64, dtype=found.dtype, tolerance=found.tolerance,
    )  # fmt: skip


def not_comparable(stage: str, graph: str, reason: str) -> Check:
    """The `Check` of a stage whose results can't be compared, with the reason."""
    return Check("outputs and gradients", None, None, "not comparable", reason, stage, graph)


def on_cpu(named: Named) -> list[tuple[str, Any]]:
    return [(name, value.detach().cpu() if isinstance(value, Tensor) else value) for name, value in named]


def input_names(captured: Artifact) -> list[str]:
    """The user's names of a captured graph's inputs, in order; "" for an input without a name."""
    inputs = [entity for entity in captured.entities if entity.kind == "placeholder"]
    return [input_name(str(entity.attrs.get("source") or "")) for entity in inputs]


def rename_input(text: str, names: Sequence[str]) -> str:
    """Replace the input in `gradient of input 3` by the user's name, if it has one."""
    found = re.search(r"\binput (\d+)$", text)
    name = "".join(names[int(found[1]) :][:1]) if found else ""
    return text[: found.start()] + name if found and name else text
