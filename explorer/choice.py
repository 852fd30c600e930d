"""Which call of a cell is compiled: every call is marked when the cell is compiled, and chosen among when it runs.

`model(x).sum()` becomes `CHOICE.now(model, 0)(x)` and `CHOICE.now(….sum, 1)()`. A marked callee is evaluated where and
when the bare one would be, and is the bare one unless it is chosen; so the order of evaluation, scopes, `super()`,
`locals()` and frames are those of the bare cell.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any, NoReturn

from compiler.torch_api import settings
from explorer import callee as callees

MARK = "\0the choice of a tcompile cell\0"
"""Stands for the `Choice` until the code object exists, where constants may be any object: no name is taken."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call in a cell: the text of its callee (`model.encoder`), and its line in the cell's source."""

    text: str
    line: int


class Choice:
    """Chooses at run time: the first call whose callee is not refused is compiled, and all others of that callee.

    `refuse` says why a callee is not for compiling, "" when it is. `compile_one` gives the callable to use in place
    of a module, function or bound method. Nothing is chosen once a callee that torch.compile has compiled already is
    met, or where `theirs` says that the cell compiles by itself ("" where it does not).
    """

    def __init__(
        self,
        sites: list[Site],
        compile_one: Callable[[Any], Callable[..., Any]],
        refuse: Callable[[object], str] = callees.refusal,
        theirs: Callable[[], str] = lambda: "",
    ) -> None:
        self.sites = sites
        self.chosen: Site | None = None
        self.left_to_cell = ""
        self.compiled_before = ""
        self.refused: dict[str, str] = {}
        self._compile_one = compile_one
        self._refuse = refuse
        self._theirs = theirs
        self._callee: object = None
        self._compiled: Callable[..., Any] | None = None
        self._open = True

    def now(self, callee: Any, site: int) -> Any:
        """The callable to call in place of `callee`, nothing else being called before it is."""
        if not self._open:
            return callee
        if self._compiled is not None:
            return self._compiled if callees.same(callee, self._callee) else callee
        return self._choose(callee, site) if self._wanted(callee, site) else callee

    def later(self, callee: Any, site: int) -> Any:
        """As `now`, where the arguments hold calls: these run first, so the choice waits until `callee` is called."""
        if not self._open or self._compiled is not None or not self._wanted(callee, site):
            return self.now(callee, site)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.now(callee, site)(*args, **kwargs)

        return call

    def close(self) -> None:
        """From here on every callee is itself; code that outlives the cell (a generator) runs bare.

        All that leads to the exploration is let go: Python can't collect a cycle through a code object's constants.
        """
        self._open = False
        self._callee = self._compiled = None
        self._compile_one = self._refuse = self._theirs = _closed

    def _wanted(self, callee: Any, site: int) -> bool:
        if self.left_to_cell or self.compiled_before:
            return False
        why_not = self._refuse(callee)
        if why_not:
            self.refused.setdefault(self.sites[site].text, why_not)
            return False
        self.left_to_cell = self._theirs()
        if not self.left_to_cell and settings.is_compiled(callee):
            self.compiled_before = self.sites[site].text
        return not self.left_to_cell and not self.compiled_before

    def _choose(self, callee: Any, site: int) -> Callable[..., Any]:
        self.chosen, self._callee = self.sites[site], callee
        self._compiled = callees.compiled(callee, self._compile_one)
        return self._compiled


def _closed(*_: object) -> NoReturn:
    raise RuntimeError("this cell is done: nothing more of it is compiled")


def marked(statement: ast.stmt, sites: list[Site], name: str = "") -> ast.stmt:
    """The statement with its calls marked, and each appended to `sites`; with `name`, only the calls of that callee.

    Functions, lambdas and classes that it defines are left alone: they outlive it.
    """
    result: ast.stmt = ast.fix_missing_locations(_Marker(sites, name).visit(statement))
    return result


def with_choice(code: CodeType, choice: Choice) -> CodeType:
    """The code object with `choice` in place of its mark."""
    return code.replace(co_consts=tuple(_constant(value, choice) for value in code.co_consts))


def _constant(value: object, choice: Choice) -> object:
    if isinstance(value, CodeType):
        return with_choice(value, choice)
    return choice if isinstance(value, str) and value == MARK else value


class _Marker(ast.NodeTransformer):
    def __init__(self, sites: list[Site], name: str) -> None:
        self._sites = sites
        self._name = name

    def visit(self, node: ast.AST) -> Any:
        outlives = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        return node if isinstance(node, outlives) else super().visit(node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        site = Site(ast.unparse(node.func), node.lineno)
        nested = _any_call([*node.args, *node.keywords])
        self.generic_visit(node)
        if self._name and site.text != self._name:
            return node
        self._sites.append(site)
        return _marked_call(node, "later" if nested else "now", len(self._sites) - 1)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:  # an annotation may be kept as text, and would show the mark
            node.value = self.visit(node.value)
        return node


def _any_call(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(inner, ast.Call) for node in nodes for inner in ast.walk(node))


def _marked_call(node: ast.Call, method: str, site: int) -> ast.Call:
    callee = node.func
    mark = ast.copy_location(ast.Constant(MARK), callee)
    choose = ast.copy_location(ast.Attribute(mark, method, ast.Load()), callee)
    chosen = ast.Call(choose, [callee, ast.copy_location(ast.Constant(site), callee)], [])
    return _located(ast.Call(ast.copy_location(chosen, callee), node.args, node.keywords), node, callee)


def _located(marked_call: ast.Call, node: ast.Call, callee: ast.expr) -> ast.Call:
    """Where CPython puts a method call that spans lines: at the method's name, as tracebacks show."""
    ast.copy_location(marked_call, node)
    if isinstance(callee, ast.Attribute) and callee.lineno != callee.end_lineno:
        marked_call.lineno = callee.end_lineno or node.lineno
        marked_call.col_offset = (callee.end_col_offset or 0) - len(callee.attr)
    return marked_call
