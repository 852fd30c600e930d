"""`tcompile repro`: one file that shows a fault again, made as small as it gets, and the text of an issue."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorer.entry.file_call import (
    UsageError,
    add_code,
    add_command,
    add_options,
    explore_file,
    explore_loaded,
    output_path,
    parse_asked,
    what_is_missing,
)
from explorer.run import files

if TYPE_CHECKING:
    from explorer.entry.repro import ReproFile
    from explorer.run.run import Run

_REPRO = """\
Write the smallest file that shows one fault of a function or a model again: a graph break, a wrong number, a crash, a
kernel, a slow graph. It is reduced by bisection, and confirmed in a fresh process.

ID is that of a finding of `tcompile diagnose`, of a break (break[0/0].0), of a kernel or of a captured graph (0/0, for
one that is slow). Without ID, it is the worst fault. Inputs are random, with the shapes, strides and ranges that were
seen; --real-inputs saves the values themselves next to the file.

examples:
  tcompile repro model.py:model --input "randn(8, 64)" -o repro.py --issue issue.md
  tcompile repro model.py:model kernels[0/0].cpp_fused_add_0 --input "randn(8, 64)"
  tcompile repro model.py:model "wrong number" --input "randn(8, 64)" --backend tcompile
  tcompile repro run.json "wrong number" --trust      # a saved record: its graphs, without the program and its values
"""


def add_repro(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(commands, "repro", _REPRO, _repro, help="write the smallest file that shows a fault again")
    command.set_defaults(take_rest=_take_fault)
    add_code(command)
    command.add_argument("fault", nargs="?", default="", metavar="ID", help="which fault (the worst)")
    command.add_argument("-o", "--output", type=output_path(".py"), default=Path("repro.py"), metavar="PATH",
                         help="the file (repro.py)")  # fmt: skip
    command.add_argument("--issue", type=output_path(".md"), metavar="PATH", help="save the text of an issue")
    command.add_argument("--real-inputs", action="store_true", help="save the values of the inputs next to the file")
    command.add_argument("--trust", action="store_true", help="execute the graphs of a saved record")
    command.add_argument("--seconds", type=float, default=180.0, help="how long to reduce (180)")
    add_options(command)


def _take_fault(args: argparse.Namespace, rest: list[str]) -> bool:
    """Take an ID that stands behind options, which argparse leaves over; return whether that was all."""
    if args.fault or len(rest) != 1 or rest[0].startswith("-"):
        return False
    args.fault = rest[0]
    return True


def _repro(args: argparse.Namespace) -> None:
    from explorer.entry.repro import UserProgram, make_call_text, write_repro

    if args.seconds <= 0:
        raise UsageError("--seconds is a positive number")
    tell = (lambda words: print(f"tcompile: {words}", file=sys.stderr)) if sys.stderr.isatty() else None
    if files.is_record(args.code):
        made = write_repro(
            _saved_run(args), args.output, args.fault, real_inputs=False, seconds=args.seconds, listener=tell
        )
        _print_repro(made, args)
        return
    run, failure = _explore(args, parse_asked(args))
    if run is None:
        return
    path, _, name = args.code.rpartition(":")
    program = UserProgram(Path(path), make_call_text(name, args.inputs, args.calls))
    made = write_repro(
        run, args.output, args.fault, program, real_inputs=args.real_inputs, seconds=args.seconds, listener=tell,
        failure=failure,
    )  # fmt: skip
    _print_repro(made, args)


def _explore(args: argparse.Namespace, options: dict[str, Any]) -> tuple[Run | None, str]:
    """The run with the fault, and the error of compiled code that raises when it runs, "" if it does not.

    Then the call is explored again without a build, so that its graphs run in eager mode, and raise what eager raises.
    Raises UsageError if the code needs something that is not here.
    """
    from explorer.entry.user_code import UserError

    needed = _what_is_needed(args.fault, options) | options
    if args.fault not in ("", "failure", "crash"):
        return explore_file(args, needed), ""
    try:
        return explore_loaded(args, needed), ""
    except UserError as error:
        if missing := what_is_missing(error):
            raise UsageError(f"{args.code} {missing}") from None
        lines = str(error.cause).strip().splitlines() or [""]
        failure = f"The compiled call raises {type(error.cause).__name__}: {lines[0]}"
    left = {name: value for name, value in options.items() if name not in ("check", "time")}
    return explore_file(args, {"target": "cpu"} | left), failure


def _saved_run(args: argparse.Namespace) -> Run:
    """A saved record; its graphs are executed with --trust."""
    from explorer.run.run import Run

    if args.inputs or args.calls or args.real_inputs:
        raise UsageError("a saved record has no values: --input, --call and --real-inputs are for code")
    record = files.read(args.code)
    return Run(record.with_trust("trusted") if args.trust else record)


def _print_repro(made: ReproFile, args: argparse.Namespace) -> None:

    print(made)
    if args.issue:
        files.replace_file(args.issue, made.issue().encode())
        print(f"wrote {args.issue}")


def _what_is_needed(fault: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options to find the fault: a break needs no kernels, and only what may be a wrong number is checked.

    The call is built here, unless it is for another target.
    """
    import torch

    if fault.startswith(("break[", "graph-break", "graph break")):
        return {"stages": "captured"}
    is_built = re.match(r"kernel|slow|captured\[|\d+/\d+$", fault) is not None
    here = not (options.get("target") or torch.cuda.is_available())
    return {"check": not is_built} | ({"target": "cpu"} if here else {})
