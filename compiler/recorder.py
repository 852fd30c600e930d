"""Listens to PyTorch's pipeline and turns what it hears into artifacts and facts.

One `Recorder` belongs to one exploration. It is called from inside Dynamo and Inductor (the observer protocols of
`compiler.torch_api`), so it reads what it is given at once: graphs change under passes, IR dies with its graph.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.autograd.aliases import alias_decisions, requires_grad
from compiler.autograd.halves import Attrs, Forward, backward_roles, forward_roles, with_attrs
from compiler.autograd.partition import decisions as partition_decisions
from compiler.autograd.provenance import Provenance
from compiler.autograd.stage import AutogradStage
from compiler.builder import Builder, Clock
from compiler.capture.breaks import BreakLog
from compiler.capture.bytecode import GeneratedNames, bytecode_artifacts
from compiler.capture.callers import CallLog
from compiler.capture.function_names import function_name
from compiler.capture.graphs import graph_artifact, line_origins
from compiler.capture.guards import Failed, guards_of
from compiler.capture.open_sizes import names_of, symbol_of
from compiler.capture.recompiles import limited, recompile, with_graph_changes
from compiler.capture.skips import EMPTY, Skip, SkipLog
from compiler.capture.sources import SourceBook
from compiler.capture.steps import MIB, MOST_MIB, recorded_steps
from compiler.destination import Destination, destination, measures
from compiler.inductor.candidates import autotuning_decision, candidates_artifact
from compiler.inductor.ir import FxOriginIds, fx_origins, ir_artifact, part_origins
from compiler.inductor.kernels import kernels_artifact
from compiler.inductor.lines import Definition, definition
from compiler.interpret.kept import KeptFrame
from compiler.process import fewer_full_collections
from compiler.record import STAGES, Artifact, Decision, Frame, Problem, Recompile, Span, Step
from compiler.torch_api import dynamo, fx, inductor
from compiler.torch_api.aot_metadata import aot_facts
from compiler.torch_api.buffers import observing_buffers
from compiler.torch_api.cudagraphs import Verdict
from compiler.torch_api.dynamo import BreakFacts, CompileKey, EntryFailures
from compiler.torch_api.guard_failures import FailedGuard, global_state
from compiler.torch_api.inductor import IrFacts, KernelFacts, Kind
from compiler.torch_api.leaf_guards import GuardTree
from compiler.torch_api.open_sizes import SymbolFacts
from compiler.torch_api.partitioning import Halves
from compiler.torch_api.templates import Selection
from compiler.torch_api.traced_lines import Place

Compiled = Callable[..., Any]
# The bigger a graph, the more objects its compilation makes that stay: all there are would be walked, again and again.
NODES_A_COLLECTION = 20
FOLLOWING = {
    "captured": "pre_grad",
    "joint": "forward",
    "forward": "post_grad",
    "backward": "post_grad",
    "inference": "post_grad",
    "post_grad": "ir",
    "ir": "fused_ir",
    "fused_ir": "kernels",
}


class Recorder:
    """Implements `DynamoObserver`; makes a `GraphRecorder` for each captured graph."""

    def __init__(self, builder: Builder, *, build: bool) -> None:
        self.builder = builder
        self.build = build
        self.book = SourceBook()
        self.names = GeneratedNames()
        self.clock = Clock()
        self.call_site: tuple[fx.SourceFrame, ...] = ()
        self.call_number = 0
        self._frame_ids: dict[int, dict[int, str]] = {}
        self._codes: dict[str, CodeType] = {}
        self._open: dict[str, tuple[SymbolFacts, ...]] = {}
        self._failed: dict[str, Failed] = {}
        self._ran: dict[int, set[str]] = {}
        self.breaks = BreakLog(builder, self.book)
        self.skips = SkipLog()
        self.calls = CallLog(builder, self.book)
        self.kept: dict[str, KeptFrame] = {}

    def frame_id(self, key: CompileKey) -> str:
        """`frame/compilation`, both numbered in the order in which this exploration met them."""
        if key[0] not in self._frame_ids:
            self._frame_ids[key[0]] = {}
        number = list(self._frame_ids).index(key[0])
        compilations = self._frame_ids[key[0]]
        return compilations.setdefault(key[1], f"{number}/{len(compilations)}")

    def frame_started(self, key: CompileKey, code: CodeType) -> None:
        frame = self.frame_id(key)
        self._codes[frame] = code
        function = self.names(code.co_name)
        self.builder.title = self.builder.title or function
        if fx.is_dynamo(code.co_filename):  # torch's wrapper around a module of torch.nn: the user knows the module
            function = self.builder.title or function
        else:
            self.book.line(code.co_filename, code.co_firstlineno)
        started = Frame(
            frame,
            function,
            self.book.name(code.co_filename),
            code.co_firstlineno,
            "skipped",
            resumes=self.breaks.started(code),
            call_number=self.call_number,
        )
        self.builder.frames[frame] = self.calls.called(started, sys._getframe(1))
        self.calls.runs(code, frame)
        self.builder.started("captured", frame)
        self.clock.resume()

    def frame_skipped(self, code: CodeType, why: str) -> None:
        """A frame that Dynamo gave back uncompiled: say why, whether it had begun to read it or not."""
        frame = next((name for name in reversed(self._codes) if self._codes[name] is code), None)
        if frame is None:
            self.skips.add(code, why)
        elif not self.builder.frames[frame].reason and self.builder.frames[frame].outcome == "skipped":
            reason = Skip(code, why).words if why else EMPTY
            self.builder.frames[frame] = replace(self.builder.frames[frame], reason=reason)

    def frame_restarted(self, key: CompileKey, why: str) -> None:
        frame = self.builder.frames.get(self.frame_id(key))
        if frame is not None and why not in frame.restarts:
            self.builder.frames[frame.id] = replace(frame, restarts=(*frame.restarts, why))

    def resume_functions(self, key: CompileKey, codes: Sequence[CodeType]) -> None:
        self.breaks.resumes(self.frame_id(key), codes)

    def frame_ended(self, key: CompileKey, error: BaseException | None) -> None:
        frame = self.builder.frames[self.frame_id(key)]
        if isinstance(error, Exception) and dynamo.is_recompile_limit(error):
            limited(self.builder, frame, dynamo.recompile_limit_words(error))
        elif isinstance(error, Exception):
            self.builder.frames[frame.id] = replace(frame, outcome="failed", reason=_first_lines(error))
            self.builder.problem(_capture_problem(frame, error, self.builder.options.fullgraph))

    def bytecode(self, key: CompileKey, original: CodeType, modified: CodeType) -> None:
        frame = self.frame_id(key)
        self.builder.frames[frame] = replace(self.builder.frames[frame], outcome="compiled")
        self.calls.runs(modified, frame)
        function = self.builder.frames[frame].function
        try:
            found = bytecode_artifacts(
                original, modified, graph=frame, function=function, book=self.book, names=self.names
            )
        except Exception as error:  # noqa: BLE001 - raised here, it would make Dynamo leave the frame to plain Python
            self.builder.problem(Problem("bytecode", f"{type(error).__name__}: {error}", "please report it", frame))
            return
        for artifact in found:
            self.builder.add(artifact)
        self.add_sources()

    def graph(self, key: CompileKey, module: GraphModule, run: Compiled) -> Compiled:
        """Record one captured graph and what the backend makes of it; return what Dynamo is to call for it.

        Without a build that is the captured graph itself, so autograd and random numbers are eager's own.
        """
        frame = self.frame_id(key)
        seconds = self.clock.lap()
        captured = fx.detached(module)
        self.breaks.graph(frame, captured)
        recorder = GraphRecorder(self, frame)
        known = self.builder.frames[frame]
        self.builder.frames[frame] = replace(known, graphs=tuple(dict.fromkeys((*known.graphs, f"captured[{frame}]"))))
        recorder.captured(captured, seconds)
        gpu = self._destination(module).gpu
        if gpu is None and measures(self.builder.options):
            self.build = True
        check = self.builder.options.check
        kept = self.kept.setdefault(frame, KeptFrame(bool(check), keeps_stages=check is True))
        kept.captured, kept.book = captured, self.book
        stage = AutogradStage(self.builder, recorder.latest["captured"], captured)
        hearing = stage.hearing if self.builder.keeps("autograd") else _as_it_is
        if not self._needs_backend():
            return self._noted(frame, kept.hearing(hearing(stage.run)))
        observing = inductor.observing(recorder, build=self.build, target=gpu)
        collections = fewer_full_collections(1 + len(captured.graph.nodes) // NODES_A_COLLECTION)
        with observing, observing_buffers(kept), collections:
            compiled = recorder.run_backend(run)
        if compiled is None or recorder.problems or not self._compiled_runs():
            return self._noted(frame, kept.hearing(hearing(stage.run)))
        return kept.hearing(hearing(compiled))

    def _noted(self, frame: str, call: Compiled) -> Compiled:
        """`call`, with a note of the calls of the explored function that it runs in."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._ran.setdefault(self.call_number, set()).add(frame.partition("/")[0])
            return call(*args, **kwargs)

        return noted

    def _plain_calls(self, found: Recompile) -> tuple[int, ...]:
        """The calls, from that on in which torch gave up on a function, in which none of its code ran compiled."""
        if not found.limit or self.build or not found.call_number:
            return ()
        code = found.frame.partition("/")[0]
        calls = range(found.call_number, self.call_number + 1)
        return tuple(number for number in calls if code not in self._ran.get(number, ()))

    def _destination(self, module: GraphModule) -> Destination:
        found = destination(self.builder.options, fx.devices(module))
        self.builder.target = found.name
        if found.problem is not None:
            self.builder.problem(found.problem)
        return found

    def _needs_backend(self) -> bool:
        later = STAGES[STAGES.index("captured") + 1 :]
        return self.build or any(self.builder.keeps(stage) for stage in later if stage != "autograd")

    def _compiled_runs(self) -> bool:
        """Whether what the backend returned is what the user's call runs; Inductor's code is, once it is built.

        Backend "eager" returns the captured graph.
        """
        return self.build or self.builder.options.backend not in ("inductor", "eager")

    def graph_break(self, key: CompileKey, facts: BreakFacts) -> None:
        if all(fx.is_dynamo(place.file) for place in facts.places):  # in torch's own wrapper around a module
            here = tuple(Place(site.file, site.function, site.line) for site in self.call_site[-1:])
            facts = replace(facts, places=here)
        self.breaks.add(self.frame_id(key), facts)

    def recompiled(self, key: CompileKey, reasons: Sequence[str], entries: Sequence[EntryFailures]) -> None:
        if not reasons:
            return
        frame = self.frame_id(key)
        known = self.builder.frames.get(frame)
        function, file, line = (known.function, known.file, known.line) if known else ("", "", 0)
        texts = tuple(self.book.shorten(self._canonical(reason)) for reason in reasons)
        new = Recompile(f"recompile[{frame}]", frame, function, file, line, texts, call=self._call())
        new = replace(new, call_number=self.call_number)
        resumes = known.resumes if known else ""
        for entry in entries:
            self._failed.setdefault(self.frame_id(entry.key), Counter()).update(map(_failing, entry.guards))
        self.builder.recompiles.append(recompile(new, entries, self.frame_id, global_state(), bool(resumes)))

    def _call(self) -> Span | None:
        """The line of the call under way."""
        if not self.call_site:
            return None
        site = self.call_site[-1]
        code = linecache.getline(site.file, site.line).strip()
        return Span(self.book.name(site.file), site.line, site.line, function=site.function, code=code)

    def _canonical(self, reason: str) -> str:
        """A reason with torch's number of the compilation whose guards failed replaced by ours."""

        def ours(match: re.Match[str]) -> str:
            key = (int(match[1]), int(match[2]))
            known = self._frame_ids.get(key[0], {}).get(key[1])
            return f"{known}:" if known else match[0]

        return re.sub(r"^(\d+)/(\d+):", ours, reason)

    def symbols(self, key: CompileKey, facts: Sequence[SymbolFacts]) -> None:
        frame = self.frame_id(key)
        self._open[frame] = tuple(facts)
        self.builder.symbols[:] = [found for found in self.builder.symbols if found.frame != frame]
        self.builder.symbols.extend(symbol_of(frame, fact, self.book) for fact in facts)

    def guards(self, key: CompileKey, tree: GuardTree) -> None:
        frame = self.frame_id(key)
        names = {file: self.book.name(file) for file in self.book.lines}
        sizes = names_of(self._open.get(frame, ()))
        self.builder.guards.extend(guards_of(frame, tree.guards, names, sizes, self._failed.get(frame)))
        if frame in self.builder.frames:
            self.builder.frames[frame] = replace(self.builder.frames[frame], guard_seconds=tree.seconds)

    def finish(self) -> None:
        """What is known once all has run: costs of breaks, functions that were never compiled, and their source."""
        self.breaks.finish(self._codes)
        graphs = {item.graph: item for item in self.builder.artifacts.values() if item.stage == "captured"}
        self.builder.recompiles[:] = [
            replace(found, plain_calls=self._plain_calls(found))
            for found in with_graph_changes(self.builder.recompiles, graphs)
        ]
        codes = dict(self._codes)
        for number, skip in enumerate(self.skips.telling()):
            code, identity = skip.code, f"skipped/{number}"
            codes[identity] = code
            self.book.line(code.co_filename, code.co_firstlineno)
            name, file = self.names(code.co_name), self.book.name(code.co_filename)
            self.builder.frames[identity] = Frame(identity, name, file, code.co_firstlineno, "skipped", skip.words)
        self.calls.finish(codes.items())
        self.add_sources()

    def stepping(self, step: bool | int) -> AbstractContextManager[None]:
        """Record how Dynamo reads each instruction in the block; `step` is the option."""
        most = MIB * (MOST_MIB if step is True else step)
        return recorded_steps(self._keep_steps, frame_id=self.frame_id, book=self.book, names=self.names, most=most)

    def _keep_steps(self, steps: tuple[Step, ...], cut: Problem | None) -> None:
        self.builder.steps = steps
        if cut is not None:
            self.builder.problem(cut)

    def add_sources(self) -> None:
        for artifact in self.book.artifacts():
            self.builder.add(artifact)


class GraphRecorder:
    """Implements `InductorObserver` for one captured graph. Each stage keeps what the next one's origins need."""

    def __init__(self, recorder: Recorder, frame: str) -> None:
        self.recorder = recorder
        self.builder = recorder.builder
        self.frame = frame
        self.problems: list[Problem] = []
        self.trains = False
        self.latest: dict[str, Artifact] = {}
        self.forward = Forward()
        self.loops: dict[tuple[str, Kind], dict[str, list[IrFacts]]] = {}
        self.fused: dict[str, list[IrFacts]] = {}
        self.definitions: dict[str, list[Definition]] = {}
        self.refusals: dict[tuple[str, str, str, str], None] = {}

    def run_backend(self, run: Compiled) -> Compiled | None:
        """Compile with the real backend. An error becomes a Problem: the captured graph still runs."""
        self.recorder.clock.resume()
        try:
            compiled = run()
        except Exception as error:
            if dynamo.is_restart(error):
                raise
            self._problem(self._next_stage(), error)
            return None
        self._say_where_it_ends()
        return compiled

    def _next_stage(self) -> str:
        if not any(stage in self.latest for stage in ("forward", "inference")):
            return "joint" if "pre_grad" in self.latest else "pre_grad"
        return "post_grad"

    def _say_where_it_ends(self) -> None:
        """Backends other than Inductor make fewer stages; a reader should not wonder where the rest is."""
        name = self.builder.options.backend
        if not any(stage in self.latest for stage in ("forward", "inference")):
            reason = f"backend {name!r} takes the captured graph as it is; it does not go through AOTAutograd"
            self._missing("joint", reason)
        elif not any(key.startswith("kernels") for key in self.latest) and not self.problems:
            self._missing("kernels", f"backend {name!r} runs the graphs of AOTAutograd; it generates no code")

    def _missing(self, stage: str, reason: str) -> None:
        self.builder.problem(Problem(stage, reason, 'use backend="inductor" to see every stage', self.frame))

    def captured(self, module: GraphModule, seconds: float) -> None:
        self.trains = any(getattr(fx.value_of(node), "requires_grad", False) for node in module.graph.nodes)
        origins = line_origins(self.recorder.book, self.recorder.call_site)
        self._graph("captured", "captured", module, origins, "captured by TorchDynamo", seconds)
        self.recorder.add_sources()

    def pre_grad(self, module: GraphModule) -> None:
        seconds = self.recorder.clock.lap()
        origins = Provenance(module, self.latest["captured"], same_names=True)
        self._graph("pre_grad", "pre_grad", module, origins, "after Inductor's pre-grad passes", seconds)

    def joint(self, module: GraphModule) -> None:
        seconds = self.recorder.clock.lap()
        origins = Provenance(module, self._before_aot(), same_names=False)
        self._graph("joint", "joint", module, origins, "forward and backward, traced together", seconds)
        self.recorder.kept[self.frame].stage("joint", module)

    def partitioned(self, halves: Halves) -> None:
        joint = self.latest.get("joint")
        names = [entity.label for entity in joint.entities] if joint else []
        self.builder.decisions.extend(partition_decisions(halves, self.frame, names))
        self.recorder.kept[self.frame].joint = halves.joint
        if self.builder.options.backend == "inductor":  # others have no passes of their own
            self.recorder.kept[self.frame].stage("joint passes", halves.joint.module)

    def aot_graph(self, kind: Kind, module: GraphModule) -> None:
        seconds = self.recorder.clock.lap()
        joint = self.latest.get("joint")
        parent, same_names = (joint, True) if joint else (self._before_aot(), False)
        title = {"forward": "forward half", "backward": "backward half", "inference": "without gradients"}[kind]
        origins = Provenance(module, parent, same_names=same_names)
        self._graph(kind, kind, module, origins, title, seconds, self._roles(kind, module))
        self.recorder.kept[self.frame].stage(kind, module)

    def _roles(self, kind: Kind, module: GraphModule) -> Attrs:
        """What the graph's nodes are there for, and what AOTAutograd found about inputs and outputs."""
        artifact = f"{kind}[{self.frame}]"
        if kind == "backward":
            return backward_roles(module, self.forward, f"forward[{self.frame}]")
        kept = self.recorder.kept[self.frame]
        self.forward = Forward.of(module, artifact, kept.joint.module if kept.joint else None, f"joint[{self.frame}]")
        if (facts := aot_facts()) is None:
            return forward_roles(module)
        kept.aot = facts
        self.builder.decisions.extend(alias_decisions(facts, module, artifact, self.frame))
        return forward_roles(module) | requires_grad(facts, module)

    def post_grad(self, kind: Kind, module: GraphModule) -> None:
        seconds = self.recorder.clock.lap()
        origins = Provenance(module, self.latest[kind], same_names=True)
        self._graph("post_grad", f"post_grad {kind}", module, origins, f"{kind}, after post-grad passes", seconds)

    def ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None:
        seconds = self.recorder.clock.lap()
        facts, _ = self._with_branches(("ir", kind), nodes, branch)
        origins = self._fx_origins(kind)
        self._add(f"ir {kind}", ir_artifact(
            facts, artifact_id=self._id("ir", kind), stage="ir", title=f"{kind}, loops before fusion",
            graph=self.frame, origins=lambda node: origins(node.fx),
        ), seconds)  # fmt: skip
        if branch:
            self.recorder.add_sources()

    def _with_branches(
        self, key: tuple[str, Kind], nodes: Iterable[IrFacts], branch: str
    ) -> tuple[list[IrFacts], list[IrFacts]]:
        """Inductor hands over a graph and then each of its branches: all that came so far, and what is new."""
        new = list(nodes)
        if not branch:
            self.loops[key] = {}
        self.loops.setdefault(key, {})[branch] = new
        return [node for found in self.loops[key].values() for node in found], new

    def _fx_origins(self, kind: Kind) -> FxOriginIds:
        return fx_origins(self.latest.get(f"post_grad {kind}"), self.recorder.book)

    def refused(self, kind: Kind, first: str, second: str, reason: str) -> None:
        self.refusals[kind, first, second, reason] = None

    def fused_ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None:
        seconds = self.recorder.clock.lap()
        self.fused[kind], new = self._with_branches(("fused_ir", kind), nodes, branch)
        origins = part_origins(self.latest.get(f"ir {kind}"))
        self._add(f"fused_ir {kind}", ir_artifact(
            self.fused[kind], artifact_id=self._id("fused_ir", kind), stage="fused_ir",
            title=f"{kind}, loops after fusion", graph=self.frame, origins=origins,
        ), seconds)  # fmt: skip
        self._decisions(kind, new)

    def kernel(self, kind: Kind, facts: KernelFacts) -> None:
        self.definitions.setdefault(kind, []).append(definition(facts, self._fx_origins(kind)))

    def code(self, kind: Kind, text: str, language: str) -> None:
        seconds = self.recorder.clock.lap()
        if language == "cpp":
            artifact = Artifact(
                self._id("kernels", kind), "kernels", f"{kind}, generated code", "cpp", text, self.frame
            )
            self._add(f"kernels {kind}", artifact, seconds)
            return
        artifact, kernels = kernels_artifact(
            text, artifact_id=self._id("kernels", kind), title=f"{kind}, generated code", graph=self.frame,
            definitions=self.definitions.get(kind, []), fused=self.fused.get(kind, []),
            fused_id=self._id("fused_ir", kind),
        )  # fmt: skip
        self.builder.kernels.extend(kernels)
        self._add(f"kernels {kind}", artifact, seconds)

    def decided(self, pass_name: str, verdict: str, why: str) -> None:
        decision = Decision(pass_name, self.frame, (), verdict, why)
        if decision not in self.builder.decisions:
            self.builder.decisions.append(decision)

    def captured_as(self, kind: Kind, verdict: Verdict) -> None:
        subjects = tuple(f"{self._id('fused_ir', kind)}.{name}" for name in verdict.nodes)
        self.builder.decisions.append(
            Decision("cudagraphs", self.frame, subjects, verdict.verdict, verdict.why, dict(verdict.numbers))
        )

    def selected(self, kind: Kind, selections: Sequence[Selection]) -> None:
        post_grad = self._id("post_grad", kind)
        decisions = (autotuning_decision(selection, self.frame, post_grad) for selection in selections)
        self.builder.decisions.extend(decisions)
        if any(len(selection.candidates) > 1 for selection in selections):
            self.builder.add(candidates_artifact(
                selections, artifact_id=f"kernels[{self.frame} {kind} candidates]", graph=self.frame,
                title=f"{kind}, candidates of max-autotune", post_grad=post_grad,
            ))  # fmt: skip

    def failed(self, kind: Kind, error: Exception) -> None:
        reached = [
            stage for stage in ("post_grad", "ir", "fused_ir", "kernels") if f"{stage} {kind}" not in self.latest
        ]
        self._problem(reached[0] if reached else "kernels", error)

    def _following(self, key: str) -> str:
        """The stage that PyTorch makes next, "" after the last."""
        stage = key.partition(" ")[0]
        if stage == "pre_grad":
            return "joint" if torch.is_grad_enabled() and self.trains else "inference"
        return "backward" if key == "kernels forward" else FOLLOWING.get(stage, "")

    def _before_aot(self) -> Artifact:
        return self.latest.get("pre_grad") or self.latest["captured"]

    def _id(self, stage: str, kind: Kind) -> str:
        return f"{stage}[{self.frame} {kind}]"

    def _graph(
        self, stage: str, key: str, module: GraphModule, origins: Any, title: str, seconds: float,
        attrs: Attrs | None = None,
    ) -> None:  # fmt: skip
        suffix = key.removeprefix(stage)
        artifact = graph_artifact(
            module, artifact_id=f"{stage}[{self.frame}{suffix}]", stage=stage, title=title, graph=self.frame,
            book=self.recorder.book, origins=origins, parent=getattr(origins, "parent", None),
            call_site=self.recorder.call_site,
        )  # fmt: skip
        self._add(key, with_attrs(artifact, attrs or {}), seconds)

    def _add(self, key: str, artifact: Artifact, seconds: float) -> None:
        self.latest[key] = self.builder.add(artifact, seconds)
        if (following := self._following(key)) and self.builder.keeps(following):
            self.builder.started(following, self.frame)
        self.recorder.clock.resume()

    def _decisions(self, kind: Kind, facts: list[IrFacts]) -> None:
        ir = self._id("ir", kind)
        for node in facts:
            if node.parts:
                parts = tuple(f"{ir}.{part}" for part in node.parts)
                numbers = {"bytes": float(node.bytes)}
                self.builder.decisions.append(Decision("fusion", self.frame, parts, "fused", node.name, numbers))
        for refusal in [refusal for refusal in self.refusals if refusal[0] == kind]:
            _, first, second, reason = refusal
            pair = (f"{ir}.{first}", f"{ir}.{second}")
            self.builder.decisions.append(Decision("fusion", self.frame, pair, "refused", reason))
            del self.refusals[refusal]

    def _problem(self, stage: str, error: Exception) -> None:
        problem = Problem(stage, _first_lines(error), _hint(error), self.frame)
        self.problems.append(problem)
        self.builder.problem(problem)


def _failing(guard: FailedGuard) -> tuple[str, str, str]:
    if guard.kind == "NO_TENSOR_ALIASING":
        return guard.kind, "", ""
    return guard.kind, guard.source, guard.code[0] if guard.code else ""


def _as_it_is(call: Compiled) -> Compiled:
    return call


def _capture_problem(frame: Frame, error: Exception, fullgraph: bool) -> Problem:
    name = function_name(frame.function)
    where = f"{name if name == frame.function else f'the rest of {name}'} ({frame.file}:{frame.line})"
    if not dynamo.is_unsupported(error):
        reason = f"TorchDynamo could not capture {where}: {_first_lines(error)}"
        return Problem("captured", reason, _hint(error), frame.id)
    if fullgraph:
        return Problem("captured", f"TorchDynamo could not capture {where} in one graph: {_first_lines(error, 1)}",
                       "drop --fullgraph to see the graphs on both sides of the break", frame.id)  # fmt: skip
    reason = f"{where} runs as plain Python, because of a graph break: {_first_lines(error, 1)}"
    return Problem("captured", reason, "see its card: print(run.cards)", frame.id)


def _first_lines(error: BaseException, count: int = 4) -> str:
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.rstrip() for line in str(inner).splitlines() if line.strip()]
    return "\n".join(lines[:count]) or type(inner).__name__


def _hint(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    if type(inner).__name__ == "InvalidCxxCompiler":
        return "install a C++ compiler (on Debian: apt-get install g++), or leave out --time and --check"
    return f"raised as {type(inner).__name__}; the function itself ran without torch.compile"


def tensors_device(values: Sequence[Any]) -> torch.device | None:
    """The device of the first tensor that is not on the CPU, or of the first tensor."""
    devices = [value.device for value in values if isinstance(value, torch.Tensor)]
    return next((device for device in devices if device.type != "cpu"), devices[0] if devices else None)
