"""`tcompile check`: compare what a call costs under torch.compile with a baseline, for a pull request."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
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
from explorer.run import files

_CHECK = """\
Compare what a call costs under torch.compile with a baseline: graph breaks, recompilations, kernels, bytes, memory,
guards, host synchronizations; with --time also seconds.
Without a baseline and without --at-most: no breaks, no recompilations.

exit codes: 0 within the budget, 1 a regression (or the code raised), 2 wrong usage: nothing was written

examples:
  tcompile check model.py:model --input "randn(8, 64)" --baseline budget.json --update   # make it, and review it
  tcompile check model.py:model --input "randn(8, 64)" --baseline budget.json
  tcompile check model.py:model --input "randn(8, 64)" --at-most kernels=3,host_syncs=0
"""


def add_check(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(commands, "check", _CHECK, _check, help="compare what a call costs with a baseline, in CI")
    add_code(command)
    group = command.add_argument_group("budget")
    group.add_argument("--baseline", type=Path, metavar="PATH", help="the metrics to compare with, as JSON")
    group.add_argument("--update", action="store_true", help="write the baseline; other calls in it stay")
    group.add_argument("--name", default="", help="the name of the call in the baseline (FILE.py:NAME)")
    group.add_argument(
        "--at-most", dest="limits", action="append", default=[], metavar="METRIC=N", help="a limit: kernels=3"
    )
    group.add_argument(
        "--tolerance", dest="tolerances", action="append", default=[], metavar="METRIC=N",
        help="how much more than the baseline is allowed: kernels=1, bytes_moved=5%%; --update keeps it there",
    )  # fmt: skip
    group.add_argument("--all-code", action="store_true", help="count places in installed packages and torch too")
    group = command.add_argument_group("reports")
    group.add_argument("--markdown", type=Path, metavar="PATH", help="a summary with a table of before and after")
    group.add_argument("--junit", type=output_path(".xml"), metavar="PATH", help="JUnit XML")
    group.add_argument("--sarif", type=output_path(".sarif", ".json"), metavar="PATH", help="SARIF 2.1.0")
    group.add_argument(
        "--github", action=argparse.BooleanOptionalAction, default=os.environ.get("GITHUB_ACTIONS") == "true",
        help="print annotations for the lines of a pull request; by default, in GitHub Actions",
    )  # fmt: skip
    group.add_argument("--html", type=output_path(".html"), metavar="PATH", help="save the page of the call")
    group.add_argument(
        "--before", type=Path, metavar="RECORD", help="with --html: the page of the diff with this saved record"
    )
    add_save(group)
    add_json(command)
    add_options(command)


def _check(args: argparse.Namespace) -> None:
    import torch

    from explorer.budget.compare import parse_limits, parse_tolerances
    from explorer.entry.budget import Terms, check_terms, report_on, update_baseline
    from explorer.run.diagnose import local_paths

    if args.update and args.baseline is None:
        raise UsageError("--update writes the baseline: name it with --baseline PATH")
    before = files.read(args.before) if args.before else None
    options = parse_asked(args)
    terms = Terms(
        args.name or args.code, _what_is_called(args, options), args.baseline, parse_limits(args.limits),
        parse_tolerances(args.tolerances), args.all_code,
    )  # fmt: skip
    entry = check_terms(terms, torch.__version__, is_update=args.update)
    if args.baseline is not None and not args.baseline.absolute().parent.is_dir():
        raise UsageError(f"there is no folder {str(args.baseline.parent)!r}")
    run = explore_strictly(args, options)
    if run is None:
        return
    if args.update:
        print(f"wrote {update_baseline(run, terms)}")
        return
    report = report_on(run, terms, entry, lambda: explore_strictly(args, options) or run)
    args.failed = not report.holds
    _write_reports([report], args, local_paths(run.record), run.record.environment.tcompile)
    _save_pages(run, before, args)


def _what_is_called(args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """What makes the call: inputs and options, as they are kept in a baseline."""
    known = {"input": args.inputs, "call": args.calls, "seed": args.seed, "all_code": args.all_code}
    given = {name: str(value) for name, value in options.items() if name != "time"}
    words = known | given | {"backend": args.backend}  # not the address of a function
    return {name: value for name, value in words.items() if value}


def _write_reports(reports: Sequence[Any], args: argparse.Namespace, paths: dict[str, str], version: str) -> None:
    from explorer.budget import reports as forms

    if args.json:
        print_answer(forms.check_answer(reports, str(args.baseline or ""), paths), args)
    else:
        print("\n\n".join(map(forms.report_text, reports)))
    if args.github:
        for line in forms.github_lines(reports, paths):
            print(line)
    if args.markdown:
        _add_summary(args.markdown, forms.markdown(reports, paths))
    if args.junit:
        files.replace_file(args.junit, forms.junit(reports, paths))
    if args.sarif:
        found = forms.sarif(reports, paths, version, args.code.rpartition(":")[0])
        files.replace_file(args.sarif, (json.dumps(found, indent=2, ensure_ascii=False) + "\n").encode())


def _add_summary(path: Path, text: str) -> None:
    """Write a summary; the one of a job in GitHub Actions gets it at its end."""
    if str(path) == os.environ.get("GITHUB_STEP_SUMMARY"):
        with path.open("a", encoding="utf-8") as stream:
            stream.write(text)
    else:
        files.replace_file(path, text.encode())


def _save_pages(run: Any, before: Any, args: argparse.Namespace) -> None:
    if args.save:
        run.save(args.save)
    if args.html and before is not None:
        from explorer.run.run import Run

        Run(before).diff(run).save(args.html)
    elif args.html:
        run.save(args.html)
