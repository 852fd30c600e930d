"""Why an operator is left as it is at a level, in words: what the tables and Inductor's lowerings say of it."""

from __future__ import annotations

from typing import Any

from compiler.torch_api import decomposition_tables as tables
from compiler.torch_api.decomposition_tables import Operator

A_PRIM = "a prim"
NOT_COMPOSITE = "not composite: autograd and ATen's kernels take it as it is"


def why_it_stays(op: Any, level: str, declined: str = "") -> str:
    """One plain sentence without a full stop. `declined` is what its decomposition did in place of giving a result."""
    if not tables.is_operator(op):
        return "it is no operator of torch's dispatcher"
    if op.namespace == "prims":
        return A_PRIM
    return _BY_LEVEL[level](op, declined)


def _aten(_op: Operator, _declined: str) -> str:
    return NOT_COMPOSITE


def _core(op: Operator, declined: str) -> str:
    if declined:
        return f"its decomposition {_for_these(declined)}"
    if tables.is_core(op):
        return "a core ATen operator"
    if op in tables.table("prims"):
        return "not a core ATen operator; torch has a decomposition that core ATen's table leaves out"
    return "not a core ATen operator; no decomposition is registered"


def _inductor(op: Operator, declined: str) -> str:
    return f"{_reason_not_decomposed(op, declined)}; {what_inductor_does(op)}"


def _reason_not_decomposed(op: Operator, declined: str) -> str:
    excluded = tables.excluded_by_inductor()
    if declined:
        return f"its decomposition {_for_these(declined)}"
    if op in excluded:
        comment = f' ("{excluded[op]}")' if excluded[op] else ""
        return f"taken out of Inductor's table on purpose{comment}"
    if op in tables.table("prims"):
        return "Inductor's table does not take torch's decomposition"
    return "no decomposition is registered"


def _for_these(declined: str) -> str:
    return f"{declined} for these arguments" if declined.startswith("returned") else declined


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


def _prims(_op: Operator, declined: str) -> str:
    return (
        f"its decomposition {_for_these(declined)}"
        if declined
        else "no reference in prims, and no decomposition, is registered"
    )


_BY_LEVEL = {"ATen": _aten, "core ATen": _core, "Inductor": _inductor, "prims": _prims}
