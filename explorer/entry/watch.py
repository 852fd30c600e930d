"""`tcompile watch`: explore a call again each time one of its files is saved, and show what changed."""

from __future__ import annotations

import argparse
import gc
import io
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from compiler.capture.sources import is_installed
from explorer.budget.commit_diff import lines_behind
from explorer.entry.file_call import UsageError, explore_loaded, what_is_missing
from explorer.entry.followed_files import FollowedFiles, fresh_imports
from explorer.entry.user_code import LoadError, ProgramEndError, UserError
from explorer.reading.plain_text import columns
from explorer.run.diff import LINES_SHOWN, RunDiff
from explorer.run.run import Run

FIRST_STAGE = "captured"


def with_stage(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a watched exploration, which stops at the captured graph unless stages are named."""
    return {"stages": FIRST_STAGE} | options


def changes_text(found: RunDiff) -> str:
    """What changed between two explorations: numbers, lines behind each stage, breaks and guards, texts."""
    changed = [each for each in found.artifacts if each.changed or not (each.before and each.after)]
    stages = [each for each in changed if each.stage != "source"]
    if not stages and not found.capture:
        return "nothing changed but the source" if changed else "nothing that the call uses has changed"
    rows = [(each.id, each.verdict) for each in stages]
    parts = [lines_behind(found), found.capture, "\n".join(columns(rows))]
    for each in stages:
        more = len(each.lines) - LINES_SHOWN - 2
        if each.changed:
            parts.append("\n".join([*each.lines[2 : LINES_SHOWN + 2], *([f"… {more} more lines"] if more > 0 else [])]))
    return "\n\n".join(part for part in parts if part)


def difference(before: Run, after: Run) -> RunDiff:
    """The diff of two explorations of one call, whose sides are named before and after."""
    sides = zip((before, after), ("before", "after"), strict=True)
    first, second = (Run(run.record.with_fields(title=name)).compiler for run, name in sides)
    return RunDiff(first, second)


@dataclass
class Watch:
    """Explores the call that a command's arguments describe, first at once and then on each save of its files."""

    args: argparse.Namespace
    options: dict[str, Any]
    say: Callable[[str], None] = print
    before: Run | None = None
    files: FollowedFiles = field(default_factory=FollowedFiles)
    is_over: bool = False
    is_exploring: bool = False

    def run(self) -> None:
        """Watch until interrupted. Raises UsageError and LoadError if the call can't be found at the start."""
        with suppress(KeyboardInterrupt), self._note_interrupts():
            self._run()
        self.say("\nstopped watching")

    def _run(self) -> None:
        path = Path(self.args.code.rpartition(":")[0])
        self.explore(is_first=True)
        self.files.follow([path.resolve()])
        stages = str(self.options["stages"])
        self.say(f"watching {self._names(self.files.states)} up to {stages}; Ctrl-C ends it")
        while True:
            changed = self.files.wait(
                lambda path: self.say(f"{path.name} is not there any more; waiting for it"), lambda: self.is_over
            )
            if self.is_over:
                return
            self.say(f"\n{time.strftime('%H:%M:%S')}  {self._names(changed)} changed")
            self.explore()

    @contextmanager
    def _note_interrupts(self) -> Iterator[None]:
        """Note Ctrl-C in the block; it interrupts an exploration. Else the next look at the files ends the watch.

        Python drops a KeyboardInterrupt that comes while a finalizer runs, and prints it.
        """

        def interrupt(_signal: int, _frame: FrameType | None) -> None:
            self.is_over = True
            if self.is_exploring:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        self.is_exploring = True
        try:
            yield
        finally:
            self.is_exploring = False

    def explore(self, *, is_first: bool = False) -> None:
        """Explore once, and show the run, what changed since the last one, or the error in one message."""
        start = time.perf_counter()
        try:
            with fresh_imports(self.files.follow), _no_input(), self._interruptible():
                run = explore_loaded(self.args, self.options)
        except UserError as error:
            self._follow_error(error.cause)
            self.say(f"{error_text(error, self.args.code)}\nwaiting for the next save")
        except (UsageError, LoadError) as error:
            if is_first:
                raise
            self.say(f"{error}; waiting for the next save")
        else:
            self._show(run, time.perf_counter() - start)
            del run
        gc.collect()  # the modules of this run, and what it compiled

    def _show(self, run: Run, seconds: float) -> None:
        if self.before is None:
            self.say(str(run))
        else:
            self.say(f"explored in {seconds:.2f} s\n{changes_text(difference(self.before, run))}")
        self.before = Run(run.record)  # without the call, which would keep the modules of this run

    def _follow_error(self, error: BaseException) -> None:
        """Follow the files of an error too: a file with an error of syntax has made no module."""
        frames = traceback.extract_tb(error.__traceback__)
        names = [frame.filename for frame in frames] + [str(getattr(error, "filename", None) or "")]
        self.files.follow(Path(name) for name in names if name.endswith(".py") and not is_installed(name))
        if isinstance(error, ImportError):
            self.files.follow_folder(Path(self.args.code.rpartition(":")[0]).resolve().parent)

    def _names(self, paths: Sequence[Path] | dict[Path, Any]) -> str:
        own = {path for path in paths if path.exists()}
        return ", ".join(sorted(path.name for path in own)[:6]) + (f" and {len(own) - 6} more" if len(own) > 6 else "")


@contextmanager
def _no_input() -> Any:
    """Let `input()` fail at once in the block, as nobody answers while files are watched."""
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        yield
    finally:
        sys.stdin = before


def error_text(error: UserError, code: str) -> str:
    """An error of the user's code in one message: the place, the line, and what was raised."""
    if missing := what_is_missing(error):
        return f"{code} {missing}"
    cause = error.cause
    if isinstance(cause, ProgramEndError):
        return str(cause)
    if isinstance(cause, SyntaxError):
        return _error_with_place(cause.filename or "?", cause.lineno or 0, cause.text or "", cause)
    frames = [frame for frame in traceback.extract_tb(error.trace) if not is_installed(frame.filename)]
    if not frames:
        return f"{type(cause).__name__}: {cause}"
    return _error_with_place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].line or "", cause)


def _error_with_place(file: str, line: int, text: str, error: Exception) -> str:
    words = error.msg if isinstance(error, SyntaxError) else str(error).strip()
    return "\n".join(filter(None, [
        f"{Path(file).name}:{line}: {type(error).__name__}: {words}".rstrip(": "), f"    {text.strip()}".rstrip()
    ]))  # fmt: skip
