"""Detect graph breaks that occur only in a first call: capture the call again, without running it."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from compiler.calls.call import Call, leave_no_trace
from compiler.record import Frame, GraphBreak
from compiler.torch_api.dynamo import BreakCounter, first_break

_CONDITION = re.compile(r"\s*(?:if|elif|else|try|except|with|import|from|while)\b")
_DEFINITION = re.compile(r"\s*(?:async\s+)?def\b")


def may_run_once(found: GraphBreak, files: Mapping[str, str]) -> bool:
    """Whether a line on the way to a break is conditional, so that later calls may skip the break.

    `files` maps file names of the record to paths.
    """
    return any(_is_conditional(files.get(span.file, ""), span.line) for span in found.chain)


def _is_conditional(path: str, line: int) -> bool:
    for number in range(line, 0, -1):
        text = linecache.getline(path, number)
        if _DEFINITION.match(text):
            return False
        if _CONDITION.match(text):
            return True
    return False


def mark_first_call_breaks(
    breaks: Sequence[GraphBreak],
    call: Call,
    dynamic: bool | None,
    pause_observing: Callable[[], AbstractContextManager[BreakCounter]],
    files: Mapping[str, str],
    frames: Mapping[str, Frame],
) -> list[GraphBreak]:
    """Return all breaks; mark those that do not recur in a second capture of the call. `frames` are by id.

    The capture ends at its first break, so later breaks are unknown and stay unmarked.
    """
    try:
        args, kwargs = call.copied_arguments()
    except RuntimeError:  # tensors of torch.func.vmap or grad, which end with the transform
        return list(breaks)
    with leave_no_trace(call), pause_observing():
        try:
            stack = first_break(call.fn, args, kwargs, dynamic)
        except Exception:  # noqa: BLE001 - a capture that fails for another reason says nothing about breaks
            return list(breaks)
    return [replace(found, first_call=stack is None or _is_before(found, stack, files, frames)) for found in breaks]


def _is_before(
    found: GraphBreak, stack: Sequence[tuple[str, int]], files: Mapping[str, str], frames: Mapping[str, Frame]
) -> bool:
    """Whether a break is on an earlier line of the outermost function than the first recurring break (`stack`)."""
    if not found.chain or frames[found.frame].code != 0:
        return False
    file, line = files.get(found.chain[0].file, ""), found.chain[0].line
    return any(other == file and line < where for other, where in stack)
