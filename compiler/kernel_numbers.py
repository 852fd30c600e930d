"""An edited kernel against the original, on the same arguments: its numbers, and its time where there is a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from compiler.interpret.kept import KeptFrame
from compiler.interpret.kernel_inputs import KernelInputs, kernel_inputs, own_copies
from compiler.interpret.launch import KernelError
from compiler.interpret.process import Interpreter, InterpreterError
from compiler.interpret.program import Launch, ProgramError
from compiler.measure.check import compared
from compiler.record import Check, Kernel, Record, Timing

MOST_PROGRAMS = 2000
"""So many programs of a launch are interpreted; a launch of more is checked in part, and says so."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What came of running both: a check for each tensor that is stored to, durations, what is wrong, and notes."""

    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    error: KernelError | None = None
    notes: tuple[str, ...] = ()


def numbers(
    record: Record, kernel: Kernel, kept: Mapping[str, KeptFrame], edited: str, config: int, own_config: int
) -> Numbers:
    """Run the original in its configuration number `config`, and the edited source in its number `own_config`."""
    try:
        with Interpreter() as interpreter:
            given = kernel_inputs(record, kernel, kept, interpreter)
            notes = tuple(filter(None, (given.note,)))
            if torch.cuda.is_available():
                return _on_gpu(given, edited, config, own_config, notes)
            return _interpreted(given, edited, config, own_config, interpreter, notes)
    except (ProgramError, InterpreterError) as error:
        return Numbers(notes=(f"its numbers could not be checked: {error}",))


def _interpreted(
    given: KernelInputs, edited: str, config: int, own_config: int, interpreter: Interpreter, notes: tuple[str, ...]
) -> Numbers:
    launch, mine = given.launch, own_copies(given.launch.arguments)
    theirs = own_copies(launch.arguments)
    first = interpreter.run(launch.source, launch.function, theirs, config, MOST_PROGRAMS)
    if first.error is not None:
        return Numbers(notes=(*notes, f"the original does not run in the interpreter: {first.error.message}"))
    # Programs of another size are others: where the original's were not all run, there is nothing to compare with.
    most = MOST_PROGRAMS if first.is_whole else first.ran
    second = interpreter.run(edited, launch.function, mine, own_config, most)
    if second.error is not None and second.error.kind == "missing":
        return Numbers(notes=(*notes, second.error.message))
    if second.error is not None:
        return Numbers(error=second.error, notes=notes)
    notes += ("numbers by Triton's interpreter, on the CPU",)
    if not (first.is_whole and second.is_whole):
        notes += (f"only {second.ran:,} of {second.programs:,} programs were run; what they left is not compared",)
        return Numbers(notes=notes)
    return Numbers(_checks(launch, theirs, mine), notes=notes)


def _on_gpu(given: KernelInputs, edited: str, config: int, own_config: int, notes: tuple[str, ...]) -> Numbers:
    from compiler.torch_api import gpu_launch

    launch = given.launch
    theirs, mine = ([_moved(value) for value in own_copies(launch.arguments)] for _ in range(2))
    original = gpu_launch.loaded(launch.function, launch.source, config)
    gpu_launch.launch(original, theirs)
    try:
        changed = gpu_launch.loaded(launch.function, edited, own_config)
        gpu_launch.launch(changed, mine)
    except Exception as error:  # noqa: BLE001 - Triton and CUDA fail in many ways
        return Numbers(error=KernelError("error", f"{type(error).__name__}: {error}"), notes=notes)
    checks = _checks(launch, theirs, mine)
    timings = tuple(
        Timing(name, "kernel launch", *gpu_launch.times(kernel, arguments))
        for name, kernel, arguments in (("original", original, theirs), ("edited", changed, mine))
    )
    return Numbers(checks, timings, notes=(*notes, f"numbers and times on {torch.cuda.get_device_name()}"))


def _moved(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return made.copy_(value)


def _checks(launch: Launch, theirs: Sequence[Any], mine: Sequence[Any]) -> tuple[Check, ...]:
    return tuple(_check(launch, index, theirs[index], mine[index]) for index in launch.written)


def _check(launch: Launch, index: int, theirs: Tensor, mine: Tensor) -> Check:
    """Memory that neither has written to is not a number in both: that is equal."""
    name = _name(launch, index)
    known = ~(theirs.isnan() & mine.isnan())
    check = compared(name, mine[known].cpu(), theirs[known].cpu(), relative=True)
    return replace(check, note=check.note.replace("eager", "the original"))


def _name(launch: Launch, index: int) -> str:
    from compiler.interpret.signature import signature

    return signature(launch.function, launch.source).arguments[index]
