"""A record made from the structured trace of one process, as if tcompile had observed its compilations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import md5
from typing import Any

from compiler.logs.absent import why_absent
from compiler.logs.cache_keys import CACHES
from compiler.logs.capture import (
    break_of,
    frames_of,
    guards_of_text,
    listed_reasons,
    recompile_of,
    symbols_of,
    with_followers,
)
from compiler.logs.collectives import collectives_of
from compiler.logs.events import CACHE_EVENT, CompileId, Event, Log, read_object
from compiler.logs.exports import FAILED, ExportIds, ends_export, graph_of_program, is_of_export
from compiler.logs.graph_text import PrintedGraph, PrintedNode, parse_graph, type_attrs
from compiler.logs.guard_text import telling_reason
from compiler.logs.links import MAPPINGS, Origins, logged_kernels, logged_pre_grad, origins_by_name, origins_by_trace
from compiler.logs.other_texts import is_other_text, other_text
from compiler.logs.output_code import half_of, kernels_of_code
from compiler.logs.parts import (
    DDP_PART,
    PIECE_START,
    PIECE_TITLE,
    GraphParts,
    piece_of_dump,
    split_decision,
    why_unsplit,
)
from compiler.logs.phases import phase_times
from compiler.logs.sources import LoggedSources
from compiler.record import (
    Artifact,
    Decision,
    Entity,
    Environment,
    Frame,
    GraphHalf,
    Problem,
    Record,
    Span,
    Timing,
)
from compiler.record.builder import Builder
from compiler.record.options import Options
from compiler.record.plain_text import pluralize

KNOWN_KINDS = frozenset(
    (
        "artifact", "str", "chromium_event", "dynamo_start", "dynamo_output_graph", "dynamo_cpp_guards_str",
        "dynamo_guards", "dynamo_error", "describe_storage", "describe_tensor", "describe_source",
        "aot_joint_graph", "aot_forward_graph", "aot_backward_graph", "aot_inference_graph",
        "inductor_output_code", "inductor_post_grad_graph", "compilation_metrics", "bwd_compilation_metrics",
        "create_symbol", "create_unbacked_symbol", "guard_added", "guard_added_fast", "symbolic_shape_specialization",
        "compiled_autograd_graph", "optimize_ddp_split_graph", "optimize_ddp_split_child", "graph_dump",
        "exported_program", "export", "missing_fake_kernel", "mismatched_fake_kernel", "propagate_real_tensors",
        "propagate_real_tensors_provenance", "guard_on_data_dependent_error", "expression_created", "rank", "link",
        "dump_file", "aot_inductor_result", "compilation_metrics_runtime",
    )
)  # fmt: skip
"""Kinds of events that tcompile shows or knows to leave out; others are counted (`Job.unknown`)."""

_GRAPHS: dict[str, tuple[str, GraphHalf, str]] = {
    "dynamo_output_graph": ("captured", "", "captured by TorchDynamo"),
    "after_pre_grad_graph": ("pre_grad", "", "after Inductor's passes before autograd"),
    "aot_joint_graph": ("joint", "", "forward and backward together"),
    "aot_forward_graph": ("forward", "forward", "forward"),
    "aot_backward_graph": ("backward", "backward", "backward"),
    "aot_inference_graph": ("inference", "inference", "inference"),
    "inductor_post_grad_graph": ("post_grad", "", "{half}, after post-grad passes"),
    "exported_program": ("exported", "", "exported by torch.export"),
    "compiled_autograd_graph": ("autograd", "", "captured by compiled autograd"),
    DDP_PART: ("captured", "", "captured by TorchDynamo, a bucket of DistributedDataParallel"),
}
"""Stage, half and title of a graph, by the kind of its event or the name of its artifact."""
_OF_GRAPHS = frozenset((*_GRAPHS, "inductor_output_code", PIECE_START))
_SYMBOLS = (
    "create_symbol", "create_unbacked_symbol", "symbolic_shape_specialization", "guard_added", "guard_added_fast",
)  # fmt: skip
_FAILURES = {
    "missing_fake_kernel": "an operator has no fake kernel",
    "mismatched_fake_kernel": "an operator's fake kernel does not match its results",
    "guard_on_data_dependent_error": "a branch depends on data",
    "dynamo_error": "TorchDynamo raised an error",
    "eager_compile_backwards_failure": "the backward could not be compiled ahead of its first call",
    "make_fx_fail_partial": "tracing failed; the graph so far ends with",
    "propagate_real_tensors_provenance": "draft_export assumed what holds for the example input",
    "fx_interpreter_error": "a graph could not be interpreted",
}
_OF_PROCESS = ("chromium_event", "artifact", "graph_dump", "dump_file", "compilation_metrics")
"""Events that may belong to no compilation."""
MOST_NODES = 20_000
"""A larger graph is shown as text, without entities."""
Attrs = dict[str, Any]


@dataclass
class _Compiled:
    """The events of one compilation. `id` is unique in the log ("0/1", or "0/1#2" after a reset).

    `graph` names its frame and compilation; those of compiled autograd are numbered with the others.
    """

    id: str
    graph: str
    parts: CompileId
    starts: list[Event] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def events_of(self, *kinds: str) -> Iterator[Event]:
        return (event for event in self.events if event.kind in kinds or event.name in kinds)

    def last(self, kind: str) -> Event | None:
        return next((event for event in reversed(self.events) if kind in (event.kind, event.name)), None)


def record_of(
    log: Log, ids: Collection[str] | None = None, target: str = "", functions: Mapping[str, Span] | None = None
) -> Record:
    """The record of a log's compilations, or of those with the given ids ("0/1", or "0/1#2" after a reset).

    `target` is the GPU that Triton kernels are compiled for once the record is trusted, by default that of the log.
    `functions` are the compiled functions by id, where they are known better than from a compilation's own events.
    """
    compiled = _compilations(log, None if ids is None else set(ids))
    known = functions or {}
    named = {each.id: known.get(each.id) or _function(log, each) for each in compiled}
    title = next((span.function for span in named.values() if span.function), "")
    builder = Builder(title or " ".join(log.names), Options(), _environment(log))
    reader = _Reader(log, builder, named)
    for each in compiled:
        reader.read(each)
    reader.finish()
    return builder.record().with_fields(origin="log", trust="untrusted", target=target or reader.target)


def _compilations(log: Log, wanted: set[str] | None) -> list[_Compiled]:
    """The compilations of a log in order of start; a second start of the same id begins another one."""
    found: dict[str, _Compiled] = {}
    now: dict[str, _Compiled] = {}
    early: dict[str, list[Event]] = {}
    counts: dict[str, int] = {}
    exports = ExportIds()
    kinds = (KNOWN_KINDS | set(_FAILURES)) - {"str", "describe_storage", "describe_tensor"}
    for event in log.events_of(*kinds):
        name = event.compile_id
        if not name and event.kind in _OF_PROCESS and not is_of_export(event):
            continue
        if event.name == "recompile_reasons" or (event.kind == "chromium_event" and name not in now):
            early.setdefault(name, []).append(event)
            continue
        name = name or exports.id_of(event)
        each = now.get(name)
        has_ended = each is not None and not each.starts and bool(each.events) and ends_export(each.events[-1])
        if each is None or has_ended or (event.kind == "dynamo_start" and each.starts):
            counts[name] = count = counts.get(name, 0) + 1
            suffix, parts = "" if count == 1 else f"#{count}", event.id_parts
            each = _Compiled(f"{name}{suffix}", f"{parts.in_run or name}{suffix}", parts)
            each.events.extend(early.pop(name, ()))
            now[name] = found[each.id] = each
        if event.kind == "dynamo_start":
            each.starts.append(event)
        each.events.append(event)
    listed = list(found.values())
    return listed if wanted is None else [each for each in listed if wanted & {each.id, each.graph}]


def _environment(log: Log) -> Environment:
    version = next((event for event in log.events_of("artifact") if event.name == "torch_version"), None)
    values = read_object(version.payload) if version else {}
    return Environment(torch=str(values.get("pytorch_version", "")))


def _function(log: Log, each: _Compiled) -> Span:
    """The compiled function and its first line."""
    fields = _metrics(each)
    if fields.get("co_name"):
        line = fields.get("co_firstlineno")
        return Span(str(fields.get("co_filename") or ""), line if isinstance(line, int) else 0,
                    function=str(fields["co_name"]))  # fmt: skip
    stack = _stack(log, each)
    return stack[-1] if stack else Span("", 0)


def _why_no_graph(metrics: Attrs) -> str:
    return "no tensor operation to compile" if metrics else "the log ends during this compilation"


def _metrics(each: _Compiled) -> Attrs:
    """Torch's metrics of a compilation; {} if the log has none."""
    metrics = each.last("compilation_metrics")
    return metrics.fields if metrics and isinstance(metrics.fields, dict) else {}


def _stack(log: Log, each: _Compiled) -> list[Span]:
    """The call stack of a compilation, which ends at the compiled function; [] if the log has none."""
    fields = each.starts[-1].fields if each.starts else None
    return frames_of(log, fields.get("stack")) if isinstance(fields, dict) else []


class _Reader:
    """Adds compilations to a record."""

    def __init__(self, log: Log, builder: Builder, functions: Mapping[str, Span]) -> None:
        self.log = log
        self.builder = builder
        self.functions = functions
        self.book = LoggedSources()
        self.printed: dict[str, PrintedGraph] = {}
        self.damaged: dict[str, None] = {}
        self.nodes: dict[str, int] = {}
        self.returned: dict[str, list[int]] = {}
        self.pre_grad: dict[str, list[str]] = {}
        self.instance: dict[str, str] = {}
        self.frame_numbers: dict[str, str] = {}
        self.codes: dict[str, int] = {}
        self.target = ""

    def read(self, each: _Compiled) -> None:
        frame = self._frame(each)
        self.frame_numbers[frame.id] = each.parts.frame
        if "recompile limit" in frame.reason or "cache_size_limit" in frame.reason:
            frame = self._at_limit(frame)
        if each.starts or each.last("compilation_metrics"):
            self.builder.frames[frame.id] = frame
        self.instance[str(each.parts)] = frame.id
        self.pre_grad = logged_pre_grad(each.events_of(MAPPINGS))
        self._graphs(each, self._call_site(each))
        self._capture(each, frame)
        self._failures(each)
        self._caches(each)
        self._phases(each)

    def finish(self) -> None:
        builder = self.builder
        known = [found for found in builder.breaks if found.frame in builder.frames]
        builder.breaks[:] = with_followers(known, builder.frames, self.nodes, self.returned)
        for found in builder.breaks:
            for name in found.resumed_by:
                resuming = builder.frames[name]
                if not resuming.resumes:
                    builder.frames[name] = replace(resuming, resumes=found.id, caller=found.frame)
        for artifact in self.book.artifacts():
            builder.add(artifact)
        builder.collectives, groups = collectives_of(
            builder.artifacts.values(), builder.symbols, {self.book.name(file): file for file in self.book.lines}
        )
        builder.groups = {group.name: group for group in groups}
        self._say_what_is_absent()

    def _say_what_is_absent(self) -> None:
        for reason in why_absent({artifact.stage for artifact in self.builder.artifacts.values()}):
            self.builder.problem(reason)
        if missing := self.book.missing_files():
            shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            words = (
                f"a log has no source files, and these are not here or have changed: {shown}; logged lines are shown"
            )
            self.builder.problem(Problem("source", words, "open the log where the program's files are"))
        if self.damaged:
            words = f"the content of these events is not what was written (checksum): {', '.join(self.damaged)}"
            self.builder.problem(Problem("captured", f"{self.log.names[0]}: {words}"))
        for problem in self.log.problems:
            at = f", byte {problem.at}" if problem.at else ""
            self.builder.problem(Problem("captured", f"{problem.file}{at}: {problem.reason}"))

    def _frame(self, each: _Compiled) -> Frame:
        function = self.functions[each.id]
        fields = _metrics(each)
        failure = _first_sentence(str(fields.get("fail_reason") or ""))
        kind = str(fields.get("fail_type") or "")
        place = f"{function.file}:{function.line}:{function.function}"
        number = each.parts.number
        has_graph = any(True for _ in each.events_of("dynamo_output_graph", "compiled_autograd_graph"))
        if function.file and function.line:
            self.book.line(function.file, function.line)
        return Frame(
            id=each.graph, function=function.function, file=self.book.name(function.file) if function.file else "",
            line=function.line, outcome="failed" if kind else "compiled" if has_graph else "skipped",
            reason=f"{kind}: {failure}" if kind else "" if has_graph else _why_no_graph(fields),
            graphs=(f"captured[{each.graph}]",) if has_graph else (),
            restarts=tuple(str(reason).partition("\n")[0] for reason in fields.get("restart_reasons") or ()),
            called_at=self._caller(each), call_number=1,
            code=self.codes.setdefault(place, len(self.codes)), compilation=int(number) if number.isdigit() else 0,
        )  # fmt: skip

    def _at_limit(self, frame: Frame) -> Frame:
        """A frame at the recompile limit: torch logs no function for it, but an earlier compilation has it."""
        numbers = self.frame_numbers
        same = (known for known in self.builder.frames.values() if numbers[known.id] == numbers[frame.id])
        known = frame if frame.function else next(same, frame)
        return replace(
            frame, function=known.function, file=known.file, line=known.line, code=known.code, outcome="skipped",
            reason="it reached the recompile limit",
        )  # fmt: skip

    def _caller(self, each: _Compiled) -> Span | None:
        stack = _stack(self.log, each)
        own = [span for span in stack[:-1] if not span.installed]
        if not own:
            return None
        return self.book.logged_span(own[-1].file, own[-1].line, own[-1].function, own[-1].code)

    def _call_site(self, each: _Compiled) -> tuple[str, ...]:
        """Ids of the user's lines that led to the compiled function, outermost first."""
        stack = _stack(self.log, each)
        return tuple(
            self.book.add_logged_line(span.file, span.line, span.code) for span in stack[:-1] if not span.installed
        )

    def _graphs(self, each: _Compiled, call_site: tuple[str, ...]) -> None:
        """Add the graphs and kernels of a compilation. Of several attempts the last one counts."""
        half: GraphHalf = ""
        graph = each.graph
        parts = GraphParts(graph, each.events, self.printed)
        counts: Counter[tuple[str, str]] = Counter()
        for event in each.events:
            if is_other_text(event):
                self.builder.add(other_text(event, graph, counts[graph, event.name]))
                counts[graph, event.name] += 1
            elif (event.name or event.kind) in _OF_GRAPHS or piece_of_dump(event):
                graph = parts.part_of(event, graph)
                half = self._read_graph(each, event, parts, graph, half, call_site)

    def _read_graph(
        self, each: _Compiled, event: Event, parts: GraphParts, graph: str, code_half: GraphHalf,
        call_site: tuple[str, ...],
    ) -> GraphHalf:  # fmt: skip
        """Add a graph or generated code; returns the half of the last post-grad graph, which code that follows has."""
        kind = event.name or event.kind
        if kind == PIECE_START:
            return code_half
        if kind == "inductor_output_code":
            self._kernels(each, event, graph, half_of(event.payload) or code_half or "inference")
            return code_half
        if kind == "dynamo_output_graph" and parts.is_split_by_ddp:
            self._count(each.graph, parse_graph(event.payload))  # its parts are shown
            return code_half
        stage, half, title = _GRAPHS.get(kind, ("captured", "", PIECE_TITLE))
        text = self._payload(event)
        printed = parse_graph(graph_of_program(text) if stage == "exported" else text)
        if stage == "post_grad":
            half = code_half = self._half_of_graph(printed, graph)
        self._graph(stage, half, title.format(half=half), printed, parts.parents_of(graph), call_site)
        if stage == "captured" and graph == each.graph:
            self._count(graph, printed)
            if kind == "dynamo_output_graph":
                self._explain_unsplit(each)
        elif stage == "captured":
            self._add_part(each.graph, graph, is_bucket=kind == DDP_PART)
        return code_half

    def _count(self, frame: str, printed: PrintedGraph) -> None:
        self.nodes[frame] = sum(1 for _ in printed.calls())
        self.returned[frame] = _returned_bytes(printed)

    def _explain_unsplit(self, each: _Compiled) -> None:
        """Say in the title, and as a decision, why a graph of DistributedDataParallel is not split into buckets."""
        why = why_unsplit(_stack(self.log, each), read_object(str(_metrics(each).get("dynamo_config") or "")))
        made = self.builder.artifacts[f"captured[{each.graph}]"]
        if why:
            calls = tuple(entity.id for entity in made.entities if entity.kind == "call")
            self.builder.decisions.append(Decision("DDPOptimizer", each.graph, calls, "not split", why))
            title = f"{made.title}; DistributedDataParallel's graph, not split into buckets"
            self.builder.artifacts[made.id] = replace(made, title=title)

    def _add_part(self, frame: str, graph: str, *, is_bucket: bool) -> None:
        """Record who split a frame's graph, and that this graph is a part of it."""
        known = self.builder.frames.get(frame)
        if known is not None and is_bucket:  # vLLM's pieces are parts of a graph that is shown, too
            parts = [name for name in known.graphs if name != f"captured[{frame}]"]
            self.builder.frames[frame] = replace(known, graphs=(*parts, f"captured[{graph}]"))
        calls = self.builder.artifacts[f"captured[{graph}]"].entities
        ids = tuple(entity.id for entity in calls if entity.kind == "call")
        self.builder.decisions.append(split_decision(graph, ids, is_bucket=is_bucket))

    def _payload(self, event: Event) -> str:
        """The payload; the names of events with a wrong checksum are kept."""
        text = event.payload
        wanted = event.all_fields.get("has_payload")
        if isinstance(wanted, str) and md5(text.encode(), usedforsecurity=False).hexdigest() != wanted:
            self.damaged.setdefault(event.name or event.kind)
        return text

    def _half_of_graph(self, printed: PrintedGraph, graph: str) -> GraphHalf:
        """The half of a post-grad graph: the one with the same inputs."""
        names = {node.name for node in printed.inputs()}
        halves: tuple[GraphHalf, ...] = ("forward", "backward", "inference")
        known = {half: self.printed.get(f"{half}[{graph}]") for half in halves}
        inputs = {half: {node.name for node in other.inputs()} for half, other in known.items() if other is not None}
        shared = {half: len(names & own) - len(names ^ own) / 2 for half, own in inputs.items()}
        if not shared:
            return "backward" if any(name.startswith("tangents") for name in names) else "inference"
        if any(name.startswith("tangents") for name in names) and "backward" in shared:
            return "backward"
        return max(shared, key=lambda half: shared[half])

    def _graph(
        self, stage: str, half: GraphHalf, title: str, printed: PrintedGraph, graphs: Sequence[str],
        call_site: tuple[str, ...],
    ) -> Artifact:  # fmt: skip
        """Add the graph of a stage; `graphs` are its own name, and those in which its parent is looked for."""
        graph = graphs[0]
        place = graph if half in ("", stage) else f"{graph} {half}"
        identity = f"{stage}[{place}]"
        self.printed[identity] = printed
        parent = self._parent(stage, half, graphs)
        origins: Origins = {}
        if parent:
            link = origins_by_trace if self._is_traced(stage, parent) else origins_by_name
            origins = link(printed, self.printed[parent])
        given = self._logged_origins(origins, parent) if self._is_traced(stage, parent) else {}
        make = _Entities(
            identity,
            self.book,
            parent,
            origins | given,
            frozenset(given),
            call_site if stage in ("captured", "exported") else (),
        )
        large = len(printed.nodes) > MOST_NODES
        entities = () if large else tuple(make.entity(node) for node in printed.nodes)
        lines: dict[int, tuple[str, ...]] = (
            {} if large else {number: (f"{identity}.{name}",) for number, name in printed.lines.items()}
        )
        for artifact_file in {node.place.file for node in printed.nodes if node.place}:
            self.book.name(artifact_file)
        text = self.book.shorten(printed.text)
        artifact = Artifact(identity, stage, title, "python", text, graph, lines, entities, half=half)
        return self.builder.add(artifact)

    def _logged_origins(self, origins: Origins, parent: str) -> Origins:
        """Origins of nodes as torch logged them, if it tracked provenance."""
        known = {node.name for node in self.printed[parent].nodes}
        return {
            name: found for name in origins
            if (found := tuple(before for before in self.pre_grad.get(name, ()) if before in known))
        }  # fmt: skip

    def _is_traced(self, stage: str, parent: str) -> bool:
        return stage in ("joint", "inference", "forward") and parent.partition("[")[0] in ("pre_grad", "captured")

    def _parent(self, stage: str, half: GraphHalf, graphs: Sequence[str]) -> str:
        """Id of the graph that a stage's graph was made from, looked for in `graphs`; "" if it is not in the log."""
        before = {
            "captured": ("captured",), "pre_grad": ("captured",), "joint": ("pre_grad", "captured"),
            "inference": ("pre_grad", "captured"), "forward": ("joint", "pre_grad", "captured"),
            "backward": ("joint",), "post_grad": (half, "captured"),
        }.get(stage, ())  # fmt: skip
        names = (f"{one}[{graph}]" for one in before if one for graph in graphs)
        return next((name for name in names if name in self.printed and name != f"{stage}[{graphs[0]}]"), "")

    def _kernels(self, each: _Compiled, event: Event, graph: str, half: GraphHalf) -> None:
        post_grad = f"post_grad[{graph} {half}]"
        artifact, kernels = kernels_of_code(
            self._payload(event), graph=graph, half=half, title=f"{half}, generated code",
            post_grad=self.builder.artifacts.get(post_grad), printed=self.printed.get(post_grad),
            logged=logged_kernels(each.events_of(MAPPINGS)),
        )  # fmt: skip
        self.builder.kernels[:] = [kernel for kernel in self.builder.kernels if kernel.artifact != artifact.id]
        self.builder.kernels.extend(kernels)
        self.builder.add(artifact)
        if match := re.search(r"DeviceProperties\(type='(\w+)'", artifact.text):
            self.target = self.target or match[1]
        elif kernels and any(kernel.language == "cpp" for kernel in kernels):
            self.target = self.target or "cpu"

    def _capture(self, each: _Compiled, frame: Frame) -> None:
        builder = self.builder
        symbols = symbols_of(frame.id, each.events_of(*_SYMBOLS), self.log, self.book)
        builder.symbols.extend(symbols)
        guards: tuple[Any, ...] = ()
        if (event := each.last("dynamo_cpp_guards_str")) is not None:
            guards = guards_of_text(frame.id, self._payload(event), self.book, symbols)
            builder.guards.extend(guards)
        seen: set[str] = set()
        for event in each.events_of("dynamo_graph_break_reason"):
            text = self._payload(event)
            if text not in seen:
                builder.breaks.append(break_of(frame, text, len(seen), self.book))
                seen.add(text)
        if (event := each.last("recompile_reasons")) is not None:
            reasons = listed_reasons(self._payload(event))
            printed = each.last("dynamo_cpp_guards_str")
            first = telling_reason(reasons, printed.payload if printed is not None else "")
            found_one = recompile_of(frame, reasons, first, guards, symbols, self.instance)
            limit = "torch's recompile limit" if frame.reason == "it reached the recompile limit" else ""
            builder.recompiles.append(replace(found_one, limit=limit))

    def _failures(self, each: _Compiled) -> None:
        frame = self.builder.frames.get(each.graph)
        if frame is not None and frame.outcome == "failed":
            where = f"{frame.function} ({frame.file}:{frame.line})"
            self.builder.problem(Problem("captured", f"{where} was not compiled: {frame.reason}", graph=frame.id))
        told = {"dynamo_error"} if frame is not None and frame.outcome == "failed" else set()
        for event in each.events_of(*(_FAILURES.keys() - told)):
            words = _FAILURES[event.name or event.kind]
            fields = event.fields.values() if isinstance(event.fields, dict) else ()
            text = event.payload.strip() or ", ".join(value for value in fields if isinstance(value, str))
            last = text.rpartition("\n")[2].strip() if event.name == FAILED else _error_line(text)
            stage = "exported" if not each.starts else "captured"
            self.builder.problem(Problem(stage, f"{words}: {last[:400]}", graph=each.graph))

    def _caches(self, each: _Compiled) -> None:
        """Add the outcomes of caches as decisions, with the key and its number of parts."""
        for event in each.events_of("artifact"):
            if not (match := CACHE_EVENT.fullmatch(event.name)):
                continue
            values = read_object(event.payload)
            key, why = str(values.get("key") or ""), str(values.get("cache_bypass_reason") or "")
            components = values.get("components")
            count = len(components) if isinstance(components, list) else 0
            words = why.partition("\n")[0] or (f"key {key}" if key else "")
            if count:
                words += f", of {pluralize(count, 'part')}"
            decision = Decision(CACHES[match[1]], each.graph, (), match[2], words)
            if decision not in self.builder.decisions:
                self.builder.decisions.append(decision)

    def _phases(self, each: _Compiled) -> None:
        """Add the times of phases, and those of the stages that they made."""
        times = phase_times(each.events_of("chromium_event"))
        self.builder.phases.extend(times.phases_of(each.graph))
        own = (made for made in self.builder.artifacts.values() if made.graph.partition(" ")[0] == each.graph)
        first = {made.stage: made.id for made in reversed([*own])}
        timed = times.by_stage(first)
        self.builder.timings.extend(Timing(first[stage], "compile", seconds) for stage, seconds in timed.items())


def _returned_bytes(printed: PrintedGraph) -> list[int]:
    """Sizes of the tensors that a graph returns; all are 0 if one has a symbolic size."""
    types = {node.name: type_attrs(node.type) for node in printed.nodes}
    outputs = (name for node in printed.nodes if node.op == "output" and not node.body for name in node.inputs)
    sizes = [types[name].get("bytes") for name in outputs if types.get(name)]
    return [0 if None in sizes else int(size or 0) for size in sizes]


def _first_sentence(reason: str) -> str:
    """The first line of an error; of the error of a backend, the one that the backend raised."""
    first, _, rest = reason.strip().partition("\n")
    return rest.strip().partition("\n")[0] if first.endswith(" raised:") else first


def _error_line(text: str) -> str:
    """The line of a traceback that says what is wrong; the last line of any other text."""
    lines = [line for line in text.split("\n") if line.strip()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    after = lines[starts[-1] + 1 :] if starts else lines[-1:]
    return next((line.strip() for line in after if line[:1] not in (" ", "\t")), lines[-1].strip() if lines else "")


@dataclass(frozen=True)
class _Entities:
    """Makes the entities of a printed graph's nodes."""

    identity: str
    book: LoggedSources
    parent: str
    origins: Origins
    logged: frozenset[str]
    call_site: tuple[str, ...]

    def entity(self, node: PrintedNode) -> Entity:
        attrs: Attrs = {"op": node.op, "target": node.target, **type_attrs(node.type)}
        origins = tuple(f"{self.parent}.{name}" for name in self.origins.get(node.name, ()))
        if node.kind == "call" and not self.parent:
            origins = self.call_site
        if node.place is not None and node.kind == "call":
            place = node.place
            line = self.book.add_logged_line(place.file, place.line, place.code)
            attrs |= {"file": self.book.name(place.file), "line": place.line, "code": place.code}
            if not self.parent:
                origins = tuple(dict.fromkeys((*self.call_site, line)))
        if node.description:
            attrs["description"] = node.description
        if node.bodies:
            attrs["subgraphs"] = [f"{self.identity}.{name}" for name in node.bodies]
        if node.body:
            attrs["subgraph"] = f"{self.identity}.{node.body}"
        if origins and self.parent and node.name not in self.logged:
            attrs["links"] = "inferred"
        inputs = tuple(f"{self.identity}.{name}" for name in node.inputs)
        return Entity(f"{self.identity}.{node.name}", node.kind, node.name, attrs, inputs, origins)
