"""`Profile`: a trace of torch.profiler, read back beside the record of the graphs that ran in it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compiler.logs.job import Job, Rank
from compiler.logs.profiles import Trace, insert_events, profile_bytes, read_profile
from compiler.record import Environment, Record
from compiler.record.options import Options
from compiler.record.plain_text import pluralize
from explorer.findings.profile import Joined, join, profile_document, profile_finding
from explorer.render.static import document_html
from explorer.run import files

if TYPE_CHECKING:
    import pandas as pd

    from explorer.run.run import Run

COLUMNS = {
    "kernels": "kernel graph half device seconds launches runs modules lines",
    "lines": "line seconds",
    "modules": "module seconds",
    "steps": "step seconds compiling compiled between rest",
    "compilations": "graph begin seconds",
    "breaks": "before after times seconds file line reason",
}
"""Columns of each table."""
_TRACK = "tcompile"
"""Name of the process under which Perfetto shows what `save` adds to a profile."""


class Profile:
    """A profile of torch.profiler with the graph, module and source line of each kernel.

    print(profile)                    # by step, by kernel, compilations, graph breaks
    profile.kernels                   # a table; also .lines, .modules, .steps, .compilations, .breaks
    profile.save("page.html")         # the record's page, with the profile as a stage
    profile.save("trace.json.gz")     # the profile again, with its findings as a track: it opens in Perfetto

    `trace` is what was read from the file, `record` is the record that it is matched to.
    """

    def __init__(self, trace: Trace, record: Record) -> None:
        self.trace, self.record = trace, record

    @cached_property
    def _joined(self) -> Joined:
        return join(self.trace, self.record)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel or operator in one half of a graph: seconds, launches, module, source lines."""
        rows = [
            {
                "kernel": use.name, "graph": use.graph, "half": use.half, "device": use.device, "seconds": use.seconds,
                "launches": use.launches, "runs": len(use.each), "modules": "; ".join(use.modules),
                "lines": "; ".join(use.lines),
            }
            for use in self._joined.kernels
        ]  # fmt: skip
        return _frame("kernels", rows)

    @property
    def lines(self) -> pd.DataFrame:
        """One row per source line: seconds of its kernels; a kernel of several lines counts in equal parts."""
        return self._seconds_by("lines")

    @property
    def modules(self) -> pd.DataFrame:
        """One row per `nn.Module`: seconds of its kernels; a kernel of several modules counts in equal parts."""
        return self._seconds_by("modules")

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step: seconds, and how many of them in compilations, compiled code, and between graphs."""
        rows = [
            {
                "step": use.span.name, "seconds": use.span.seconds, "compiling": use.compiling,
                "compiled": use.compiled, "between": use.between, "rest": use.rest,
            }
            for use in self._joined.steps
        ]  # fmt: skip
        return _frame("steps", rows)

    @property
    def compilations(self) -> pd.DataFrame:
        """One row per compilation during the profile: its graph, when it began, and how long it took."""
        gaps = self.trace.compilations
        rows = [{"graph": gap.graph, "begin": gap.span.begin, "seconds": gap.span.seconds} for gap in gaps]
        return _frame("compilations", rows)

    @property
    def breaks(self) -> pd.DataFrame:
        """One row per graph break that was passed: how often, seconds outside of graphs, file, line and reason."""
        rows = [
            {
                "before": use.before, "after": use.after, "times": use.times, "seconds": use.seconds,
                "file": use.found.file if use.found else "", "line": use.found.line if use.found else 0,
                "reason": use.found.reason if use.found else "",
            }
            for use in self._joined.breaks
        ]  # fmt: skip
        return _frame("breaks", rows)

    @property
    def problems(self) -> tuple[str, ...]:
        """What the profile does not say, or could not be matched."""
        return self._joined.problems

    @cached_property
    def run(self) -> Run:
        """The record as a run, with this profile as a stage and its times of kernels and source lines."""
        from explorer.run.run import Run

        return Run(self._joined.with_times())

    def save(self, path: str | Path) -> Path:
        """Write a page (`.html`), or the profile with its findings as an added track (`.json`, `.json.gz`).

        All other events stay as they are. Returns the path. Raises ValueError for another suffix, OSError if a file
        can't be read or written.
        """
        path = Path(path)
        if path.suffix == ".html":
            return self.run.save(path)
        if not path.name.endswith((".json", ".json.gz")):
            raise ValueError(f"{path.name} ends in none of .html (a page), .json and .json.gz (a trace for Perfetto)")
        data = insert_events(profile_bytes(self.trace.path), self._added_events())
        return files.replace_file(path, gzip.compress(data, 6) if path.suffix == ".gz" else data)

    def _added_events(self) -> Iterator[dict[str, Any]]:
        """Events of the added track: compilations, runs of graphs, and what is between them."""
        trace = self.trace
        breaks = {(use.before, use.after): use.found for use in self._joined.breaks}
        functions = {frame.id: f"{frame.function} {frame.file}:{frame.line}" for frame in self.record.frames}
        yield {"ph": "M", "name": "process_name", "pid": _TRACK, "tid": 0, "args": {"name": _TRACK}}
        for number, name in enumerate(("compilations", "compiled graphs", "between graphs")):
            yield {"ph": "M", "name": "thread_name", "pid": _TRACK, "tid": number, "args": {"name": name}}
        named = [
            *((0, gap.span, f"compile {gap.graph}", functions.get(gap.graph, "")) for gap in trace.compilations),
            *((1, run.span, f"{run.graph} {run.half}", functions.get(run.graph, "")) for run in trace.runs),
        ]
        for gap in trace.breaks:
            found = breaks.get((gap.before, gap.after))
            why = f"{found.file}:{found.line} {found.reason}" if found else ""
            named.append((2, gap.span, f"graph break between {gap.before} and {gap.after}", why))
        for track, span, name, about in named:
            yield {
                "ph": "X", "cat": "tcompile", "name": name, "pid": _TRACK, "tid": track,
                "ts": trace.first + span.begin * 1e6, "dur": span.seconds * 1e6, "args": {"about": about},
            }  # fmt: skip

    def _seconds_by(self, field: Literal["lines", "modules"]) -> pd.DataFrame:
        seconds: dict[str, float] = {}
        for use in self._joined.kernels:
            owners = getattr(use, field) or ("",)
            for owner in owners:
                seconds[owner] = seconds.get(owner, 0.0) + use.seconds / len(owners)
        name = field.removesuffix("s")
        ordered = sorted(seconds.items(), key=lambda pair: -pair[1])
        return _frame(field, [{name: owner, "seconds": value} for owner, value in ordered])

    def __str__(self) -> str:
        return profile_finding(self._joined).artifact.text

    def __repr__(self) -> str:
        graphs = len({run.graph for run in self.trace.runs})
        return f"<Profile {Path(self.trace.path).name}: {pluralize(graphs, 'graph')}; print it to read it>"

    def _repr_html_(self) -> str:
        return document_html(profile_document(self._joined))


def load_profile(path: str | Path, beside: Job | Rank | Run | Record | None = None) -> Profile:
    """Read a profile of torch.profiler (`.json`, `.json.gz`) beside a log or run of the program.

    >>> job = tcompile.load("logs")                       # the program's TORCH_TRACE
    >>> print(tcompile.load_profile("trace.json", job))   # each kernel with its graph, module and line

    Of a job, the rank that the profile names is used, else its first. Without `beside` there are graphs and times, but
    no modules and lines. Nothing in the file is executed. Raises ProfileError (a ValueError) for a file that is no
    profile, ValueError for a rank that the job doesn't have, and OSError.
    """
    trace = read_profile(path)
    return Profile(trace, _record(trace, beside))


def _record(trace: Trace, beside: Job | Rank | Run | Record | None) -> Record:
    if beside is None:
        return Record(Path(trace.path).name, Options(), environment=Environment())
    if isinstance(beside, Job):
        number = trace.rank if trace.rank is not None else next(iter(beside.ranks))
        if number not in beside.ranks:
            known = ", ".join(map(str, beside.ranks))
            raise ValueError(f"{trace.path} is a profile of rank {number}; the job has {known}")
        return beside.ranks[number].record
    return beside if isinstance(beside, Record) else beside.record


def _frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    from explorer.reading.data_frames import frame_of  # imports pandas

    dtypes = {"seconds": float, "begin": float, "launches": int, "runs": int, "times": int}
    return frame_of(rows, {name: dtypes.get(name, object) for name in COLUMNS[table].split()})
