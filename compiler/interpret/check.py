"""`--check kernels`: every Triton kernel of an exploration, run in the interpreter on the real inputs, against eager.

One `Check` a kernel. Its first launch is checked, with all that it stores for which eager has a value; what is part of
a value (the first half of a split reduction, say) is checked where it is put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from compiler.interpret.inputs import Programs
from compiler.interpret.kept import KeptFrame
from compiler.interpret.launch import Outcome
from compiler.interpret.process import Interpreter
from compiler.interpret.program import Launch, ProgramError
from compiler.interpret.wrapper import untouched
from compiler.measure.check import compared
from compiler.record import Artifact, Check, Kernel, Record

MOST_PROGRAMS = 2000
"""So many programs of one launch are run where the others would not change them."""

_ORDER = ("equal", "close", "differs", "not comparable")
_ROUNDED_BOOLEANS = 1e-4
_ROUNDED = (
    "some numbers are those of float32 throughout: eager rounds to 16 bits on the way, the kernel only at the end"
)


def kernel_checks(record: Record, kept: Mapping[str, KeptFrame], interpreter: Interpreter) -> Iterator[Check]:
    """A `Check` for each Triton kernel of the record, as soon as it is known; `kept` is by capture ("0/0").

    Raises InterpreterError where the interpreter can't be started.
    """
    interpreter.start()
    for frame in dict.fromkeys(artifact.graph for artifact in record.of_stage("kernels")):
        artifacts = [artifact for artifact in record.of_stage("kernels") if artifact.graph == frame]
        programs = Programs(kept.get(frame), artifacts)
        for artifact in artifacts:
            kernels = [kernel for kernel in record.kernels if kernel.artifact == artifact.id and _is_triton(kernel)]
            if kernels and frame in kept and kept[frame].programs:
                from compiler.passes.check import own_checks  # it imports our own backend

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
        real = programs.of(artifact)
        checking.inputs = real.note
        real.program.run(checking.launch)
    except ProgramError as error:
        reason = str(error)
    yield from checking.checks()
    for kernel in kernels:
        if kernel.name not in checking.found:
            yield Check(kernel.id, None, None, "not comparable", reason)


@dataclass(slots=True)
class _Found:
    """What is known of one kernel: its comparisons, buffers without a value, and what stood in the way."""

    checks: list[Check] = field(default_factory=list)
    partial: int = 0
    notes: list[str] = field(default_factory=list)


class _Checking:
    """Makes the launches of one program, and compares."""

    def __init__(self, kernels: Mapping[str, Kernel], interpreter: Interpreter) -> None:
        self.inputs = ""
        self.found: dict[str, _Found] = {}
        self._kernels = kernels
        self._interpreter = interpreter
        self._makers: dict[int, str] = {}  # memory that holds a part of a value, and the kernel that wrote it

    def launch(self, launch: Launch) -> None:
        known_results = all(value is not None for value in launch.written.values())
        if launch.kernel in self.found and known_results and not self._waiting(launch):
            return  # its code has been checked, and nothing depends on its being run
        known, waiting = self.found.setdefault(launch.kernel, _Found()), self._waiting(launch)
        most = _most(launch)
        before = {index: launch.arguments[index].clone() for index in launch.written} if most else {}
        outcome = self._interpreter.run(launch.source, launch.function, launch.arguments, most=most)
        if outcome.error is not None:
            known.checks.append(_failed(self._kernels[launch.kernel].id, outcome))
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
        for maker in waiting if known.checks else ():  # parts are checked with what is made of them
            self.found[maker].checks.append(known.checks[-1])
            self.found[maker].notes.append(f"it stores parts of a value; compared after {launch.kernel}")

    def _waiting(self, launch: Launch) -> list[str]:
        """The kernels of which this launch reads parts, and of which nothing has been compared yet."""
        tensors = [argument for argument in launch.arguments if isinstance(argument, Tensor)]
        makers = dict.fromkeys(self._makers.get(tensor.data_ptr(), "") for tensor in tensors)
        return [name for name in makers if name and name != launch.kernel and not self.found[name].checks]

    def checks(self) -> Iterator[Check]:
        for name, found in self.found.items():
            yield _summary(self._kernels[name], found, self.inputs)


def _most(launch: Launch) -> int | None:
    """How many programs are to run: all where a part is of no use, as where programs add to the same memory."""
    whole = any(value is None for value in launch.written.values()) or "atomic_" in launch.source
    return None if whole else MOST_PROGRAMS


def _failed(subject: str, outcome: Outcome) -> Check:
    error = outcome.error
    assert error is not None
    where = f"line {error.line} of the kernel: " if error.line else ""
    verdict = "not comparable" if error.kind == "missing" or not error.line else "differs"
    return Check(subject, None, None, verdict, f"{where}{error.message}")


def _comparison(launch: Launch, index: int, value: Tensor, before: Tensor | None) -> Check:
    """One buffer against eager's value; with `before`, only elements that the launch has changed."""
    mine, name = launch.arguments[index], launch.names[index] or f"argument {index}"
    changed = _changed(mine, before) if before is not None else torch.ones_like(mine, dtype=torch.bool)
    check = _with_booleans(name, mine[changed], value[changed])
    if check.verdict != "differs":
        return check
    nearest = value
    for exact in launch.unrounded(index):
        if exact.shape == mine.shape:
            is_nearer = _distance(mine, exact) < _distance(mine, nearest)
            nearest = torch.where(is_nearer, exact.to(value.dtype), nearest)
    second = compared(name, mine[changed], nearest[changed], relative=True, computed_in=launch.narrowest())
    return replace(second, note=_ROUNDED) if second.verdict != "differs" else check


def _distance(mine: Tensor, other: Tensor) -> Tensor:
    return (mine.double() - other.double()).abs()


def _changed(now: Tensor, before: Tensor) -> Tensor:
    if now.dtype.is_floating_point:
        return ~((now == before) | (now.isnan() & before.isnan()))
    return (now != before) if now.dtype == torch.bool else (now != before) & (now != untouched(now.dtype))


def _with_booleans(name: str, mine: Tensor, value: Tensor) -> Check:
    """A comparison of rounded numbers may fall on the other side: few of them may differ."""
    check = compared(name, mine, value, relative=True)
    if mine.dtype != torch.bool or check.verdict != "differs":
        return check
    wrong = int((mine != value).sum())
    verdict = "close" if wrong <= _ROUNDED_BOOLEANS * mine.numel() else "differs"
    return replace(check, verdict=verdict, note=f"{wrong:,} of {mine.numel():,} are on the other side")


def _summary(kernel: Kernel, found: _Found, inputs: str) -> Check:
    """The worst of a kernel's comparisons, with what one should know."""
    if not found.checks:
        note = "it stores parts of values that eager has not" if found.partial else "it stores nothing that is known"
        return Check(kernel.id, None, None, "not comparable", _joined([*found.notes, note]))
    worst = max(found.checks, key=lambda check: (_ORDER.index(check.verdict), check.max_relative or 0.0))
    count = len(found.checks)
    about = [f"{worst.subject}, the worst of {count} buffers"] if count > 1 else [worst.subject]
    calls = [f"the first of {kernel.calls} launches"] if kernel.calls > 1 else []
    failed = worst.subject == kernel.id
    notes = [worst.note] if failed else [*about, worst.note, *calls]
    return replace(worst, subject=kernel.id, note=_joined([*notes, *found.notes, inputs]))


def _joined(notes: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))
