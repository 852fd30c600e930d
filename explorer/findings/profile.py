"""A profile of a real run beside the record of its graphs: the time of each kernel, with its graph, module and line."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.capture.function_names import function_name
from compiler.logs.profiles import BreakGap, Launch, Span, Trace
from compiler.record import Artifact, Entity, GraphBreak, KernelTime, Record
from compiler.record.plain_text import file_name, pluralize
from explorer.findings.job_names import display_name
from explorer.findings.profile_chart import draw_profile, shown_steps, step_spans
from explorer.findings.timing.words import time_text
from explorer.reading.cause import break_reason
from explorer.reading.plain_text import clip
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Chart, Document, Only, Parts, Picture, Row, Section, Table, Tag, Text, Words
from explorer.render.finding import Finding, as_artifact
from explorer.render.places import line_link
from explorer.render.text import document_finding

STAGE = "profile"
_PARAMETER = re.compile(r"[lL]_\w+?_modules_(\w+?)_(?:parameters|buffers)_")
WRAPPER = "code that calls the kernels"
ROWS = 200
"""Maximum rows of a table in the document; the DataFrames have all."""
VIEW = "profile"
"""The front end's view, which draws the steps above their table."""
STEP_PARTS = ("compiling", "compiled code", "between graphs", "everything else")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Time of one kernel or operator in one half of a graph, summed over the profile.

    `calls` are ids of the entities that call it, several if their times can't be told apart; empty if the record has
    no call that matches. `lines` are ids of source lines, `modules` paths of `nn.Module`s. `each` are the seconds in
    each run of the graph.
    """

    name: str
    graph: str
    half: str
    device: str
    each: tuple[float, ...]
    launches: int
    calls: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return sum(self.each)


@dataclass(frozen=True, slots=True)
class BreakUse:
    """Time between two graphs at one graph break, summed; `found` is None if the record doesn't have the break."""

    before: str
    after: str
    seconds: float
    times: int
    found: GraphBreak | None = None


@dataclass(frozen=True, slots=True)
class StepUse:
    """Parts of the time of one step of the program. `rest` is the time that is in no part."""

    span: Span
    compiling: float
    compiled: float
    between: float

    @property
    def rest(self) -> float:
        return max(0.0, self.span.seconds - self.compiling - self.compiled - self.between)


@dataclass(frozen=True, slots=True)
class Joined:
    """A profile, matched to a record."""

    trace: Trace
    record: Record
    kernels: tuple[KernelUse, ...]
    breaks: tuple[BreakUse, ...]
    steps: tuple[StepUse, ...]
    problems: tuple[str, ...]

    def with_times(self) -> Record:
        """The record with the profile as a stage, and with its times of kernels and lines."""
        from compiler.timing.kernel_times import line_times  # imports torch
        from compiler.timing.line_chains import works

        chains = {call: work.chains for call, work in works(self.record).items()}
        placed = [(_kernel_time(use, self.record), tuple(c for call in use.calls for c in chains.get(call, ())))
                  for use in self.kernels if use.calls]  # fmt: skip
        artifact = as_artifact(profile_finding(self))
        kept = tuple(each for each in self.record.artifacts if each.stage != STAGE)
        times = tuple(time for time, _ in placed)
        return self.record.with_fields(artifacts=(*kept, artifact), kernel_times=times, line_times=line_times(placed))


def _kernel_time(use: KernelUse, record: Record) -> KernelTime:
    kernels: dict[tuple[str, str, str], str] = {
        (kernel.graph, kernel.half, kernel.name): kernel.id for kernel in record.kernels
    }
    return KernelTime(
        name=use.name,
        side="compiled",
        half="backward" if use.half == "backward" else "forward",
        seconds=statistics.median(use.each),
        launches=use.launches / len(use.each),
        device=use.device,
        kernel=kernels.get((use.graph, use.half, use.name), ""),
        call=use.calls[0],
        lines=use.lines,
    )


@dataclass
class _Uses:
    """Launches that belong together: seconds by run of the graph, and their number."""

    device: str
    each: dict[int, float] = field(default_factory=dict)
    launches: int = 0

    def add(self, run: int, launch: Launch) -> None:
        self.each[run] = self.each.get(run, 0.0) + launch.span.seconds
        self.launches += launch.kind != "between"


def join(trace: Trace, record: Record) -> Joined:
    """Match the kernels, operators and graph breaks of a profile to a record."""
    entities = {entity.id: entity for entity in record.entities()}
    codes = {} if _is_of_another_device(trace, record) else _codes(record)
    groups: dict[tuple[str, str, str, tuple[str, ...]], _Uses] = {}
    for number, launches in _by_run(trace).items():
        run = trace.runs[number]
        half = run.half if (run.graph, run.half) in codes or run.half == "backward" else "forward"
        found = codes.get((run.graph, half), ())
        code = max(found, key=lambda code: code.matches(launches), default=None)
        for name, calls, launch in _match_launches(launches, code):
            key = (run.graph, half, name, calls)
            groups.setdefault(key, _Uses("cuda" if launch.kind == "kernel" else "cpu")).add(number, launch)
    lines = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    kernels = [
        KernelUse(
            name, graph, half, uses.device, tuple(uses.each.values()), uses.launches, calls,
            *_places(calls, entities, lines),
        )
        for (graph, half, name, calls), uses in groups.items()
    ]  # fmt: skip
    kernels.sort(key=lambda use: -use.seconds)
    problems = (*trace.problems, *_problems(trace, record, kernels))
    return Joined(trace, record, tuple(kernels), _breaks(trace, record), _steps(trace), problems)


class _Code:
    """The calls of one half of a graph's generated code, in order."""

    def __init__(self, artifact: Artifact) -> None:
        self.calls = [entity for entity in artifact.entities if entity.kind in ("call", "extern")]
        self.by_name: dict[str, list[Entity]] = defaultdict(list)
        for call in self.calls:
            self.by_name[call.label].append(call)
            if short_name(call.label) != call.label:
                self.by_name[short_name(call.label)].append(call)
        self.between: list[list[Entity]] = [[]]
        for call in self.calls:
            if call.kind == "extern":
                self.between.append([])
            else:
                self.between[-1].append(call)

    def matches(self, launches: Sequence[Launch]) -> int:
        return sum(self.name_of(launch) != "" for launch in launches)

    def name_of(self, launch: Launch) -> str:
        """The name of a launch among the calls, "" if it is none of them."""
        names = (launch.op, launch.name, short_name(launch.op), short_name(launch.name))
        return next((name for name in names if name and name in self.by_name), "")


def short_name(name: str) -> str:
    """The operator of a call: `addmm` of `extern_kernels.addmm`, `aten::addmm` and `torch.ops.aten.addmm.out`."""
    words = name.replace("::", ".").removeprefix("torch.ops.").split(".")
    short = words[1] if len(words) > 1 else words[0]
    return {"bias_addmm": "addmm"}.get(short, short)


def _codes(record: Record) -> dict[tuple[str, str], list[_Code]]:
    """Generated code by graph and half; more than one if DDPOptimizer split the graph.

    Graphs that share a number are left out: a profile has numbers alone.
    """
    found: dict[tuple[str, str], list[_Code]] = defaultdict(list)
    shared = _shared_numbers(record)
    for artifact in record.of_stage("kernels"):
        graph = artifact.graph.partition(" ")[0]
        if graph.partition("#")[0] not in shared:
            found[graph, artifact.half].append(_Code(artifact))
    return found


def _shared_numbers(record: Record) -> dict[str, list[str]]:
    """Compile ids that several graphs have, with the graphs' functions: torch._dynamo.reset() restarts the ids."""
    functions = {frame.id: function_name(frame.function) for frame in record.frames}
    shared: dict[str, list[str]] = defaultdict(list)
    for graph in dict.fromkeys(artifact.graph.partition(" ")[0] for artifact in record.of_stage("kernels")):
        shared[graph.partition("#")[0]].append(functions.get(graph, graph))
    return {number: names for number, names in shared.items() if len(names) > 1}


def _is_of_another_device(trace: Trace, record: Record) -> bool:
    """Whether the record has code for a GPU, and the profile has only what ran on a CPU, or the other way round."""
    return bool(record.of_stage("kernels")) and (trace.device == "cpu") != (record.target == "cpu")


def _by_run(trace: Trace) -> dict[int, list[Launch]]:
    found: dict[int, list[Launch]] = defaultdict(list)
    for launch in trace.launches:
        if launch.run is not None and not launch.compiling:
            found[launch.run].append(launch)
    return found


def _match_launches(launches: Sequence[Launch], code: _Code | None) -> Iterator[tuple[str, tuple[str, ...], Launch]]:
    """Yield each launch of one run with its name, and the ids of its calls in the generated code."""
    seen: Counter[str] = Counter()
    operators = sum(launch.kind == "operator" for launch in launches)
    aligned = code is not None and operators == len(code.between) - 1
    for launch in launches:
        if launch.kind == "between":
            calls = code.between[launch.after] if code is not None and aligned else []
            name = ", ".join(dict.fromkeys(call.label for call in calls)) or WRAPPER
            yield name, tuple(call.id for call in calls), launch
            continue
        name = code.name_of(launch) if code is not None else ""
        if code is None or not name:
            yield launch.op or launch.name, (), launch
            continue
        found = code.by_name[name]
        yield found[0].label, (found[seen[name] % len(found)].id,), launch
        seen[name] += 1


def _places(
    calls: Sequence[str], entities: Mapping[str, Entity], lines: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Source lines and modules that calls come from: those of the nearest origins that have any."""
    found_lines: dict[str, None] = {}
    modules: dict[str, None] = {}
    todo, seen = list(calls), set(calls)
    while todo:
        name = todo.pop(0)
        if name in lines:
            found_lines[name] = None
            continue
        entity = entities.get(name)
        if entity is None:
            continue
        modules.update(dict.fromkeys(_modules(entity, entities)))
        own = [origin for origin in entity.origins if origin in lines]  # a line, after the lines that call it
        new = [origin for origin in (*own[-1:], *entity.origins) if origin not in seen and origin not in own[:-1]]
        seen.update(new)
        todo += new
    return tuple(found_lines), tuple(modules)


def _modules(entity: Entity, entities: Mapping[str, Entity]) -> list[str]:
    """The module of a node; where a log has none, those of the parameters that it reads, by TorchDynamo's names."""
    if module := entity.attrs.get("module"):
        return [str(module)]
    inputs = (entities[name].label for name in entity.inputs if name in entities)
    return [found[1].replace("_modules_", ".") for label in inputs if (found := _PARAMETER.match(label))]


def _breaks(trace: Trace, record: Record) -> tuple[BreakUse, ...]:
    groups: dict[tuple[str, str], list[BreakGap]] = defaultdict(list)
    for gap in trace.breaks:
        groups[gap.before, gap.after].append(gap)
    of_frame = {found.frame: found for found in record.breaks}
    uses = [
        BreakUse(before, after, sum(gap.span.seconds for gap in gaps), len(gaps), of_frame.get(before))
        for (before, after), gaps in groups.items()
    ]
    return tuple(sorted(uses, key=lambda use: -use.seconds))


def _steps(trace: Trace) -> tuple[StepUse, ...]:
    """Time of each step by part; the whole profile is one step if the program marks none."""
    steps = trace.steps or (Span(0.0, trace.seconds, "the profile"),)
    parts = (
        [gap.span for gap in trace.compilations],
        [run.span for run in trace.runs],
        [gap.span for gap in trace.breaks],
    )
    ordered = [sorted(spans, key=lambda span: span.begin) for spans in parts]
    return tuple(StepUse(step, *(_seconds_inside(step, spans) for spans in ordered)) for step in steps)


def _seconds_inside(step: Span, spans: Sequence[Span]) -> float:
    """Seconds of a step that are covered by spans, which are sorted; those of several threads count once."""
    covered, done = 0.0, step.begin
    for span in spans:
        begin, end = max(span.begin, done), min(span.end, step.end)
        if end > begin:
            covered, done = covered + end - begin, end
    return covered


def _problems(trace: Trace, record: Record, kernels: Sequence[KernelUse]) -> Iterator[str]:
    known = {artifact.graph.partition(" ")[0] for artifact in record.of_stage("kernels")}
    missing = sorted({run.graph for run in trace.runs if run.graph} - known)
    if missing and not record.artifacts:
        yield "a profile alone has no modules and lines; beside the log it has: tcompile.load_profile(path, job)"
    elif missing:
        more = f" and {len(missing) - 5:,} more" if len(missing) > 5 else ""
        graphs = ", ".join(missing[:5]) + more
        yield f"graphs of the profile that are not in the record: {graphs}. Are both of the same run?"
    if _is_of_another_device(trace, record):
        ran = "no kernel of a GPU" if trace.device == "cpu" else "kernels of a GPU"
        yield f"the profile has {ran}, and the code of this run is for {record.target}: its times are of other code"
    for number, functions in _shared_numbers(record).items():
        if any(run.graph == number for run in trace.runs):
            yield (
                f"{number} is the number of {len(functions)} graphs ({', '.join(functions)}), as torch._dynamo.reset() "
                "counts anew; the profile does not say which of them ran"
            )
    unmatched = [use for use in kernels if not use.calls and use.name != WRAPPER and use.graph in known]
    if unmatched:
        total = sum(use.seconds for use in kernels)
        share = sum(use.seconds for use in unmatched) / total if total else 0.0
        yield f"{pluralize(len(unmatched), 'kernel')} ({share:.0%} of the time in graphs) match no call of the record"
    if any(launch.kind == "between" for launch in trace.launches):
        yield (
            "C++ kernels leave no event in a profile: their times are those between operators, with the code that calls"
            " them, and nothing but the graph's number tells that it was these kernels; with "
            "`torch._inductor.config.cpp.enable_kernel_profile` they leave one"
        )


def profile_finding(joined: Joined) -> Finding:
    """The finding of a profile: a stage of the record's page."""
    entities = {entity.id: entity for entity in map(_entity, range(len(joined.kernels[:ROWS])), joined.kernels)}
    count = pluralize(len(joined.trace.steps), "step") if joined.trace.steps else time_text(joined.trace.seconds)
    return document_finding(STAGE, "a profile of a real run", profile_document(joined), entities, count, VIEW)


def _entity(number: int, use: KernelUse) -> Entity:
    """The entity of a kernel's time, which comes from the calls of the kernel."""
    facts = {"time": time_text(use.seconds), "launches": use.launches, "runs": len(use.each)}
    return Entity(f"{STAGE}.{number}", "kernel_time", use.name, facts, origins=use.calls)


def profile_document(joined: Joined) -> Document:
    """Where the time of a real run went: by step, by kernel, in compilations and at graph breaks."""
    lines = SourceLines(joined.record)
    parts: list[Parts] = [Text(lead_sentence(joined), "lead")]
    parts += [Text(words, "warning") for words in joined.problems]
    parts.append(Only(("html",), (Picture("The profile as a timeline", draw_profile, joined.trace),)))
    parts.append(steps_part(joined))
    if joined.kernels:
        parts.append(kernels_part(joined))
    if joined.trace.compilations:
        parts.append(compilations_part(joined))
    if joined.breaks:
        parts.append(breaks_part(joined, lines))
    return parts


def lead_sentence(joined: Joined) -> str:
    """One sentence: how long, how much of it compiling, and in how many graphs."""
    trace = joined.trace
    compiling = sum(use.compiling for use in joined.steps)
    total = sum(use.span.seconds for use in joined.steps) or trace.seconds
    graphs = len({(run.graph, run.half) for run in trace.runs})
    rank = f"Rank {trace.rank}: " if trace.rank is not None else ""
    words = f"{rank}{pluralize(len(trace.steps), 'step')}, " if trace.steps else rank
    compiled = f"compiling took {time_text(compiling)} of it ({compiling / total:.0%})" if compiling else (
        "nothing was compiled during it"
    )  # fmt: skip
    return (
        f"{words}{time_text(total)}; {compiled}. {pluralize(len(trace.runs), 'run')} of "
        f"{pluralize(graphs, 'compiled graph')} (forward and backward count as one each)."
    )


def steps_part(joined: Joined) -> Section:
    rows = [
        Row((clip(use.span.name, 40), time_text(use.span.seconds),
             *map(_time, (use.compiling, use.compiled, use.between, use.rest))))
        for use in joined.steps[:ROWS]
    ]  # fmt: skip
    head = ("step", "time", *STEP_PARTS)
    table = Table(head, tuple(rows), right=(1, 2, 3, 4, 5), label="Time by step")
    data = {"kinds": STEP_PARTS[:-1], "rows": [step_spans(step, joined.trace) for step in shown_steps(joined.trace)]}
    return Section((Chart("timeline", data, table),), "Time by step")


def kernels_part(joined: Joined) -> Section:
    head = ("kernel", "graph", "time", "share", "launches", Tag("module", "muted"), "line")
    total = sum(use.seconds for use in joined.kernels) or 1.0
    places = _line_places(joined.record)
    rows = [
        Row(
            (
                clip(use.name, 60), Tag(f"{use.graph} {use.half}".strip(), "muted"), time_text(use.seconds),
                f"{use.seconds / total:.0%}", f"{use.launches:,}" if use.launches else "",
                _few(use.modules), _few([places[line] for line in use.lines if line in places]),
            ),
            (f"{STAGE}.{number}",),
        )
        for number, use in enumerate(joined.kernels[:ROWS])
    ]  # fmt: skip
    return _section("Time by kernel", head, rows, right=(2, 3, 4), style="uses")


def compilations_part(joined: Joined) -> Section:
    functions = {
        frame.id: f"{display_name(frame.function)} ({file_name(frame.file)}:{frame.line})"
        for frame in joined.record.frames
    }
    rows = [
        Row((gap.graph, functions.get(gap.graph, ""), time_text(gap.span.begin), time_text(gap.span.seconds),
             gap.span.name.removesuffix(" (dynamo_timed)")))
        for gap in sorted(joined.trace.compilations, key=lambda gap: -gap.span.seconds)[:ROWS]
    ]  # fmt: skip
    return _section("Compilations during the profile", ("graph", "function", "at", "time", "event"), rows, right=(2, 3))


def breaks_part(joined: Joined, lines: SourceLines) -> Section:
    head = ("between graphs", "times", "time outside graphs", "break", "why")
    rows = []
    for use in joined.breaks[:ROWS]:
        place: Words = line_link(use.found.file, use.found.line, lines) if use.found else "not in the record"
        why = clip(break_reason(use.found), 80) if use.found else ""
        rows.append(Row((f"{use.before} and {use.after}", f"{use.times:,}", time_text(use.seconds), place, why)))
    return _section("Graph breaks", head, rows, right=(1, 2))


def _section(
    heading: str, head: tuple[Words, ...], rows: Sequence[Row], right: tuple[int, ...], style: str = ""
) -> Section:
    return Section((Table(head, tuple(rows), right=right, label=heading, style=style),), heading)


def _time(seconds: float) -> str:
    return time_text(seconds) if seconds else ""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _line_places(record: Record) -> dict[str, str]:
    """Source lines by id, as `model.py:12`."""
    return {
        entity.id: f"{file_name(artifact.title)}:{entity.attrs['line']}"
        for artifact in record.of_stage("source")
        for entity in artifact.entities
        if "line" in entity.attrs
    }
