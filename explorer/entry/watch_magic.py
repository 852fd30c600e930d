"""`%tcompile_watch`: explore a call again when a cell or a saved module changes what it runs."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import ast
import asyncio
import importlib
import linecache
import time
import types
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand
from IPython.display import DisplayHandle, display
from IPython.extensions.autoreload import superreload
from IPython.utils.capture import capture_output

from compiler.calls.call import Call, nested_codes
from compiler.engine import explore_again
from compiler.record.options import Options
from compiler.torch_api.dynamo import inner_function
from explorer.entry.followed_files import POLL_SECONDS, FollowedFiles, file_of, user_modules
from explorer.entry.user_code import UserError
from explorer.entry.watch import FIRST_STAGE, changes_text, difference, error_text
from explorer.reading.stages import ranked_stage
from explorer.render.html import safe
from explorer.run.diff import diff_html
from explorer.run.run import Run

_MOST_NAMES = 2_000


class Watched:
    """One watched expression of a notebook: what it runs, its last exploration, and its place on the page."""

    def __init__(self, shell: Any, tree: ast.expr, options: Options, output: str) -> None:
        self._shell, self._tree, self._options, self._output = shell, tree, options, output
        self.words = ast.unparse(tree)
        self._files = FollowedFiles()
        self._modules: dict[str, types.ModuleType] = {}
        self._before: Run | None = None
        self._widget: Any = None
        self._shown: DisplayHandle | None = None
        self._marks: dict[str, Any] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Explore at once; then look for saved files while the kernel is idle. Raises what the call raises.

        Raises UsageError if the expression can't be evaluated.
        """
        try:
            call = self._call()
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - names and arguments of the user may raise anything
            raise UsageError(f"%tcompile_watch {self.words}: {type(error).__name__}: {error}") from None
        self._shown = display({"text/plain": f"Exploring {self.words}…"}, raw=True, display_id=True)
        run, seconds = self._explore(call)
        self._keep(run, f"first exploration, {seconds:.2f} s", "")
        if getattr(self._shell, "kernel", None) is not None:
            from explorer.run.widget import Explorer

            self._widget = Explorer(run.record)
            display(self._widget)
            self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def end(self, words: str = "") -> None:
        """Stop watching, and say so on the page."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if words:
            self._tell(words)

    def after_cell(self) -> None:
        """Explore again if a cell has changed a function, a class, a model or an argument behind the expression."""
        if changed := self._reload():
            self._explore_again(changed)
        elif (marks := self._read_marks()) != self._marks:
            names = [name for name in marks | self._marks if marks.get(name) != self._marks.get(name)]
            self._explore_again(", ".join(names[:4]))

    def _poll(self) -> None:
        """Look for saved files; called by the kernel's event loop, in its main thread, when no cell runs."""
        try:
            if changed := self._reload():
                self._explore_again(changed)
        finally:
            if self._timer is not None:
                self._timer = asyncio.get_running_loop().call_later(POLL_SECONDS, self._poll)

    def _explore_again(self, changed: str) -> None:
        try:
            with capture_output():
                run, seconds = self._explore(self._call())
        except Exception as error:  # noqa: BLE001 - the user's call may raise anything; it is shown
            self._marks = self._read_marks()
            self._tell(f"{changed} changed", error_text(UserError(error, error.__traceback__), self.words))
            return
        assert self._before is not None
        self._keep(run, f"{changed} changed, explored in {seconds:.2f} s", changes_text(difference(self._before, run)))
        if self._widget is not None:
            self._widget.update(run.record)

    def _explore(self, call: Call) -> tuple[Run, float]:
        """Explore a call up to the stage that is looked at, without side effects."""
        start = time.perf_counter()
        found = explore_again(call, replace(self._options, stages=self._stages()))
        return Run(found.record, kept=found.kept, call=found.call), time.perf_counter() - start

    def _call(self) -> Call:
        """The call, evaluated now. A name alone is called as it was explored last."""
        if not isinstance(self._tree, ast.Call):
            function = self._evaluate(self._tree)
            args, kwargs = _arguments_of_last(self._shell.user_ns, self.words)
            return Call(function, function, args, kwargs)
        if any(isinstance(each, ast.Starred) for each in self._tree.args) or None in [
            each.arg for each in self._tree.keywords
        ]:
            raise UsageError("%tcompile_watch takes arguments one by one, without * and **")
        args = [self._evaluate(each) for each in self._tree.args]
        kwargs = {str(each.arg): self._evaluate(each.value) for each in self._tree.keywords}
        function = self._evaluate(self._tree.func)
        return Call(function, function, args, kwargs)

    def _evaluate(self, node: ast.expr) -> Any:
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "<tcompile_watch>", "eval")
        return eval(code, self._shell.user_ns)

    def _stages(self) -> tuple[str, ...]:
        """The stages that were asked for, or else those that are open in the view; the captured graph at least."""
        if self._options.stages:
            return self._options.stages
        panes = self._widget.place.get("panes", ()) if self._widget is not None else ()
        opened = {str(pane.get("name", "")).partition("[")[0] for pane in panes}
        known = {artifact.stage for artifact in self._before.record.artifacts} if self._before is not None else set()
        wanted = {FIRST_STAGE, *(stage for stage in opened & known if stage != "source")}
        return tuple(sorted(wanted, key=ranked_stage))

    def _keep(self, run: Run, words: str, changes: str) -> None:
        self._before = run
        self._shell.push({self._output: run})
        self._marks = self._read_marks()
        self._modules = user_modules()
        self._files.follow(path for each in self._modules.values() if (path := file_of(each)) is not None)
        self._tell(words, changes)

    def _tell(self, words: str, changes: str = "") -> None:
        """Show one line, and below it what changed."""
        assert self._shown is not None
        head = f"watching {self.words} · {time.strftime('%H:%M:%S')} · {words}"
        html = f"<div><b>{safe(head)}</b>{diff_html(tuple(changes.splitlines()))}</div>"
        self._shown.update({"text/plain": "\n".join(filter(None, [head, changes])), "text/html": html}, raw=True)

    def _reload(self) -> str:
        """Reload the modules whose files were saved; return the files' names. An error is shown, and "" returned."""
        changed = self._files.take_changes()
        of_file = {path: module for module in self._modules.values() if (path := file_of(module)) is not None}
        names = [path for path in changed if path in of_file]
        try:
            for path in names:
                self._reload_module(of_file[path])
        except Exception as error:  # noqa: BLE001 - a module may raise anything when it is run again
            self._tell("waiting for the next save", error_text(UserError(error, error.__traceback__), self.words))
            return ""
        return ", ".join(path.name for path in names)

    def _reload_module(self, module: types.ModuleType) -> None:
        """Run a module again, as %autoreload does; names that were imported from it get its new values."""
        before = dict(vars(module))
        importlib.invalidate_caches()
        linecache.checkcache()
        superreload(module, importlib.reload, {}, self._shell)
        for space in (self._shell.user_ns, *(vars(each) for each in self._modules.values() if each is not module)):
            for name, value in list(space.items()):
                if not name.startswith("__") and name in before and before[name] is value and name in vars(module):
                    space[name] = vars(module)[name]

    def _read_marks(self) -> dict[str, Any]:
        """What tells whether the names behind the expression still mean the same."""
        return {name: _mark(value) for name, value in _names_behind(self._tree, self._shell.user_ns)}


def _names_behind(tree: ast.expr, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The notebook's own names that an expression uses, also through functions and classes of the notebook."""
    queue = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    seen: set[str] = set()
    while queue and len(seen) < _MOST_NAMES:
        name = queue.pop(0)
        if name in seen or name not in names:
            continue
        seen.add(name)
        yield name, names[name]
        for code in _codes_of(names[name]):
            queue += [used for each in nested_codes(code) for used in each.co_names]


def _codes_of(value: Any) -> list[types.CodeType]:
    if isinstance(value, torch.nn.Module):
        return [code for kind in {type(each) for each in value.modules()} for code in _codes_of(kind)]
    if isinstance(value, type):
        members = vars(value).values() if value.__module__ == "__main__" else ()
        return [code for each in members if isinstance(each, types.FunctionType) for code in _codes_of(each)]
    own = [each for each in (value, inner_function(value)) if getattr(each, "__module__", "") == "__main__"]
    codes = (getattr(each, "__code__", None) for each in own)
    return [code for code in codes if isinstance(code, types.CodeType)]


class _SameObject:
    """Equal for the same object, while two weak references are equal if their objects are: tensors compare elements."""

    def __init__(self, reference: weakref.ref[Any]) -> None:
        self._reference = reference

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self._reference is other._reference

    __hash__ = None  # type: ignore[assignment]


def _mark(value: Any) -> Any:
    """What is equal as long as a value is the same object and, for a module, has the same layers."""
    if isinstance(value, torch.nn.Module):
        layers = [(name, type(each), each.training) for name, each in value.named_modules()]
        weights = [(name, each.dtype, each.shape, each.device) for name, each in value.named_parameters()]
        return _SameObject(weakref.ref(value)), tuple(layers), tuple(weights)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return value
    try:
        return _SameObject(weakref.ref(value)), getattr(value, "__code__", None)
    except TypeError:  # a list, a tuple, a dict
        return id(value)


def _arguments_of_last(names: dict[str, Any], words: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with which an expression was explored last. Raises UsageError if it was not."""
    value = eval(words, names)
    for run in reversed([each for each in names.values() if isinstance(each, Run)]):
        call = run.calls.get(words) or (run.call if run.call is not None and _is_of(run.call, words, value) else None)
        if call is not None:
            return list(call.args), dict(call.kwargs)
    raise UsageError(f"{words} was not explored yet, so its arguments are not known: %tcompile_watch {words}(…)")


def _is_of(call: Call, words: str, value: Any) -> bool:
    return call.fn is value or getattr(call.fn, "__qualname__", "") == words


@magics_class
class WatchMagics(Magics):
    """The magic `%tcompile_watch`. `exploring` has the magic whose options it takes."""

    shell: Any

    def __init__(self, shell: Any, exploring: Any) -> None:
        super().__init__(shell)
        self._exploring = exploring
        self._watched: Watched | None = None

    @no_var_expand
    @line_magic
    def tcompile_watch(self, line: str) -> None:
        """Explore a call now, and again when a cell or a saved module changes it; show what changed.

        %tcompile_watch model(x)
        %tcompile_watch model                 with the arguments of its last exploration
        %tcompile_watch --stages forward model(x)
        %tcompile_watch --stop

        It stops at the captured graph, or at the stages that are open in the view below it. A cell counts if it
        changes a name behind the call. A module counts if its file is saved: it is reloaded as by %autoreload. The call
        runs on copies of its arguments. All other options are those of %tcompile; the last exploration is in `_tc`.
        """
        if line.split() == ["--stop"]:
            self.stop("stopped")
            return
        args = self._exploring.parse_line(line, None)
        tree = _expression(args.code)
        watched = Watched(self.shell, tree, self._exploring.options_of(args), args.output)
        watched.begin()
        self.stop("stopped: another call is watched")
        self._watched = watched
        self.shell.events.register("post_run_cell", self._after_cell)

    def stop(self, words: str = "") -> None:
        """Stop watching."""
        if self._watched is not None:
            self._watched.end(words)
            self._watched = None
            self.shell.events.unregister("post_run_cell", self._after_cell)

    def _after_cell(self, _result: Any) -> None:
        if self._watched is not None:
            self._watched.after_cell()


def _expression(text: str) -> ast.expr:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        tree = ast.expr()
    if not isinstance(tree, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
        raise UsageError(f"%tcompile_watch takes one call, such as model(x), or the name of what is called: {text!r}")
    return tree
