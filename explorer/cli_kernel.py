"""`tcompile kernel`: the source of a kernel of a saved record, and an edited one compiled, checked and timed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorer.cli_json import add_json, print_answer
from explorer.entry.file_call import UsageError, add_command
from explorer.run import files
from explorer.run.answers import Answer

if TYPE_CHECKING:
    from explorer.kernel_lab.trial import KernelTrial

_KERNEL = """\
Show the source of a kernel, or compile an edited one, compare its results with the original's, and time both where they
can run: C++ of our own backend here, Triton on a GPU; without a GPU, Triton's interpreter checks the results.

examples:
  tcompile kernel run.json                            # the kernels
  tcompile kernel run.json triton_poi_fused_0 > k.py  # the source of one
  tcompile kernel run.json triton_poi_fused_0 --edit k.py --trust
"""


def add_kernel(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(commands, "kernel", _KERNEL, _kernel, help="show a kernel's source, or try an edited one")
    command.add_argument("path", metavar="RECORD", help="a saved record (.json, .html)")
    command.add_argument("name", nargs="?", default="", metavar="KERNEL", help="its name, its id, or a part of it")
    command.add_argument("--edit", type=Path, metavar="FILE", help="the edited source")
    command.add_argument("--target", default="", metavar="NAME", help="compile for another GPU: a100, mi300x")
    command.add_argument("--config", type=int, default=0, metavar="N", help="an autotuning candidate (0)")
    command.add_argument("--no-check", action="store_true", help="compile only; nothing is run")
    command.add_argument("--trust", action="store_true", help="execute the kernels' source from the file")
    add_json(command)


def _kernel(args: argparse.Namespace) -> None:
    from compiler.kernel_lab.edit import source_of
    from explorer.kernel_lab.cell import NoSuchKernelError, editable, find
    from explorer.run.record_answers import text_answer

    record = files.read(args.path)
    try:
        kernel = find(record, args.name) if args.name else None
    except NoSuchKernelError as error:
        raise UsageError(str(error)) from None
    if kernel is None:
        items = [{"id": each.id, "name": each.name, "language": each.language} for each in editable(record)]
        answer = Answer("kernels", record.full_title, {}, items)
        text = "\n".join(each["id"] for each in items)
    elif args.edit is None:
        text = source_of(record, kernel).strip("\n")
        answer = text_answer("kernel source", kernel.name, text)
    else:
        trial = _try(args, record.with_trust("trusted") if args.trust else record, kernel)
        answer, text, args.failed = trial_answer(trial), str(trial), not trial.is_right
    if args.json:
        print_answer(answer, args)
    else:
        print(text)


def _try(args: argparse.Namespace, record: Any, kernel: Any) -> KernelTrial:
    from compiler.targets import UnknownTargetError, target
    from explorer.kernel_lab.trial import try_edit
    from explorer.run.run import Run

    try:
        edited = args.edit.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{args.edit} is no text in UTF-8") from None
    try:
        gpu = target(args.target).name if args.target else ""
    except UnknownTargetError as error:
        raise UsageError(f"--target {args.target}: {error}") from None
    return try_edit(Run(record), kernel, edited, gpu, args.config, {}, check=not args.no_check)


def trial_answer(trial: KernelTrial) -> Answer:
    """A trial of an edited kernel: errors, tensors that it stores, times and facts of both versions."""
    facts = {
        "kernel": trial.kernel.id, "is_right": trial.is_right, "verdict": trial.verdict, "diff": trial.diff,
        "notes": trial.notes,
    }  # fmt: skip
    return Answer("kernel trial", trial.kernel.name, facts, list(_items(trial)))


def _items(trial: KernelTrial) -> Iterator[dict[str, Any]]:
    for number, finding in enumerate(trial.findings):
        yield {"id": f"error.{number}", "line": finding.line, "message": finding.what}
    for check in trial.checks:
        yield {"id": f"check.{check.subject}", **asdict(check)}
    for timing in trial.timings:
        yield {"id": f"time.{timing.subject}", **asdict(timing)}
    for row in trial.facts.itertuples():
        yield {"id": f"fact.{row.Index}", "original": row.original, "edited": row.edited}
