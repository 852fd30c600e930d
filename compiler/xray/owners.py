"""Find the place that owns a changing value: follow a guarded value back through assignments, loops and callers.

An expression owns a change if its value changes and its parts do not. Changes are read from `Kinds` for one aspect,
such as the shape: a changing index is not blamed for a shape that does not depend on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from compiler.capture.assignments import (
    MUTATING,
    Assigned,
    Function,
    Source,
    Step,
    argument_of,
    assignments,
    assigns,
    covers,
    dominates,
    find_reaching,
    parameter_of,
    sets,
    source_of_file,
)
from compiler.xray.changing_values import Kind, Kinds, node_key

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MOST_STEPS = 60


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call from which a function was entered."""

    file: str
    call: ast.Call


@dataclass
class Walk:
    """Follows one changing value back to its owner. `calls` are the numbers of the calls between which it changes.

    `aspect` is the aspect that changes. `files` are the user's files. `entered_at` are the calls that lead to the frame
    with the failed guard, outermost first. `steps` are the nodes on the way.
    """

    kinds: Kinds
    aspect: str
    calls: tuple[int, ...]
    files: Sequence[str]
    entered_at: tuple[CallSite, ...] = ()
    sizes: frozenset[int] = frozenset()
    """The old and the new size or int, as far as known; empty if no size or int changes."""
    steps: list[Step] = field(default_factory=list)
    _seen: set[tuple[ast.AST, int]] = field(default_factory=set)

    def owner_of_name(self, source: Source, function: Function, name: str, line: int) -> Step | None:
        """The owner of a local variable's value after a line of its function; None if there is none."""
        return self._variable(source, name, function, line, self.entered_at)

    def owner_of_attribute(self, attribute: str, class_name: str = "") -> Step | None:
        """The owner of an attribute's value, preferably in `class_name`; None if no statement set it in the calls."""
        stores = [each for each in self._stores(attribute) if self._ran(*each)]
        own = [each for each in stores if class_name and _class_of(*each) == class_name]
        for source, statement in own or stores:
            self._add(source, statement, attribute)
            value = statement.value if _sets_whole_attribute(statement, attribute) else None
            if value is not None and self._varies(source, value):
                return self.owner_of_expression(source, value, ()) or self.steps[-1]
            return self.steps[-1]
        return None

    def owner_of_expression(self, source: Source, node: ast.expr, sites: tuple[CallSite, ...]) -> Step | None:
        """The owner of an expression's changing value; None in a cycle, or after too many steps."""
        if (node, len(sites)) in self._seen or len(self._seen) > MOST_STEPS:
            return None
        self._seen.add((node, len(sites)))
        if isinstance(node, ast.Name):
            return self._name(source, node, sites)
        if isinstance(node, ast.Attribute) and not self._varies(source, node.value):
            found = self.owner_of_attribute(node.attr, _class_around(source, node))
            return found or Step(source.file, node, ast.unparse(node))
        for child in self._changing_parts(source, node):
            if found := self.owner_of_expression(source, child, sites):
                return found
        if isinstance(node, ast.Call) and (found := self._returned_step(source, node, sites)):
            return found
        return Step(source.file, node, " ".join(ast.unparse(node).split()))

    def _changing_parts(self, source: Source, node: ast.expr) -> list[ast.expr]:
        """Parts of an expression whose values change, the likeliest explanation first.

        Parts that have both the old and the new size come first. Of the others, only tensors and containers are kept,
        if there are any, as numbers may be mere indices; if a plain value changes, only plain values are kept.
        """
        parts = [part for part in _parts(node) if self._varies(source, part) or self._is_iterator(source, part)]
        plain_first = self.aspect == "value"
        ranks = {
            part: (not self._has_sizes(source, part), self._is_plain(source, part) != plain_first) for part in parts
        }
        best = min((rank[1] for rank in ranks.values()), default=False)
        return sorted((part for part in parts if ranks[part][1] == best or not ranks[part][0]), key=ranks.__getitem__)

    def _has_sizes(self, source: Source, node: ast.expr) -> bool:
        """Whether the values of an expression have the old and the new size."""
        found = {number for kind in self._kinds(source, node) for number in kind.sizes()}
        return bool(self.sizes) and self.sizes <= found

    def _is_plain(self, source: Source, node: ast.expr) -> bool:
        return any(kind.is_plain for kind in self._kinds(source, node))

    def _is_iterator(self, source: Source, node: ast.expr) -> bool:
        """Whether an expression is an iterator over values that may change."""
        is_iterator = any(kind.is_iterator for kind in self._kinds(source, node))
        return is_iterator and (isinstance(node, ast.Name) or any(self._varies(source, part) for part in _parts(node)))

    def _kinds(self, source: Source, node: ast.expr) -> list[Kind]:
        return self.kinds.kinds_of(node_key(source.file, node), self.calls)

    def _varies(self, source: Source, node: ast.expr) -> bool:
        return self.kinds.varies(node_key(source.file, node), self.aspect, self.calls)

    def _add(self, source: Source, node: ast.stmt | ast.expr | ast.arg, name: str) -> None:
        step = Step(source.file, node, name)
        if step not in self.steps:
            self.steps.append(step)

    def _returned_step(self, source: Source, node: ast.Call, sites: tuple[CallSite, ...]) -> Step | None:
        """The owner of a call's changing result, inside the user's function that it runs; None if there is none."""
        codes = {kind.code for kind in self._kinds(source, node.func) if kind.code and kind.code[0] in self.files}
        for file, name, line in codes if len(codes) == 1 else ():
            callee = source_of_file(file)
            function = callee.function_at(name.rpartition(".")[2], line) if callee else None
            for each in ast.walk(function) if function else ():
                if callee and isinstance(each, ast.Return) and each.value and self._varies(callee, each.value):
                    return self.owner_of_expression(callee, each.value, (*sites, CallSite(source.file, node)))
        return None

    def _name(self, source: Source, node: ast.Name, sites: tuple[CallSite, ...]) -> Step | None:
        for around in source.enclosing_nodes(node):
            if isinstance(around, _COMPREHENSIONS):
                for part in around.generators:
                    if sets(part.target, node.id):
                        return self._loop(source, part.iter, part.iter, node.id, sites)
            if isinstance(around, _FUNCTIONS):
                found = self._variable(source, node.id, around, node.lineno, sites, node)
                if found is not None or _is_local(source, around, node.id):
                    return found
        return self._global(source, node)

    def _variable(
        self, source: Source, name: str, function: Function, line: int, sites: tuple[CallSite, ...],
        use: ast.Name | None = None,
    ) -> Step | None:  # fmt: skip
        """The owner of a variable's value where `use` reads it or, if `use` is None, after the line."""
        before, later = find_reaching(source, function, name, line, use)
        before, later = ([each for each in found if self._may_have_run(source, each[0])] for found in (before, later))
        parameter = parameter_of(function, name)
        is_between = len(self.calls) > 1
        if parameter is not None and (
            not (before or later) or (is_between and self._enters(source, parameter, before, line))
        ):
            return self._parameter(source, function, name, sites)
        reaching = [*before, *later] if is_between else [*later, *before]
        is_cycle = False
        for statement, value in reaching:
            if value is not None and self._changes(source, value, statement):
                if (value, len(sites)) in self._seen and (statement, value) in later and not is_between:
                    return Step(source.file, statement, name)  # a loop changes the variable by its own value
                self._add(source, statement, name)
                if isinstance(statement, ast.For | ast.AsyncFor):
                    return self._loop(source, statement, value, name, sites)
                if found := self.owner_of_expression(source, value, sites):
                    return found if found.node is not value else Step(source.file, statement, name)
                is_cycle = True
        if parameter is not None and self._enters(source, parameter, before, line):
            return self._parameter(source, function, name, sites)
        if is_cycle or not reaching:
            return None
        changing = (later[-1:] or before[:1])[0][0]
        self._add(source, changing, name)
        return Step(source.file, changing, name)

    def _enters(self, source: Source, parameter: ast.arg, before: Sequence[Assigned], line: int) -> bool:
        """Whether a parameter's value changes and may reach a line: no assignment `before` always replaces it."""
        is_set = any(dominates(source, statement, line) for statement, _ in before)
        return not is_set and self.kinds.varies(node_key(source.file, parameter), self.aspect, self.calls)

    def _may_have_run(self, source: Source, statement: ast.stmt | ast.expr) -> bool:
        """Whether a statement ran in the calls; True if none of its expressions is recorded."""
        key = (node_key(source.file, node) for node in ast.walk(statement) if isinstance(node, ast.expr))
        known = [each for each in key if each in self.kinds.keys]
        return not known or any(self.kinds.kinds_of(each, self.calls) for each in known)

    def _changes(self, source: Source, value: ast.expr, statement: ast.stmt | ast.expr) -> bool:
        is_loop = isinstance(statement, ast.For | ast.AsyncFor)
        return is_loop or self._varies(source, value) or self._is_iterator(source, value)

    def _loop(
        self, source: Source, header: ast.stmt | ast.expr, values: ast.expr, name: str, sites: tuple[CallSite, ...]
    ) -> Step:
        """The owner of a loop variable: the owner of the iterated values if these change, or else the loop."""
        if self._varies(source, values) or self._is_iterator(source, values):
            found = self.owner_of_expression(source, values, sites)
            if found is not None:
                return found
        self._add(source, header, name)
        return Step(source.file, header, name)

    def _parameter(self, source: Source, function: Function, name: str, sites: tuple[CallSite, ...]) -> Step | None:
        """The owner of a parameter: that of the caller's argument; for the explored function, the parameter itself."""
        parameter = parameter_of(function, name)
        if parameter is None:
            return None
        self._add(source, parameter, name)
        if not sites:
            return Step(source.file, parameter, name)
        site, outer = sites[-1], source_of_file(sites[-1].file)
        passed = argument_of(function.args, name, site.call)
        if passed is None or outer is None:
            return Step(site.file, site.call, name)
        if isinstance(passed, ast.Constant):
            return Step(site.file, passed, name)
        return self.owner_of_expression(outer, passed, sites[:-1])

    def _global(self, source: Source, node: ast.Name) -> Step | None:
        stores = [statement for statement in ast.walk(source.tree)
                  if isinstance(statement, ast.stmt) and assigns(statement, node.id)]  # fmt: skip
        own = [each for each in stores if _names_global(source.function(each), node.id)]
        found = next(iter([each for each in own if self._ran(source, each)] or own or stores), None)
        return Step(source.file, found or node, node.id)

    def _stores(self, attribute: str) -> Iterator[tuple[Source, ast.stmt]]:
        """Yield the statements of the user's files that set or change an attribute of this name."""
        for file in self.files:
            source = source_of_file(file)
            for node in ast.walk(source.tree) if source else ():
                if source and isinstance(node, ast.stmt) and _changes_attribute(node, attribute):
                    yield source, node

    def _ran(self, source: Source, statement: ast.stmt) -> bool:
        """Whether a statement ran in the calls, so that one of its expressions has a recorded value."""
        expressions = (node for node in ast.walk(statement) if isinstance(node, ast.expr))
        return any(self._kinds(source, node) for node in expressions)


def global_owner(source: Source, name: str, walk: Walk) -> Step | None:
    """The owner of a global variable: the statement that sets it."""
    return walk._global(source, ast.Name(name, ast.Load(), lineno=1, col_offset=0, end_lineno=1, end_col_offset=0))


def _parts(node: ast.expr) -> list[ast.expr]:
    """Direct parts of an expression, without called functions and constants; also the parts of tuples and slices."""
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            own = [*args, *(keyword.value for keyword in keywords)]
            inner = [func.value] if isinstance(func, ast.Attribute) else [func] if isinstance(func, ast.Call) else []
            found = [*own, *inner]
        case ast.ListComp(elt=elt, generators=generators) | ast.SetComp(elt=elt, generators=generators):
            found = [elt, *(each.iter for each in generators)]
        case ast.GeneratorExp(elt=elt, generators=generators):
            found = [elt, *(each.iter for each in generators)]
        case ast.DictComp(key=key, value=value, generators=generators):
            found = [key, value, *(each.iter for each in generators)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            found = [body, orelse, test]
        case ast.Lambda():
            found = []
        case _:
            found = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]
    values = [each.value if isinstance(each, ast.Starred) else each for each in found]
    tuples = [part for each in values if isinstance(each, ast.Tuple | ast.Slice) for part in _parts(each)]
    return [*(each for each in values if not isinstance(each, ast.Constant | ast.Slice)), *tuples]


def _changes_attribute(node: ast.stmt, attribute: str) -> bool:
    match node:
        case ast.Assign(targets=targets):
            return any(_sets_attribute(each, attribute) for each in targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            return _sets_attribute(target, attribute)
        case ast.Delete(targets=targets):
            return any(_sets_attribute(each, attribute) for each in targets)
        case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
            return any(_mutates(each, attribute) for each in ast.walk(value))
    return False


def _sets_whole_attribute(node: ast.stmt, attribute: str) -> TypeGuard[ast.Assign]:
    """Whether a statement assigns to an attribute, not to an item of it."""
    targets = node.targets if isinstance(node, ast.Assign) else ()
    return any(isinstance(each, ast.Attribute) and each.attr == attribute for each in targets)


def _sets_attribute(target: ast.expr, attribute: str) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return any(_sets_attribute(each, attribute) for each in target.elts)
    target = target.value if isinstance(target, ast.Subscript) else target
    return isinstance(target, ast.Attribute) and target.attr == attribute


def _mutates(node: ast.AST, attribute: str) -> bool:
    """Whether a node is a call that changes an attribute's value in place, like `x.attribute.append(…)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING):
        return False
    return isinstance(node.func.value, ast.Attribute) and node.func.value.attr == attribute


def _class_of(source: Source, node: ast.AST) -> str:
    return next((each.name for each in source.enclosing_nodes(node) if isinstance(each, ast.ClassDef)), "")


def _class_around(source: Source, node: ast.Attribute) -> str:
    is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
    return _class_of(source, node) if is_self else ""


def _names_global(function: Function | None, name: str) -> bool:
    return function is not None and any(isinstance(n, ast.Global) and name in n.names for n in ast.walk(function))


def _is_local(source: Source, function: Function, name: str) -> bool:
    return parameter_of(function, name) is not None or any(True for _ in assignments(source, function, name))


def call_to(source: Source, line: int, function: str, kinds: Kinds) -> ast.Call | None:
    """The call at a line that ran a function, or else one that names the function; None if there is none."""
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and covers(node, line)]
    named = [each for each in calls if _callee(each.func) == function]
    ran = [each for each in calls if function in _names_run(source, each, kinds)]
    return next(iter([*ran, *named]), None)


def _names_run(source: Source, call: ast.Call, kinds: Kinds) -> set[str]:
    """Names of the functions that a call expression ran, in all calls of the program."""
    found = kinds.kinds_of(node_key(source.file, call.func), kinds.calls)
    return {kind.code[1].rpartition(".")[2] for kind in found if kind.code}


def _callee(function: ast.expr) -> str:
    return (
        function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""
    )
