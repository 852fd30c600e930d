"""`run.timing.measure(...)`: time the run's call again with other candidates, with a progress line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from compiler.record import Record

if TYPE_CHECKING:
    from compiler.calls.call import Call
    from compiler.timing.candidate_times import Plan, Progress
    from compiler.timing.work import MakeOptimizer

Listener = Callable[[object], None]
NO_CALL = (
    "this run has no call to time: it was loaded from a file, or its code calls torch.compile itself. Explore the call "
    "here first: %%tcompile, or tcompile.explore(model, x)"
)


def time_candidates(record: Record, call: Call | None, plan: Plan, listeners: list[Listener]) -> Record:
    """Time the candidates of a call and add them to the record. An interrupt keeps the finished candidates.

    Raises ValueError for a run without a call, OptionError for invalid options, CannotCopyError, and any exception that
    the call raises in eager mode.
    """
    if call is None:
        raise ValueError(NO_CALL)
    # Imported late: they import torch, which is not needed to view a run.
    from compiler.timing.candidate_times import measure, with_times

    def tell(progress: Progress) -> None:
        for listener in listeners:
            listener(progress)

    return with_times(record, measure(call, record.options, plan, tell))


def profile_call(record: Record, call: Call | None, optimizer: str | MakeOptimizer | None) -> Record:
    """Profile the call and add the times of its kernels and lines to the record.

    Raises ValueError for a run without a call, and any exception of the profiled call.
    """
    if call is None:
        raise ValueError(NO_CALL)
    from compiler.engine import explore_again
    from compiler.timing.profile_again import profile_again
    from compiler.timing.work import optimizer_named

    found = profile_again(call, record, explore_again, optimizer_named(optimizer))
    problems = tuple(problem for problem in found.problems if problem not in record.problems)
    times = {"kernel_times": found.kernel_times, "line_times": found.line_times}
    return record.with_fields(**times, problems=(*record.problems, *problems))


@contextmanager
def progress_line() -> Iterator[Listener]:
    """Yield a listener that shows progress in one line of the notebook or terminal. The line is cleared on exit."""
    if getattr(get_ipython(), "kernel", None) is not None:
        handle = display(_line("Timing…"), raw=True, display_id=True)
        try:
            yield lambda progress: handle.update(_line(f"Timing {progress}"), raw=True)
        finally:
            handle.update(_line(""), raw=True)
    elif sys.stderr.isatty():
        try:
            yield lambda progress: _write(f"\rTiming {progress}\x1b[K")
        finally:
            _write("\r\x1b[K")
    else:
        yield lambda _progress: None


@contextmanager
def listen_for_progress(widget: Any) -> Iterator[list[Listener]]:
    """Yield the progress listeners: the progress line, and the live view if any. Both are cleared on exit."""
    with progress_line() as line:
        try:
            yield [line, *([widget.hear_progress] if widget is not None else [])]
        finally:
            if widget is not None:
                widget.hear_progress("")


def _line(text: str) -> dict[str, Any]:
    return {"text/plain": text}


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
