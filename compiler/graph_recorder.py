"""Listens to one compilation of one captured graph, from AOTAutograd down to generated code.

It is called from inside Inductor (`compiler.torch_api.inductor.InductorObserver`), so it reads what it is given at
once: graphs change under passes, IR dies with its graph.
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
from compiler.inductor.candidates import autotuning_decision, candidates_artifact
from compiler.inductor.ir import FxOriginIds, fx_origins, ir_artifact, lowered_origins, part_origins
from compiler.inductor.kernels import kernels_artifact
from compiler.inductor.lines import Definition, definition
from compiler.inductor.memory import GraphMemory, HalfMemory, wrapper_places
from compiler.record import OWN_STAGES, STAGES, Artifact, Decision, GraphHalf, Merge, Problem, stage_rank
from compiler.torch_api import dynamo, fx
from compiler.torch_api.aot import Replaceable, aot_facts
from compiler.torch_api.cudagraphs import Verdict
from compiler.torch_api.ddp_buckets import Bucket
from compiler.torch_api.eager import needs_scalar_outputs
from compiler.torch_api.fusion_rounds import MergeFacts
from compiler.torch_api.inductor import IrFacts, KernelFacts, Kind
from compiler.torch_api.kernel_choices import Selection
from compiler.torch_api.memory_lines import MemoryFacts
from compiler.torch_api.partitioning import Halves

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


class GraphRecorder:
    """Implements `InductorObserver` for one captured graph. Each stage keeps what the next one's origins need."""

    def __init__(self, recorder: Recorder, frame: str, kept: KeptFrame) -> None:
        self.builder, self.book, self.call_site = recorder.builder, recorder.book, recorder.call_site
        self.clock, self.torch_time, self.later = recorder.clock, recorder.torch_time, recorder.later
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

    def run_backend(self, run: Compiled) -> Compiled | None:
        """Compile with the real backend. An error becomes a Problem, and the captured graph runs."""
        self.clock.resume()
        try:
            with self.torch_time.resume():
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
        """Add a Problem that says why later stages are missing for other backends."""
        name = self.builder.options.backend
        if not any(stage in self.latest for stage in ("forward", "inference")):
            reason = f"backend {name!r} takes the captured graph as it is; it does not go through AOTAutograd"
            self._add_missing_stage("joint", reason)
        elif self.goes_on("inference") and not (self.problems or any(key.startswith("kernels") for key in self.latest)):
            self._no_kernels(name)

    def _no_kernels(self, name: str) -> None:
        """Say why no code was generated: an empty graph, or a backend that generates none."""
        halves = [self.latest[stage] for stage in ("forward", "inference") if stage in self.latest]
        if not any(entity.kind == "call" for artifact in halves for entity in artifact.entities):
            reason = "there is nothing to compute: the graph returns its inputs, or constants, as they are"
            self.builder.problem(Problem("kernels", reason, graph=self.frame))
        else:
            self._add_missing_stage("kernels", f"backend {name!r} runs the graphs of AOTAutograd; it generates no code")

    def goes_on(self, kind: Kind) -> bool:
        """Whether a stage is kept that comes of such a graph. The backward takes the forward code's strides."""
        later = [stage for stage in STAGES if stage_rank(stage) > stage_rank("decomposed")]
        asked = any(map(self.builder.keeps, ["backward", *later] if kind == "forward" else later))
        return asked or bool(self.builder.options.check)

    def _add_missing_stage(self, stage: str, reason: str) -> None:
        self.builder.problem(Problem(stage, reason, 'use backend="inductor" to see every stage', self.frame))

    def record_captured(self, module: GraphModule, seconds: float, bucket: Bucket | None = None) -> None:
        self.trains = any(getattr(fx.value_of(node), "requires_grad", False) for node in module.graph.nodes)
        origins = line_origins(self.book, self.call_site)
        title = "captured by TorchDynamo"
        if bucket is not None:
            title += f", bucket {bucket.index + 1} of {bucket.count} of DistributedDataParallel"
        self.checkpoints = Checkpoints(module, self.book)
        self._graph("captured", "", module, origins, title, seconds)
        if bucket is not None:
            self._split(bucket)
        for artifact in self.book.artifacts():
            self.builder.add(artifact)

    def _split(self, bucket: Bucket) -> None:
        """Say why this graph is a part of what TorchDynamo captured."""
        calls = tuple(entity.id for entity in self.latest["captured"].entities if entity.kind == "call")
        why = f"bucket {bucket.index + 1} of {bucket.count}, with {len(bucket.parameters)} parameters: their gradients"
        why += " are all-reduced while the backward of the bucket before it runs"
        numbers = {"bytes": float(bucket.bytes), "parameters": float(len(bucket.parameters))}
        self.builder.decisions.append(Decision("DDPOptimizer", self.frame, calls, "split", why, numbers))

    def pre_grad(self, module: GraphModule) -> None:
        seconds = self.clock.lap()
        origins = self._provenance(module, self.latest["captured"], same_names=True)
        self._graph("pre_grad", "", module, origins, "after Inductor's pre-grad passes", seconds)

    def joint(self, module: GraphModule) -> None:
        seconds = self.clock.lap()
        origins = self._provenance(module, self._before_aot(), same_names=False)
        self._graph("joint", "", module, origins, "forward and backward, traced together", seconds)
        self.kept.stage("joint", module)

    def partitioned(self, halves: Halves) -> None:
        joint = self.latest.get("joint")
        names = [entity.label for entity in joint.entities] if joint else []
        self.builder.decisions.extend(partition_decisions(halves, self.frame, names, self.checkpoints.reason_of))
        self.kept.joint = halves.joint
        if self.builder.options.backend == "inductor":  # others have no passes of their own
            self.kept.stage("joint passes", halves.joint.module)

    def aot_graph(self, kind: Kind, module: GraphModule) -> None:
        seconds = self.clock.lap()
        joint = self.latest.get("joint")
        parent, same_names = (joint, True) if joint else (self._before_aot(), False)
        title = {"forward": "forward half", "backward": "backward half", "inference": "without gradients"}[kind]
        origins = self._provenance(module, parent, same_names=same_names)
        self._graph(kind, kind, module, origins, title, seconds, self._roles(kind, module))
        self.outputs[kind] = fx.output_names(module)
        self.kept.stage(kind, module)

    def _roles(self, kind: Kind, module: GraphModule) -> Attrs:
        """Roles of the graph's nodes, and AOTAutograd's facts about inputs and outputs."""
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

    def post_grad(self, kind: Kind, module: GraphModule) -> None:
        seconds = self.clock.lap()
        origins = self._provenance(module, self.latest[kind], same_names=True)
        self._graph("post_grad", kind, module, origins, f"{kind}, after post-grad passes", seconds)

    def ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None:
        seconds = self.clock.lap()
        facts, _ = self._with_branches(("ir", kind), nodes, branch)
        origins = lowered_origins(self.latest.get(f"post_grad {kind}"), facts)
        self.add("ir", kind, ir_artifact(
            facts, artifact_id=self._id("ir", kind), stage="ir", title=f"{kind}, loops before fusion",
            graph=self.frame, origins=origins,
        ), seconds)  # fmt: skip

    def _with_branches(
        self, key: tuple[str, Kind], nodes: Iterable[IrFacts], branch: str
    ) -> tuple[list[IrFacts], list[IrFacts]]:
        """Nodes of a graph and its branches so far, and the new ones. Inductor hands them over one by one."""
        new = list(nodes)
        if not branch:
            self.loops[key] = {}
        self.loops.setdefault(key, {})[branch] = new
        return [node for found in self.loops[key].values() for node in found], new

    def _fx_origins(self, kind: Kind) -> FxOriginIds:
        return fx_origins(self.latest.get(f"post_grad {kind}"))

    def merged(self, kind: Kind, facts: MergeFacts) -> None:
        merge = Merge(
            self.frame, kind, facts.round, facts.first, facts.second, facts.name, facts.saved, facts.reordered
        )
        self.merges[facts.name] = merge
        self.builder.merges.append(merge)

    def refused(self, kind: Kind, first: str, second: str, reason: str, number: int) -> None:
        self.refusals.setdefault((kind, first, second, reason), number)

    def memory(self, kind: Kind, facts: MemoryFacts) -> None:
        self.wrappers[kind] = facts

    def fused_ir(self, kind: Kind, nodes: Iterable[IrFacts], branch: str) -> None:
        seconds = self.clock.lap()
        self.fused[kind], new = self._with_branches(("fused_ir", kind), nodes, branch)
        origins = part_origins(self.latest.get(f"ir {kind}"))
        self.add("fused_ir", kind, ir_artifact(
            self.fused[kind], artifact_id=self._id("fused_ir", kind), stage="fused_ir",
            title=f"{kind}, loops after fusion", graph=self.frame, origins=origins,
        ), seconds)  # fmt: skip
        self._decisions(kind, new)

    def kernel(self, kind: Kind, facts: KernelFacts) -> None:
        self.definitions.setdefault(kind, []).append(definition(facts, self._fx_origins(kind)))

    def code(self, kind: Kind, text: str, language: str) -> None:
        seconds = self.clock.lap()
        if language == "cpp":
            artifact = Artifact(
                self._id("kernels", kind), "kernels", f"{kind}, generated code", "cpp", text, self.frame
            )
            self.add("kernels", kind, artifact, seconds)
            self._memory(kind, text)
            return
        artifact, kernels = kernels_artifact(
            text, artifact_id=self._id("kernels", kind), title=f"{kind}, generated code", graph=self.frame,
            definitions=self.definitions.get(kind, []), fused=self.fused.get(kind, []),
            fused_id=self._id("fused_ir", kind),
        )  # fmt: skip
        self.builder.kernels.extend(replace(kernel, half=kind) for kernel in kernels)
        self._memory(kind, artifact.text)
        self.add("kernels", kind, artifact, seconds)

    def _memory(self, kind: Kind, text: str) -> None:
        """Record the wrapper's memory events; both halves of a graph are one timeline."""
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
        """One half's memory, step by step: `entities` are ids by buffer, `text` is the function that does it."""
        outputs, aot = self.outputs.get(kind, ()), self.kept.aot
        results = aot.first_output + len(aot.outputs) if kind == "forward" and aot else len(outputs)
        half = HalfMemory("backward" if kind == "backward" else "forward", facts, entities, outputs, results)
        self.builder.memory.extend(self.in_use.events(half, wrapper_places(text)))

    def built(self, kind: Kind, run: Compiled) -> Compiled:
        """Make built code replaceable by the graphs of stages, if stages are kept."""
        if not self.kept.keeps_stages:
            return run
        self.kept.halves[kind] = Replaceable(run)
        return self.kept.halves[kind]

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
            artifact = candidates_artifact(
                selections, artifact_id=f"kernels[{self.frame} {kind} candidates]", graph=self.frame,
                title=f"{kind}, candidates of max-autotune", post_grad=post_grad,
            )  # fmt: skip
            self.builder.add(replace(artifact, half=kind))

    def failed(self, kind: Kind, error: Exception) -> None:
        later = OWN_STAGES if self.builder.options.backend == "tcompile" else ("post_grad", "ir", "fused_ir")
        reached = [stage for stage in (*later, "kernels") if f"{stage} {kind}" not in self.latest]
        self._problem(reached[0] if reached else "kernels", error)

    def _stage_after(self, key: str) -> str:
        """The next stage of PyTorch's pipeline; "" after the last."""
        stage = key.partition(" ")[0]
        if self.builder.options.backend != "inductor" and stage in ("forward", "backward", "inference"):
            return "lowered" if self.builder.options.backend == "tcompile" else ""
        if stage == "pre_grad" or (stage == "captured" and self.builder.options.backend != "inductor"):
            return "joint" if torch.is_grad_enabled() and self.trains else "inference"
        return "backward" if key == "kernels forward" else FOLLOWING.get(stage, "")

    def _before_aot(self) -> Artifact:
        return self.latest.get("pre_grad") or self.latest["captured"]

    def _provenance(self, module: GraphModule, parent: Artifact, *, same_names: bool) -> Provenance:
        return Provenance(module, parent, self.homes[parent.id], same_names=same_names)

    def _id(self, stage: str, kind: Kind) -> str:
        return f"{stage}[{self.frame} {kind}]"

    def _graph(
        self, stage: str, half: GraphHalf, module: GraphModule, origins: Any, title: str, seconds: float,
        attrs: Attrs | None = None,
    ) -> None:  # fmt: skip
        place = self.frame if half in ("", stage) else f"{self.frame} {half}"
        artifact = graph_artifact(
            module, artifact_id=f"{stage}[{place}]", stage=stage, title=title, graph=self.frame,
            book=self.book, origins=origins, parent=getattr(origins, "parent", None),
            call_site=self.call_site,
        )  # fmt: skip
        self.homes[artifact.id] = fx.homes(module)
        artifact = with_attrs(artifact, attrs or {})
        self.add(stage, half, self.checkpoints.mark(artifact, module, backward=half == "backward"), seconds)

    def add(self, stage: str, half: GraphHalf, artifact: Artifact, seconds: float) -> None:
        """Keep a stage of a half of the graph, in which the next stage's origins are found, and say what comes now."""
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
            pair = (f"{ir}.{first}", f"{ir}.{second}")
            numbers = {"round": float(self.refusals.pop(refusal))}
            self.builder.decisions.append(Decision("fusion", self.frame, pair, "refused", reason, numbers))

    def _merge_totals(self, name: str) -> dict[str, float]:
        """The last fusion round of this node and the bytes that its fusions saved, by Inductor's score."""
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
