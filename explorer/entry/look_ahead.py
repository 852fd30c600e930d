"""Predict the calls of a cell's statements that have not run yet, from the names that they call."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import Module

from compiler.torch_api import settings
from explorer.entry import callee as callees
from explorer.entry.training_code import training_code


class Rank(IntEnum):
    """Ranks of calls: the higher the rank, the more likely the user wants to explore the call.

    A script is a function that trains, builds or evaluates a model; the model that it runs is explored instead.
    """

    NOTHING = 0
    LIBRARY_MODULE = 1
    FUNCTION = 2
    OWN_MODULE = 3
    SCRIPT = 4
    MODEL = 5


@dataclass(frozen=True, slots=True)
class Site:
    """A call in a cell.

    `text` is the callee's source, `line` the call's line in the cell, `statement` the number of the call's statement.
    `certain`: the call runs unless an error is raised or a loop is empty.
    """

    text: str
    line: int
    statement: int = 0
    certain: bool = True
    callee: ast.expr | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Binding:
    """An assignment in a cell: the statement's number, and the assigned expression, None if unknown."""

    statement: int
    value: ast.expr | None


def rank(callee: object) -> Rank:
    """The rank of a callee."""
    if callees.refusal(callee):
        return Rank.NOTHING
    if settings.is_compiled(callee):
        return Rank.MODEL
    if isinstance(callee, Module):
        return _module_rank(callee)
    owner = callee.__self__ if isinstance(callee, MethodType) else None
    if isinstance(owner, Module) and callees.same(callee, owner.forward):
        return _module_rank(owner)
    if callees.runs_a_module(callee) or training_code(callee).runs_model:
        return Rank.SCRIPT
    return _module_rank(owner) if isinstance(owner, Module) else Rank.FUNCTION


def _module_rank(module: Module) -> Rank:
    if next(module.parameters(), None) is not None:
        return Rank.MODEL
    return Rank.LIBRARY_MODULE if type(module).__module__.startswith("torch.") else Rank.OWN_MODULE


class LookAhead:
    """Predicts calls from a cell's calls and assignments, and from the user's namespace at the time of the query."""

    def __init__(
        self, sites: Sequence[Site], bindings: Mapping[str, Sequence[Binding]], namespace: Mapping[str, Any]
    ) -> None:
        self._sites = sites
        self._bindings = bindings
        self.namespace = namespace

    def has_better(self, position: int, callee: object, found: Rank) -> bool:
        """Whether a later statement will make a better call than the call of `callee` at site `position`.

        A later call is better if its rank is higher or equal, unless it is a call of `callee` itself.
        """
        now = self._sites[position].statement
        best, is_same = found, True
        for site in self._sites:
            if site.certain and site.statement > now:
                expected, value = self._expected_rank(site, now)
                if expected >= best and expected:
                    best, is_same = expected, callees.same(value, callee)
        return not is_same

    def _expected_rank(self, site: Site, now: int) -> tuple[Rank, object]:
        """The expected rank of a later site's callee, and the callee itself if it exists already, else None."""
        root = root_name(site.callee)
        if site.callee is None or not root:
            return Rank.NOTHING, None
        pending = [each for each in self._bindings.get(root, ()) if now <= each.statement < site.statement]
        if pending:
            is_name = isinstance(site.callee, ast.Name)
            return (self._rank_of_result(pending[-1].value) if is_name else Rank.NOTHING), None
        value = value_of(site.callee, self.namespace)
        return (Rank.NOTHING if value is None else rank(value)), value

    def _rank_of_result(self, expression: ast.expr | None) -> Rank:
        """The expected rank of an expression's result as a callee: `Net()`, `Net().to(device)`, `make_model()`."""
        if not isinstance(expression, ast.Call):
            return Rank.NOTHING
        made = value_of(expression.func, self.namespace)
        if isinstance(made, type) and issubclass(made, Module):
            library = made.__module__.startswith(("torch.nn.modules.loss", "torch.nn.modules.activation"))
            return Rank.LIBRARY_MODULE if library else Rank.MODEL
        if made is torch.compile and expression.args:
            return Rank.MODEL
        if isinstance(made, FunctionType) and training_code(made).builds_model:
            return Rank.MODEL
        return (
            self._rank_of_result(expression.func.value) if isinstance(expression.func, ast.Attribute) else Rank.NOTHING
        )


def root_name(node: ast.expr | None) -> str:
    """The variable in a name or attribute: `model` in `model.encoder`. "" for other expressions."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def value_of(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """Value of a name or attribute, such as `model.encoder`; None if unknown. Reads attributes of modules only."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, namespace)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType | Module) else None
    return None


def torch_compile_line(body: Sequence[ast.stmt], namespace: Mapping[str, Any]) -> int:
    """Number of a line that names torch.compile, in the statements or in function bodies; 0 if there is none."""
    names = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute))
    return next((node.lineno for node in names if _is_torch_compile(value_of(node, namespace))), 0)


def _is_torch_compile(value: object) -> bool:
    function = getattr(value, "__func__", value)
    return any(function is known for known in (torch.compile, torch.compiler.compile, torch.nn.Module.compile))
