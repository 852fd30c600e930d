"""Listens to our own backend and puts what its passes make of a graph, and the code, into a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from compiler.backend.backend import kernels_on
from compiler.backend.cpp.emit import Code, Function
from compiler.backend.cpp.emit import emit as emit_cpp
from compiler.backend.ir import Program
from compiler.backend.options import BackendOptions
from compiler.backend.passes.context import Context
from compiler.backend.pipeline import Stages, stage_name
from compiler.backend.runtime import build_cpp
from compiler.backend.runtime.launch import Launcher, by_kernel
from compiler.backend.triton.emit import TritonCode, TritonFunction
from compiler.backend.triton.emit import emit as emit_triton
from compiler.backend_record.code import Written, call_artifact, kernels_artifact
from compiler.backend_record.launch import launch_facts
from compiler.backend_record.memory import memory_facts
from compiler.backend_record.merges import merges
from compiler.backend_record.program import Made, program_artifact
from compiler.backend_record.rerun import KeptProgram
from compiler.record import Artifact, Decision

if TYPE_CHECKING:
    from compiler.graph_recorder import GraphRecorder
    from compiler.torch_api.inductor import Kind


class PassRecorder:
    """Implements `compiler.backend.pipeline.Watcher` for one captured graph."""

    def __init__(self, recorder: GraphRecorder, *, builds: bool) -> None:
        self.recorder = recorder
        self.replaces = recorder.kept.keeps_stages
        self.builder = recorder.builder
        self.builds = builds
        self._compiled: Counter[str] = Counter()

    def after_passes(self, stages: Stages, ctx: Context, options: BackendOptions) -> None:
        kind, frame = self._kind(ctx), self.recorder.frame
        self._compiled[kind] += 1
        part = self._part(kind)
        seconds = self.recorder.clock.lap() - sum(stages.seconds.values())
        before: Made | Artifact = self.recorder.latest[kind]
        known: dict[str, Mapping[str, str]] = {}
        fused = list(stages.programs).index("fuse") if "fuse" in stages.programs else 0
        if fused:
            given, made_of = list(stages.programs.values())[fused - 1 : fused + 1]
            self.builder.merges.extend(merges(ctx.decisions, given, made_of, graph=frame, kind=kind))
        for name, program in stages.programs.items():
            stage = stage_name(name)
            made = program_artifact(
                program, ctx, artifact_id=f"{stage}[{frame} {part}]", stage=stage, graph=frame, before=before,
                title=f"{part}, {'lowered to loops' if name == 'lowered' else f'after the pass {name}'}",
            )  # fmt: skip
            self.recorder.add(stage, kind, made.artifact, stages.seconds.get(name, seconds))
            known["lower" if name == "lowered" else name] = {**made.names, **_names(before)}
            before = made
        assert isinstance(before, Made)
        known[""] = before.names
        told = len(ctx.decisions)
        self.builder.decisions.extend(_decision(found, frame, known) for found in ctx.decisions)
        self._code(before, ctx, options)
        if self.builds:  # kernels are timed when the code is first called
            self.recorder.later.append(lambda: [_decision(found, frame, known) for found in ctx.decisions[told:]])
        self.recorder.clock.resume()

    def _kind(self, ctx: Context) -> Kind:
        """The graph of AOTAutograd that is compiled. The pieces of a forward with data-dependent sizes are compiled as
        those of an inference graph are.
        """
        return cast("Kind", ctx.graph if ctx.graph in self.recorder.latest else "forward")

    def _part(self, kind: Kind) -> str:
        """What ids and titles call the program: its graph, and from the second piece of a divided graph on which."""
        return f"{kind} {self._piece(kind)}".rstrip()

    def _piece(self, kind: Kind) -> str:
        number = self._compiled[kind]
        return "" if number == 1 else f"piece {number}"

    def _code(self, made: Made, ctx: Context, options: BackendOptions) -> None:
        self.recorder.clock.resume()
        kind, frame = self._kind(ctx), self.recorder.frame
        part = self._part(kind)
        texts = list(codes(made.program, ctx, options))
        functions = [function for code in texts for function in code.functions]
        named = by_kernel(*texts)
        call = Launcher(made.program, named).text
        seconds = self.recorder.clock.lap()
        found: list[Written] = []
        launches = {named[kernel.name].name: launch_facts(made.program, kernel, named[kernel.name], ctx)
                    for kernel in made.program.kernels}  # fmt: skip
        for code in texts:
            language = "" if len(texts) == 1 else "C++" if isinstance(code, Code) else "Triton"
            written = kernels_artifact(
                code, launches, made, artifact_id=f"kernels[{frame} {f'{part} {language}'.rstrip()}]",
                title=f"{part}, generated kernels", graph=frame,
            )  # fmt: skip
            variant = f"{self._piece(kind)} {language}".strip()
            found.append(Written(written.artifact, tuple(replace(k, variant=variant) for k in written.kernels)))
        ids = {kernel.name: kernel.id for written in found for kernel in written.kernels}
        if options.tuned and not self.builds:
            self.builder.decisions.extend(_configurations(functions, ids, frame))
        found.append(call_artifact(
            call, functions, made, ids, artifact_id=f"kernels[{frame} {part} call]",
            title=f"{part}, the call: allocates and launches", graph=frame,
        ))  # fmt: skip
        kept = KeptProgram(made.program, named, self.recorder.outputs.get(kind, ()))
        self.recorder.kept.programs[kind] = kept
        for place, written in enumerate(found):
            self.builder.kernels.extend(replace(kernel, half=kind) for kernel in written.kernels)
            self.recorder.add("kernels", kind, written.artifact, seconds if place == 0 else 0.0)
        graph = self.recorder.latest[kind]
        entities = {**made.steps, **{name: f"{graph.id}.{name}" for name in made.program.inputs}}
        self.recorder.timeline(kind, memory_facts(made.program, ctx), entities, call)


def _configurations(
    functions: Iterable[Function | TritonFunction], ids: Mapping[str, str], frame: str
) -> Iterator[Decision]:
    """Which configurations max-autotune would time, for each kernel that has several."""
    from compiler.backend.runtime.tune import words  # it needs Triton

    for function in functions:
        if isinstance(function, TritonFunction) and len(function.configs) > 1:
            first, *others = map(words, function.configs)
            why = f"the GPU is not here to time them: {first}, by rule; also tried would be {'; '.join(others)}"
            numbers = {"configurations": float(len(function.configs))}
            yield Decision("tune", frame, (ids[function.name],), "not timed", why, numbers)


def codes(program: Program, ctx: Context, options: BackendOptions) -> Iterator[Code | TritonCode]:
    """What is written for the program's kernels: Triton for those on a GPU, C++ for the others."""
    on_gpu, on_cpu = (kernels_on(program, device) for device in ("cuda", "cpu"))
    if options.code == "triton" and on_cpu.kernels and not on_gpu.kernels:
        yield emit_triton(program, ctx)
        return
    if on_gpu.kernels:
        yield emit_triton(on_gpu, ctx)
    if on_cpu.kernels:
        yield emit_cpp(on_cpu, ctx, build_cpp.has_vector_math())


def _names(before: Made | Artifact) -> Mapping[str, str]:
    if isinstance(before, Made):
        return before.names
    return {entity.label: entity.id for entity in before.entities}


def _decision(found: Decision, frame: str, known: Mapping[str, Mapping[str, str]]) -> Decision:
    """With entities of the program that the pass was given as its subjects, or of what it made; of the last program
    ("") for what is decided after the passes.
    """
    names = known.get(found.pass_name, known[""])
    subjects = tuple(names.get(name, name) for name in found.subjects)
    return replace(found, graph=frame, subjects=subjects)
