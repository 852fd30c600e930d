"""`tcompile.check`: fail a test on graph breaks and recompilations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.entry.explore import explore
from explorer.findings.cards import break_texts, recompile_texts
from explorer.reading.sites import break_count, recompile_count
from explorer.run.run import Run


class CheckError(AssertionError):
    """Raised by `check` for too many graph breaks or recompilations, or if nothing is compiled.

    The message has a card for each break and recompilation. `run` is the exploration that found them.
    """

    def __init__(self, message: str, run: Run) -> None:
        super().__init__(message)
        self.run = run


def check(
    fn: Callable[..., Any],
    *args: Any,
    breaks: int = 0,
    recompiles: int = 0,
    kwargs: Mapping[str, Any] | None = None,
    calls: Sequence[Sequence[Any]] = (),
    **options: Any,
) -> Run:
    """Fail a test if a call has more graph breaks or recompilations than allowed.

    >>> def test_model_is_one_graph():
    ...     tcompile.check(model, x, breaks=0, recompiles=0)

    `calls=[(a,), (b,)]` calls `fn` more than once, so that recompilations can happen. By default graphs are captured
    and no kernels are generated; `stages` changes that. The other options are those of `explore`.

    Returns the `Run`. Raises CheckError with a card for each break and recompilation, or if nothing was compiled;
    OptionError and TypeError as `explore` does; and any exception of `fn`.
    """
    run = explore(fn, *args, kwargs=kwargs, calls=calls, **{"stages": ("captured",), **options})
    parts = [*_compile_failures(run), *_breaks(run, breaks), *_recompiles(run, recompiles)]
    if parts:
        raise CheckError("\n\n".join(parts), run)
    return run


def _compile_failures(run: Run) -> list[str]:
    record = run.record
    if any(frame.graphs for frame in record.frames):
        return []
    return [problem.reason for problem in record.problems if problem.stage == "captured"] or ["nothing was compiled"]


def _breaks(run: Run, allowed: int) -> list[str]:
    found = run.record.breaks
    if len(found) <= allowed:
        return []
    return [_count_line(run, break_count(found), allowed), *break_texts(run.record)]


def _recompiles(run: Run, allowed: int) -> list[str]:
    found = run.record.recompiles
    if len(found) <= allowed:
        return []
    return [_count_line(run, recompile_count(found), allowed), *recompile_texts(run.record)]


def _count_line(run: Run, count: str, allowed: int) -> str:
    return f"{run.record.title}: {count}, {allowed} allowed"
