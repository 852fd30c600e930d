"""Profiles of torch.profiler (Chrome traces), read without torch: what ran in which compiled graph, and what outside.

torch marks what is needed: `Torch-Compiled Region: 0/0` is around compiled code, `## Call CompiledFxGraph … ##` around
one half of its graph, and events such as `dynamo` and `inductor_compile` around compilations. A backward is matched to
its forward by the sequence number of `CompiledFunction`. A GPU kernel belongs to the operator that launched it, by its
`correlation`.
"""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from compiler.record import GraphHalf

MOST_BYTES = 512 * 2**20
"""Maximum size of a profile, after unpacking."""
MOST_OBJECTS, MOST_VALUES = 6_000_000, 60_000_000
"""Maximum numbers of `{` and of `,`: a few bytes of JSON can decode to much larger objects."""

Kind = Literal["kernel", "operator", "between"]
_MICRO = 1e-6
_REGION = re.compile(r"Torch-Compiled Region: (!?\d+(?:/\d+)*)")
_FX_GRAPH = re.compile(r"## Call CompiledFxGraph (\S+) ##")
_COMPILES = re.compile(r"(.+)_data: .*?compile_id=(!?\d+(?:/\d+)*)")
_FORWARD, _BACKWARD = "CompiledFunction", "CompiledFunctionBackward"
_ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_ON_HOST = frozenset(
    ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "Operator", "operator", "user_op", "")
)
_LAUNCH = frozenset(("cuda_runtime", "cuda_driver"))
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"^\s*\[")
_END_OF_EVENT = b"},"
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_TRIES = 3
"""How many positions near the end of a truncated profile are tried as the end of its last whole event."""


class ProfileError(ValueError):
    """A file is no profile that can be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time on a thread, in seconds from the first event of the profile."""

    begin: float
    seconds: float
    name: str = ""
    thread: str = ""

    @property
    def end(self) -> float:
        return self.begin + self.seconds


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of one half of a compiled graph. `key` is the key of Inductor's cache for this half."""

    span: Span
    graph: str
    half: GraphHalf
    key: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a GPU, or on a CPU one operator, or the time between operators of compiled code.

    `run` is the index of the `GraphRun` that it belongs to, None outside of compiled code. `name` is that of the kernel
    or operator; `op` is the operator that launched a GPU kernel. Time between operators (`kind` "between") is that of
    C++ kernels, which leave no event of their own, and of the code that calls them; `after` is the number of operators
    before it in the run. `compiling` marks kernels that ran during a compilation, such as those of autotuning.
    """

    span: Span
    name: str
    kind: Kind
    run: int | None = None
    op: str = ""
    after: int = 0
    compiling: bool = False


@dataclass(frozen=True, slots=True)
class CompileGap:
    """Time that a call spent in a compilation; `graph` is its compile id, "" if the profile doesn't name it."""

    span: Span
    graph: str


@dataclass(frozen=True, slots=True)
class BreakGap:
    """Time between two graphs of a call that a graph break separates, without compilations.

    The code between them ran in eager mode. `before` and `after` are compile ids.
    """

    span: Span
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Trace:
    """What one profile says about compiled code. `device` is "cuda" if GPU kernels were profiled, else "cpu".

    `steps` are the marked ranges of the program (`ProfilerStep#3`, `record_function`), the outermost of each thread.
    `first` is the time of the first event in the file's own microseconds.
    """

    path: str
    device: Literal["cpu", "cuda"]
    rank: int | None
    seconds: float
    first: float
    events: int
    steps: tuple[Span, ...]
    runs: tuple[GraphRun, ...]
    launches: tuple[Launch, ...]
    compilations: tuple[CompileGap, ...]
    breaks: tuple[BreakGap, ...]
    problems: tuple[str, ...] = ()


class _Args(msgspec.Struct, gc=False):
    external: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    sequence: Any = msgspec.field(name="Sequence number", default=None)


class _Event(msgspec.Struct, gc=False):
    name: Any = ""
    ph: Any = ""
    cat: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = 0.0
    dur: Any = 0.0
    args: _Args | None = None


class _Distributed(msgspec.Struct):
    rank: Any = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 the name in the file
    distributedInfo: _Distributed | None = None  # noqa: N815


def read_profile(path: str | Path) -> Trace:
    """Read a profile (`.json` or `.json.gz`). Raises ProfileError, or OSError if the file can't be opened."""
    data = profile_bytes(path)
    decoded, whole = _decode(data, str(path))
    cut = f"the profile is cut off: the last {len(data) - len(whole) + 2:,} bytes are not read"
    problems = (cut,) if len(whole) != len(data) else ()
    events = [event for event in map(_read_timed_event, decoded.traceEvents) if event is not None]
    if not events:
        raise ProfileError(f"{path}: this profile has no events with a duration")
    rank = decoded.distributedInfo.rank if decoded.distributedInfo else None
    return _Reader(events).trace(str(path), rank if isinstance(rank, int) else None, problems)


def profile_bytes(path: str | Path) -> bytes:
    """The bytes of a profile, unpacked. Raises ProfileError, or OSError if the file can't be opened."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ProfileError(f"{path}: this is no regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            data = gzip.GzipFile(fileobj=stream).read(MOST_BYTES + 1) if packed else stream.read(MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ProfileError(f"{path}: the archive is damaged: {error}") from None
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise ProfileError(f"{path}: this has more than {MOST_BYTES / 1e6:,.0f} MB unpacked, the most that is read")
    if data.count(b"{") > MOST_OBJECTS or data.count(b",") > MOST_VALUES:
        raise ProfileError(f"{path}: this has more than {MOST_OBJECTS:,} objects or {MOST_VALUES:,} values")
    return data


def _decode(data: bytes, path: str) -> tuple[_File, bytes]:
    """The events of a file, and its bytes; a truncated file is closed after its last whole event."""
    if not data.strip():
        raise ProfileError(f"{path}: this file is empty")
    bare = data.lstrip()[:1] == b"["  # the format also allows a list without anything around it
    if not bare and _EVENTS.search(data) is None:
        raise ProfileError(f'{path}: this is no profile of torch.profiler: it has no "traceEvents"')
    try:
        return _parse_json(data, bare), data
    except _UNREADABLE as error:
        reason = str(error)
    end = len(data)
    for _ in range(_TRIES):
        end = data.rfind(_END_OF_EVENT, 0, end)
        whole = data[: end + 1] + (b"]" if bare else b"]}")
        with suppress(*_UNREADABLE):
            return _parse_json(whole, bare), whole
    raise ProfileError(f"{path}: this profile is damaged: {reason}")


def _parse_json(data: bytes, bare: bool) -> _File:
    return _File(msgspec.json.decode(data, type=list[_Event])) if bare else msgspec.json.decode(data, type=_File)


@dataclass(slots=True)
class _Timed:
    """An event with a duration. `parent` is the index of the event that encloses it, -1 without one."""

    name: str
    category: str
    thread: str
    begin: float
    end: float
    args: _Args
    parent: int = -1


def _read_timed_event(event: _Event) -> _Timed | None:
    if event.ph != "X":
        return None
    begin, duration = _number(event.ts), _number(event.dur)
    if begin is None or duration is None or duration < 0:
        return None
    category = event.cat if isinstance(event.cat, str) else ""
    if category not in _ON_HOST and category not in _ON_DEVICE:
        return None  # such as `python_function`, the most frequent one
    thread = f"{event.pid}/{event.tid}"
    return _Timed(str(event.name), category, thread, begin, begin + duration, event.args or _Args())


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class _Context:
    """What encloses an event. `region` is the index of the event of a compiled region, `run` that of a graph's run."""

    region: int = -1
    graph: str = ""
    half: GraphHalf = ""
    run: int = -1
    compiling: bool = False


_OUTERMOST = _Context()


class _Reader:
    """One walk over the events of each host thread, in the order in which they began."""

    def __init__(self, events: Sequence[_Timed]) -> None:
        self._host = sorted((e for e in events if e.category in _ON_HOST), key=lambda e: (e.thread, e.begin, -e.end))
        self._device = [e for e in events if e.category in _ON_DEVICE]
        everything = [*self._host, *self._device]
        self._first = min(event.begin for event in everything) if everything else 0.0
        self._last = max(event.end for event in everything) if everything else 0.0
        self._count = len(events)
        self._runs: list[GraphRun] = []
        self._run_events: list[int] = []
        self._gaps: list[CompileGap] = []
        self._contexts: list[_Context] = []

    def trace(self, path: str, rank: int | None, problems: tuple[str, ...]) -> Trace:
        self._find_parents()
        compiles = self._compile_events()
        self._graph_of_forward: dict[float, str] = {}
        for place in sorted(range(len(self._host)), key=lambda place: self._host[place].begin):
            self._enter(place, compiles)
        return Trace(
            path=path,
            device="cuda" if self._device else "cpu",
            rank=rank,
            seconds=(self._last - self._first) * _MICRO,
            first=self._first,
            events=self._count,
            steps=tuple(self._steps()),
            runs=tuple(self._runs),
            launches=tuple(sorted(self._launches(), key=lambda launch: launch.span.begin)),
            compilations=tuple(self._gaps),
            breaks=tuple(self._break_gaps()),
            problems=(*problems, *self._problems()),
        )

    def _find_parents(self) -> None:
        open_events: list[int] = []
        for place, event in enumerate(self._host):
            while open_events and not self._encloses(self._host[open_events[-1]], event):
                open_events.pop()
            event.parent = open_events[-1] if open_events else -1
            open_events.append(place)
        self._contexts = [_OUTERMOST] * len(self._host)

    @staticmethod
    def _encloses(outer: _Timed, inner: _Timed) -> bool:
        return outer.thread == inner.thread and inner.begin < outer.end

    def _compile_events(self) -> dict[int, str]:
        """Compile ids by event: torch writes `NAME_data: compile_id=0/0` as soon as the event NAME has begun."""
        found: dict[int, str] = {}
        for event in self._host:
            data = _COMPILES.fullmatch(event.name) if event.name.endswith(tuple("0123456789")) else None
            if data is not None and event.parent >= 0 and self._host[event.parent].name == data.group(1):
                found.setdefault(event.parent, data.group(2))
        return found

    def _enter(self, place: int, compiles: dict[int, str]) -> None:
        """Determine what an event is, from its name and from what encloses it."""
        event = self._host[place]
        outer = inner = self._contexts[event.parent] if event.parent >= 0 else _OUTERMOST
        name = event.name
        if place in compiles or name.endswith(" (dynamo_timed)"):
            inner = replace(outer, compiling=True, run=-1)
            if not outer.compiling:
                self._gaps.append(CompileGap(self._span(event), compiles.get(place, "")))
        elif (region := _REGION.match(name)) is not None:
            inner = _Context(place, region.group(1), compiling=outer.compiling)
        elif name == _FORWARD and (number := _number(event.args.sequence)) is not None:
            inner = replace(outer, half="forward")
            self._graph_of_forward[number] = outer.graph
        elif name == _BACKWARD:
            number = _number(event.args.sequence)
            graph = self._graph_of_forward.get(number, "") if number is not None else ""
            inner = replace(outer, graph=graph, half="backward")
        elif (called := _FX_GRAPH.match(name)) is not None and not outer.compiling:
            inner = replace(outer, half=outer.half or "inference", run=len(self._runs))
            self._runs.append(GraphRun(self._span(event), outer.graph, inner.half, called.group(1)))
            self._run_events.append(place)
        self._contexts[place] = inner

    def _span(self, event: _Timed) -> Span:
        begin, seconds = (event.begin - self._first) * _MICRO, (event.end - event.begin) * _MICRO
        return Span(begin, seconds, event.name, event.thread)

    def _steps(self) -> Iterator[Span]:
        """Marked ranges of the program: annotations that no other encloses."""
        for event in self._host:
            if event.category == "user_annotation" and not self._is_of_torch(event):
                above = event.parent
                while above >= 0 and self._host[above].category != "user_annotation":
                    above = self._host[above].parent
                if above < 0:
                    yield self._span(event)

    @staticmethod
    def _is_of_torch(event: _Timed) -> bool:
        return _COMPILES.match(event.name) is not None or event.name.startswith(("##", "Torch-Compiled", "TorchDynamo"))

    def _launches(self) -> Iterator[Launch]:
        launched = self._launching_events()
        runs_on_gpu: set[int] = set()
        for event in self._device:
            place = launched.get(_number(event.args.correlation), -1)
            context = self._contexts[place] if place >= 0 else _OUTERMOST
            runs_on_gpu.add(context.run)
            yield Launch(
                self._span(event),
                event.name,
                "kernel",
                context.run if context.run >= 0 else None,
                self._operator(place),
                compiling=context.compiling,
            )
        children: dict[int, list[_Timed]] = {place: [] for place in self._run_events}
        for event in self._host:
            if event.parent in children and event.category not in _LAUNCH:
                children[event.parent].append(event)
        for run, place in enumerate(self._run_events):
            if run not in runs_on_gpu:
                yield from self._on_cpu(run, self._host[place], children[place])

    def _launching_events(self) -> dict[float | None, int]:
        """The host event of each GPU kernel, by correlation: its launch, else the operator with its external id."""
        by_correlation: dict[float | None, int] = {}
        by_external: dict[float | None, int] = {}
        for place, event in enumerate(self._host):
            if event.category in _LAUNCH:
                by_correlation[_number(event.args.correlation)] = place
            else:
                by_external[_number(event.args.external)] = place
        for event in self._device:
            correlation, external = _number(event.args.correlation), _number(event.args.external)
            if correlation not in by_correlation and external in by_external:
                by_correlation[correlation] = by_external[external]
        by_correlation.pop(None, None)
        return by_correlation

    def _operator(self, place: int) -> str:
        """Name of the operator that launched a kernel: in compiled code, the one that the code calls itself."""
        run = self._contexts[place].run if place >= 0 else -1
        top = self._run_events[run] if run >= 0 else -1
        name = ""
        while place >= 0 and place != top:
            if self._host[place].category not in _LAUNCH and self._host[place].category != "user_annotation":
                name = self._host[place].name
                if run < 0:
                    break
            place = self._host[place].parent
        return name

    def _on_cpu(self, run: int, event: _Timed, children: Sequence[_Timed]) -> Iterator[Launch]:
        """Operators of one run, and the time between them."""
        done, count = event.begin, 0
        for child in (*children, None):
            until = event.end if child is None else child.begin
            if until > done:
                span = Span((done - self._first) * _MICRO, (until - done) * _MICRO, "", event.thread)
                yield Launch(span, "", "between", run, after=count)
            if child is not None:
                yield Launch(self._span(child), child.name, "operator", run, child.name)
                done, count = max(done, child.end), count + 1

    def _break_gaps(self) -> Iterator[BreakGap]:
        """For each compiled region inside another one: the time since the graph before it, without compilations."""
        parts: dict[int, list[tuple[int, bool]]] = {}
        for place in self._run_events:
            parts.setdefault(self._contexts[place].region, []).append((place, False))
        for place, context in enumerate(self._contexts):
            if context.region == place and (above := self._host[place].parent) >= 0:
                parts.setdefault(self._contexts[above].region, []).append((place, True))
        compilations = sorted((gap.span.begin, gap.span) for gap in self._gaps)
        for region, inside in parts.items():
            inside.sort(key=lambda part: self._host[part[0]].begin)
            for (before, _), (after, is_region) in pairwise(inside):
                if is_region and region >= 0:
                    yield self._break_gap(before, after, compilations)

    def _break_gap(self, before: int, after: int, compilations: Sequence[tuple[float, Span]]) -> BreakGap:
        first, second = self._span(self._host[before]), self._span(self._host[after])
        inside = compilations[bisect_left(compilations, (first.end,)) : bisect_left(compilations, (second.begin,))]
        compiling = sum(span.seconds for _, span in inside if span.thread == second.thread)
        span = Span(first.end, max(0.0, second.begin - first.end - compiling), "", second.thread)
        return BreakGap(span, self._contexts[before].graph, self._contexts[after].graph)

    def _problems(self) -> Iterator[str]:
        if not self._runs and all(context.region < 0 for context in self._contexts):
            yield "no compiled code ran in this profile: there is no event `Torch-Compiled Region` in it"
        lost = sum(not run.graph for run in self._runs)
        if lost:
            yield f"{lost:,} of {len(self._runs):,} runs of compiled graphs are of calls that began before the profile"


def insert_events(data: bytes, events: Iterable[dict[str, Any]]) -> bytes:
    """A profile with more events before its own, whose bytes stay as they are; a truncated one is closed."""
    _, whole = _decode(data, "the profile")
    found = _EVENTS.search(whole) or _BARE.search(whole)
    assert found is not None, "the profile was decoded"
    start, rest = whole[: found.end()], whole[found.end() :]
    added = b",\n".join(map(msgspec.json.encode, events))
    return b"".join((start, b"\n", added, b"" if rest.lstrip()[:1] == b"]" else b",", rest))
