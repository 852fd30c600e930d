"""Records the compilation of one captured graph, from AOTAutograd down to generated code.

The recorder is called from inside Inductor (`compiler.torch_api.inductor.InductorObserver`), so it must read its
arguments at once: passes mutate graphs, and IR is freed with its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule

from compiler.autograd.checkpoints import Checkpoints
from compiler.autograd.partition import decisions as partition_decisions
from compiler.autograd.provenance import Provenance
from compiler.autograd.roles import (
    Attrs,
    Forward,
    alias_decisions,
    backward_roles,
    forward_roles,
    requires_grad,
    with_attrs,
)
from compiler.calls.kept_graphs import KeptFrame
from compiler.capture.error_words import first_lines, hint_of, inner_error, operator_limit
from compiler.capture.graphs import graph_artifact, line_origins
from compiler.distributed.placements import explicit_causes, local_placements
from compiler.inductor.candidates import autotuning_decision, candidates_artifact
from compiler.inductor.ir import fx_origins, ir_artifact, lowered_origins, part_origins
from compiler.inductor.kernels import kernels_artifact
from compiler.inductor.lines import Definition, definition
from compiler.inductor.memory import GraphMemory, HalfMemory, wrapper_places
from compiler.inductor.user_kernels import user_kernel_decisions
from compiler.record import OWN_STAGES, STAGES, Artifact, Decision, GraphHalf, Merge, Problem, stage_rank
from compiler.torch_api import dynamo, fx
from compiler.torch_api.aot import Replaceable, aot_facts
from compiler.torch_api.buffers import Buffer, bare, input_layouts
from compiler.torch_api.ddp_buckets import Bucket
from compiler.torch_api.dtensor import Redistributions
from compiler.torch_api.eager import needs_scalar_outputs
from compiler.torch_api.inductor import IrFacts, KernelFacts, Kind, LoopStage
from compiler.torch_api.kernel_choices import Selection
from compiler.torch_api.memory_lines import MemoryFacts
from compiler.torch_api.partitioning import Halves
from compiler.torch_api.user_triton import Written, fuses_epilogues, written_arguments

if TYPE_CHECKING:
    from compiler.recorder import Recorder

Compiled = Callable[..., Any]
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
_TITLES = {
    "pre_grad": "after Inductor's pre-grad passes",
    "joint": "forward and backward, traced together",
    "forward": "forward half",
    "backward": "backward half",
    "inference": "without gradients",
}


class GraphRecorder:
    """Implements `InductorObserver` for one captured graph. Each stage is kept to find the origins of the next one."""

    def __init__(self, recorder: Recorder, frame: str, kept: KeptFrame) -> None:
        self.builder, self.book, self.call_site = recorder.builder, recorder.book, recorder.call_site
        self.clock, self.torch_time, self.later = recorder.clock, recorder.torch_time, recorder.later
        self.collectives = recorder.collectives
        self.frame, self.kept = frame, kept
        self.problems: list[Problem] = []
        self.trains = False
        self.latest: dict[str, Artifact] = {}
        self.forward = Forward()
        self.loops: dict[tuple[str, Kind], dict[str, list[IrFacts]]] = {}
        self.fused: dict[str, list[IrFacts]] = {}
        self.definitions: dict[str, list[Definition]] = {}
        self.refusals: dict[tuple[str, str, str, str], int] = {}
        self.merges: dict[str, Merge] = {}
        self.wrappers: dict[str, MemoryFacts] = {}
        self.in_use = GraphMemory(frame)
        self.outputs: dict[str, tuple[str, ...]] = {}
        self.homes: dict[str, dict[int, str]] = {}
        self.written: Written = {}
        self.redistributions = Redistributions()

    def run_backend(self, run: Compiled) -> Compiled | None:
        """Compile with the real backend; None after an error, which becomes a Problem: the captured graph then runs."""
        self.clock.resume()
        try:
            with self.torch_time.resume(), self.redistributions.watch():
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
            return self._stage_after(next(stage for stage in ("joint", "pre_grad", "captured") if stage in self.latest))
        return "lowered" if self.builder.options.backend == "tcompile" else "post_grad"

    def _say_where_it_ends(self) -> None:
        """Add a Problem that explains why later stages are missing: an empty graph, or a backend without them."""
        name = self.builder.options.backend
        halves = [self.latest[stage] for stage in ("forward", "inference") if stage in self.latest]
        if not halves:
            reason = f"backend {name!r} takes the captured graph as it is; it does not go through AOTAutograd"
        elif self.problems or not self.needs_code("inference") or any(key.startswith("kernels") for key in self.latest):
            return
        elif any(entity.kind == "call" for artifact in halves for entity in artifact.entities):
            reason = f"backend {name!r} runs the graphs of AOTAutograd; it generates no code"
        else:
            reason = "there is nothing to compute: the graph returns its inputs, or constants, as they are"
            self.builder.problem(Problem("kernels", reason, graph=self.frame))
            return
        hint = 'use backend="inductor" to see every stage'
        self.builder.problem(Problem("kernels" if halves else "joint", reason, hint, self.frame))

    def needs_code(self, kind: Kind) -> bool:
        """Whether a stage after this graph, or a check, needs code. The backward needs the forward's strides."""
        later = [stage for stage in STAGES if stage_rank(stage) > stage_rank("decomposed")]
        asked = any(map(self.builder.keeps, ["backward", *later] if kind == "forward" else later))
        return asked or bool(self.builder.options.check)

    def record_captured(self, module: GraphModule, seconds: float, bucket: Bucket | None = None) -> None:
        self.trains = any(getattr(fx.value_of(node), "requires_grad", False) for node in module.graph.nodes)
        origins = line_origins(self.book, self.call_site)
        part = f"bucket {bucket.index + 1} of {bucket.count}" if bucket is not None else ""
        title = "captured by TorchDynamo" + (f", {part} of DistributedDataParallel" if part else "")
        self.checkpoints = Checkpoints(module, self.book)
        self._graph("captured", "", module, origins, title, seconds, {})
        if bucket is not None:  # explain why this graph is only a part of the graph that TorchDynamo captured
            calls = tuple(entity.id for entity in self.latest["captured"].entities if entity.kind == "call")
            why = (
                f"{part}, with {len(bucket.parameters)} parameters: their gradients are all-reduced while the backward"
            )
            numbers = {"bytes": float(bucket.bytes), "parameters": float(len(bucket.parameters))}
            decision = Decision("DDPOptimizer", self.frame, calls, "split", why, numbers)
            self.builder.decisions.append(replace(decision, why=f"{why} of the bucket before it runs"))
        for artifact in self.book.artifacts():
            self.builder.add(artifact)

    def on_graph(self, stage: str, half: GraphHalf, module: GraphModule) -> None:
        seconds = self.clock.lap()
        parents = {
            "pre_grad": self.latest["captured"], "post_grad": self.latest.get(half), half: self.latest.get("joint"),
        }  # fmt: skip
        parent = parents.get(stage)
        before_aot = self.latest.get("pre_grad") or self.latest["captured"]
        homes = self.homes[(parent or before_aot).id]
        origins = Provenance(module, parent or before_aot, homes, same_names=parent is not None)
        title = _TITLES.get(stage, f"{half}, after post-grad passes")
        self._graph(stage, half, module, origins, title, seconds, self._roles(half, module) if stage == half else {})
        if stage == half:
            self.outputs[half] = fx.output_names(module)
            self.written.update(written_arguments(module))
        if stage == "post_grad" and half:
            where = self._id("post_grad", half)
            told = user_kernel_decisions(module, self.written, where, self.frame, fuses=fuses_epilogues())
            self.builder.decisions.extend(told)
            self.kept.keep_graph(half, bare(module), input_layouts(module))
        elif stage != "pre_grad":
            self.kept.stage(stage, module)

    def on_partition(self, halves: Halves) -> None:
        joint = self.latest.get("joint")
        names = [entity.label for entity in joint.entities] if joint else []
        self.builder.decisions.extend(partition_decisions(halves, self.frame, names, self.checkpoints.reason_of))
        self.kept.joint = halves.joint
        if self.builder.options.backend == "inductor":  # other backends have no passes on the joint graph
            self.kept.stage("joint passes", halves.joint.module)

    def _roles(self, kind: GraphHalf, module: GraphModule) -> Attrs:
        """Roles of the graph's nodes; for a forward, also AOTAutograd's facts about inputs and outputs."""
        artifact = f"{kind}[{self.frame}]"
        if kind == "backward":
            return backward_roles(module, self.forward, f"forward[{self.frame}]")
        joint = self.kept.joint.module if self.kept.joint else None
        self.forward = Forward.of_graphs(module, artifact, joint, f"joint[{self.frame}]")
        if (facts := aot_facts()) is None:
            return forward_roles(module)
        self.kept.aot = facts
        self.builder.decisions.extend(alias_decisions(facts, module, artifact, self.frame))
        return forward_roles(module) | requires_grad(facts, module)

    def on_loops(self, stage: LoopStage, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None:
        seconds = self.clock.lap()
        facts, new = self._with_branches((stage, kind), nodes, branch)
        is_fused = stage == "fused_ir"
        origins = (
            part_origins(self.latest.get(f"ir {kind}")) if is_fused
            else lowered_origins(self.latest.get(f"post_grad {kind}"), facts)
        )  # fmt: skip
        self.add(stage, kind, ir_artifact(
            facts, artifact_id=self._id(stage, kind), stage=stage, graph=self.frame, origins=origins,
            title=f"{kind}, loops {'after' if is_fused else 'before'} fusion",
        ), seconds)  # fmt: skip
        if is_fused:
            self.fused[kind] = facts
            self._decisions(kind, new)

    def _with_branches(
        self, key: tuple[str, Kind], nodes: Iterable[IrFacts], branch: str
    ) -> tuple[list[IrFacts], list[IrFacts]]:
        """Add a branch's nodes, as Inductor reports branches one by one.

        Returns all nodes so far of the graph and its branches, and the new nodes alone.
        """
        new = list(nodes)
        if not branch:
            self.loops[key] = {}
        self.loops.setdefault(key, {})[branch] = new
        return [node for found in self.loops[key].values() for node in found], new

    def on_merge(self, merge: Merge) -> None:
        self.merges[merge.name] = replace(merge, graph=self.frame)
        self.builder.merges.append(self.merges[merge.name])

    def on_refusal(self, kind: Kind, first: str, second: str, reason: str, number: int) -> None:
        self.refusals.setdefault((kind, first, second, reason), number)

    def on_memory(self, kind: Kind, facts: MemoryFacts) -> None:
        self.wrappers[kind] = facts

    def on_schedule(self, kind: Kind, buffers: tuple[Buffer, ...]) -> None:
        self.kept.keep_buffers(kind, buffers)

    def on_kernel(self, kind: Kind, facts: KernelFacts, branch: str) -> None:
        origins = fx_origins(self.latest.get(f"post_grad {kind}"))
        self.definitions.setdefault(kind, []).append(definition(facts, origins, self.book.line))
        if not branch and facts.category != "user":
            self.kept.keep_kernel(kind, facts.name, facts.nodes)

    def on_code(self, kind: Kind, text: str, language: str) -> None:
        seconds = self.clock.lap()
        identity, title = self._id("kernels", kind), f"{kind}, generated code"
        if language == "cpp":
            artifact = Artifact(identity, "kernels", title, "cpp", text, self.frame)
        else:
            artifact, kernels = kernels_artifact(
                text, artifact_id=identity, title=title, graph=self.frame, fused=self.fused.get(kind, []),
                definitions=self.definitions.get(kind, []), fused_id=self._id("fused_ir", kind),
            )  # fmt: skip
            self.builder.kernels.extend(replace(kernel, half=kind) for kernel in kernels)
        self._memory(kind, artifact.text)
        self.add("kernels", kind, artifact, seconds)

    def _memory(self, kind: Kind, text: str) -> None:
        """Record the wrapper's memory events; both halves of a graph share one timeline."""
        facts = self.wrappers.pop(kind, None)
        if facts is None or facts.pooled:
            reason = "Inductor's memory planning puts buffers into pools: there is no line for each of them"
            self.builder.problem(Problem("memory", reason, "leave out the option memory_planning", self.frame))
            return
        entities = {name: f"{self._id('post_grad', kind)}.{name}" for name, _ in facts.inputs}
        for node in self.fused.get(kind, []):
            entities |= dict.fromkeys(node.writes, f"{self._id('fused_ir', kind)}.{node.name}")
        self.timeline(kind, facts, entities, text)

    def timeline(self, kind: Kind, facts: MemoryFacts, entities: Mapping[str, str], text: str) -> None:
        """Record one half's memory events. `entities` are ids by buffer, `text` is the allocating function's code."""
        outputs, aot = self.outputs.get(kind, ()), self.kept.aot
        results = aot.first_output + len(aot.outputs) if kind == "forward" and aot else len(outputs)
        half = HalfMemory("backward" if kind == "backward" else "forward", facts, entities, outputs, results)
        self.builder.memory.extend(self.in_use.events(half, wrapper_places(text)))

    def on_build(self, kind: Kind, run: Compiled) -> Compiled:
        """Wrap built code so that graphs of stages can replace it; if stages are not kept, return it unchanged."""
        if not self.kept.keeps_stages:
            return run
        self.kept.halves[kind] = Replaceable(run)
        return self.kept.halves[kind]

    def on_choice(self, pass_name: str, verdict: str, why: str) -> None:
        """Record a choice made for a GPU that is not present, unless it is already recorded."""
        decision = Decision(pass_name, self.frame, (), verdict, why)
        if decision not in self.builder.decisions:
            self.builder.decisions.append(decision)

    def on_decision(self, kind: Kind, decision: Decision) -> None:
        subjects = tuple(f"{self._id('fused_ir', kind)}.{name}" for name in decision.subjects)
        self.builder.decisions.append(replace(decision, graph=self.frame, subjects=subjects))

    def on_selections(self, kind: Kind, selections: Sequence[Selection]) -> None:
        post_grad = self._id("post_grad", kind)
        decisions = (autotuning_decision(selection, self.frame, post_grad) for selection in selections)
        self.builder.decisions.extend(decisions)
        if any(len(selection.candidates) > 1 for selection in selections):
            artifact = candidates_artifact(
                selections, artifact_id=f"kernels[{self.frame} {kind} candidates]", graph=self.frame,
                title=f"{kind}, candidates of max-autotune", post_grad=post_grad,
            )  # fmt: skip
            self.builder.add(replace(artifact, half=kind))

    def on_failure(self, kind: Kind, error: Exception) -> None:
        later = OWN_STAGES if self.builder.options.backend == "tcompile" else ("post_grad", "ir", "fused_ir")
        reached = (stage for stage in (*later, "kernels") if f"{stage} {kind}" not in self.latest)
        self._problem(next(reached, "kernels"), error)

    def _stage_after(self, key: str) -> str:
        """The next stage of the backend's pipeline; "" after the last."""
        stage = key.partition(" ")[0]
        if self.builder.options.backend != "inductor" and stage in ("forward", "backward", "inference"):
            return "lowered" if self.builder.options.backend == "tcompile" else ""
        if stage == "pre_grad" or (stage == "captured" and self.builder.options.backend != "inductor"):
            return "joint" if torch.is_grad_enabled() and self.trains else "inference"
        return "backward" if key == "kernels forward" else FOLLOWING.get(stage, "")

    def _id(self, stage: str, kind: Kind) -> str:
        return f"{stage}[{self.frame} {kind}]"

    def _graph(
        self, stage: str, half: GraphHalf, module: GraphModule, origins: Any, title: str, seconds: float, attrs: Attrs
    ) -> None:
        place = self.frame if half in ("", stage) else f"{self.frame} {half}"
        artifact = graph_artifact(
            module, artifact_id=f"{stage}[{place}]", stage=stage, title=title, graph=self.frame,
            book=self.book, origins=origins, parent=getattr(origins, "parent", None),
            call_site=self.call_site,
        )  # fmt: skip
        self.homes[artifact.id] = fx.homes(module)
        if stage == "captured":
            artifact = with_attrs(artifact, explicit_causes(artifact))
        elif stage in ("joint", "inference"):
            placed = local_placements(module, artifact, origins.parent, self.redistributions)
            artifact = with_attrs(artifact, placed)
        artifact = with_attrs(artifact, attrs)
        self.add(stage, half, self.checkpoints.mark(artifact, module, backward=half == "backward"), seconds)
        self.collectives.add_graph(module, replace(artifact, half=half))

    def add(self, stage: str, half: GraphHalf, artifact: Artifact, seconds: float) -> None:
        """Add a stage's artifact, keep it for the origins of the next stage, and announce that stage."""
        key = stage if half in ("", stage) else f"{stage} {half}"
        self.latest[key] = self.builder.add(replace(artifact, half=half), seconds)
        if (following := self._stage_after(key)) and self.builder.keeps(following):
            self.builder.start(following, self.frame)
        self.clock.resume()

    def _decisions(self, kind: Kind, facts: list[IrFacts]) -> None:
        ir = self._id("ir", kind)
        for node in facts:
            if node.parts:
                parts = tuple(f"{ir}.{part}" for part in node.parts)
                numbers = {"bytes": float(node.bytes)} | self._merge_totals(node.name)
                self.builder.decisions.append(Decision("fusion", self.frame, parts, "fused", node.name, numbers))
        for refusal in [refusal for refusal in self.refusals if refusal[0] == kind]:
            _, first, second, reason = refusal
            pair, numbers = (f"{ir}.{first}", f"{ir}.{second}"), {"round": float(self.refusals.pop(refusal))}
            self.builder.decisions.append(Decision("fusion", self.frame, pair, "refused", reason, numbers))

    def _merge_totals(self, name: str) -> dict[str, float]:
        """Last fusion round of a node, and the bytes saved by its fusions, by Inductor's score; {} without fusions."""
        if name not in self.merges:
            return {}
        last, todo, saved = self.merges[name].round, [name], 0
        while todo:
            if (merge := self.merges.get(todo.pop())) is not None:
                saved += merge.saved
                todo += [merge.first, merge.second]
        return {"round": float(last), "saved": float(saved)}

    def _problem(self, stage: str, error: Exception) -> None:
        captured = self.kept.captured
        operators = fx.higher_order_operators(captured) if captured is not None else ()
        limit = operator_limit(error, operators, needs_scalars=needs_scalar_outputs(inner_error(error)))
        reason, hint = limit or (first_lines(error), hint_of(error))
        problem = Problem(stage, reason, hint, self.frame)
        self.problems.append(problem)
        self.builder.problem(problem)
        self.kept.fell_back = True
