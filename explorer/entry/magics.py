"""`%%tcompile` and `%tcompile`: run a cell or a line, and explore its compilation by torch.compile."""
# mypy: disallow-untyped-decorators=False

from __future__ import annotations

import argparse
import ast
import keyword
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display
from IPython.utils.process import arg_split  # type: ignore[attr-defined]

from compiler.option_checks import parse_options
from compiler.record.options import OptionError, Options
from compiler.torch_api import settings
from explorer.entry import inspection_html
from explorer.entry.cell import Cell
from explorer.entry.interrupts import RepeatedInterrupts
from explorer.entry.kernel_magics import KernelMagics
from explorer.entry.options import OPTIONS, asked_options, join_values, strip_quotes
from explorer.entry.outputs import GuardedOutput, NotebookOutput, Output, ShownWidgets
from explorer.entry.predict import PredictMagics
from explorer.entry.session import Session
from explorer.entry.watch_magic import WatchMagics
from explorer.run.run import Run

_CAN_NOT_AWAIT = (
    "this code awaits at its top level, which IPython has to know beforehand: make %%tcompile the first line of the "
    "cell, or put the await into a function and run that with asyncio"
)
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "none": False}
_FLAGS = ("--dynamic", "--grad", "--fullgraph", "--step", "--fake")
_CALL = "get_ipython().run_cell_magic('tcompile', "


def exploration_options(magic: Any) -> Any:
    """Decorator that adds the options of an exploration to a magic."""
    for flag, told in reversed(OPTIONS.items()):
        magic = argument(flag, default=None, **told)(magic)
    return magic


@magics_class
class TcompileMagics(Magics):
    """The magics `%tcompile` and `%%tcompile`.

    `output` makes an `Output` from the parsed arguments; the default depends on the shell.
    """

    shell: Any

    def __init__(self, shell: Any, output: Callable[[argparse.Namespace], Output] | None = None) -> None:
        super().__init__(shell)
        self._output = output or self._front_end
        self._shown = ShownWidgets()

    # fmt: off
    @no_var_expand
    @magic_arguments()
    @exploration_options
    @argument("--fn", metavar="NAME", type=strip_quotes, default="",
              help="Compile what the cell calls by this name, anywhere in it: model, model.encoder, layers[0].")
    @argument("--xray", action="store_true",
              help="Then find all graph breaks, also those behind others, and try fixes: run.xray(), run.patch().")
    @argument("-o", "--output", metavar="NAME", type=strip_quotes, default="_tc",
              help="Keep the result, a Run, under this name; default: _tc.")
    @argument("--no-widget", action="store_true",
              help="Show static HTML only.")
    @argument("-h", "--help", action="store_true",
              help="Show this, and run nothing.")
    @argument("statement", nargs=argparse.REMAINDER,
              help="For %%tcompile on one line: what to run, such as f(x, w). Options come before it.")
    @line_cell_magic
    def tcompile(self, line: str, cell: str | None = None) -> Any:
        """Run a cell (or a line) unchanged, and explore every stage of its compilation.

        The last call of a model (an nn.Module with parameters) in the cell is compiled, also in loops and in functions
        that train, evaluate or build a model. If there is none, the last call of one of your Python functions is
        compiled. In `loss = model(x).sum(); loss.backward()`, `model` is compiled, and its forward and backward are
        explored. In a loop, the first iteration compiles, and the rest runs as usual. If the cell calls torch.compile
        itself, that compilation is explored.
        """
        # fmt: on
        args = self.parse_line(line, cell)
        if args.help:
            return self._show_help()
        parsed = self.parse_cell(args, cell)
        if parsed.awaits:
            raise UsageError(_CAN_NOT_AWAIT)
        with RepeatedInterrupts(), self.open_session(args, parsed) as session:
            value = session.run_cell()
        return None if parsed.is_silenced else value

    @no_var_expand
    @cell_magic
    def tcompile_awaiting(self, line: str, cell: str) -> Any:
        """`%%tcompile` for a cell with a top-level await; the result must be awaited."""
        args = self.parse_line(line, cell)

        async def run() -> Any:
            if args.help:
                return self._show_help()
            parsed = self.parse_cell(args, cell)
            with RepeatedInterrupts(), self.open_session(args, parsed) as session:
                value = await session.run_cell_async()
            return None if parsed.is_silenced else value

        return run()

    def rewrite_call(self, lines: list[str]) -> list[str]:
        """Input transformer that rewrites IPython's call of `%%tcompile` for special cells.

        A cell with a top-level await becomes an awaited call, so that IPython runs it in the event loop. A cell with a
        SyntaxError becomes its code without the magic, so that IPython shows the error as usual.
        """
        text = "".join(lines)
        if not text.startswith(_CALL):
            return lines
        line, body = _arguments(text)
        try:
            transformed = self.shell.transform_cell(body)
            _compile(transformed, self.shell)
        except SyntaxError:
            return [f"# %%tcompile {line}\n", *body.splitlines(keepends=True)]
        if self.shell.should_run_async(body, transformed_cell=transformed):
            return [f"await get_ipython().run_cell_magic('tcompile_awaiting', {line!r}, {body!r})\n"]
        return lines

    def parse_line(self, line: str, cell: str | None) -> argparse.Namespace:
        """Parse the options of a magic line; `code` is the text after them. Raises UsageError."""
        words = arg_split(line, strict=False)
        args, unknown = self.tcompile.parser.parse_known_args(_spell_as_flags(words))
        if unknown:
            raise UsageError(_unknown(unknown[0]))
        args.code = _after_options(line, words, args.statement)
        if not args.output.isidentifier() or keyword.iskeyword(args.output):
            raise UsageError(f"-o {args.output}: the result is kept in a variable, so this must be a name")
        if cell is not None and args.code:
            raise UsageError(f"%%tcompile takes options on its line and the code below; what is {args.code!r}?")
        if cell is None and not args.code and not args.help:
            raise UsageError("%tcompile needs something to run: %tcompile f(x, w)")
        return args

    def _show_help(self) -> None:
        display({"text/plain": self.tcompile.parser.format_help().removeprefix("::\n\n  ")}, raw=True)

    def parse_cell(self, args: argparse.Namespace, cell: str | None) -> Cell:
        return Cell(self.shell, args.code if cell is None else cell, args.fn)

    def options_of(self, args: argparse.Namespace) -> Options:
        """The options of the exploration. Raises UsageError."""
        try:
            asked = asked_options(args)
            if args.backend and args.backend not in settings.backends():
                asked["backend"] = self.shell.user_ns.get(args.backend, args.backend)
            return parse_options(**asked)
        except OptionError as error:
            raise UsageError(str(error)) from None

    def _front_end(self, args: argparse.Namespace) -> Output:
        # Only a shell in a Jupyter kernel has `kernel`, and only there are HTML and widgets displayed.
        if getattr(self.shell, "kernel", None) is None:
            return Output()
        return NotebookOutput(with_widget=not args.no_widget, at_end=bool(args.vs))

    def open_session(self, args: argparse.Namespace, cell: Cell, shown: Output | None = None) -> Session:
        """A `Session` that runs the cell; `shown` is its output, by default that of the front end."""
        notebook_cell, execution = self._place()
        self._shown.close_older(notebook_cell, execution)

        output = GuardedOutput(shown or self._output(args))

        def keep(run: Run) -> None:
            self.shell.push({args.output: run})
            if notebook_cell and output.widget is not None:
                self._shown.add(notebook_cell, execution, run, output.widget)

        return Session(cell, self.options_of(args), output, keep, with_xray=args.xray)

    def _place(self) -> tuple[str, int]:
        """The id of the running notebook cell ("" if the front end does not send it), and its execution count."""
        result = getattr(self.shell.displayhook, "exec_result", None)
        cell_id = result.info.cell_id if result else None
        return cell_id or "", self.shell.execution_count


def _spell_as_flags(words: Sequence[str]) -> list[str]:
    return [part for word in join_values(words) for part in _spell_as_flag(word)]


def _spell_as_flag(word: str) -> list[str]:
    """Convert `--grad=False` to `--no-grad` and `--grad=True` to `--grad`; [] for the default. Keep other words."""
    name, _, value = word.partition("=")
    if name not in _FLAGS or value.lower() not in _TRUTH:
        return [word]
    if _TRUTH[value.lower()]:
        return [name]
    return [f"--no-{name[2:]}"] if name in ("--dynamic", "--grad") and value.lower() != "none" else []


def _after_options(line: str, words: Sequence[str], statement: Sequence[str]) -> str:
    """The line's text after the options. Cut from the line, because joining words would lose spaces in strings."""
    position = 0
    for word in words[: len(words) - len(statement)]:
        position = line.index(word, position) + len(word)
    return line[position:].strip().removeprefix("-- ")


def _unknown(word: str) -> str:
    """The error message for an unknown option."""
    try:
        parse_options(**{word.partition("=")[0].lstrip("-").replace("-", "_"): None})
    except OptionError as error:
        return str(error)
    return f"{word}: there is no such option; %tcompile --help lists them"


def _arguments(call: str) -> tuple[str, str]:
    """The line and body arguments of IPython's call of a cell magic."""
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    _, line, body = (ast.literal_eval(argument) for argument in expression.args)
    return line, body


def _compile(code: str, shell: Any) -> None:
    """Compile `code` only to raise its SyntaxError; warnings are shown when it runs."""
    flags = shell.compile.flags | (ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(code, "<cell>", "exec", flags, dont_inherit=True)


def load(shell: Any) -> None:
    """Add the magics to a shell."""
    magics = TcompileMagics(shell)
    shell.register_magics(magics)
    shell.register_magics(KernelMagics(shell))
    shell.register_magics(PredictMagics(shell, magics))
    shell.register_magics(WatchMagics(shell, magics))
    shell.input_transformers_post.append(magics.rewrite_call)
    inspection_html.register(shell)


def unload(shell: Any) -> None:
    """Remove the magics from a shell."""
    inspection_html.unregister(shell)
    for owner in (TcompileMagics, KernelMagics, PredictMagics, WatchMagics):
        magics = shell.magics_manager.registry.pop(owner.__name__, None)
        if isinstance(magics, WatchMagics):
            magics.stop()
        if isinstance(magics, TcompileMagics):
            shell.input_transformers_post.remove(magics.rewrite_call)
        for kind, names in magics.magics.items() if magics is not None else ():
            for name in names:
                shell.magics_manager.magics[kind].pop(name, None)
