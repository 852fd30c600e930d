"""Measure the cost of a graph break: time the user's call against the same call with a suggestion applied.

The comparison is valid only if the suggestion can be applied here, removes the break, and does not change the result.
Both versions are compiled again and timed in interleaved rounds (compiler.timing.rounds).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from compiler.calls.call import Call, leave_no_trace
from compiler.calls.versions import CannotApplyError, Version, version
from compiler.numerics.policy.judge import Scope, judge
from compiler.record import GraphBreak, Suggestion, Timing
from compiler.timing.rounds import time_in_turns
from compiler.torch_api.dynamo import BreakCounter
from compiler.torch_api.pytrees import tree_leaves

TRIED = 8
"""Maximum number of breaks to time: each needs its own compilation."""
NO_VERSION = "its advice is in words only: there is no version without this break to time"


@dataclass(frozen=True)
class Unchanged:
    """The unchanged function compiled again: its result, number of graph breaks, and RNG state before the call."""

    compiled: Callable[..., Any]
    value: Any
    breaks: int
    random: torch.Tensor


@dataclass
class BreakTimer:
    """Times the breaks of one call.

    `compiled` compiles the user's function again. `pause_observing` keeps that compilation out of the record. `files`
    maps file names of the record to paths.
    """

    call: Call
    compiled: Callable[[], Callable[..., Any]]
    pause_observing: Callable[[], AbstractContextManager[BreakCounter]]
    files: Mapping[str, str]

    def time_breaks(self, breaks: Sequence[GraphBreak], first_call: Sequence[str]) -> list[GraphBreak]:
        """Time the breaks; return each with its cost, or with the reason why the cost is not known.

        `first_call` are the ids of the frames in the first call; only breaks in these frames can be timed.
        """
        known: dict[tuple[Suggestion, ...], tuple[float | None, str]] = {}
        found = []
        with leave_no_trace(self.call):
            for item in breaks:
                if item.suggestions not in known:
                    known[item.suggestions] = self._cost(item, first_call, len(known))
                seconds, note = known[item.suggestions]
                found.append(replace(item, lost_seconds=seconds, lost_note=note))
        return found

    @cached_property
    def unchanged(self) -> Unchanged:
        """The unchanged function, compiled again and called once."""
        random = torch.get_rng_state()
        args, kwargs = self.call.copied_arguments()
        with self.pause_observing() as seen:
            compiled = self.compiled()
            value = compiled(*args, **kwargs)
        return Unchanged(compiled, value, seen.breaks, random)

    def _cost(self, item: GraphBreak, first_call: Sequence[str], tried: int) -> tuple[float | None, str]:
        if item.frame not in first_call:
            return None, "it is not in the first call, which is the one that is timed"
        if tried >= TRIED:
            return None, f"not timed: only the first {TRIED} breaks are"
        why = NO_VERSION
        for suggestion in item.suggestions:
            try:
                changed = version(suggestion, self.call.fn, self.files)
                if changed is not None:
                    return self._time_both(changed, _name(suggestion))
            except CannotApplyError as error:
                why = str(error)
        return None, why

    def _time_both(self, changed: Version, name: str) -> tuple[float, str]:
        """The break's cost in seconds, and a sentence with both times. Raises CannotApplyError."""
        plain = self.unchanged
        args, kwargs = self.call.copied_arguments()
        with self.pause_observing() as seen:
            torch.set_rng_state(plain.random)
            after = self.compiled()
            with changed():
                value = _call_changed(lambda: after(*args, **kwargs))
                if seen.breaks >= plain.breaks:
                    raise CannotApplyError(f"the break is still there with {name}")
            _check_equal(value, plain.value, name)
            timers = {"with": lambda: plain.compiled(*args, **kwargs), "without": lambda: after(*args, **kwargs)}
            times = time_in_turns(timers, {"with": nullcontext, "without": changed})
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


def _call_changed(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises
        raise CannotApplyError(f"with the advice applied the call raises {type(error).__name__}: {error}") from None


def _check_equal(value: Any, expected: Any, name: str) -> None:
    """Raise CannotApplyError if the changed call returns another result."""
    ours, theirs = tree_leaves(value), tree_leaves(expected)
    scope = Scope.of_results(theirs)
    verdicts = [judge("", mine, other, scope=scope).verdict for mine, other in zip(ours, theirs, strict=False)]
    if len(ours) != len(theirs) or "differs" in verdicts:
        raise CannotApplyError(f"the call gives another result with {name}: no version that does the same to time")
