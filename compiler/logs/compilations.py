"""The compilations of a structured trace: where, why, how long, with what outcome. Graphs are not read.

Torch numbers a compilation by its frame and its count in this frame ("0/1"), and begins again at 0 after
`torch._dynamo.reset()`. Here each compilation has an id of its own: "0/1" for the first, "0/1#2" for the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec

from compiler.logs.events import CACHE_EVENT, Event, Log, read_object
from compiler.logs.exports import FAILED, ExportIds, exported_function, is_of_export, last_traced_line
from compiler.logs.guard_text import is_wrapper, telling_first, wrapped_name
from compiler.record import Span
from compiler.record.plain_text import file_name, one_line

Status = Literal["compiled", "broken", "cached", "exported", "empty", "skipped", "limit", "failed", "unfinished"]
"""Outcome of a compilation.

compiled: one graph of the whole frame. broken: a graph up to a graph break. cached: compiled, and all of its kernels
came from a cache. exported: by torch.export. empty: no tensor operation, so no graph. skipped:
torch.compile gave up on the frame, which runs eagerly. limit: the recompile limit was reached, and new inputs run
eagerly. failed: an error was raised. unfinished: the log ends before the compilation does.
"""
STATUSES: tuple[Status, ...] = get_args(Status)
EAGER: frozenset[Status] = frozenset(("skipped", "limit"))
"""Outcomes after which the frame runs eagerly, without an error."""

_KERNEL = re.compile(rb"^\t?\w+ = async_compile\.(?!wait\b)\w+\(", re.MULTILINE)
_PLACE = re.compile(r"Graph break in user code at (.+):(\d+)\n")
_BACKEND = re.compile(r"^backend='[^\n]*' raised:\s*")
_SKIPPED = re.compile(r"^skipping cudagraphs due to\s+", re.IGNORECASE)
_LIMIT = re.compile(r"recompile.?limit|cache.?size.?limit", re.IGNORECASE)
INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<frozen ")
_KINDS = (
    "dynamo_start", "artifact", "dynamo_output_graph", "aot_joint_graph", "inductor_output_code",
    "dynamo_cpp_guards_str", "exported_program", "aot_inference_graph", "compiled_autograd_graph",
    "compilation_metrics", "bwd_compilation_metrics",
)  # fmt: skip
_MOST_BEFORE = 16
_MOST_REASON = 2_000
"""Maximum characters of a reason."""


@dataclass(frozen=True, slots=True)
class LoggedBreak:
    """A graph break: its place, and torch's reason without hints. The place is "" and 0 if torch names none."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a frame, or of a backward by compiled autograd.

    `id` is unique in the log, and `compile_id` is torch's own. `stack` is the call stack at its start, outermost call
    first, and ends at the function. `code` is the line of the innermost call by user code. A module or function of
    torch is compiled inside a wrapper: then `function` is its class, or the code of the call, and `file` and `line` are
    those of the call. `recompile_reasons` has the one that tells most first. `seconds` has the phases,
    each without the phases inside it. `cache` has the outcome by cache: "hit", "miss", "bypass: why" or "hit, miss".
    `nodes` is the number of operations captured, None if no graph was. `kernels` are generated kernels; those of a
    cached graph are counted too. `first` and `last` are times of day in seconds. `autograd` is the number of the
    compiled-autograd run.
    """

    id: str
    compile_id: str
    function: str
    file: str
    line: int
    code: str
    stack: tuple[Span, ...]
    status: Status
    reason: str
    attempts: int
    restarts: tuple[str, ...]
    seconds: dict[str, float]
    cache: dict[str, str]
    nodes: int | None
    kernels: int
    guards: int | None
    breaks: tuple[LoggedBreak, ...]
    recompile_reasons: tuple[str, ...]
    first: float
    last: float
    autograd: str = ""

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def is_recompilation(self) -> bool:
        return bool(self.recompile_reasons)

    @property
    def place(self) -> str:
        """The code location, as "file.py:12"."""
        return f"{file_name(self.file)}:{self.line}" if self.file else ""

    @property
    def callers(self) -> tuple[Span, ...]:
        """The part of the stack outside of installed packages, without the function itself."""
        return tuple(span for span in self.stack[:-1] if not span.installed)


def compilations_of(log: Log) -> tuple[Compilation, ...]:
    """The compilations of a log, in the order in which they started."""
    reader = _Reader(log)
    for event in log.events_of(*_KINDS):
        reader.read(event)
    reader.end_in_backward()
    return tuple(each.finish() for each in reader.started if not each.is_outer)


@dataclass
class _Open:
    """What was read of one compilation so far."""

    id: str
    compile_id: str
    autograd: str
    first: float
    last: float = 0.0
    attempts: int = 1
    stack: tuple[Span, ...] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    backward: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, list[str]] = field(default_factory=dict)
    breaks: list[LoggedBreak] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    wrapped: str = ""
    kernels: int = 0
    has_graph: bool = False
    has_program: bool = False
    cut_backward: float | None = None
    """Seconds that its backward was compiled for when the log ended; None if the log did not end there."""
    error: str = ""
    is_outer: bool = False
    earlier: _Open | None = None
    exported: Span | None = None
    nodes: int | None = None

    def finish(self) -> Compilation:
        metrics = self.metrics
        function = self.function
        status, reason = self._outcome()
        return Compilation(
            id=self.id,
            compile_id=self.compile_id,
            function=function.function,
            file=function.file,
            line=function.line,
            code=next((span.code for span in reversed(self.stack) if span.code and not span.installed), ""),
            stack=self.stack,
            status=status,
            reason=reason or self._sharing_words(function),
            attempts=self.attempts,
            restarts=tuple(map(first_paragraph, _texts(metrics.get("restart_reasons")))),
            seconds=self._seconds(),
            cache={name: ", ".join(dict.fromkeys(outcomes)) for name, outcomes in self.cache.items()},
            nodes=int(count) if (count := _number(metrics.get("graph_op_count"))) is not None else self.nodes,
            kernels=self.kernels,
            guards=int(count) if (count := _number(metrics.get("guard_count"))) is not None else None,
            breaks=tuple(dict.fromkeys(self.breaks)),
            recompile_reasons=self.reasons or _texts(metrics.get("recompile_reason")),
            first=self.first,
            last=max(self.first, self.last),
            autograd=self.autograd,
        )

    @cached_property
    def function(self) -> Span:
        """The function and its first line. At the recompile limit torch logs none: an earlier compilation has it."""
        function = self.stack[-1] if self.stack else self.exported or Span("", 0)
        if name := _text(self.metrics.get("co_name")):
            line = int(_number(self.metrics.get("co_firstlineno")) or 0)
            function = Span(_text(self.metrics.get("co_filename")), line, function=name)
        if self.earlier is not None and not function.function:
            return self.earlier.function
        is_generated = bool(self.autograd) and function.file.startswith("<eval_with_key>")
        return self._named_by_call(function) if is_generated or is_wrapper(function.file) else function

    def _named_by_call(self, wrapper: Span) -> Span:
        """What torch's wrapper calls, at the user's call; the wrapper itself if the log has no user's call."""
        call = next((span for span in reversed(self.stack[:-1]) if not span.installed), None)
        if call is None:
            return Span(wrapper.file, wrapper.line, function=self.wrapped or "a function of torch")
        before = (each.wrapped for each in self._of_frame() if each.stack == self.stack and each.wrapped)
        known = "backward, by compiled autograd" if self.autograd else self.wrapped or next(before, "")
        return Span(call.file, call.line, function=known or one_line(call.code) or wrapper.function)

    def _of_frame(self) -> Iterator[_Open]:
        """The earlier compilations of the same frame, latest first."""
        before = self.earlier
        for _ in range(_MOST_BEFORE):
            if before is None:
                return
            yield before
            before = before.earlier

    def _sharing_words(self, function: Span) -> str:
        """Words for a module of torch that is compiled again because another one came first: they share a wrapper."""
        if not self.stack or not is_wrapper(self.stack[-1].file):
            return ""
        others = dict.fromkeys(each.function.function for each in self._of_frame())
        alone = others and function.function not in others
        return f"shares a function of torch with {', '.join(list(others)[:3])}" if alone else ""

    def _outcome(self) -> tuple[Status, str]:
        """The status, and its reason in words."""
        failure, kind = _text(self.metrics.get("fail_reason")), _text(self.metrics.get("fail_type"))
        if _LIMIT.search(kind) or (kind and _LIMIT.search(failure.partition("\n")[0])):
            return ("failed" if kind.startswith("FailOn") else "limit"), first_paragraph(failure)
        if kind or self.error:
            why = first_paragraph(failure) or self.error
            gave_up = kind in ("Unsupported", "") and self.breaks
            if gave_up or self.metrics.get("config_suppress_errors") is True:
                return "skipped", why
            return "failed", f"{kind}: {why}" if kind and kind != "Unsupported" else why
        if self.exported is not None and not self.stack:
            return ("exported", "") if self.has_program else ("compiled", "without TorchDynamo")
        if not self.metrics and not (self.autograd and self.has_graph):
            return "unfinished", "the log ends during this compilation"
        if self.cut_backward is not None:
            return "unfinished", "the log ends while its backward is compiled"
        if self.breaks:
            return "broken", self.breaks[0].reason
        if not self.has_graph and not self.metrics.get("graph_op_count"):
            return "empty", "no tensor operation to compile"
        outcomes = [outcome for each in self.cache.values() for outcome in each]
        is_cached = outcomes and all(outcome == "hit" for outcome in outcomes)
        return ("cached" if is_cached else "compiled"), self._no_cuda_graphs()

    def _no_cuda_graphs(self) -> str:
        """Why CUDA graphs were asked for and not used; "" if they were used, or nobody asked for them."""
        why = _text(self.metrics.get("cudagraph_skip_reason")) or _text(self.backward.get("cudagraph_skip_reason"))
        why = _SKIPPED.sub("", first_paragraph(why))
        return f"no CUDA graphs: {why}" if why else ""

    def _seconds(self) -> dict[str, float]:
        """Seconds by phase, each without the phases inside it."""
        if not self.metrics and not self.backward:
            return {"unfinished": self.last - self.first} if self.last > self.first else {}
        names = ("dynamo", "aot_autograd", "inductor", "inductor_code_gen")
        inside = [self._microseconds(f"{name}_cumulative_compile_time_us") for name in names]
        inside[0] = max(inside[0], self._microseconds("duration_us"))
        own = (max(0.0, outer - inner) for outer, inner in zip(inside, (*inside[1:], 0.0), strict=True))
        phases = dict(zip(("tracing", "AOTAutograd", "Inductor", "kernels"), own, strict=True))
        backward = self.backward.get("backward_cumulative_compile_time_us", self.backward.get("duration_us"))
        phases["backward"] = self.cut_backward or (_number(backward) or 0) / 1e6
        return {name: seconds for name, seconds in phases.items() if seconds}

    def _microseconds(self, name: str) -> float:
        return (_number(self.metrics.get(name)) or 0) / 1e6


class _Reader:
    """Gathers events by compilation. A new start of an id that has ended begins a new compilation."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.started: list[_Open] = []
        self._open: dict[str, _Open] = {}
        self._frames: dict[str, _Open] = {}
        self._counts: dict[str, int] = {}
        self._exports = ExportIds()
        self._reasons: dict[str, tuple[str, ...]] = {}
        self._stacks: dict[tuple[Span, ...], tuple[Span, ...]] = {}

    def read(self, event: Event) -> None:
        if not event.compile_id:
            self._read_export(event)
            return
        if event.name == "recompile_reasons":  # it is logged before the compilation starts
            self._reasons[event.compile_id] = _parse_reasons(event.payload)
            return
        each = self._open.get(event.compile_id)
        is_new = each is None or event.kind == "dynamo_start"
        is_new |= event.kind == "compilation_metrics" and each is not None and bool(each.metrics)
        is_new |= each is not None and each.exported is not None
        if is_new or each is None:
            each = self._begin(event)
        each.last = event.seconds
        each.attempts = max(each.attempts, event.attempt + 1)
        self._add(each, event)

    def end_in_backward(self) -> None:
        """Mark the compilation whose backward was being compiled when the log ended."""
        event = self.log.last_event("chromium_event", b'"entire_backward_compile"')
        each = self._open.get(event.compile_id) if event is not None else None
        if event is not None and each is not None and not each.backward and read_object(event.payload).get("ph") == "B":
            each.cut_backward = max((end.seconds for end in self.log.ends[1:]), default=event.seconds) - event.seconds

    def _read_export(self, event: Event) -> None:
        if not is_of_export(event):
            return
        name = self._exports.id_of(event)
        if name not in self._open:
            self._open[name] = _Open(name, "", "", event.seconds)
            self.started.append(self._open[name])
        each = self._open[name]
        each.last = event.seconds
        if event.kind == "compilation_metrics":
            each.metrics = _select_metrics(event.fields)
        if event.kind == "inductor_output_code":
            self._add(each, event)
        _read_exported(each, event)

    def _begin(self, event: Event) -> _Open:
        name, parts = event.compile_id, event.id_parts
        self._counts[name] = count = self._counts.get(name, 0) + 1
        each = _Open(name if count == 1 else f"{name}#{count}", name, parts.autograd, event.seconds)
        each.reasons = telling_first(self._reasons.pop(name, ()), "")  # a frame that is given up logs no guards
        each.earlier = self._frames.get(parts.frame_id) if parts.number != "0" else None
        self._frames[parts.frame_id] = each if event.kind == "dynamo_start" else each.earlier or each
        self._open[name] = each
        self.started.append(each)
        if parts.frame and parts.run in self._open:
            self._open[parts.run].is_outer = True
        return each

    def _add(self, each: _Open, event: Event) -> None:
        fields = event.fields if isinstance(event.fields, dict) else {}
        if event.kind == "dynamo_start":
            each.stack = self._stack(fields.get("stack"))
        elif event.kind == "compilation_metrics":
            each.metrics = _select_metrics(fields)
        elif event.kind == "bwd_compilation_metrics":
            each.backward = _select_metrics(fields)
        elif event.kind == "inductor_output_code":
            each.kernels += len(_KERNEL.findall(event.payload_raw))
        elif event.kind == "dynamo_cpp_guards_str":
            _read_guards(each, event)
        elif event.kind == "exported_program":
            _read_exported(each, event)
        elif event.kind == "artifact":
            _add_artifact(each, event)
        else:
            each.has_graph = True

    def _stack(self, frames: object) -> tuple[Span, ...]:
        """The spans of a call stack. Equal stacks are shared: thousands of compilations have few different ones."""
        listed = frames if isinstance(frames, list) else []
        spans = tuple(self._span(frame) for frame in listed if isinstance(frame, dict))
        return self._stacks.setdefault(spans, spans)

    def _span(self, frame: dict[str, Any]) -> Span:
        name = frame.get("filename")
        file = self.log.strings.get(name, "") if isinstance(name, int) else _text(name)
        line = int(_number(frame.get("line")) or 0)
        installed = bool(INSTALLED.search(file))
        return Span(file, line, function=_text(frame.get("name")), code=_text(frame.get("loc")), installed=installed)


def _read_guards(each: _Open, event: Event) -> None:
    """Name the module inside a wrapper, and put the reason first that tells most. Other guards are not read."""
    if each.stack and is_wrapper(each.stack[-1].file):
        each.wrapped = wrapped_name(event.payload)
    if len(each.reasons) > 1:
        each.reasons = telling_first(each.reasons, event.payload)


def _read_exported(each: _Open, event: Event) -> None:
    """Read the program of an export, or where it failed."""
    if event.name == FAILED or event.kind == "compilation_metrics":
        each.exported = at = last_traced_line(event)
        place = f" at {file_name(at.file)}:{at.line}: {at.code}".rstrip(": ") if at.line else ""
        each.error = f"tracing stopped{place}"
    elif event.kind in ("exported_program", "aot_inference_graph", "aot_joint_graph"):
        each.has_program |= event.kind == "exported_program"
        each.exported, each.nodes = exported_function(event.payload)
        if not each.exported.function:
            each.exported = Span("", 0, function="a graph without lines")


def _add_artifact(each: _Open, event: Event) -> None:
    if event.name == "dynamo_graph_break_reason":
        each.breaks.append(_logged_break(event.payload))
    elif event.name == "dynamo_error":
        each.error = event.payload.rstrip().rpartition("\n")[2][:_MOST_REASON]
    elif event.name == FAILED and not each.stack:
        _read_exported(each, event)
    elif match := CACHE_EVENT.fullmatch(event.name):
        outcome = match.group(2)
        reason = _bypass_reason(event) if outcome == "bypass" else ""
        each.cache.setdefault(match.group(1), []).append(f"bypass: {reason}" if reason else outcome)


def _bypass_reason(event: Event) -> str:
    try:
        values = msgspec.json.decode(event.payload)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    reason = values.get("cache_bypass_reason") if isinstance(values, dict) else ""
    return _text(reason).partition("\n")[0].strip()


def _logged_break(text: str) -> LoggedBreak:
    """Read torch's message of a graph break: a place, a generic reason, and often the real one after an empty line."""
    place = _PLACE.match(text)
    reason = text[place.end() :] if place else text
    reason = reason.removeprefix("Graph Break Reason: ").partition("\n  Explanation:")[0]
    last = [part for part in reason.split("\n\n") if part.strip()][-1:]
    words = " ".join("".join(last).split())[:_MOST_REASON]
    return LoggedBreak(place.group(1) if place else "", int(place.group(2)) if place else 0, words)


def _parse_reasons(payload: str) -> tuple[str, ...]:
    """Recompile reasons: one text, or a JSON list of texts, latest compilation first."""
    try:
        values = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError):
        return (payload[:_MOST_REASON],) if payload else ()
    return _texts(values)


_KEPT = frozenset(
    ("co_name", "co_filename", "co_firstlineno", "restart_reasons", "graph_op_count", "guard_count", "fail_type",
     "fail_reason", "recompile_reason", "config_suppress_errors", "cudagraph_skip_reason",
     "duration_us", "dynamo_cumulative_compile_time_us",
     "aot_autograd_cumulative_compile_time_us", "inductor_cumulative_compile_time_us",
     "inductor_code_gen_cumulative_compile_time_us", "backward_cumulative_compile_time_us")
)  # fmt: skip


def _select_metrics(fields: dict[str, Any]) -> dict[str, Any]:
    """Keep the metrics that are read: torch logs whole configurations. `logged` makes them non-empty."""
    return {"logged": True} | {name: value for name, value in fields.items() if name in _KEPT and value is not None}


def _text(value: object) -> str:
    return value[:_MOST_REASON] if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value[:_MOST_REASON],) if value else ()
    return tuple(_text(each) for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def first_paragraph(text: str) -> str:
    """The first paragraph of a message; of the error of a backend, that of the error that the backend raised."""
    text = _BACKEND.sub("", text)
    return " ".join(text.partition("\n  Explanation:")[0].partition("\n\n")[0].split())[:_MOST_REASON]
