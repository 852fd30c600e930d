"""Tracebacks like those of a plain cell, without frames of torch.compile and of the magic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch

from explorer.entry.callee import OWN_FOLDERS
from explorer.entry.interrupts import is_handler

_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    f"{folder}/" for folder in (*OWN_FOLDERS, *(_TORCH / name for name in ("_dynamo", "_functorch", "_inductor")))
)

_CALLS_THE_USER = "/_dynamo/eval_frame.py"
"""The file that calls the user's function; it raises errors itself only if the arguments don't match."""


def show_below(error: BaseException, bottom: CodeType, shell: Any) -> None:
    """Make IPython show an error's traceback from the frame below that of the code `bottom`.

    Frames of torch.compile and tcompile between user frames are removed; they are kept if they raised the error.
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
    """The traceback without the entries between IPython's frame that runs code and the frame of `bottom`.

    `bottom` can occur more than once: an error that is raised again has the frames of both raises.
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
    """The traceback without frames of torch.compile and tcompile, except `bottom`'s and the one that raised."""
    kept: list[TracebackType] = []
    raised = [entry for entry in _entries(traceback) if not is_handler(entry)]
    _link_entries(raised)
    for is_user, entries in groupby(raised, key=lambda entry: _is_user(entry, bottom)):
        run = list(entries)
        kept += run if is_user else _between_users(run)
    return _link_entries(kept)


def _link_entries(entries: list[TracebackType]) -> TracebackType | None:
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        entry.tb_next = following
    return entries[0] if entries else None


def _between_users(run: list[TracebackType]) -> list[TracebackType]:
    """Remove the entries from the first to the last torch.compile frame, unless torch.compile raised the error."""
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
    """The error, then its causes and contexts."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
