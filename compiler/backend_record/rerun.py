"""Run a program of our own backend again on the CPU to get the arguments of its kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from compiler.backend.cpp.emit import Function
from compiler.backend.ir import Buffer, Extern, Kernel, Program
from compiler.backend.ir.reference_interpreter import State
from compiler.backend.runtime.run_triton_interpreted import launch_arguments
from compiler.backend.triton.emit import TritonFunction
from compiler.calls.kept_graphs import KeptFrame
from compiler.torch_api.inductor import Kind
from compiler.triton_interpreter import gpu_attention
from compiler.triton_interpreter.inputs import MADE_UP, argument
from compiler.triton_interpreter.program import ProgramError
from compiler.triton_interpreter.reference import first_line
from compiler.triton_interpreter.wrapper import fill_value

_GENERATED_AS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program after the last pass, its functions by kernel, and the names of its outputs in the graph."""

    program: Program
    functions: Mapping[str, Function | TritonFunction]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel's launch, with `arguments` and their `names` in the order of its function's parameters.

    `written` are the indices of the arguments that the kernel writes. `note` says if gradients are made up, else "".
    """

    arguments: Sequence[Any]
    names: tuple[str, ...]
    written: tuple[int, ...]
    note: str = ""


def find_launch(frame: KeptFrame, kind: Kind, name: str) -> Launched:
    """The launch of a function in the explored call.

    The steps before it run in the reference interpreter. Raises ProgramError if a step can't run, or if the function is
    not launched.
    """
    for found, launch in launches(frame, kind):
        if found == name:
            return launch
    raise ProgramError(f"{name} is not launched")


def launches(frame: KeptFrame, kind: Kind) -> Iterator[tuple[str, Launched]]:
    """Yield the name and the launch of each function of a graph, in the order of the launches.

    The arguments are live: before the next launch is yielded, the reference interpreter writes the expected results to
    them. Raises ProgramError if a step can't run.
    """
    own = frame.programs[kind]
    with torch.random.fork_rng(devices=()), torch.no_grad():
        given, note = _inputs(frame, kind)
        host = _Host.start(own.program, given)
        for step in host.steps():
            if isinstance(step, Kernel):
                function = own.functions[step.name]
                written = tuple(place for place, name in enumerate(function.buffers) if name in step.writes)
                arguments = launch_arguments(host, step, function)
                yield function.name, Launched(arguments, function.buffers + function.symbols, written, note)


class _Host(State):
    """State of a run on the CPU; the program may be for a GPU."""

    @staticmethod
    def start(program: Program, given: Sequence[Any]) -> _Host:
        """The state before the first step."""
        program = replace(program, buffers=tuple(replace(buffer, device="cpu") for buffer in program.buffers))
        started = State.start(program, given)
        return _Host(program, started.sizes, started.memory)

    def steps(self) -> Iterator[Kernel | Extern]:
        """Yield each step before it runs."""
        for step, freed in self.program.steps_with_frees:
            yield step
            self.run(step)
            for name in freed:
                del self.memory[name]

    def outputs(self) -> list[Any]:
        """Run all steps and return the outputs."""
        for _ in self.steps():
            pass
        return [self.argument(output) for output in self.program.outputs]

    def run(self, step: Kernel | Extern) -> None:
        try:
            if isinstance(step, Extern) and step.name in gpu_attention.NAMES:
                given = [*map(self.argument, step.args)], {name: self.argument(value) for name, value in step.kwargs}
                self.keep(step.outputs, gpu_attention.compute(step.function, *given))
            else:
                super().run(step)
        except Exception as error:
            reason = f"{step.name}, which comes before it, can't be run on the CPU: {first_line(error)}"
            raise ProgramError(reason) from error

    def target(self, name: str) -> Tensor:
        """Tensor of a buffer. New memory is filled, to reveal elements that no kernel writes."""
        is_new = name not in self.memory and not self.program.by_name[name].reuses
        found = super().target(name)
        return found.fill_(fill_value(found.dtype)) if is_new else found

    def argument(self, value: Any) -> Any:
        return torch.device("cpu") if isinstance(value, torch.device) else super().argument(value)


def _inputs(frame: KeptFrame, kind: Kind) -> tuple[list[Any], str]:
    """Copies of the arguments of a graph's first call, and a note if they include made-up gradients, else ""."""
    program: Program = frame.programs[kind].program
    if frame.arguments is None:
        raise ProgramError("its graph was not called")
    if kind != "backward":
        return [_copy_in_layout(program, name, argument(name, frame.arguments)) for name in program.inputs], ""
    forward: KeptProgram = frame.programs["forward"]
    given, _ = _inputs(frame, "forward")
    known = dict(zip(forward.program.inputs, given, strict=True))
    known |= zip(forward.outputs, _Host.start(forward.program, given).outputs(), strict=True)
    tangents = [name for name in program.inputs if name not in known]
    gradients = [frame.gradients.get(index) for index in frame.trained]
    is_real = len(gradients) == len(tangents) and all(gradient is not None for gradient in gradients)
    known |= zip(tangents, gradients if is_real else [_random_tensor(program, name) for name in tangents], strict=True)
    return [_copy_in_layout(program, name, known[name]) for name in program.inputs], "" if is_real else MADE_UP


def _copy_in_layout(program: Program, name: str, value: Any) -> Any:
    """A copy of a tensor in the layout that the program expects."""
    if not isinstance(value, Tensor) or name not in program.by_name:
        return value
    made = _empty(program.by_name[name], value.shape)
    return made.copy_(value.detach())


def _empty(buffer: Buffer, shape: Sequence[int]) -> Tensor:
    strides = [stride.constant for stride in buffer.strides]
    if None in strides:
        return torch.empty(shape, dtype=buffer.dtype)
    return torch.empty_strided(shape, strides, dtype=buffer.dtype)  # type: ignore[arg-type]


def _random_tensor(program: Program, name: str) -> Tensor:
    buffer = program.by_name[name]
    shape = [size.constant for size in buffer.shape]
    if None in shape or buffer.dtype not in _GENERATED_AS:
        raise ProgramError(f"no gradient came back for {name}, and its size is symbolic")
    generator = torch.Generator().manual_seed(0)
    return _empty(buffer, shape).copy_(torch.randn(shape, generator=generator))  # type: ignore[arg-type]
