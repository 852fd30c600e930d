"""The call that a command's arguments describe: code in a file, its inputs, and the options of the exploration."""

from __future__ import annotations

import argparse
import io
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from explorer.entry.options import OPTIONS, asked_options

if TYPE_CHECKING:
    from compiler.record.options import Options
    from explorer.entry.user_code import UserError
    from explorer.run.run import Run

Result = TypeVar("Result")

_OF_DEVICE = re.compile(r"(?i)\b(cuda|nvidia|hip|rocm|xpu|mps|gpus?)\b|accelerator")
"""Words of torch's errors about a device that is not here."""


class UsageError(ValueError):
    """Raised for wrong usage of the command; the message is one line."""


def add_command(
    commands: Any, name: str, description: str, run: Callable[[argparse.Namespace], None], **settings: Any
) -> Any:
    """Add a command to the parser, and return its parser. `run` gets the arguments; `settings` are argparse's."""
    command = commands.add_parser(
        name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
    )
    command.set_defaults(command=run)
    return command


def add_call(command: Any, *page: str) -> None:
    """Add the arguments of a command that calls code: the code, its inputs, the files to save, and the options.

    `page` are the flags that save a page; without any, nothing is saved.
    """
    add_code(command)
    if page:
        command.add_argument(
            *page, dest="html", type=output_path(".html"), metavar="PATH", help="save a page to explore in a browser"
        )
        command.add_argument(
            "--json",
            type=output_path(".json"),
            metavar="PATH",
            help="save the record as data; without PATH, print an answer as JSON",
        )
    add_options(command)


def add_code(command: Any, **settings: Any) -> None:
    """Add the arguments that name code and its inputs."""
    command.add_argument(
        "code", metavar="FILE.py:NAME", help="a function, an nn.Module object, or a module class", **settings
    )
    add_inputs(command)
    command.add_argument(
        "--call", dest="calls", action="append", default=[], metavar="VALUES",
        help='in place of --input: the arguments of one call, for several calls: --call "randn(8, 4), 1" '
        '--call "randn(9, 4), 1"',
    )  # fmt: skip


def add_save(command: Any) -> None:
    """Add the flag that saves the record beside what else the command does."""
    command.add_argument("--save", type=output_path(".json"), metavar="PATH", help="save the record: for show, diff, …")


def add_options(command: Any) -> None:
    """Add the options of an exploration."""
    group = command.add_argument_group("options of the exploration")
    for flag, settings in OPTIONS.items():
        group.add_argument(flag, default=None, **settings)


def add_inputs(command: Any) -> None:
    command.add_argument(
        "--input",
        dest="inputs",
        action="append",
        default=[],
        metavar="VALUE",
        help='one argument, as often as needed: "randn(8, 64)", "randint(0, 100, [8])", "ones(4, dtype=float16)", 3, '
        'or by name: "mask=ones(8, 8)"',
    )
    command.add_argument("--seed", type=int, default=0, help="of torch's random numbers, for weights and inputs (0)")


def output_path(*suffixes: str) -> Any:
    """An argparse type for output paths, which must have one of these suffixes and be in an existing folder."""

    def path_to_write(value: str) -> Path:
        path = Path(value)
        if value == "-" and ".json" in suffixes:
            return path
        if path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{value!r} does not end in {' or '.join(suffixes)}")
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
        return path

    return path_to_write


def explore_file(args: argparse.Namespace, options: dict[str, Any]) -> Run | None:
    """Explore the call that `args` describe. If the user's code raises, print its traceback and return None."""
    return unless_it_raises(args, lambda: explore_loaded(args, options))


def unless_it_raises(args: argparse.Namespace, run: Callable[[], Result]) -> Result | None:
    """What `run` returns. If the user's code raises in it, print its traceback and return None."""
    from explorer.entry.user_code import UserError, print_error

    try:
        return run()
    except UserError as error:
        print_error(error)
        args.failed = True
        return None


def explore_strictly(args: argparse.Namespace, options: dict[str, Any]) -> Run | None:
    """Explore as `explore_file` does, for a machine where nobody answers.

    Raises UsageError if the code needs a GPU or a module that is not here, or asks for input. No bytecode is written.
    """
    from explorer.entry.user_code import UserError, print_error

    def explore() -> Run | None:
        try:
            return explore_loaded(args, options)
        except UserError as error:
            if missing := what_is_missing(error):
                raise UsageError(f"{args.code} {missing}") from None
            print_error(error)
            args.failed = True
            return None

    written, standard_input = sys.dont_write_bytecode, sys.stdin
    sys.dont_write_bytecode, sys.stdin = True, io.StringIO()
    try:
        return explore()
    finally:
        sys.dont_write_bytecode, sys.stdin = written, standard_input


def what_is_missing(error: UserError) -> str:
    """What the user's code needs and this machine lacks, in words; "" if it failed for another reason."""
    import torch

    from compiler.capture.sources import is_installed

    frames = [frame for frame in traceback.extract_tb(error.trace) if not is_installed(frame.filename)]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    if isinstance(error.cause, EOFError):
        return f"asks for input{place}, and nobody answers here"
    if isinstance(error.cause, ModuleNotFoundError):
        return f"imports {error.cause.name!r}{place}, and there is no such module here"
    is_of_device = isinstance(error.cause, RuntimeError | AssertionError) and _OF_DEVICE.search(str(error.cause))
    if is_of_device and not torch.accelerator.is_available():
        return f"needs a GPU{place}, and there is none here: {str(error.cause).strip().splitlines()[0]}"
    return ""


def explore_loaded(args: argparse.Namespace, options: dict[str, Any]) -> Run:
    """Explore the call that `args` describe. Raises UserError if the user's code raises."""
    from compiler.option_checks import parse_options
    from explorer.entry import user_code
    from explorer.entry.explore import explore_call

    if options.get("ranks"):
        return _explore_ranks(args, parse_options(**options))
    call = load_call(args)
    return user_code.run_user_code(
        call.path,
        lambda: explore_call(call.function, call.args, call.kwargs, options, calls=call.calls, site=call.site),
    )


@dataclass(frozen=True)
class LoadedCall:
    """The call that the command's arguments describe, or the arguments of several calls.

    `site` is the line that names the function.
    """

    function: Callable[..., Any]
    path: Path
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    site: Any
    calls: Sequence[Sequence[Any]] = ()


def load_call(args: argparse.Namespace, *, makes_model: bool = False) -> LoadedCall:
    """Run the user's file and parse the inputs. With `makes_model`, a function without parameters is called first."""
    import torch

    from explorer.entry import call_inputs, user_code
    from explorer.entry.ranks import is_script

    torch.manual_seed(args.seed)
    function, path = user_code.load(args.code)
    inputs = call_inputs.parse(args.inputs)
    if makes_model and is_script(function) and (inputs.args or inputs.kwargs):
        function = user_code.run_user_code(path, function)
    calls = [call_inputs.parse([text]) for text in getattr(args, "calls", ())]
    if calls and (args.inputs or any(call.kwargs for call in calls)):
        raise UsageError("--call has the arguments of one call in their order, without names and without --input")
    for call in calls or [inputs]:
        user_code.check_call(function, args.code.rpartition(":")[2], call.args, call.kwargs)
    site = user_code.line_of_name(function, args.code, path)
    return LoadedCall(function, path, inputs.args, inputs.kwargs, site, [call.args for call in calls])


def _explore_ranks(args: argparse.Namespace, options: Options) -> Run:
    """Explore the ranks of a simulated job; the user's file runs once for each."""
    from compiler import engine
    from compiler.calls.explored import Explored
    from compiler.distributed.shared_graphs import SharedGraphs
    from explorer.entry import ranks, user_code

    def explore_rank(shared: SharedGraphs) -> Explored:
        call = load_call(args, makes_model=True)

        def explore() -> Explored:
            if not (call.args or call.kwargs) and ranks.is_script(call.function, has_inputs=False):
                return ranks.explore_script(call.function, options, shared)
            return engine.explore(call.function, call.args, call.kwargs, options, site=call.site, shared=shared)

        found: Explored = user_code.run_user_code(call.path, explore)
        return found

    return ranks.explore_each_rank(options, explore_rank)


def parse_asked(args: argparse.Namespace) -> dict[str, Any]:
    """The given options, checked before the explored file runs. Raises OptionError, LoadError, UsageError."""
    from compiler.option_checks import parse_options

    asked = asked_options(args)
    if ":" in (args.backend or ""):
        asked["backend"] = _load_backend(args.backend)
    parse_options(**asked)
    return asked


def _load_backend(name: str) -> Callable[..., Any]:
    """The function that is a backend, by its `path.py:name`. Raises LoadError, and UsageError if its file raises."""
    from explorer.entry import user_code

    try:
        return user_code.load(name)[0]
    except user_code.UserError as error:
        raise UsageError(f"--backend {name} raises {type(error.cause).__name__}: {error.cause}") from error.cause
