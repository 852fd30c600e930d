"""Tracebacks as in a bare cell: without frames of torch.compile and of what runs the cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch

from explorer.entry.callee import OWN_FOLDERS

_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    f"{folder}/" for folder in (*OWN_FOLDERS, *(_TORCH / name for name in ("_dynamo", "_functorch", "_inductor")))
)

_CALLS_THE_USER = "/_dynamo/eval_frame.py"
"""An error from here is of the call that was to be made: arguments that don't fit the user's function."""


def show_below(error: BaseException, bottom: CodeType, shell: Any) -> None:
    """Make IPython show this error from the frame below the one that runs `bottom`, as if that were its own.

    Between the frames of the user's code those of torch.compile and ours go; where the error comes from, they stay.
    """
    for linked in _chain(error):
        linked.with_traceback(_without_machinery(linked.__traceback__, bottom))
    # The methods of object and BaseException, because an exception may refuse to have attributes set.
    object.__setattr__(error, "_render_traceback_", _renderer(error, bottom, shell))


def _renderer(error: BaseException, bottom: CodeType, shell: Any) -> Callable[[], list[str]]:
    def render() -> list[str]:
        traceback = _without_magic(error.__traceback__, bottom, type(shell).run_code.__code__)
        error.with_traceback(traceback)
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, traceback)
        return lines

    return render


def _without_magic(traceback: TracebackType | None, bottom: CodeType, run_code: CodeType) -> TracebackType | None:
    """The traceback without what lies between IPython's frame that runs code and the one that runs `bottom`.

    An error that is raised again later has frames of both times: those of the cell need not come first.
    """
    kept: list[TracebackType] = []
    for entry in _entries(traceback):
        if entry.tb_frame.f_code is not bottom:
            kept.append(entry)
            continue
        while kept and kept[-1].tb_frame.f_code is not run_code:
            kept.pop()
    return _link_entries(kept)


def _without_machinery(traceback: TracebackType | None, bottom: CodeType) -> TracebackType | None:
    """The traceback without machinery, except the frame of `bottom` and where the error is raised."""
    kept: list[TracebackType] = []
    for is_user, entries in groupby(_entries(traceback), key=lambda entry: _is_user(entry, bottom)):
        run = list(entries)
        kept += run if is_user else _between_users(run)
    return _link_entries(kept)


def _link_entries(entries: list[TracebackType]) -> TracebackType | None:
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
    return entries[0] if entries else None


def _between_users(run: list[TracebackType]) -> list[TracebackType]:
    """The entries without the way into torch.compile and out of it, which leads through `nn.Module` twice."""
    machinery = [index for index, entry in enumerate(run) if _file(entry).startswith(_MACHINERY)]
    if not machinery:
        return run
    innermost = run[machinery[-1]]
    if innermost.tb_next is None and not _file(innermost).endswith(_CALLS_THE_USER):
        return run
    return run[: machinery[0]] + run[machinery[-1] + 1 :]


def _is_user(entry: TracebackType, bottom: CodeType) -> bool:
    return entry.tb_frame.f_code is bottom or not _file(entry).startswith((f"{_TORCH}/", *_MACHINERY))


def _file(entry: TracebackType) -> str:
    return entry.tb_frame.f_code.co_filename


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and the errors that it was raised from or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
