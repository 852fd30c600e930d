"""Source places of the instruction that TorchDynamo is tracing, and of the inlined calls around it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.exc import RestartAnalysis, TorchRuntimeError, Unsupported, UserError

from compiler.record.break_facts import Place
from compiler.torch_api.patching import call_after, replace_attributes

PLACES = "_tcompile_places"


def places_now() -> tuple[Place, ...]:
    """The places of the user's code that Dynamo is tracing, outermost first; () outside of Dynamo."""
    root = getattr(symbolic_convert.tls, "current_tx", None)
    translator = root.output.current_tx if root is not None else None
    places: list[Place] = []
    while translator is not None:
        places.append(_place(translator))
        translator = getattr(translator, "parent", None)
    return tuple(reversed(places))


def _place(translator: Any) -> Place:
    code, positions = translator.f_code, _positions(translator)
    if positions is None or positions.lineno is None:
        return Place(code.co_filename, code.co_name, translator.lineno)
    ends = (positions.end_lineno, positions.col_offset, positions.end_col_offset)
    return Place(code.co_filename, code.co_name, positions.lineno, *ends)


def _positions(translator: Any) -> Any:
    """The positions of the current instruction; for a conditional jump, of the tested value.

    The instruction before the jump computes that value. In a chain of `and` and `or`, Python 3.11 places the jump
    itself at an earlier operand or at the whole statement.
    """
    now, number = translator.current_instruction, translator.instruction_pointer
    if now.opname.startswith("POP_JUMP") and number is not None and number > 1:
        tested = translator.instructions[number - 2]
        if getattr(tested.positions, "lineno", None) is not None and not tested.opname.startswith("STORE"):
            return tested.positions
    return now.positions


def places_of(error: BaseException) -> tuple[Place, ...]:
    """The source places of a Dynamo error.

    If torch raised it while handling an earlier error with the same stack, the earlier error's places are used.
    """
    stack = getattr(error, "real_stack", None)
    places = getattr(error, PLACES, ())
    earlier = error.__cause__ or error.__context__
    while earlier is not None and stack is not None:
        if getattr(earlier, "real_stack", None) is stack:
            places = getattr(earlier, PLACES, places)
        earlier = earlier.__cause__ or earlier.__context__
    return places or tuple(place_of(entry) for entry in stack or ())


def place_of(entry: traceback.FrameSummary) -> Place:
    """Convert a traceback entry to a place. TorchDynamo's entries have no last line: it is the first, unless columns
    say that there are more.
    """
    line, start, end, last = entry.lineno or 0, entry.colno, entry.end_colno, entry.end_lineno
    if last is None and start is not None and end is not None and start < end:
        last = line
    return Place(entry.filename, entry.name, line, last, start, end)


def watch_restarts(
    on_restart: Callable[[str, str], None], on_unsupported: Callable[[BaseException], None]
) -> AbstractContextManager[None]:
    """Attach source places to Dynamo's errors in the block, and report its restarts.

    `on_restart` is called with the type of each restart of a frame's analysis and its reason; `on_unsupported` with
    the error of each construct that Dynamo could not trace.
    """

    def note_places(_: None, error: BaseException, *_args: Any, **_kwargs: Any) -> None:
        setattr(error, PLACES, places_now())
        on_unsupported(error)

    def note_restart(_: None, error: Any, *_args: Any, **_kwargs: Any) -> None:
        on_restart(type(error).__name__, error.restart_reason or "")

    kinds = (Unsupported, UserError, TorchRuntimeError)
    wrappers = [(kind, "__init__", call_after(note_places)) for kind in kinds]
    return replace_attributes([*wrappers, (RestartAnalysis, "__init__", call_after(note_restart))])
