"""`tcompile diff`: two commits of the same call, or two saved records, stage by stage, and the lines that did it."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explorer.cli_json import add_json, print_answer
from explorer.entry.file_call import UsageError, add_code, add_command, add_options, output_path, parse_asked
from explorer.entry.options import OPTIONS, option_words
from explorer.run import files

if TYPE_CHECKING:
    from compiler.record import Record

_DIFF = """\
Show what changed between two commits, stage by stage and kernel by kernel, and which lines did it. Each commit is
explored in a git worktree in a temporary folder: no checkout is touched. With one --at,
the second side is the checkout.

examples:
  tcompile diff --at main --at HEAD model.py:model --input "randn(8, 64)" -o diff.html
  tcompile diff --at HEAD model.py:model --input "randn(8, 64)"     # what is not committed yet
  tcompile diff before.json after.json                              # two saved records
"""


def add_diff(commands: Any) -> None:
    """Add the command to the parser."""
    command = add_command(
        commands,
        "diff",
        _DIFF,
        _diff,
        help="show what changed between two commits, or two records, and which lines did it",
    )
    add_code(command, nargs="+")
    command.add_argument(
        "--at", dest="revisions", action="append", default=[], metavar="COMMIT", help="a commit, at most two"
    )
    command.add_argument(
        "-o", "--output", "--html", dest="html", type=output_path(".html"), metavar="PATH",
        help="save the page of both sides",
    )  # fmt: skip
    add_json(command)
    add_options(command)


def _diff(args: argparse.Namespace) -> None:
    from explorer.budget.commit_diff import diff_answer, lines_behind
    from explorer.run.run import Run

    sides = _explored_sides(args) if args.revisions else _read_sides(args)
    if sides is None:
        args.failed = True
        return
    found = Run(sides[0]).diff(sides[1])
    if args.json:
        print_answer(diff_answer(found), args)
    else:
        shown = found.summary if args.html else str(found)  # the page has the texts
        print("\n\n".join(filter(None, (lines_behind(found), shown))))
    if args.html:
        found.save(args.html)


def _read_sides(args: argparse.Namespace) -> list[Record]:
    if len(args.code) != 2 or not all(map(files.is_record, args.code)) or args.inputs or args.calls:
        raise UsageError(
            "diff compares two saved records, or two commits: tcompile diff --at main --at HEAD FILE.py:NAME"
        )
    first, second = map(files.read, args.code)
    names = [Path(path).stem for path in args.code]
    return [_with_title(first, names[0]), _with_title(second, names[1])]


def _with_title(record: Record, name: str) -> Record:
    return record.with_fields(title=f"{record.title or 'call'} in {name}")


def _explored_sides(args: argparse.Namespace) -> list[Record] | None:
    """Explore both sides, each in a process of its own; None if the code raised. Raises UsageError."""
    if len(args.code) != 1 or len(args.revisions) > 2:
        raise UsageError("with --at, name one FILE.py:NAME, and one or two commits")
    parse_asked(args)
    top = Path(_git("rev-parse", "--show-toplevel"))
    commits = [
        _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") for name in args.revisions
    ]
    found = []
    for name, commit in zip([*args.revisions, "here"][:2], [*commits, ""][:2], strict=True):
        with _checkout(commit) as folder:
            record = _explore_in(folder or top, top, args, name)
        if record is None:
            return None
        short = name[:10] if re.fullmatch("[0-9a-f]{40}", name) else name
        found.append(record.with_fields(title=f"{record.title} at {short}"))
    return found


def _git(*words: str) -> str:
    """The output of a git command. Raises UsageError with its last line if it fails."""
    try:
        done = subprocess.run(("git", *words), capture_output=True, text=True, check=False)
    except OSError:
        raise UsageError("--at needs git, which is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"git knows no commit {words[-1].removesuffix('^{commit}')!r}"]
        raise UsageError(said[0])
    return done.stdout.strip()


@contextmanager
def _checkout(commit: str) -> Iterator[Path | None]:
    """A worktree of a commit in a temporary folder, removed at the end; None for the files as they are."""
    if not commit:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="tcompile-diff-") as folder:
        path = Path(folder).resolve() / "worktree"
        _git("worktree", "add", "--detach", "--quiet", str(path), commit)
        try:
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _explore_in(folder: Path, top: Path, args: argparse.Namespace, name: str) -> Record | None:
    """Explore the call in a checkout. If the code raises, print its traceback and return None. Raises UsageError."""
    here = Path.cwd().resolve()
    inside = folder / here.relative_to(top.resolve())
    if not inside.is_dir():
        raise UsageError(f"at {name} there is no folder {here.relative_to(top.resolve())}")
    with tempfile.TemporaryDirectory(prefix="tcompile-diff-") as written:
        output = Path(written) / "record.json"
        command = [sys.executable, "-P", "-m", "tcompile", "explore", args.code[0], *_words(args), "--strictly"]
        done = subprocess.run(
            [*command, f"--json={output}"], cwd=inside, env=_environment(folder, top), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            return files.read(output).with_trust("untrusted")
    said = done.stderr.rstrip()
    if done.returncode == 2:
        raise UsageError(f"at {name}: {said.splitlines()[-1].removeprefix('tcompile: ')}")
    print(f"at {name}:\n{said}", file=sys.stderr)
    return None


def _words(args: argparse.Namespace) -> list[str]:
    """Inputs and options as words of a command."""
    words = [f"--input={text}" for text in args.inputs] + [f"--call={text}" for text in args.calls]
    words.append(f"--seed={args.seed}")
    words += option_words({flag[2:]: getattr(args, flag[2:]) for flag in OPTIONS})
    return words


def _environment(folder: Path, top: Path) -> dict[str, str]:
    """The environment with paths of imports in the checkout moved to the worktree; tcompile stays this one."""
    spec = find_spec("tcompile")
    own = Path(spec.origin).resolve().parents[1] if spec is not None and spec.origin else None
    paths: list[str] = [str(own)] if own is not None else []
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(entry).resolve()
        paths.append(str(folder / path.relative_to(top)) if path.is_relative_to(top) and path != own else entry)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "PYTHONDONTWRITEBYTECODE": "1"}
