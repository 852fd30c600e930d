"""`tcompile diagnose`: all that is wrong with a program under torch.compile, ranked, with edits that were tried."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from explorer.cli_json import add_json, print_answer
from explorer.entry.file_call import (
    UsageError,
    add_code,
    add_command,
    add_options,
    add_save,
    explore_strictly,
    output_path,
    parse_asked,
)
from explorer.entry.options import OPTIONS, option_words
from explorer.run import files

_DIAGNOSE = """\
Say what is wrong with a function or a model under torch.compile, ranked: graph breaks, recompilations, failures, wrong
numbers, what is only slow. Fixes are tried, and those that hold are one patch. Nothing is changed.

examples:
  tcompile diagnose model.py:model --input "randn(8, 64)"
  tcompile diagnose model.py:model --input "randn(8, 64)" --json              # for a program
  tcompile diagnose model.py:model --input "randn(8, 64)" --patch fix.patch && git apply fix.patch
  tcompile diagnose run.json                                                  # a saved record; nothing is run
"""


def add_diagnose(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "diagnose",
        _DIAGNOSE,
        _diagnose,
        help="rank what is wrong with a function or model in a file, with edits that were tried",
    )
    add_code(command)
    command.add_argument("--patch", type=output_path(".patch", ".diff"), metavar="PATH", help="save the diff")
    command.add_argument("--untried", action="store_true", help="try no fixes: faster, and nothing is verified")
    add_save(command)
    add_json(command)
    add_options(command)


def _diagnose(args: argparse.Namespace) -> None:
    from explorer.findings.diagnosis import diagnose
    from explorer.run.record_answers import diagnosis_answer

    if files.is_record(args.code):
        if args.inputs or args.calls or args.save:
            raise UsageError("a saved record is only read: --input, --call and --save are for code")
        found = diagnose(files.read(args.code), command=args.code)
        patch = found.patch.encode()
    else:
        run = explore_strictly(args, parse_asked(args))
        if run is None:
            return
        found = run.diagnose(try_fixes=not args.untried, command=_command(args))
        patch = run.patch().encoded() if found.patch else b""
        if args.save:
            run.save(args.save)
    if args.patch and patch:
        files.replace_file(args.patch, patch)
    if args.json:
        print_answer(diagnosis_answer(found), args)
    else:
        print(found)


def _command(args: argparse.Namespace) -> str:
    """The words of the command that say what was called, and with which options."""
    inputs = [word for text in args.inputs for word in ("--input", text)]
    calls = [word for text in args.calls for word in ("--call", text)]
    given = {flag[2:]: getattr(args, flag[2:]) for flag in OPTIONS}
    return shlex.join([args.code, *inputs, *calls, *option_words(given)])
