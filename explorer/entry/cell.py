"""Run a cell as IPython does, except that one callable is compiled.

The steps are IPython's own, in the same order: input transformers, a file name for the source, parsing, AST
transformers, then compiling and executing the statements one by one in the user's namespace. The value of a last
expression is returned for IPython to display. Exceptions of the cell propagate.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any, Literal

import torch
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output
from torch import nn

from compiler.calls.call import without_output
from compiler.record.plain_text import did_you_mean
from explorer.entry.choice import Choice, copy_tree, mark_calls, with_choice
from explorer.entry.look_ahead import Binding, LookAhead, Rank, Site, rank, root_name, torch_compile_line, value_of
from explorer.entry.ranks import RandomStates
from explorer.entry.tracebacks import show_below

Mode = Literal["exec", "single", "eval"]
CompileOne = Callable[[Any], Callable[..., Any]]

_BLANK_LINES = re.compile(r"(?:[ \t]*\n)*")
_ALLOW_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class Cell:
    """The parsed body of a `%%tcompile` cell.

    `fn` names the callee to compile, spelled as in the cell; by default `Choice` chooses. Raises SyntaxError for code
    that does not parse, UsageError if `fn` is not called in the cell.
    """

    def __init__(self, shell: Any, text: str, fn: str = "") -> None:
        self.shell = shell
        self.namespace: dict[str, Any] = shell.user_ns
        self.fn = _normalize_callee(fn)
        self.source, self.name = _register_source(shell, text)
        tree = shell.compile.ast_parse(self.source, filename=self.name)
        self.body: list[ast.stmt] = shell.transform_ast(tree).body
        self.sites: list[Site] = []
        self._bindings: dict[str, list[Binding]] = {}
        marked_body = mark_calls(copy_tree(self.body), self.sites, self._bindings)
        self._statements = list(plan_statements(marked_body, self._interactivity()))
        if self.fn and all(site.text != self.fn for site in self.sites):
            raise UsageError(_not_called_message(self.fn, self.body))

    @property
    def is_silenced(self) -> bool:
        """Whether the cell ends with a semicolon, so that IPython shows no value."""
        silenced: bool = self.shell.displayhook.semicolon_at_end_of_expression(self.source)
        return silenced

    @property
    def awaits(self) -> bool:
        """Whether the cell has a top-level await."""
        awaits: bool = self.shell.should_run_async(self.source, transformed_cell=self.source)
        return awaits

    def can_compile(self, site: Site) -> bool:
        """Whether a call's callee exists already and can be compiled."""
        value = None if site.callee is None else value_of(site.callee, self.namespace)
        return value is not None and rank(value) is not Rank.NOTHING

    def known_callee(self, site: Site) -> Any:
        """A call's callee that can be compiled; None if the cell first binds its name, so that it may be another."""
        is_bound = any(each.statement < site.statement for each in self._bindings.get(root_name(site.callee), ()))
        if site.callee is None or is_bound or not self.can_compile(site):
            return None
        return value_of(site.callee, self.namespace)

    def choice(self, compile_one: CompileOne) -> Choice:
        """A `Choice` for one run of the cell; `compile_one` returns the replacement for a callable."""
        ahead = LookAhead(self.sites, self._bindings, self.namespace)
        theirs = "" if self.fn else self._compiles_itself()
        return Choice(self.sites, compile_one, ahead, fn=self.fn, theirs=theirs, file=self.name)

    def with_namespace(self, namespace: dict[str, Any]) -> Cell:
        """The same cell, to be run in another namespace than the user's."""
        other = copy.copy(self)
        other.namespace = namespace
        return other

    def _scopes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The globals and locals of the cell's code."""
        is_users = self.namespace is self.shell.user_ns
        return self.shell.user_global_ns if is_users else self.namespace, self.namespace

    def run(self, choice: Choice) -> Any:
        """Run the cell; return the value of its last expression, or None."""
        __tracebackhide__ = "__ipython_bottom__"
        value = None
        try:
            choice.watch()
            for node, mode in self._statements:
                code = self._code(node, mode, choice)
                value = eval(code, *self._scopes())
        except BaseException as error:
            show_below(error, Cell.run.__code__, self.shell)
            raise
        finally:
            choice.close()
        return value

    async def run_async(self, choice: Choice) -> Any:
        """Run a cell that has a top-level await; return the value of its last expression, or None."""
        __tracebackhide__ = "__ipython_bottom__"
        value = None
        try:
            choice.watch()
            for node, mode in self._statements:
                code = self._code(node, mode, choice)
                value = eval(code, *self._scopes())
                if code.co_flags & inspect.CO_COROUTINE:
                    value = await value
        except BaseException as error:
            show_below(error, Cell.run_async.__code__, self.shell)
            raise
        finally:
            choice.close()
        return value

    def _interactivity(self) -> str:
        result = _outer_result(self.shell)
        quiet = self.is_silenced or (result is not None and result.info.silent)
        return "none" if quiet else self.shell.ast_node_interactivity

    def _code(self, node: ast.stmt, mode: Mode, choice: Choice) -> CodeType:
        # One statement at a time, as IPython does: statements before an error have run.
        with self.shell.compile.extra_flags(_ALLOW_AWAIT if self.shell.autoawait else 0):
            return with_choice(self.shell.compile(_tree(node, mode), self.name, mode), choice)

    def _compiles_itself(self) -> str:
        line = torch_compile_line(self.body, self.namespace)
        return f"the cell calls torch.compile itself (line {line})" if line else ""


def plan_statements(body: list[ast.stmt], interactivity: str) -> Iterator[tuple[ast.stmt, Mode]]:
    """Pairs of a statement and its compilation mode; `interactivity` is IPython's `ast_node_interactivity`.

    `single` displays the value of an expression statement. `eval` is the mode of a last expression, whose value the
    magic returns.
    """
    if not body:
        return
    *earlier, last = body
    first_mode: Mode = "single" if interactivity == "all" else "exec"
    yield from ((node, first_mode) for node in earlier)
    if isinstance(last, ast.Expr):
        yield last, "exec" if interactivity == "none" else "eval"
        return
    yield last, "single" if interactivity in ("all", "last") else "exec"
    target = _assigned_name(last) if interactivity == "last_expr_or_assign" else None
    if target is not None:
        yield ast.fix_missing_locations(ast.Expr(ast.Name(target, ast.Load()))), "eval"


def _assigned_name(node: ast.stmt) -> str | None:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    one = targets[0] if len(targets) == 1 and isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) else None
    return one.id if isinstance(one, ast.Name) else None


def _tree(node: ast.stmt, mode: Mode) -> ast.mod:
    if mode == "eval":
        assert isinstance(node, ast.Expr)
        return ast.Expression(node.value)
    return ast.Interactive([node]) if mode == "single" else ast.Module([node], [])


def _register_source(shell: Any, text: str) -> tuple[str, str]:
    """Register the cell's Python source with IPython; return it and its file name for `inspect` and debuggers.

    The lines above the code (`%%tcompile …`) become comments, so that line numbers match the notebook's.
    """
    blank = _BLANK_LINES.match(text)
    skipped = blank.group() if blank else ""
    result = _outer_result(shell)
    number = result.execution_count if result and result.execution_count else shell.execution_count
    raw = result.info.raw_cell if result else ""
    above = _text_above(raw, text)
    comments = [f"# {line}".rstrip() + "\n" for line in [*(above or "").splitlines(), *skipped.splitlines()]]
    source = "".join(comments) + shell.transform_cell(text[len(skipped) :])
    return source, shell.compile.cache(source, number, raw_code=source if above is None else raw)


def _outer_result(shell: Any) -> Any:
    """IPython's `ExecutionResult` of the running cell; None if no cell is running."""
    return getattr(shell.displayhook, "exec_result", None)


def _text_above(raw: str, text: str) -> str | None:
    """The lines above `text` in the user's cell; None if they are not known."""
    above = raw.rstrip().removesuffix(text.rstrip())
    return above if above.endswith("\n") else None


def _normalize_callee(name: str) -> str:
    """Spell a callee as `ast.unparse` does; "" stays "". Raises UsageError for text that is not an expression."""
    name = name.strip("\"'")
    try:
        return ast.unparse(ast.parse(name, mode="eval")) if name else ""
    except SyntaxError:
        raise UsageError(f"--fn {name}: name what is called as the cell writes it, for example --fn model") from None


def _not_called_message(fn: str, body: list[ast.stmt]) -> str:
    calls = [ast.unparse(node.func) for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    if fn in calls:
        return (
            f"--fn {fn}: the cell's own statements don't call it, only a function or class that the cell defines does. "
            f"Call it in the cell; or write torch.compile({fn}) there, which is explored as it is."
        )
    called = ", ".join(dict.fromkeys(calls)) or "nothing"
    return f"--fn {fn}: the cell does not call it{did_you_mean(fn, calls) or '.'} It calls: {called}."


class StartOfCell:
    """The user's namespace and random states before a cell runs, to run it again for another rank.

    Models, optimizers and tensors that the cell names are copied, as running it changes them.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell, self._states = cell, RandomStates()
        used = {node.id for each in cell.body for node in ast.walk(each) if isinstance(node, ast.Name)}
        self._namespace = dict(cell.namespace)
        self._changed = _copies(
            {name: value for name, value in self._namespace.items() if name in used and isinstance(value, _CHANGED)}
        )

    @contextmanager
    def repeat_cell(self) -> Iterator[Cell]:
        """The cell in a fresh namespace, to be run in the block without output and from equal random states."""
        namespace = self._namespace | _copies(self._changed)
        with self._states.use_temporarily(), without_output(), capture_output():
            yield self._cell.with_namespace(namespace)


_CHANGED = (nn.Module, torch.Tensor, torch.optim.Optimizer)
"""Types of objects that running a cell changes."""


def _copies(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of values that share what the originals share; a tensor that autograd made stays itself."""
    memo: dict[int, Any] = {}
    found = {}
    for name, value in values.items():
        is_result = isinstance(value, torch.Tensor) and not value.is_leaf
        found[name] = value if is_result else copy.deepcopy(value, memo)
    return found
