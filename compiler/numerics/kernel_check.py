"""`--check kernels`: run every Triton kernel in the interpreter on the real inputs, and compare with eager.

There is one `Check` for each kernel. It covers the first launch, and all stored buffers with a known value in eager.
Partial results, such as those of a split reduction, get the check of the kernel that combines them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from compiler.calls.kept_graphs import KeptFrame
from compiler.numerics.policy.judge import Scope, judge, worst
from compiler.record import Artifact, Check, Kernel, Problem, Record
from compiler.record.builder import Builder
from compiler.targets.destination import has_triton
from compiler.triton_interpreter.inputs import Programs
from compiler.triton_interpreter.process import Interpreter, InterpreterError
from compiler.triton_interpreter.program import Launch, ProgramError
from compiler.triton_interpreter.wrapper import fill_value

MOST_PROGRAMS = 2000
"""Maximum number of programs to run per launch, if the other programs do not affect their results."""

_ROUNDED = (
    "some numbers are those of float32 throughout: eager rounds to 16 bits on the way, the kernel only at the end"
)


def check_kernels(builder: Builder, kept: Mapping[str, KeptFrame]) -> None:
    """Check the builder's Triton kernels. An interrupt keeps the finished checks, and leaves no process running."""
    record = builder.record()
    if not any(kernel.language == "triton" for kernel in record.kernels):
        builder.problem(Problem("timing", *_why_none()))
        return
    try:
        with Interpreter() as interpreter:
            for check in kernel_checks(record, kept, interpreter):
                builder.checks.append(check)
    except InterpreterError as error:
        builder.problem(Problem("timing", f"kernels could not be checked: {error}", "see that `import triton` works"))
    except Exception as error:  # noqa: BLE001 - the user's call has succeeded, and its value must still be returned
        reason = f"not all kernels could be checked: {type(error).__name__}: {error}"
        builder.problem(Problem("timing", reason, "what was checked before is there; please report this"))


def _why_none() -> tuple[str, str]:
    if not has_triton():
        return "kernels could not be checked: Triton is not installed", "it has packages for Linux: pip install triton"
    return "there is no Triton kernel to check", "explore something that Inductor fuses, for a GPU"


def kernel_checks(record: Record, kept: Mapping[str, KeptFrame], interpreter: Interpreter) -> Iterator[Check]:
    """Yield a `Check` for each Triton kernel of the record as it completes; `kept` has captures by id ("0/0").

    Raises InterpreterError if the interpreter can't be started.
    """
    record.require_trust()
    interpreter.start()
    for frame in dict.fromkeys(artifact.graph for artifact in record.of_stage("kernels")):
        artifacts = [artifact for artifact in record.of_stage("kernels") if artifact.graph == frame]
        programs = Programs(kept.get(frame), artifacts)
        for artifact in artifacts:
            kernels = [kernel for kernel in record.kernels if kernel.artifact == artifact.id and _is_triton(kernel)]
            if kernels and frame in kept and kept[frame].programs:
                from compiler.backend_record.check import own_checks  # it imports our own backend

                yield from own_checks(artifact, kernels, kept[frame], interpreter)
            elif kernels:
                yield from _artifact_checks(artifact, kernels, programs, interpreter)


def _is_triton(kernel: Kernel) -> bool:
    return kernel.language == "triton"


def _artifact_checks(
    artifact: Artifact, kernels: Sequence[Kernel], programs: Programs, interpreter: Interpreter
) -> Iterator[Check]:
    checking = _Checking({kernel.name: kernel for kernel in kernels}, interpreter)
    reason = "it was not launched"
    try:
        program = programs.of_half(artifact.half)
        checking.inputs = program.note
        program.run(checking.launch)
    except ProgramError as error:
        reason = str(error)
    yield from checking.checks()
    for kernel in kernels:
        if kernel.name not in checking.found:
            yield Check(kernel.id, None, None, "not comparable", reason)


@dataclass(slots=True)
class _Found:
    """Findings on one kernel: its comparisons, the number of buffers without a known value, and notes."""

    checks: list[Check] = field(default_factory=list)
    partial: int = 0
    notes: list[str] = field(default_factory=list)


class _Checking:
    """Runs the launches of one program in the interpreter, and compares their stores."""

    def __init__(self, kernels: Mapping[str, Kernel], interpreter: Interpreter) -> None:
        self.inputs = ""
        self.found: dict[str, _Found] = {}
        self._kernels = kernels
        self._interpreter = interpreter
        self._makers: dict[int, str] = {}  # memory that holds a partial result -> the kernel that wrote it

    def launch(self, launch: Launch) -> None:
        known_results = all(value is not None for value in launch.written.values())
        if launch.kernel in self.found and known_results and not self._unchecked_makers(launch):
            return  # its code has been checked, and no other check needs this launch
        known, waiting = self.found.setdefault(launch.kernel, _Found()), self._unchecked_makers(launch)
        most = _programs_to_run(launch)
        before = {index: launch.arguments[index].clone() for index in launch.written} if most else {}
        outcome = self._interpreter.run(launch.source, launch.function, launch.arguments, most=most)
        if outcome.error is not None:
            known.checks.append(outcome.error.as_check(self._kernels[launch.kernel].id))
            return
        if not outcome.is_whole:
            known.notes.append(f"checked the first {outcome.ran:,} of {outcome.programs:,} programs")
        for index, value in launch.written.items():
            if value is None:
                known.partial += 1
                self._makers[launch.arguments[index].data_ptr()] = launch.kernel
            else:
                self._makers.pop(launch.arguments[index].data_ptr(), None)
                known.checks.append(_comparison(launch, index, value, None if outcome.is_whole else before[index]))
        for maker in waiting if known.checks else ():  # partial results get the check of the final one
            self.found[maker].checks.append(known.checks[-1])
            self.found[maker].notes.append(f"it stores parts of a value; compared after {launch.kernel}")

    def _unchecked_makers(self, launch: Launch) -> list[str]:
        """Kernels that wrote partial results which this launch reads, and that have not been compared yet."""
        tensors = [argument for argument in launch.arguments if isinstance(argument, Tensor)]
        makers = dict.fromkeys(self._makers.get(tensor.data_ptr(), "") for tensor in tensors)
        return [name for name in makers if name and name != launch.kernel and not self.found[name].checks]

    def checks(self) -> Iterator[Check]:
        for name, found in self.found.items():
            yield _summary(self._kernels[name], found, self.inputs)


def _programs_to_run(launch: Launch) -> int | None:
    """Maximum number of programs to run; None for all, if the kernel has atomics or writes partial results."""
    whole = any(value is None for value in launch.written.values()) or "atomic_" in launch.source
    return None if whole else MOST_PROGRAMS


def _comparison(launch: Launch, index: int, value: Tensor, before: Tensor | None) -> Check:
    """Compare one buffer with eager's value; with `before`, only the elements that the launch has changed."""
    mine, name = launch.arguments[index], launch.names[index] or f"argument {index}"
    changed = _changed_elements(mine, before) if before is not None else torch.ones_like(mine, dtype=torch.bool)
    scope = replace(Scope.of_results(launch.written.values()), rounded_comparisons=True)
    check = judge(name, mine[changed], value[changed], scope=scope)
    if check.verdict != "differs":
        return check
    nearest = value
    for exact in launch.unrounded(index):
        if exact.shape == mine.shape:
            is_nearer = _distance(mine, exact) < _distance(mine, nearest)
            nearest = torch.where(is_nearer, exact.to(value.dtype), nearest)
    second = judge(name, mine[changed], nearest[changed], scope=replace(scope, narrowest=launch.narrowest()))
    return replace(second, note=_ROUNDED) if second.verdict != "differs" else check


def _distance(mine: Tensor, other: Tensor) -> Tensor:
    return (mine.double() - other.double()).abs()


def _changed_elements(now: Tensor, before: Tensor) -> Tensor:
    if now.dtype.is_floating_point:
        return ~((now == before) | (now.isnan() & before.isnan()))
    return (now != before) if now.dtype == torch.bool else (now != before) & (now != fill_value(now.dtype))


def _summary(kernel: Kernel, found: _Found, inputs: str) -> Check:
    """Summarize a kernel's comparisons as the worst one, with notes."""
    if not found.checks:
        note = "it stores parts of values that eager has not" if found.partial else "it stores nothing that is known"
        return Check(kernel.id, None, None, "not comparable", _join_notes([*found.notes, note]))
    most = worst(found.checks)
    count = len(found.checks)
    about = [f"{most.subject}, the worst of {count} buffers"] if count > 1 else [most.subject]
    calls = [f"the first of {kernel.calls} launches"] if kernel.calls > 1 else []
    failed = most.subject == kernel.id
    notes = [most.note] if failed else [*about, most.note, *calls]
    return replace(most, subject=kernel.id, note=_join_notes([*notes, *found.notes, inputs]))


def _join_notes(notes: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))
