"""Choose the call of a cell to compile: every call is marked when the cell is compiled, and one is chosen at run time.

`model(x).sum()` becomes `CHOICE.choose_now(model, 0)(x)` and `CHOICE.choose_now(….sum, 1)()`. A mark returns the callee
unchanged unless the call is chosen. The callee is evaluated at the same point, so the order of evaluation, scopes,
`super()`, `locals()` and frames are those of the unmarked cell. Modules that the cell's functions run are considered
when they are called.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import CodeType, FrameType, MethodType
from typing import Any, NoReturn

from torch.nn import Module

from compiler.calls.call import Call
from compiler.record import ExploredCall
from compiler.torch_api import module_calls, settings
from compiler.torch_api.fx import SourceFrame
from explorer.entry import callee as callees
from explorer.entry.look_ahead import Binding, LookAhead, Rank, Site, rank
from explorer.entry.training_code import is_given_model, training_code

MARK = "\0the choice of a tcompile cell\0"
"""Placeholder for the `Choice` in the syntax tree. It is replaced in the code object, so no variable is needed."""

Compile = Callable[[Any], Callable[..., Any]]


class Choice:
    """Chooses at run time which callee of a cell to compile, and compiles every call of it.

    The call with the highest `Rank` is chosen, among equals the one in the last statement; `ahead` predicts later
    calls. An unpredicted call of a higher rank replaces the chosen one, and so does a model of which a part was chosen,
    such as the encoder that `model.generate` calls before the model. With `fn`, only the callee of that name is
    chosen. Nothing is chosen if a callee is already compiled by torch.compile, or if the cell itself calls
    torch.compile (`theirs` is a text that says so, else "").
    `compile_one` returns the replacement for a module, function or bound method.
    """

    def __init__(
        self,
        sites: list[Site],
        compile_one: Compile,
        ahead: LookAhead,
        *,
        fn: str = "",
        theirs: str = "",
        file: str = "",
    ) -> None:
        self.sites = sites
        self.chosen: ExploredCall | None = None
        self.left_to_cell = theirs
        self.compiled_before = ""
        self.scripts: dict[str, None] = {}
        """Names of callees that run a model, such as a training function; the values are not used."""
        self.refused: dict[str, str] = {}
        self.calls: dict[str, tuple[Rank, Call]] = {}
        """Rank and first call of each callee that could have been chosen, by its name."""
        self._fn = fn
        self._file = file
        self._compile_one = compile_one
        self._ahead = ahead
        self._callee: object = None
        self._compiled: Callable[..., Any] | None = None
        self._rank = Rank.NOTHING
        self._is_met = False
        self._ranks: dict[int, tuple[object, Rank]] = {}
        self._position = 0
        self._redirections = ExitStack()
        self._stack = ExitStack()
        self._open = True

    def choose_now(self, callee: Any, site: int) -> Any:
        """The callable to call in place of `callee`, for a call without calls in its arguments."""
        if not self._open:
            return callee
        self._position = site
        if self._compiled is not None and callees.same(callee, self._callee):
            return self._compiled
        found = self._rank_at(callee, site)
        is_known = found <= self._rank and self.sites[site].text in self.calls
        return callee if found in (Rank.NOTHING, Rank.SCRIPT) or is_known else self._note_call(callee, site, found)

    def choose_later(self, callee: Any, site: int) -> Any:
        """The callable to call in place of `callee`, for a call with calls in its arguments.

        It makes the choice when it is called, after the calls in the arguments.
        """
        if not self._open or not self._rank_at(callee, site):
            return callee

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.choose_now(callee, site)(*args, **kwargs)

        return call

    def watch(self) -> None:
        """Start to consider modules that the cell's functions call."""
        if not self._fn:
            self._stack.enter_context(module_calls.watch_calls(self._meet))

    def close(self) -> None:
        """Stop choosing: code that outlives the cell, such as a generator, is not compiled.

        Also drop all references to the exploration: Python can't collect a cycle through a code object's constants.
        """
        self._open = False
        self._redirections.close()
        self._stack.close()
        self._callee = self._compiled = None
        self._ranks.clear()
        self._compile_one = _raise_closed

    def choose_again(self) -> tuple[str, Call] | None:
        """Choose and return the best call that the cell made; None if one is already chosen or the cell made none."""
        if self.chosen or not self.calls:
            return None
        name, (_, call) = max(reversed(self.calls.items()), key=lambda named: named[1][0])
        self.chosen = ExploredCall(name, call.site[-1].line if call.site else 0)
        return name, call

    @property
    def explored(self) -> ExploredCall | None:
        """The explored call, with the names of other calls that could be explored; None if none is chosen."""
        if self.chosen is None:
            return None
        others = [name for name in self.calls if name != self.chosen.callee and name not in self.scripts]
        scripts = [name for name in self.scripts if name != self.chosen.callee]
        return replace(self.chosen, others=tuple(others), scripts=tuple(scripts))

    def _rank_at(self, callee: Any, site: int) -> Rank:
        """The rank of a callee at a call site; NOTHING if it is refused, the highest if `fn` names it."""
        text = self.sites[site].text
        known = self._ranks.get(site)
        if known is None or not callees.same(known[0], callee):
            is_named = text == self._fn
            why_not = callees.named_refusal(callee) if is_named else callees.refusal(callee)
            if why_not and (is_named or not self._fn):
                self.refused.setdefault(text, why_not)
            found = Rank.NOTHING if why_not else Rank.MODEL if is_named else rank(callee)
            known = self._ranks[site] = callee, found
        return known[1]

    def _note_call(self, callee: Any, index: int, found: Rank) -> Callable[..., Any]:
        """Wrap `callee` to keep its first call, and to compile it if it is the best choice when it is called."""
        site = self.sites[index]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._open:
                return callee(*args, **kwargs)
            self.calls.setdefault(site.text, (found, Call(callee, callee, args, kwargs, site=self._place(site.line))))
            if not self._is_taken(callee, index, found, args, kwargs):
                return callee(*args, **kwargs)
            return self._choose(callee, ExploredCall(site.text, site.line), found)(*args, **kwargs)

        return call

    def _is_taken(
        self, callee: Any, index: int, found: Rank, args: Iterable[object], kwargs: Mapping[str, object]
    ) -> bool:
        text = self.sites[index].text
        if found <= self._rank or (self._fn and text != self._fn) or not self._is_left_to_us(callee, text):
            return False
        if self._fn:
            return True
        if found is Rank.FUNCTION and is_given_model(training_code(callee), args, kwargs):
            self.scripts[self.sites[index].text] = None
            return False
        return not self._ahead.has_better(index, callee, found)

    def _place(self, line: int) -> tuple[SourceFrame, ...]:
        return (SourceFrame(self._file, line, "<module>", ""),)

    def _is_left_to_us(self, callee: Any, text: str) -> bool:
        """Whether we may compile: False if the cell calls torch.compile itself, or if a callee was compiled before."""
        if any(map(settings.is_compiled, _parts(callee))):
            self.compiled_before = self.compiled_before or text
        return not self.left_to_cell and not self.compiled_before

    def _choose(self, callee: Any, chosen: ExploredCall, found: Rank) -> Callable[..., Any]:
        self._redirections.close()
        self.chosen, self._callee, self._rank = chosen, callee, found
        with module_calls.pause_watching():
            compiled = callees.compile_callee(callee, self._compile_one)
        if isinstance(callee, Module) and not self._fn:  # code outside of the cell may call it too
            self._redirections.callback(module_calls.Redirection(callee, compiled).undo)
            self._compiled = callee
        else:
            self._compiled = _wrap_without_watching(compiled)
        return self._compiled

    def _meet(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile a module that the cell or one of its functions is about to call, if it is the best choice."""
        if not self._open:
            return
        if self.sites and self._ranks.get(self._position, (None, Rank.NOTHING))[1] is Rank.SCRIPT:
            self.scripts[self.sites[self._position].text] = None
        if module is self._callee:
            return
        found = rank(module)
        if found == self._rank and self._is_part_of(module):
            self._redirections.close()  # a compiled part would refuse the whole
        elif found <= self._rank:
            return
        chosen = self._describe_meeting(module, sys._getframe(1))
        if all(call.fn is not module for _, call in self.calls.values()):
            self.calls.setdefault(
                chosen.callee, (found, Call(module, module, args, kwargs, site=self._place(chosen.line)))
            )
        if self._is_left_to_us(module, chosen.callee) and not self._ahead.has_better(self._position, module, found):
            self._choose(module, chosen, found)
            self._is_met = True

    def _is_part_of(self, module: Module) -> bool:
        """Whether the chosen callee is a part of a module, and was met in code that the cell calls."""
        return self._is_met and any(part is self._callee for part in module.modules())

    def _describe_meeting(self, module: Module, frame: FrameType | None) -> ExploredCall:
        site = self.sites[self._position] if self.sites else None
        while frame is not None and callees.is_own_or_torch(frame.f_code.co_filename):
            frame = frame.f_back
        name = _name_of(module, self._ahead.namespace, frame)
        return ExploredCall(name, site.line, site.text) if site else ExploredCall(name, 0)


def _wrap_without_watching(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with module_calls.pause_watching():
            return compiled(*args, **kwargs)

    return call


def _parts(callee: Any) -> list[Any]:
    """A callee and its submodules with a user-written forward; torch.compile skips torch's own modules."""
    owner = callee.__self__ if isinstance(callee, MethodType) else callee
    inner = list(owner.modules())[1:] if isinstance(owner, Module) else []
    return [callee, *(part for part in inner if not callees.is_own_or_torch(type(part).forward.__code__.co_filename))]


def _name_of(module: Module, namespace: Mapping[str, Any], frame: FrameType | None) -> str:
    """Name of a module in the user's namespace or the calling frame, such as `self.model`; else its type's name."""
    local = dict(frame.f_locals) if frame is not None else {}
    own = inspect.getattr_static(local.get("self"), "__dict__", {})
    own = own if isinstance(own, dict) else vars(local["self"])
    # A copy: garbage collection may run torch's cleanup, which removes names from the user's namespace.
    known = [(name, value) for name, value in dict(namespace).items() if not name.startswith("_")]
    names = [
        *(name for name, value in known if value is module),
        *(name for name, value in local.items() if value is module and name != "self"),
        *(f"self.{name}" for name, value in own.items() if value is module),
        *(f"{name}.{path}" for name, path in _paths(module, known)),
    ]
    return names[0] if names else type(module).__name__


def _paths(module: Module, known: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, value in known:
        if isinstance(value, Module):
            yield from ((name, path) for path, part in value.named_modules() if part is module)


def _raise_closed(*_: object) -> NoReturn:
    raise RuntimeError("this cell is done: nothing more of it is compiled")


def mark_calls(body: Iterable[ast.stmt], sites: list[Site], bindings: dict[str, list[Binding]]) -> list[ast.stmt]:
    """Mark the calls in statements; append each call to `sites` and each assignment to `bindings`.

    Bodies of functions, lambdas and classes are not marked, because they outlive the cell.
    """
    marker = _Marker(sites, bindings)
    return [ast.fix_missing_locations(marker.visit(statement)) for statement in body]


def with_choice(code: CodeType, choice: Choice) -> CodeType:
    """Replace the placeholder in a code object by `choice`."""
    return code.replace(co_consts=tuple(_constant(value, choice) for value in code.co_consts))


def _constant(value: object, choice: Choice) -> object:
    if isinstance(value, CodeType):
        return with_choice(value, choice)
    return choice if isinstance(value, str) and value == MARK else value


_CONDITIONAL = {
    ast.If: ("body", "orelse"), ast.IfExp: ("body", "orelse"), ast.While: ("body", "orelse"), ast.For: ("orelse",),
    ast.Try: ("handlers", "orelse"), ast.Match: ("cases",), ast.BoolOp: ("values",),
}  # fmt: skip
"""Parts of statements and expressions that may be skipped when the rest runs."""


class _Marker(ast.NodeTransformer):
    def __init__(self, sites: list[Site], bindings: dict[str, list[Binding]]) -> None:
        self._sites = sites
        self._bindings = bindings
        self._statement = 0
        self._is_certain = True

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.stmt):
            self._statement += 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._bind(node.name)
        outlives = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        return node if isinstance(node, outlives) else super().visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        conditional = _CONDITIONAL.get(type(node), ())
        for name, value in ast.iter_fields(node):
            was_certain, self._is_certain = self._is_certain, self._is_certain and name not in conditional
            if isinstance(value, list):
                value[:] = [self.visit(each) if isinstance(each, ast.AST) else each for each in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            self._is_certain = was_certain
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        callee = copy_tree(node.func)
        site = Site(ast.unparse(callee), node.lineno, self._statement, self._is_certain, callee)
        nested = _any_call([*node.args, *node.keywords])
        self.generic_visit(node)
        self._sites.append(site)
        return _marked_call(node, "choose_later" if nested else "choose_now", len(self._sites) - 1)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        value = copy_tree(node.value)
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._bindings[target.id][-1] = Binding(self._statement, value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        value = copy_tree(node.value)
        node.target = self.visit(node.target)
        if node.value is not None:  # the annotation is not marked: it may be kept as text, which would show the mark
            node.value = self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._bindings[node.target.id][-1] = Binding(self._statement, value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if not isinstance(node.ctx, ast.Load):
            self._bind(node.id)
        return node

    def _bind(self, name: str) -> None:
        self._bindings.setdefault(name, []).append(Binding(self._statement, None))


def copy_tree(node: Any) -> Any:
    """Copy a syntax tree, or a list of trees, with fields and locations.

    `copy.deepcopy` does not work: once IPython has shown a traceback, nodes shared by all trees (`ast.Load()`) have a
    `parent`, through which deepcopy would copy every tree.
    """
    if isinstance(node, list):
        return [copy_tree(each) for each in node]
    if not isinstance(node, ast.AST):
        return node
    return ast.copy_location(type(node)(**{name: copy_tree(value) for name, value in ast.iter_fields(node)}), node)


def _any_call(nodes: Iterable[ast.AST]) -> bool:
    return any(isinstance(inner, ast.Call) for node in nodes for inner in ast.walk(node))


def _marked_call(node: ast.Call, method: str, site: int) -> ast.Call:
    callee = node.func
    mark = ast.copy_location(ast.Constant(MARK), callee)
    choose = ast.copy_location(ast.Attribute(mark, method, ast.Load()), callee)
    chosen = ast.Call(choose, [callee, ast.copy_location(ast.Constant(site), callee)], [])
    return _place_call(ast.Call(ast.copy_location(chosen, callee), node.args, node.keywords), node, callee)


def _place_call(marked_call: ast.Call, node: ast.Call, callee: ast.expr) -> ast.Call:
    """Give a marked call the location that CPython gives `node`: the method's name, if a method call spans lines."""
    ast.copy_location(marked_call, node)
    if isinstance(callee, ast.Attribute) and callee.lineno != callee.end_lineno:
        marked_call.lineno = callee.end_lineno or node.lineno
        marked_call.col_offset = (callee.end_col_offset or 0) - len(callee.attr)
    return marked_call
