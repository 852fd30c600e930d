"""Count what a call costs under torch.compile: breaks, kernels, bytes, host synchronizations, times; and where."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from compiler.capture.by_design import is_by_design
from compiler.capture.function_names import function_name
from compiler.record import Entity, GraphBreak, Guard, Kernel, Recompile, Record
from compiler.record.measure_facts import Candidate
from compiler.record.plain_text import one_line
from compiler.timing.spread import Spread
from explorer.findings.memory.memory import timelines
from explorer.reading.cause import culprit_code, recompile_reason, users_span
from explorer.reading.provenance import innermost_lines
from explorer.reading.source_lines import SourceLines
from explorer.reading.source_marks import called_lines

Unit = Literal["", "bytes", "seconds"]
SYNCHRONIZING: Final = frozenset({"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique"})
"""Names of calls that make the CPU wait for a GPU, or copy from it."""
_SYNCHRONIZING_CODE = re.compile(rf"\.({'|'.join(sorted(SYNCHRONIZING))})\([^()]*\)$|^(float|int|bool)\(|\.to\(.?.?cpu")
_DATA_DEPENDENT = re.compile(r"(?i)data-dependent|\.item\(\)|dynamic shape operator|boolean")
_NUMBER = re.compile(r"_\d+$")


_ADDRESS: Final = re.compile(r"\d{9,}")
"""Addresses in names that TorchDynamo makes, `__optimizer_140388465753296_c8`: each process has others."""


@dataclass(frozen=True, slots=True)
class Place:
    """One place in source that counts. `what` names it without line numbers, so that it stays when code moves."""

    what: str
    file: str = ""
    line: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number, and the places that make it. Times have quartiles, and the time of eager mode as a yardstick."""

    name: str
    value: float
    unit: Unit = ""
    places: tuple[Place, ...] = ()
    low: float | None = None
    high: float | None = None
    eager: float | None = None


WORDS: Final = {
    "breaks": "graph breaks",
    "recompilations": "recompilations",
    "graphs": "graphs",
    "kernels": "generated kernels",
    "extern_calls": "extern calls",
    "bytes_moved": "bytes that kernels read and write",
    "peak_memory": "peak memory above parameters and inputs",
    "saved_bytes": "bytes saved for the backward",
    "guards": "guards",
    "cudagraph_refusals": "refusals of CUDA graphs",
    "host_syncs": "host synchronizations and copies",
    "compile_seconds": "seconds of compiling",
    "run_seconds": "seconds of a call",
}
"""All metrics in the order in which they are shown, with words."""


def metrics_of(record: Record, *, all_code: bool = False) -> tuple[Metric, ...]:
    """All metrics that a record has, in order. Only places in the user's own code count, unless `all_code`.

    Kernels, bytes and memory are those of the first call; without generated code they are left out, as times are that
    were not measured.
    """
    counting = _Counting(record, all_code)
    found = [counting.breaks(), counting.recompilations(), counting.graphs()]
    if _has_code(record):
        found += [*counting.kernels(), counting.bytes_moved(), *counting.memory()]
    found += [counting.guards(), counting.host_syncs()]
    if _has_code(record):
        found.append(counting.cudagraph_refusals())
    order = list(WORDS)
    return tuple(sorted([*found, *_times(record)], key=lambda metric: order.index(metric.name)))


def _has_code(record: Record) -> bool:
    return bool(record.of_stage("kernels"))


class _Counting:
    """Counts of one record."""

    def __init__(self, record: Record, all_code: bool) -> None:
        self.record, self.all_code = record, all_code
        self._installed = {each.title for each in record.of_stage("source") if each.attrs.get("installed")}
        self._lines = {entity.id: entity for each in record.of_stage("source") for entity in each.entities}
        self._origins = innermost_lines(record)
        self._ids = SourceLines(record)
        self._callers = {called: caller for caller, called in called_lines(record) if caller != called}
        later = {frame.id for frame in record.frames if frame.call_number > 1}
        self._kernels = [kernel for kernel in record.kernels if kernel.graph.partition(" ")[0] not in later]

    def _counts(self, file: str) -> bool:
        return self.all_code or file not in self._installed

    def _metric(self, name: str, places: Iterable[Place]) -> Metric:
        known = map(self._at_users_line, places)
        found = tuple(sorted(known, key=lambda place: (place.file, place.line, place.what)))
        return Metric(name, len(found), places=found)

    def _at_users_line(self, place: Place) -> Place:
        """A place in an installed package, moved to the user's line that led there, if the record knows it."""
        file, line, seen = place.file, place.line, set[tuple[str, int]]()
        while file in self._installed and (file, line) not in seen:
            seen.add((file, line))
            file, line = self._caller(file, line)
        if not seen or not file or (file, line) in seen:
            return place
        return replace(place, file=file, line=line, message=f"{place.message} ({place.file}:{place.line})")

    def _caller(self, file: str, line: int) -> tuple[str, int]:
        """The line that called the function of a line: inlined, or else compiled on its own; ("", 0) if unknown."""
        caller = self._lines.get(self._callers.get(self._ids.id_of(file, line), ""))
        if caller is not None:
            return str(caller.attrs["file"]), int(caller.attrs["line"])
        frames = (each for each in self.record.frames if each.called_at and not each.resumes)
        around = (each for each in frames if each.file == file and each.line <= line)
        frame = max(around, key=lambda frame: frame.line, default=None)
        return (frame.called_at.file, frame.called_at.line) if frame and frame.called_at else ("", 0)

    def _place_of(self, ids: Iterable[str], what: str, message: str = "") -> Place:
        """The place of entities: the user's line that they came from, if the record has one."""
        lines = [self._lines[name] for each in ids for name in self._origins.get(each, (each,)) if name in self._lines]
        own = [line for line in lines if line.attrs.get("file") not in self._installed] or lines
        if not own:
            return Place(what, message=message or what)
        attrs = own[0].attrs
        return Place(what, str(attrs.get("file", "")), int(attrs.get("line", 0)), message or f"{what}: {own[0].label}")

    def breaks(self) -> Metric:
        own = [found for found in self.record.breaks if found.whose == "user" and not is_by_design(found)]
        return self._metric("breaks", map(self._break, self.record.breaks if self.all_code else own))

    def _break(self, found: GraphBreak) -> Place:
        span = users_span(found)
        file, line = (span.file, span.line) if span else (found.file, found.line)
        code, function = one_line(culprit_code(found)), function_name(span.function if span else found.function)
        return Place(f"{file} {function}: {code}", file, line, one_line(found.what or found.kind))

    def recompilations(self) -> Metric:
        """All that torch counts, also those that nobody can avoid: their message says so."""
        own = (found for found in self.record.recompiles if self._counts(found.file))
        return self._metric("recompilations", map(self._recompilation, own))

    def _recompilation(self, found: Recompile) -> Place:
        what = f"{found.file} {function_name(found.function)}: {found.cause or 'guards'} of {found.argument or '?'}"
        by_design = f". {found.advice}" if is_by_design(found) else ""
        return Place(what, found.file, found.line, recompile_reason(found) + by_design)

    def graphs(self) -> Metric:
        captured = self.record.of_stage("captured")
        return self._metric("graphs", (Place(f"graph {artifact.graph}") for artifact in captured))

    def kernels(self) -> Iterator[Metric]:
        for name, is_extern in (("kernels", False), ("extern_calls", True)):
            chosen = [kernel for kernel in self._kernels if (kernel.category == "extern") is is_extern]
            times = [kernel for kernel in chosen for _ in range(max(kernel.calls, 1) if is_extern else 1)]
            places = (self._place_of([*kernel.nodes, kernel.id], _kernel_name(kernel)) for kernel in times)
            yield self._metric(name, places)

    def bytes_moved(self) -> Metric:
        return Metric("bytes_moved", sum(kernel.bytes * max(kernel.calls, 1) for kernel in self._kernels), "bytes")

    def memory(self) -> Iterator[Metric]:
        found = next(iter(timelines(self.record)), None)
        line = found.lines.get("compiled") if found is not None else None
        if line is not None:
            yield Metric("peak_memory", line.peak_bytes, "bytes")
            if self.record.of_stage("backward"):
                yield Metric("saved_bytes", line.kept, "bytes")

    def guards(self) -> Metric:
        first = {frame.id for frame in self.record.frames if frame.call_number <= 1}
        chosen = (each for each in self.record.guards if each.frame in first and (self.all_code or not each.internal))
        return self._metric("guards", (self._guard(each) for each in chosen))

    def _guard(self, guard: Guard) -> Place:
        what = _ADDRESS.sub("…", f"{guard.argument or guard.source or 'the process'}: {guard.kind}")
        return Place(what, guard.file, guard.line, one_line(guard.words or what))

    def cudagraph_refusals(self) -> Metric:
        of_pass = (each for each in self.record.decisions if each.pass_name == "cudagraphs")
        refused = (self._place_of(each.subjects, each.why) for each in of_pass if each.verdict == "refused")
        return self._metric("cudagraph_refusals", refused)

    def host_syncs(self) -> Metric:
        return self._metric("host_syncs", [*self._syncs_at_breaks(), *self._syncs_in_graphs()])

    def _syncs_at_breaks(self) -> Iterator[Place]:
        for found in self.record.breaks:
            if not self.all_code and found.whose != "user":
                continue
            if _DATA_DEPENDENT.search(found.kind) or _SYNCHRONIZING_CODE.search(culprit_code(found)):
                yield self._break(found)

    def _syncs_in_graphs(self) -> Iterator[Place]:
        for artifact in self.record.of_stage("captured"):
            for entity in artifact.entities:
                if entity.kind == "call" and _synchronizes(entity):
                    place = self._place_of([entity.id], _target(entity))
                    what = f"{place.file} {place.message.partition(': ')[2]}"
                    if self._counts(place.file):
                        yield Place(what, place.file, place.line, f"`{_target(entity)}` waits for the device")


def _target(entity: Entity) -> str:
    parts = str(entity.attrs.get("target", entity.label)).split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[-1]


def _synchronizes(entity: Entity) -> bool:
    code = str(entity.attrs.get("code", ""))
    return _target(entity) in {*SYNCHRONIZING, "_local_scalar_dense"} or (_target(entity) == "to" and "cpu" in code)


def _kernel_name(kernel: Kernel) -> str:
    """A kernel's name without the number that tells it from others of the same name."""
    return f"{kernel.half} {_NUMBER.sub('', kernel.name)}".strip()


def _times(record: Record) -> Iterator[Metric]:
    """Times of the candidate compiled as asked, if the call was timed."""
    timed = {each.name: each for each in record.candidates if each.seconds is not None}
    own = next((each for name, each in timed.items() if name.startswith(record.options.backend)), None)
    if own is None or own.seconds is None:
        return
    if own.compile_seconds is not None:
        yield Metric("compile_seconds", own.compile_seconds, "seconds")
    relative = _relative(own, timed.get("eager"))
    yield Metric("run_seconds", own.seconds, "seconds", low=own.low, high=own.high, eager=relative)


def _relative(own: Candidate, eager: Candidate | None) -> float | None:
    """Time of a call relative to eager mode, round by round, so that a busy machine slows down both."""
    if eager is None or not own.rounds or not eager.rounds:
        return None
    return Spread.of_numbers([mine / theirs for mine, theirs in zip(own.rounds, eager.rounds, strict=False)]).middle


def place_changes(before: Sequence[str], after: Sequence[Place]) -> tuple[list[Place], list[str]]:
    """Places that are new, and the names of those that are gone; repeated ones count."""
    left, new = list(before), []
    for place in after:
        if place.what in left:
            left.remove(place.what)
        else:
            new.append(place)
    return new, left
