"""Kernels compiled at the end of an exploration, for a user who asked for that (`--stages all`, `--stages ptx`)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from compiler.binary.compiling import Compiled, results
from compiler.record import MACHINE_STAGES, Problem, Record
from compiler.record.builder import Builder, in_kernel_order


def compile_kernels(builder: Builder) -> None:
    """Compile the Triton kernels that the builder has, each told to its listener as it is done.

    What is done stays when it is interrupted. An error of ours is a `Problem`: the user's cell has run, and did well.
    """
    asked = builder.options.stages
    stages = None if "all" in asked else [stage for stage in MACHINE_STAGES if stage in asked]
    builder.started((stages or MACHINE_STAGES)[0])
    try:
        with closing(results(_with_hidden_kernels(builder), stages=stages)) as steps:
            for result in steps:
                _add(builder, result)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the user's
        reason = f"the kernels could not be compiled: {type(error).__name__}: {error}"
        builder.problem(Problem("ttir", reason, "this is a bug of tcompile's, worth a report"))
    finally:
        _put_in_order(builder)


def _with_hidden_kernels(builder: Builder) -> Record:
    record = builder.record()
    return replace(record, artifacts=(*record.artifacts, *builder.hidden_kernels.values()))


def _add(builder: Builder, result: Compiled) -> None:
    for artifact in result.artifacts:
        builder.add(artifact)
    if result.binary is not None:
        builder.binaries.append(result.binary)
    for problem in result.problems:
        builder.problem(problem)


def _put_in_order(builder: Builder) -> None:
    """Which kernel was done first is chance, and not for the record."""
    record = in_kernel_order(builder.record())
    builder.artifacts = {artifact.id: artifact for artifact in record.artifacts}
    builder.binaries[:] = record.binaries
    builder.problems[:] = record.problems
