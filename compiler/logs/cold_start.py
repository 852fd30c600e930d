"""The time that a process spends in torch.compile, from its first event on: spans, totals, and a trace for Perfetto.

The spans are torch's own (`dynamo_timed`, logged as Chrome trace events). A log has no event of a training step; the
cold start ends when every function has been compiled for the first time.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from compiler.logs.compilations import Compilation, compilations_of
from compiler.logs.events import Log

PHASES = {
    "bytecode_tracing": "tracing",
    "dynamo": "TorchDynamo",
    "entire_frame_compile": "TorchDynamo",
    "entire_backward_compile": "AOTAutograd",
    "compile_attempt_0": "TorchDynamo",
    "build_guards": "guards",
    "backend_compile": "AOTAutograd",
    "create_aot_dispatcher_function": "AOTAutograd",
    "aot_collect_metadata": "AOTAutograd",
    "aot_trace_joint_graph": "AOTAutograd",
    "min_cut_rematerialization_partition": "AOTAutograd",
    "compile_fx_inner": "Inductor",
    "inductor_compile": "Inductor",
    "fx_codegen_and_compile": "Inductor",
    "GraphLowering.run": "Inductor",
    "GraphLowering.codegen": "Inductor",
    "GraphLowering.compile_to_fn": "kernels",
    "async_compile.precompile": "kernels",
    "async_compile.wait": "kernels",
    "compile_file": "kernels",
}
"""Names of torch's spans -> their phase; any other span has the phase of the span around it."""
_CACHE = ("cache", "torch_key", "triton_key", "get_system")
_OF_FRAME = ("dynamo", "entire_frame_compile")
_MOST_EVENTS = 1_000_000
_OUTSIDE = ("outside of compilations", "")


class Span(msgspec.Struct, frozen=True):
    """A span of torch's own work. `depth` is the number of spans around it, `own` its seconds outside of inner spans.

    `start` is in seconds since the first event of the log. Helper threads work while the main thread waits.
    """  # a log has tens of thousands of them: a struct is made several times as fast as a frozen dataclass

    name: str
    phase: str
    compile_id: str
    start: float
    seconds: float
    own: float
    depth: int
    thread: int
    is_helper: bool = False


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time: a cache miss, a bypass, a dimension that became dynamic."""

    name: str
    compile_id: str
    at: float
    words: str


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Where the time went. `seconds` is the time until every function was compiled for the first time (see `until`).

    `compiling` is the part of `seconds` in which torch.compile worked, and `in_all` its time in the whole log, which
    `by_phase` and `by_function` divide. `origin` is the time of the log's first span, in microseconds since 1970.
    """

    seconds: float
    compiling: float
    in_all: float
    until: str
    by_phase: Mapping[str, float]
    by_function: Mapping[tuple[str, str], float]
    spans: tuple[Span, ...]
    instants: tuple[Instant, ...]
    compilations: tuple[Compilation, ...]
    origin: float


def cold_start_of(log: Log, compilations: tuple[Compilation, ...] | None = None) -> ColdStart:
    """Read where the time went from a log; `compilations` are those of the log, if they are known already."""
    marks = [mark for each in log.payloads_of("chromium_event") if (mark := _decode(*each)) is not None]
    origin = min((mark.at for mark in marks), default=0.0)
    spans = tuple(_with_compilations(list(_spans(marks, origin))))
    compilations = compilations_of(log) if compilations is None else compilations
    functions = list(zip(spans, _functions_of(spans, compilations), strict=True))
    parts = [(span.phase, function, span.own) for span, function in functions if not span.is_helper]
    parts += _outside_of_compilations(spans)
    first = [one for one in compilations if not one.is_recompilation]
    names = {one.compile_id for one in first}
    ends = ((span.start + span.seconds, name, place) for span, (name, place) in functions if span.compile_id in names)
    seconds, name, place = max(ends, default=(0.0, "", ""))
    outer = [span for span in spans if span.depth == 0]
    compiling = _covered_seconds((span.start, min(span.start + span.seconds, seconds)) for span in outer)
    return ColdStart(
        seconds=seconds,
        compiling=compiling,
        in_all=sum(own for _, _, own in parts),
        until=f"{name} ({place})" if name else "",
        by_phase=_totals((phase, own) for phase, _, own in parts),
        by_function=_totals((function, own) for _, function, own in parts),
        spans=spans,
        instants=tuple(_instants(marks, origin)),
        compilations=compilations,
        origin=origin,
    )


def _functions_of(spans: Iterable[Span], compilations: Iterable[Compilation]) -> Iterator[tuple[str, str]]:
    """The function and place of each span. Torch gives an id again after a reset: an outer frame's span is the next."""
    named: dict[str, deque[tuple[str, str]]] = {}
    for one in compilations:
        named.setdefault(one.compile_id, deque()).append((one.function, one.place))
    now: dict[str, tuple[str, str]] = {}
    for span in spans:
        begins = span.compile_id not in now or (span.depth == 0 and span.name in _OF_FRAME)
        if begins and named.get(span.compile_id):
            now[span.compile_id] = named[span.compile_id].popleft()
        yield now.get(span.compile_id, _OUTSIDE)


def _outside_of_compilations(spans: Iterable[Span]) -> Iterator[tuple[str, tuple[str, str], float]]:
    """Phase, function and seconds of work that has no compilation's id, such as AOTInductor's."""
    alone = [span for span in spans if span.is_helper and not span.compile_id]
    if seconds := _covered_seconds((span.start, span.start + span.seconds) for span in alone):
        is_ahead = any(span.name.startswith("compile_fx_aot") for span in alone)
        yield "AOTInductor" if is_ahead else "other", _OUTSIDE, seconds


class _Timed(msgspec.Struct):
    """An event of Chrome's trace format: the begin ("B") or end ("E") of a span, or an instant ("i"). `ts` is in µs."""

    name: str
    ts: float
    ph: Any = ""
    args: Any = None


@dataclass(slots=True)
class _Mark:
    """An event with the compilation and the thread that the log gives it."""

    name: str
    at: float
    phase: object
    args: dict[str, Any]
    compile_id: str
    logged_id: str
    thread: int


_DECODER = msgspec.json.Decoder(_Timed)


def _decode(compile_id: str, process: int, payload: bytes) -> _Mark | None:
    """The Chrome trace event in a log event's payload; None if it is damaged."""
    try:
        found = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    arguments = found.args if isinstance(found.args, dict) else {}
    name = str(arguments.get("compile_id") or compile_id)
    return _Mark(found.name, found.ts, found.ph, arguments, "" if name == "None" else name, compile_id, process)


def _spans(marks: Sequence[_Mark], origin: float) -> Iterator[Span]:
    """Spans from pairs of begin and end events. A span without an end lasts until the last event of its thread.

    Helper threads (which compile kernels) log no compilation; their spans overlap, and get threads numbered from 1.
    """
    stacks: dict[int, list[_OpenSpan]] = {}
    last: dict[int, _Mark] = {}
    began: dict[str, list[_Mark]] = {}
    found: list[Span] = []
    helped: list[Span] = []
    for mark in marks[:_MOST_EVENTS]:
        if not mark.compile_id:
            waiting = began.setdefault(mark.name, [])
            if mark.phase == "B":
                waiting.append(mark)
            elif mark.phase == "E" and waiting:
                start, seconds = _times(waiting.pop(0), mark, origin)
                phase = PHASES.get(mark.name, "other")
                helped.append(Span(mark.name, phase, "", start, seconds, seconds, 0, 0, is_helper=True))
            continue
        stack = stacks.setdefault(mark.thread, [])
        last[mark.thread] = mark
        if mark.phase == "B":
            if any(each.begin.name == mark.name and each.begin.compile_id != mark.compile_id for each in stack):
                found += _close(stack, len(stack), mark, origin)  # no span is in one of its name: that was cut off
            stack.append(_OpenSpan(mark, _phase(mark.name, stack[-1].phase if stack else "other")))
        elif mark.phase == "E":
            names = [each.begin.name for each in reversed(stack)]
            found += _close(stack, names.index(mark.name) + 1 if mark.name in names else 0, mark, origin)
    for thread, stack in stacks.items():
        found += _close(stack, len(stack), last[thread], origin)
    yield from sorted((*found, *_in_lanes(helped)), key=lambda span: (span.start, span.depth))


@dataclass(slots=True)
class _OpenSpan:
    """A span that has begun; `inner` are the seconds of the spans in it that have ended."""

    begin: _Mark
    phase: str
    inner: float = 0.0


def _close(stack: list[_OpenSpan], count: int, end: _Mark, origin: float) -> Iterator[Span]:
    """End the innermost spans at an event: the one that ends there, and those inside it, whose ends are missing."""
    for _ in range(count):
        opened = stack.pop()
        start, seconds = _times(opened.begin, end, origin)
        if stack:
            stack[-1].inner += seconds
        own = max(0.0, seconds - opened.inner)
        begin = opened.begin
        yield Span(begin.name, opened.phase, begin.compile_id, start, seconds, own, len(stack), begin.thread)


def _times(begin: _Mark, end: _Mark, origin: float) -> tuple[float, float]:
    return (begin.at - origin) / 1e6, max(0.0, (end.at - begin.at) / 1e6)


def _in_lanes(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans with threads numbered from 1, so that no two spans of a thread overlap."""
    ends: list[float] = []
    for span in sorted(spans, key=lambda each: each.start):
        lane = next((number for number, end in enumerate(ends) if end <= span.start), len(ends))
        ends[lane : lane + 1] = [span.start + span.seconds]
        yield replace(span, thread=lane + 1)


def _with_compilations(spans: Sequence[Span]) -> Iterator[Span]:
    """Spans in order of their start; those of helper threads get the compilation that waits for them."""
    main = deque(span for span in spans if span.depth == 0 and span.compile_id)
    around: list[Span] = []
    for span in spans:
        while main and main[0].start <= span.start:
            around.append(main.popleft())
        if span.compile_id:
            yield span
            continue
        around = [each for each in around if span.start <= each.start + each.seconds]
        yield replace(span, compile_id=around[0].compile_id) if around else span


def _phase(name: str, outer: str) -> str:
    return PHASES.get(name) or ("caches" if any(word in name for word in _CACHE) else outer)


def _instants(marks: Iterable[_Mark], origin: float) -> Iterator[Instant]:
    for mark in marks:
        if mark.phase == "i":
            told = (mark.args.get(name) for name in ("cache_bypass_reason", "reason", "cache_status_detailed"))
            words = str(next(filter(None, told), ""))
            yield Instant(mark.name, mark.logged_id, (mark.at - origin) / 1e6, words)


def _totals(items: Iterable[tuple[Any, float]]) -> dict[Any, float]:
    """Sums by key, largest first."""
    totals: Counter[Any] = Counter()
    for key, seconds in items:
        totals[key] += seconds  # type: ignore[assignment]
    return dict(totals.most_common())


def _covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one span covers."""
    total = end = 0.0
    for start, stop in sorted(spans):
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


# A trace for Perfetto and chrome://tracing


def trace_of(ranks: Mapping[int, ColdStart]) -> dict[str, Any]:
    """The ranks as a Chrome trace: a process for each rank, spans with their function, caches and reasons."""
    begin = min((each.origin for each in ranks.values()), default=0.0)
    events = [event for rank, each in ranks.items() for event in _trace_events(rank, each, begin)]
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made by": "tcompile"}}


def _trace_events(rank: int, start: ColdStart, begin: float) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}: torch.compile"}}
    yield {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}}
    offset = start.origin - begin
    notes = {one.compile_id: _notes(one) for one in start.compilations}
    helpers = {span.thread for span in start.spans if span.is_helper}
    for thread in sorted({span.thread for span in start.spans}):
        yield {
            "ph": "M",
            "pid": rank,
            "tid": thread,
            "name": "thread_name",
            "args": {"name": f"helper {thread}" if thread in helpers else "main"},
        }
    for span in start.spans:
        note = notes.get(span.compile_id, {})
        title = (
            f"{note['function']} [{span.compile_id}]"
            if span.depth == 0 and not span.is_helper and "function" in note
            else span.name
        )
        yield {
            "ph": "X", "pid": rank, "tid": span.thread, "cat": span.phase, "name": title,
            "ts": offset + span.start * 1e6, "dur": span.seconds * 1e6,
            "args": {"span": span.name, "phase": span.phase, "compile id": span.compile_id, **note},
        }  # fmt: skip
    for each in start.instants:
        yield {
            "ph": "i", "s": "p", "pid": rank, "tid": 0, "cat": "caches", "name": each.name,
            "ts": offset + each.at * 1e6, "args": {"compile id": each.compile_id, "why": each.words},
        }  # fmt: skip


def _notes(one: Compilation) -> dict[str, str]:
    notes = {
        "function": one.function, "where": one.place, "outcome": one.status, "why": one.reason,
        "caches": ", ".join(f"{cache}: {outcome}" for cache, outcome in one.cache.items()),
        "compiled again because": "; ".join(one.recompile_reasons),
        "graph breaks": "; ".join(f"{each.reason} ({each.file}:{each.line})" for each in one.breaks),
    }  # fmt: skip
    return {name: text for name, text in notes.items() if text}


def write_trace(ranks: Mapping[int, ColdStart]) -> str:
    """The trace of `trace_of` as JSON."""
    return json.dumps(trace_of(ranks), separators=(",", ":"))
