"""Read torch.profiler's events as seconds by phase, mark, operator and device function."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from compiler.record.measure_facts import Half, Side
from compiler.torch_api.profiled import quiet

PHASE = "tcompile phase "
_ENGINE = "autograd::engine::evaluate_function: "
_MICRO = 1e-6


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one device function, or on the CPU of one operator or one marked range of generated code.

    `call` is the index of the profiled call, from 0. `mark` is the innermost enclosing mark, `op` the outermost
    operator inside that mark. For backward work, `sequence` is the sequence number of the forward operation, else -1.
    """

    half: Half
    call: int
    seconds: float
    function: str
    op: str = ""
    mark: str = ""
    sequence: int = -1


def phase(side: Side, half: Half) -> AbstractContextManager[Any]:
    """Mark a block as one phase of a call by a profiler range."""
    return record_function(f"{PHASE}{side} {half}")


def profile_events(run: Callable[[], None], calls: int, *, gpu: bool) -> Sequence[Any]:
    """Profile `calls` calls of `run`, which marks its phases with `phase`, and return the events."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    profiler = profile(activities=activities, acc_events=True)  # otherwise torch warns about discarded events
    with quiet():
        profiler.start()
    try:
        for _ in range(calls):
            run()
        if gpu:
            torch.cuda.synchronize()
    finally:
        with quiet():
            profiler.stop()
    return profiler.events() or ()


class Trace:
    """Time spent in the profiled calls of one side; `marks` is the prefix of its mark names.

    On the CPU, with `whole` a marked range counts as one item, otherwise the operators in it count.
    """

    def __init__(
        self, events: Sequence[Any], side: Side, marks: str, calls: int, *, gpu: bool, whole: bool = False
    ) -> None:
        self.side = side
        self.calls = calls
        self.device = "cuda" if gpu else "cpu"
        host = [event for event in events if event.device_type.name == "CPU" and not event.is_async]
        self._host = sorted(host, key=_start_time)
        self._device = [event for event in events if event.device_type.name != "CPU"]
        self._marks = marks
        self._gpu = gpu
        self._whole = whole
        self._phases = [event for event in self._host if event.name.startswith(f"{PHASE}{side} ")]
        self._around_marks = {
            id(above) for event in self._host if self._is_mark(event) for above in _enclosing_events(event)
        }

    def spent_times(self) -> list[Spent]:
        """Times by phase, mark, operator and device function.

        On a GPU they cover all its functions, attributed to their launches. On the CPU they cover outermost operators,
        and marked ranges of generated code as a whole. Events outside of any phase are left out.
        """
        return [found for found in (self._on_gpu() if self._gpu else self._on_cpu()) if found is not None]

    def marks_by_sequence(self) -> dict[int, str]:
        """The mark of each forward operation, by sequence number.

        The last operator with a number counts, because operators without a backward do not advance the number.
        """
        found: dict[int, str] = {}
        for event in self._host:
            if event.sequence_nr >= 0 and _engine_of(event) is None and (mark := self._mark_of(event)):
                found[event.sequence_nr] = mark
        return found

    def counts(self) -> Counter[str]:
        """Number of runs of each marked range."""
        return Counter(event.name for event in self._host if self._is_mark(event))

    def _on_gpu(self) -> Iterator[Spent | None]:
        annotations = {event.name for event in self._device if event.is_user_annotation}
        for event in self._host:
            for kernel in event.kernels:
                if kernel.name not in annotations:
                    yield self._attribute(event, kernel.duration, kernel.name)

    def _on_cpu(self) -> Iterator[Spent | None]:
        todo = deque(event for event in self._host if event.cpu_parent is None)
        while todo:
            event = todo.popleft()
            if self._whole and self._is_mark(event):
                inside = next((child.name for child in event.cpu_children if _is_operator(child)), "")
                yield self._attribute(event, event.time_range.elapsed_us(), inside)
            elif _is_operator(event) and id(event) not in self._around_marks:
                yield self._attribute(event, event.time_range.elapsed_us(), event.name.removeprefix(_ENGINE))
            else:
                todo.extendleft(sorted(event.cpu_children, key=_start_time, reverse=True))

    def _attribute(self, event: Any, microseconds: float, function: str) -> Spent | None:
        place = self._place(event)
        if place is None:
            return None
        engine = _engine_of(event)
        sequence = -1 if engine is None else engine.sequence_nr
        mark = next((above.name for above in _enclosing_events(event) if self._is_mark(above)), "")
        return Spent(*place, microseconds * _MICRO, function, self._operator(event), mark, sequence)

    def _operator(self, event: Any) -> str:
        """The outermost operator inside the mark; for backward work the name of autograd's function."""
        name = ""
        for above in _enclosing_events(event):
            if self._is_mark(above):
                break
            if _is_operator(above):
                name = above.name
        return name.removeprefix(_ENGINE)

    def _is_mark(self, event: Any) -> bool:
        return bool(event.name.startswith(self._marks))

    def _mark_of(self, event: Any) -> str:
        """The mark around an event, else the first mark inside it, as for a custom autograd function."""
        around = next((above.name for above in _enclosing_events(event) if self._is_mark(above)), "")
        return around or self._first_inside(event)

    def _first_inside(self, event: Any) -> str:
        if id(event) not in self._around_marks:
            return ""
        todo = [event]
        while todo:
            found = todo.pop(0)
            if self._is_mark(found):
                return str(found.name)
            todo.extend(found.cpu_children)
        return ""

    def _place(self, event: Any) -> tuple[Half, int] | None:
        """The phase in which an event began, on any thread, and the index of the profiled call."""
        begun = event.time_range.start
        seen: Counter[Half] = Counter()
        for candidate in self._phases:
            half = cast(Half, candidate.name.rpartition(" ")[2])
            if candidate.time_range.start <= begun <= candidate.time_range.end:
                return half, seen[half]
            seen[half] += 1
        return None


def _start_time(event: Any) -> float:
    return float(event.time_range.start)


def _enclosing_events(event: Any) -> Iterator[Any]:
    """The event and its enclosing events, innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _engine_of(event: Any) -> Any:
    return next((above for above in _enclosing_events(event) if above.name.startswith(_ENGINE)), None)


def _is_operator(event: Any) -> bool:
    return "::" in event.name and not event.name.startswith(PHASE)
