"""Tracebacks as the bare cell would have them: without the frames that run the cell, and those of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch

from explorer.callee import OWN_FOLDERS

_TORCH = Path(torch.__file__).parent
_MACHINERY = tuple(
    f"{folder}/" for folder in (*OWN_FOLDERS, *(_TORCH / name for name in ("_dynamo", "_functorch", "_inductor")))
)


def show_below(error: BaseException, bottom: CodeType, shell: Any) -> None:
    """Make IPython show this error from the frame below the one that runs `bottom`, as if that were its own.

    Between the frames of the user's code those of torch.compile and ours go; where the error comes from, all stay.
    """
    for linked in _chain(error):
        linked.__traceback__ = _without_machinery(linked.__traceback__, bottom)
    # object's own, because an exception may be a frozen dataclass.
    object.__setattr__(error, "_render_traceback_", _renderer(error, bottom, shell))


def _renderer(error: BaseException, bottom: CodeType, shell: Any) -> Callable[[], list[str]]:
    def render() -> list[str]:
        traceback = _below(error.__traceback__, bottom)
        offset = 0 if traceback is not error.__traceback__ else None
        lines: list[str] = shell.InteractiveTB.structured_traceback(type(error), error, traceback, tb_offset=offset)
        return lines

    return render


def _below(traceback: TracebackType | None, bottom: CodeType) -> TracebackType | None:
    """What follows the innermost frame of `bottom`; the whole traceback where there is none."""
    below = [entry.tb_next for entry in _entries(traceback) if entry.tb_frame.f_code is bottom]
    return below[-1] if below else traceback


def _without_machinery(traceback: TracebackType | None, bottom: CodeType) -> TracebackType | None:
    """The traceback without machinery, but for the frame of `bottom`, to be found by, and where the error is from."""
    kept: list[TracebackType] = []
    for is_user, entries in groupby(_entries(traceback), key=lambda entry: _is_user(entry, bottom)):
        run = list(entries)
        kept += run if is_user else _between_users(run)
    for entry, following in zip(kept, [*kept[1:], None], strict=True):
        entry.tb_next = following
    return kept[0] if kept else None


def _between_users(run: list[TracebackType]) -> list[TracebackType]:
    """Without what leads into torch.compile and out of it (an `OptimizedModule` calls through `nn.Module` twice)."""
    machinery = [index for index, entry in enumerate(run) if _file(entry).startswith(_MACHINERY)]
    if not machinery or run[machinery[-1]].tb_next is None:
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
