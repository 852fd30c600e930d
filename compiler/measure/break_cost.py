"""What a graph break costs in time: the user's call, against the same call with a suggestion applied.

Only where that is sound: the suggestion can be put into force here, the break is gone with it, and the call gives what
it gave before. Both are compiled anew and timed in turns (compiler.measure.rounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from compiler.measure.calls import Call, unnoticed
from compiler.measure.check import compared
from compiler.measure.rounds import interleaved
from compiler.measure.versions import CannotApplyError, Version, version
from compiler.record import GraphBreak, Suggestion, Timing
from compiler.torch_api.dynamo import Unheard
from compiler.torch_api.pytrees import tree_leaves

TRIED = 8
"""So many breaks are timed: each takes a compilation of its own."""
NO_VERSION = "its advice is in words only: there is no version without this break to time"


@dataclass(frozen=True)
class AsItIs:
    """A function compiled anew: what it returned, how many graph breaks it has, the random state it was called in."""

    compiled: Callable[..., Any]
    value: Any
    breaks: int
    random: torch.Tensor


@dataclass
class BreakTimer:
    """Times the breaks of one call. `compiled` compiles the user's function anew; `unheard` keeps that out of the
    record; `files` are paths by the record's names.
    """

    call: Call
    compiled: Callable[[], Callable[..., Any]]
    unheard: Callable[[], AbstractContextManager[Unheard]]
    files: Mapping[str, str]

    def timed(self, breaks: Sequence[GraphBreak], first_call: Sequence[str]) -> list[GraphBreak]:
        """The breaks with what they cost, or why that is not known; `first_call` are the frames of the call timed."""
        known: dict[tuple[Suggestion, ...], tuple[float | None, str]] = {}
        found = []
        with unnoticed(self.call):
            for item in breaks:
                if item.suggestions not in known:
                    known[item.suggestions] = self._lost(item, first_call, len(known))
                seconds, note = known[item.suggestions]
                found.append(replace(item, lost_seconds=seconds, lost_note=note))
        return found

    @cached_property
    def as_it_is(self) -> AsItIs:
        """The call with all its breaks."""
        random = torch.get_rng_state()
        args, kwargs = self.call.copied_arguments()
        with self.unheard() as heard:
            compiled = self.compiled()
            value = compiled(*args, **kwargs)
        return AsItIs(compiled, value, heard.breaks, random)

    def _lost(self, item: GraphBreak, first_call: Sequence[str], tried: int) -> tuple[float | None, str]:
        if item.frame not in first_call:
            return None, "it is not in the first call, which is the one that is timed"
        if tried >= TRIED:
            return None, f"not timed: only the first {TRIED} breaks are"
        why = NO_VERSION
        for suggestion in item.suggestions:
            try:
                changed = version(suggestion, self.call.fn, self.files)
                if changed is not None:
                    return self._compared(changed, _name(suggestion))
            except CannotApplyError as error:
                why = str(error)
        return None, why

    def _compared(self, changed: Version, name: str) -> tuple[float, str]:
        """Seconds lost, and what they are the difference of. Raises CannotApplyError."""
        plain = self.as_it_is
        args, kwargs = self.call.copied_arguments()
        with self.unheard() as heard:
            torch.set_rng_state(plain.random)
            after = self.compiled()
            with changed():
                value = _tried(lambda: after(*args, **kwargs))
                if heard.breaks >= plain.breaks:
                    raise CannotApplyError(f"the break is still there with {name}")
            _check_equal(value, plain.value, name)
            timers = {"with": lambda: plain.compiled(*args, **kwargs), "without": lambda: after(*args, **kwargs)}
            times = interleaved(timers, {"with": nullcontext, "without": changed})
        first, second = times["with"], times["without"]
        return first.seconds - second.seconds, _words(first, second, name)


def _words(first: Timing, second: Timing, name: str) -> str:
    told = f"{first.seconds * 1e3:.3g} ms a call with it, {second.seconds * 1e3:.3g} ms with {name}"
    apart = first.low > second.high or second.low > first.high
    return told if apart else f"{told}: within how much the times vary"


def _name(suggestion: Suggestion) -> str:
    if suggestion.rewrite:
        return f"line {suggestion.line} rewritten"
    return "; ".join(suggestion.settings)


def _tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raise CannotApplyError(f"with the advice applied the call raises {type(error).__name__}: {error}") from None


def _check_equal(value: Any, expected: Any, name: str) -> None:
    """Raises CannotApplyError where a call does something else than it did."""
    ours, theirs = tree_leaves(value), tree_leaves(expected)
    if len(ours) != len(theirs) or not all(map(_is_equal, ours, theirs)):
        raise CannotApplyError(f"the call gives another result with {name}: no version that does the same to time")


def _is_equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return compared("", mine.detach(), theirs.detach()).verdict in ("equal", "close")
    if isinstance(mine, torch.Tensor) or isinstance(theirs, torch.Tensor):
        return False
    return bool(type(mine) is type(theirs) and mine == theirs)
