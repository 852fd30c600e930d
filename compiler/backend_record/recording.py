"""Record the programs of our own backend after each pass, and its generated code."""

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
from compiler.backend_record.facts import launch_facts, memory_facts, merges
from compiler.backend_record.program import Made, ProgramWriter
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
        # Pieces of a forward with data-dependent sizes are compiled like those of an inference graph.
        kind = cast("Kind", ctx.graph if ctx.graph in self.recorder.latest else "forward")
        frame = self.recorder.frame
        self._compiled[kind] += 1
        piece = f"piece {self._compiled[kind]}" if self._compiled[kind] > 1 else ""
        part = f"{kind} {piece}".rstrip()  # names the program in ids and titles
        seconds = self.recorder.clock.lap() - sum(stages.seconds.values())
        before: Made | Artifact = self.recorder.latest[kind]
        known: dict[str, Mapping[str, str]] = {}
        programs = [*stages.programs.values()]
        if fused := [*stages.programs].index("fuse") if "fuse" in stages.programs else 0:
            found = merges(ctx.decisions, programs[fused - 1], programs[fused], graph=frame, kind=kind)
            self.builder.merges.extend(found)
        for name, program in stages.programs.items():
            stage = stage_name(name)
            title = f"{part}, {'lowered to loops' if name == 'lowered' else f'after the pass {name}'}"
            made = ProgramWriter(program, ctx, f"{stage}[{frame} {part}]", before).write(stage, title, frame)
            self.recorder.add(stage, kind, made.artifact, stages.seconds.get(name, seconds))
            known["lower" if name == "lowered" else name] = {**made.names, **_names(before)}
            before = made
        assert isinstance(before, Made)
        known[""] = before.names
        count = len(ctx.decisions)
        self.builder.decisions.extend(_decision(found, frame, known) for found in ctx.decisions)
        self._record_code(before, ctx, options, kind, piece)
        if self.builds:  # the first call of the code times kernels
            self.recorder.later.append(lambda: [_decision(found, frame, known) for found in ctx.decisions[count:]])
        self.recorder.clock.resume()

    def _record_code(self, made: Made, ctx: Context, options: BackendOptions, kind: Kind, piece: str) -> None:
        self.recorder.clock.resume()
        frame, part = self.recorder.frame, f"{kind} {piece}".rstrip()
        texts = list(codes(made.program, ctx, options))
        functions = by_kernel(*texts)
        launcher = Launcher(made.program, functions)
        seconds = self.recorder.clock.lap()
        launches = {functions[kernel.name].name: launch_facts(made.program, kernel, functions[kernel.name], ctx)
                    for kernel in made.program.kernels}  # fmt: skip
        written: list[Written] = []
        for code in texts:
            language = "" if len(texts) == 1 else "C++" if isinstance(code, Code) else "Triton"
            identity, variant = (f"{name} {language}".strip() for name in (part, piece))
            found = kernels_artifact(
                code, launches, made, artifact_id=f"kernels[{frame} {identity}]", title=f"{part}, generated kernels",
                graph=frame,
            )  # fmt: skip
            written.append(Written(found.artifact, tuple(replace(k, variant=variant) for k in found.kernels)))
        ids = {kernel.name: kernel.id for found in written for kernel in found.kernels}
        if options.tuned and not self.builds:
            self.builder.decisions.extend(_configurations(functions.values(), ids, frame))
        written.append(call_artifact(
            launcher, made, ids, artifact_id=f"kernels[{frame} {part} call]",
            title=f"{part}, the call: allocates and launches", graph=frame,
        ))  # fmt: skip
        outputs = self.recorder.outputs.get(kind, ())
        self.recorder.kept.programs[kind] = KeptProgram(made.program, functions, outputs)
        for place, found in enumerate(written):
            self.builder.kernels.extend(replace(kernel, half=kind) for kernel in found.kernels)
            self.recorder.add("kernels", kind, found.artifact, seconds if place == 0 else 0.0)
        graph = self.recorder.latest[kind]
        entities = {**made.steps, **{name: f"{graph.id}.{name}" for name in made.program.inputs}}
        self.recorder.timeline(kind, memory_facts(made.program, ctx), entities, launcher.text)


def _configurations(
    functions: Iterable[Function | TritonFunction], ids: Mapping[str, str], frame: str
) -> Iterator[Decision]:
    """A decision for each Triton kernel with several configurations: max-autotune would time them on a GPU."""
    from compiler.backend.runtime.tune import words  # imports Triton

    for function in functions:
        if isinstance(function, TritonFunction) and len(function.configs) > 1:
            first, *others = map(words, function.configs)
            why = f"the GPU is not here to time them: {first}, by rule; also tried would be {'; '.join(others)}"
            numbers = {"configurations": float(len(function.configs))}
            yield Decision("tune", frame, (ids[function.name],), "not timed", why, numbers)


def codes(program: Program, ctx: Context, options: BackendOptions) -> Iterator[Code | TritonCode]:
    """Generate code for a program's kernels: Triton on a GPU; C++ on the CPU, or Triton if `options.code` says so."""
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
    """A decision with ids of entities as its subjects.

    The ids are from the programs before and after its pass; for decisions after the passes, from the last program.
    """
    names = known.get(found.pass_name, known[""])
    subjects = tuple(names.get(name, name) for name in found.subjects)
    return replace(found, graph=frame, subjects=subjects)
