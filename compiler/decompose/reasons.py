"""Explain why an operator is not decomposed at a level, from the tables and Inductor's lowerings."""

from __future__ import annotations

from typing import Any

from compiler.torch_api import decomposition_tables as tables
from compiler.torch_api.decomposition_tables import Operator

A_PRIM = "a prim"
NOT_REGISTERED = "no decomposition is registered"
NOT_COMPOSITE = "not composite: autograd and ATen's kernels take it as it is"


def why_it_stays(op: Any, level: str, declined: str = "") -> str:
    """Reason why an operator is not decomposed at a level, as a sentence without a full stop.

    `declined` says how its decomposition declined, such as "returned NotImplemented"; "" if it did not.
    """
    if not tables.is_operator(op):
        return "it is no operator of torch's dispatcher"
    if op.namespace == "prims":
        return A_PRIM
    if level == "ATen":
        return NOT_COMPOSITE
    reason = _reason_not_decomposed(op, level)
    if declined:
        given = f"{declined} for these arguments" if declined.startswith("returned") else declined
        reason = f"its decomposition {given}"
    return f"{reason}; {what_inductor_does(op)}" if level == "Inductor" else reason


def _reason_not_decomposed(op: Operator, level: str) -> str:
    if level == "prims":
        return "no reference in prims, and no decomposition, is registered"
    has_decomposition, excluded = op in tables.table("prims"), tables.excluded_by_inductor()
    if level == "core ATen":
        if tables.is_core(op):
            return "a core ATen operator"
        left_out = "torch has a decomposition that core ATen's table leaves out"
        return f"not a core ATen operator; {left_out if has_decomposition else NOT_REGISTERED}"
    if op in excluded:
        comment = f' ("{excluded[op]}")' if excluded[op] else ""
        return f"taken out of Inductor's table on purpose{comment}"
    return "Inductor's table does not take torch's decomposition" if has_decomposition else NOT_REGISTERED


def what_inductor_does(op: Operator) -> str:
    """How Inductor generates code for an operator, in words."""
    function = tables.find_lowering(op)
    if function is None:
        return "it has no lowering: Inductor calls ATen's kernel"
    if tables.falls_back(function):
        return "Inductor falls back to ATen's kernel"
    name = f"{function.__module__.replace('.', '/')}.py: {function.__qualname__.partition('.<locals>')[0]}"
    if tables.has_template(function):
        return f"Inductor chooses among templates and ATen's kernel ({name})"
    often = ", or ATen's kernel for some arguments" if tables.may_fall_back(op) else ""
    return f"Inductor lowers it ({name}){often}"
