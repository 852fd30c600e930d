"""Compile the Triton kernels of a record in parallel; equal kernels are compiled once.

A kernel that fails to compile becomes a problem in the user's terms: the missing stage, the tool's message, and a
hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import torch

from compiler.binary import assembling
from compiler.binary.cpp_results import cpp_artifacts, cpp_facts, listing_with_loops
from compiler.binary.cpp_sources import cpp_kernels
from compiler.binary.jobs import Job, Output
from compiler.binary.layouts import STAGE as LAYOUTS
from compiler.binary.layouts import layouts_artifact
from compiler.binary.listing import LANGUAGES
from compiler.binary.passes import STAGE as PASSES
from compiler.binary.passes import passes_artifact
from compiler.binary.results import binary_artifact, machine_facts, stages_of
from compiler.binary.sources import CannotCompileError, KernelSource, gpu_of, own_request, triton_sources
from compiler.record import MACHINE_STAGES, Artifact, Binary, Kernel, Problem, Record
from compiler.record.builder import Builder, in_kernel_order
from compiler.targets import Target
from compiler.targets.cpus import INSTRUCTION_SETS, this_machine
from compiler.targets.destination import has_triton
from compiler.torch_api.triton_kernels import CompileRequest, KernelSourceError, compile_request, reading_kernels
from compiler.virtual_gpu.gpu import virtual_gpu

REFUSED = "its source is not what a code generator writes"
NO_ASSEMBLY = "only kernels in C++, for the CPU, have this stage, and this record has none"
MOST_WORKERS = 8  # each takes about 150 MB


class CompilationInterrupted(KeyboardInterrupt):
    """The user has interrupted the compilation; `record` has the finished kernels."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"stopped after {len(record.binaries)} kernels")
        self.record = record


@dataclass(frozen=True, slots=True)
class Compiled:
    """The results for one kernel: an artifact for each stage, facts about the machine code or None, and problems.

    `kernel` is the kernel's id, or "" for problems of the whole record.
    """

    kernel: str
    artifacts: tuple[Artifact, ...]
    binary: Binary | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Task:
    source: KernelSource
    request: CompileRequest
    job: Job


class Wanted(TypedDict, total=False):
    """Selection of what to compile in a record; everything by default.

    `kernels` (ids or names) and `stages` ("ttir", "sass" …) restrict it. `config` is the index of the launch
    configuration among Inductor's candidates. `workers` is the number of processes, by default one for each
    core, up to 8.
    """

    kernels: Collection[str] | None
    stages: Collection[str] | None
    config: int
    workers: int | None


def compile_record(
    record: Record, *, listener: Callable[[int, int], None] | None = None, **wanted: Unpack[Wanted]
) -> Record:
    """Compile a record's Triton kernels for the GPU that they were written for; return the record with the results.

    `listener(done, total)` is called after each kernel. A failure becomes a `Problem` of the kernel's first missing
    stage. If interrupted, raises CompilationInterrupted with the record so far.
    """
    found, total = record, _count(record, wanted.get("kernels"))
    try:
        with closing(compile_incrementally(record, **wanted)) as steps:
            for done, found in enumerate(steps, 1):  # noqa: B007 - the last one is the result
                if listener is not None:
                    listener(done, max(done, total))
    except KeyboardInterrupt:
        raise CompilationInterrupted(found) from None
    return found


NO_ASSEMBLY = "only kernels in C++, for the CPU, have this stage, and this record has none"


def compile_incrementally(record: Record, **wanted: Unpack[Wanted]) -> Generator[Record, None, None]:
    """Like `compile_record`, but yield the record after each kernel. Closing ends all processes."""
    with closing(results(record, **wanted)) as steps:
        for result in steps:
            record = _with_result(record, result)
            yield record


def results(
    record: Record,
    *,
    kernels: Collection[str] | None = None,
    stages: Collection[str] | None = None,
    config: int = 0,
    workers: int | None = None,
) -> Generator[Compiled, None, None]:
    """Like `compile_record`, but yield the result of each kernel as it completes. Closing ends all processes."""
    record.require_trust()
    if stages is None or {*assembling.STAGES} & {*stages}:
        cpp = cpp_kernels(record, kernels)
        yield from _cpp_results(record, cpp, assembling.STAGES if stages is None else stages, config, workers)
        if cpp:
            done = {name for kernel in cpp for name in (kernel.id, kernel.name)}
            every = [kernel.id for kernel in record.kernels if kernel.language == "triton"]
            kernels = every if kernels is None else [name for name in kernels if name not in done]
            if not kernels:
                return
        elif stages is not None and "asm" in stages:
            yield Compiled("", (), None, (Problem("asm", NO_ASSEMBLY, "look at their instructions in sass or amdgcn"),))
    yield from _triton_results(record, kernels, stages, config, workers)


def _cpp_results(
    record: Record, kernels: Sequence[Kernel], stages: Collection[str], config: int, workers: int | None
) -> Generator[Compiled, None, None]:
    """Yield the result of each C++ kernel as its unit is compiled."""
    from compiler.binary.workers import cores

    if config and kernels:
        reason = f"there is no configuration {config}: a kernel in C++ has none"
        yield Compiled("", (), None, (Problem("asm", reason),))
        return
    if not kernels:
        return
    isa = assembling.instruction_set_of(record)
    if isa is None:
        reason = f"no instruction set of this machine ({this_machine()}) is known here"
        known = ", ".join(each.target for each in INSTRUCTION_SETS)
        yield Compiled("", (), None, (Problem("asm", reason, f"name another one as target: {known}"),))
        return
    ids = [kernel.id for kernel in kernels]
    count, with_llvm = workers or min(cores(), MOST_WORKERS), "llir" in stages
    with closing(assembling.assemble(record, isa, ids, count, with_llvm=with_llvm)) as assembled:
        for result in assembled:
            listing = listing_with_loops(result)
            artifacts = cpp_artifacts(result, stages, listing)
            problems = tuple(assembling.problems_of(result, stages))
            yield Compiled(result.source.kernel.id, artifacts, cpp_facts(result, record, listing), problems)


def _triton_results(
    record: Record,
    kernels: Collection[str] | None,
    stages: Collection[str] | None,
    config: int,
    workers: int | None,
) -> Generator[Compiled, None, None]:
    try:
        if not has_triton():
            raise CannotCompileError(
                "Triton is not installed, so kernels stay source code", "it has packages for Linux: pip install triton"
            )
        sources = triton_sources(record, kernels)
        target = gpu_of(record, sources)
    except CannotCompileError as error:
        first = next(iter(stages or ()), "ttir")
        yield Compiled("", (), None, (Problem(first, str(error), error.hint),))
        return
    kept = frozenset(stages_of(target) if stages is None else stages)
    if foreign := tuple(_of_other_vendors(kept, target)):
        yield Compiled("", (), None, foreign)
    refused = [*_refusal(sources)] if record.is_loaded else []
    yield from refused
    wrong = {result.kernel for result in refused}
    right = [source for source in sources if source.kernel.id not in wrong]
    tasks, failed = _tasks(right, target, config, with_passes=bool({PASSES, LAYOUTS} & kept))
    yield from failed
    try:
        with closing(_outputs(tasks, workers)) as outputs:
            for task, output in outputs:
                yield _result(task, output, target, config, kept, record)
    except OSError as error:
        reason = f"no process could be started to compile kernels in: {error}"
        yield Compiled("", (), None, (Problem("ttir", reason, "see that this machine has memory and disk to spare"),))


def _count(record: Record, kernels: Collection[str] | None) -> int:
    return sum(
        kernel.language == "triton" and (kernels is None or kernel.id in kernels or kernel.name in kernels)
        for kernel in record.kernels
    )


def _refusal(sources: Iterable[KernelSource]) -> Iterator[Compiled]:
    """Yield problems for kernels of a loaded record whose source no code generator writes; these are not executed."""
    from compiler.untrusted.triton_source import RefusedSourceError, check_triton  # imports Triton

    for source in sources:
        try:
            check_triton(source.text)
        except RefusedSourceError as error:
            hint = "it is not compiled: the file was edited, or made by another program than tcompile"
            yield Compiled(source.kernel.id, (), None, (_problem("ttir", f"{REFUSED}: {error}", hint, source),))


def _tasks(
    sources: Iterable[KernelSource], target: Target, config: int, *, with_passes: bool
) -> tuple[list[_Task], list[Compiled]]:
    """Tasks to compile, and results for kernels without a valid launch configuration or source."""
    tasks, failed = [], []
    with reading_kernels(virtual_gpu(target)):
        for source in sources:
            try:
                request = (
                    own_request(source.launch, config)
                    if source.launch
                    else compile_request(source.function, source.text, source.sizes, config)
                )
            except KernelSourceError as error:
                failed.append(Compiled(source.kernel.id, (), None, (_problem("ttir", str(error), "", source),)))
            else:
                job = replace(_job(source, request, target), with_passes=with_passes)
                tasks.append(_Task(source, request, job))
    return tasks, failed


def _job(source: KernelSource, request: CompileRequest, target: Target) -> Job:
    return Job(
        name=source.function,
        file=source.file,
        source=source.text,
        arguments=request.arguments,
        options=request.options,
        backend=target.backend,
        architecture=target.triton_arch,
        warp_size=target.warp_size,
    )


def _outputs(tasks: list[_Task], workers: int | None) -> Generator[tuple[_Task, Output], None, None]:
    """Yield every task with its output; equal tasks are compiled once."""
    from compiler.binary import workers as processes

    tasks_of: dict[str, list[_Task]] = {}
    for task in tasks:
        tasks_of.setdefault(task.job.key(), []).append(task)
    jobs = {key: same[0].job for key, same in tasks_of.items()}
    with closing(processes.outputs(jobs, workers or min(processes.cores(), MOST_WORKERS))) as outputs:
        for key, output in outputs:
            for task in tasks_of[key]:
                yield task, output


def _result(task: _Task, output: Output, target: Target, config: int, kept: frozenset[str], record: Record) -> Compiled:
    source, request = task.source, task.request
    attrs = {"target": target.name, "config": request.config}
    missing = [stage for stage in stages_of(target) if stage not in output.texts]
    facts, shortage = machine_facts(source, request, output, target, record)
    artifacts = tuple(
        binary_artifact(stage, output.texts[stage], source, config, attrs)
        for stage in stages_of(target)
        if stage in output.texts and stage in kept
    )
    if PASSES in kept:
        artifacts += (passes_artifact(output, source, config, target, request.options, attrs),)
    if LAYOUTS in kept:
        ttgir = output.texts.get("ttgir", "")
        artifacts += (layouts_artifact(output.layouts, ttgir, source, config, attrs),)
    problems = []
    if output.error:
        stage, reason, hint = failure(output.error, missing or stages_of(target)[-1:], target)
        problems.append(_problem(stage, reason, hint or _of_other_torch(record), source))
    if shortage:
        problems.append(_problem(stages_of(target)[-1], *shortage, source))
    return Compiled(source.kernel.id, artifacts, facts, tuple(problems))


def _of_other_torch(record: Record) -> str:
    """Hint that this torch is not the record's, so that kernel functions may differ; "" for the same version."""
    made, here = record.environment.torch, str(torch.__version__)
    return f"the record was made with torch {made}, and here is torch {here}" if made not in ("", here) else ""


def _of_other_vendors(stages: Collection[str], target: Target) -> Iterator[Problem]:
    last = stages_of(target)[-1]
    for stage in LANGUAGES:
        if stage in stages and stage not in stages_of(target):
            yield Problem(
                stage, f"there is no {stage.upper()} for {target.title}", f"its machine code is {last.upper()}"
            )


def _problem(stage: str, reason: str, hint: str, source: KernelSource) -> Problem:
    return Problem(stage, f"{source.kernel.name}: {reason}", hint, source.kernel.graph)


def _with_result(record: Record, result: Compiled) -> Record:
    """Add a kernel's result to the record; it replaces an earlier result for the same configuration."""
    fresh = {artifact.id: artifact for artifact in result.artifacts}
    kept = [artifact for artifact in record.artifacts if artifact.id not in fresh]
    binaries = [known for known in record.binaries if not _same(known, result.binary)]
    new = [problem for problem in result.problems if problem not in record.problems]
    grown = replace(
        record,
        artifacts=(*kept, *fresh.values()),
        binaries=(*binaries, *((result.binary,) if result.binary else ())),
        problems=(*record.problems, *new),
    )
    return in_kernel_order(grown)


def _same(known: Binary, new: Binary | None) -> bool:
    return new is not None and (known.kernel, known.target, known.config) == (new.kernel, new.target, new.config)


_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"shared (data|memory)|OutOfResources",
        "smaller blocks or fewer stages need less shared memory; a target with more of it may do",
    ),
    (
        r"fp8|float8|e4m3|e5m2",
        "{title} ({architecture}) has no instructions for this 8-bit format: compute in float16 or bfloat16 there",
    ),
    (
        r"bf16",
        "{title} ({architecture}) has no instructions for bfloat16: compute in float16 or float32 there",
    ),
    (r"process (died|ended)", "the other kernels are not affected; it is a bug of the compiler, worth a report"),
)


def failure(said: str, missing: Sequence[str], target: Target) -> tuple[str, str, str]:
    """Stage, reason and hint for a tool's message `said`; `missing` are the stages not reached."""
    stage = missing[0]
    tool = "ptxas" if said.startswith("ptxas") else ""
    hint = next((advice for pattern, advice in _ADVICE if re.search(pattern, said, re.IGNORECASE)), "")
    reason = said if tool else f"it could not be compiled for {target.title}: {said}"
    return stage, reason, hint.format(title=target.title, architecture=target.architecture)


def compile_kernels(builder: Builder) -> None:
    """Compile the builder's Triton kernels, and add each result as it completes.

    An interrupt keeps the finished kernels. An internal error becomes a `Problem`, as the user's cell itself succeeded.
    """
    asked = builder.options.stages
    stages = None if "all" in asked else [stage for stage in MACHINE_STAGES if stage in asked]
    builder.start((stages or MACHINE_STAGES)[0])
    try:
        record = builder.record()
        record = replace(record, artifacts=(*record.artifacts, *builder.hidden_kernels.values()))
        with closing(results(record, stages=stages)) as steps:
            for result in steps:
                _add(builder, result)
    except Exception as error:  # noqa: BLE001 - any error here is ours, not the user's
        reason = f"the kernels could not be compiled: {type(error).__name__}: {error}"
        builder.problem(Problem("ttir", reason, "this is a bug of tcompile's, worth a report"))
    finally:
        _put_in_order(builder)


def _add(builder: Builder, result: Compiled) -> None:
    for artifact in result.artifacts:
        builder.add(artifact)
    if result.binary is not None:
        builder.binaries.append(result.binary)
    for problem in result.problems:
        builder.problem(problem)


def _put_in_order(builder: Builder) -> None:
    """Sort the builder's results by kernel, as the order of completion is random."""
    record = in_kernel_order(builder.record())
    builder.artifacts = {artifact.id: artifact for artifact in record.artifacts}
    builder.binaries[:] = record.binaries
    builder.problems[:] = record.problems
