"""A kernel's arguments in its program: the exploration's values if they were kept, else random values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule

from compiler.calls.kept_graphs import KeptFrame, KeptGraph
from compiler.record import Kernel, Record
from compiler.triton_interpreter import wrapper
from compiler.triton_interpreter.inputs import Programs
from compiler.triton_interpreter.process import Interpreter
from compiler.triton_interpreter.program import Launch, Program, ProgramError
from compiler.untrusted.host_code import executable_host_code
from compiler.untrusted.triton_source import RefusedSourceError, check_triton

RANDOM = "inputs are random: the exploration's own were not kept"


@dataclass(frozen=True, slots=True)
class KernelInputs:
    """A kernel's first launch with its arguments; `note` says which arguments are not real, "" if all are."""

    launch: Launch
    note: str = ""


class _Reached(BaseException):
    """Ends a program at the requested launch. Not an Exception, as nothing went wrong."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch


def kernel_inputs(
    record: Record, kernel: Kernel, kept: Mapping[str, KeptFrame], interpreter: Interpreter
) -> KernelInputs:
    """The arguments of a kernel's first launch. Raises ProgramError, InterpreterError.

    Earlier kernels run in the interpreter if eager's values of their results are unknown.
    """
    program = _program(record, kernel, kept)

    def launch(found: Launch) -> None:
        if found.kernel == kernel.name:
            raise _Reached(found)
        # A user's kernel does not declare its outputs.
        if not found.written or any(value is None for value in found.written.values()):
            if record.is_loaded:
                check_triton(found.source)
            outcome = interpreter.run(found.source, found.function, found.arguments)
            if outcome.error is not None:
                raise ProgramError(f"{found.kernel}, which comes before it, fails: {outcome.error.message}")

    try:
        program.run(launch)
    except RefusedSourceError as error:
        raise ProgramError(f"a kernel that comes before it is refused: {error}") from None
    except _Reached as reached:
        return KernelInputs(replace(reached.launch, arguments=own_copies(reached.launch.arguments)), program.note)
    raise ProgramError(f"{kernel.name} is not launched")


def own_copies(arguments: Any) -> list[Any]:
    """Copy the arguments; tensors that share a storage share the copied storage."""
    storages: dict[int, Any] = {}

    def own_copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        known = storages.setdefault(storage.data_ptr(), storage.clone())
        return torch.empty(0, dtype=value.dtype).set_(known, value.storage_offset(), value.shape, value.stride())

    return [*map(own_copy, arguments)]


def _program(record: Record, kernel: Kernel, kept: Mapping[str, KeptFrame]) -> Program:
    artifact = record[kernel.artifact]
    try:
        siblings = [other for other in record.of_stage("kernels") if other.graph == kernel.graph]
        return Programs(kept.get(kernel.graph), siblings).of_half(artifact.half)
    except ProgramError as error:
        note = RANDOM if kernel.graph not in kept else f"{RANDOM} ({error})"
    try:
        code = executable_host_code(artifact.text) if record.is_loaded else artifact.text
        inputs = wrapper.random_inputs(code)
    except Exception as error:
        raise ProgramError(f"its inputs are not known: {type(error).__name__}: {error}") from error
    graph = Graph()
    graph.output(())
    return Program(KeptGraph(GraphModule(torch.nn.Module(), graph)), code, inputs, note)
