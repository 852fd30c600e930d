"""`--check kernels` for our own backend: each Triton kernel, run by Triton's interpreter on what the explored call
gives it, against the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from compiler.binary.own_kernels import constants_of, grid_of, launch_of, own_source
from compiler.interpret.kept import KeptFrame
from compiler.interpret.kernel_inputs import own_copies
from compiler.interpret.process import Interpreter
from compiler.interpret.program import ProgramError
from compiler.measure.check import compared
from compiler.passes.rerun import Launched, launches
from compiler.record import Artifact, Check, Kernel

MOST_PROGRAMS = 4000
"""A launch of more takes the interpreter too long."""
_WORST = ("equal", "close", "differs")


def own_checks(
    artifact: Artifact, kernels: Sequence[Kernel], frame: KeptFrame, interpreter: Interpreter
) -> Iterator[Check]:
    """A check of each kernel of an artifact. Raises InterpreterError where the interpreter can't be started."""
    kind: Any = artifact.id.rstrip("]").split(" ")[1]  # kernels[0/0 forward], kernels[0/0 forward Triton]
    known = {kernel.name: kernel for kernel in kernels}
    why = "it was not launched"
    waiting: tuple[Check, Launched, Sequence[Any]] | None = None
    try:
        for name, launch in launches(frame, kind):
            if waiting is not None:
                yield _against(*waiting)
            waiting = _ran(artifact, known.pop(name), launch, interpreter) if name in known else None
    except ProgramError as error:
        why = str(error)
    if waiting is not None:
        yield _against(*waiting)
    yield from (Check(kernel.id, None, None, "not comparable", why) for kernel in known.values())


def _ran(
    artifact: Artifact, kernel: Kernel, launch: Launched, interpreter: Interpreter
) -> tuple[Check, Launched, Sequence[Any]]:
    """The kernel run on copies. The check is of what it did wrong by itself: its numbers are still to be compared."""
    how: Mapping[str, Any] = launch_of(artifact, kernel)
    mine, grid = own_copies(launch.arguments), grid_of(how, 0)
    if prod(grid) > MOST_PROGRAMS:
        note = f"{prod(grid):,} programs take the interpreter long: explore a smaller call"
        return Check(kernel.id, None, None, "not comparable", note), launch, mine
    source = own_source(artifact, kernel)
    outcome = interpreter.run_plain(source, kernel.name, mine, how["types"], constants_of(how, 0), grid)
    if outcome.error is None:
        return Check(kernel.id, None, None, "equal", launch.note), launch, mine
    where = f"line {outcome.error.line} of the kernel: " if outcome.error.line else ""
    verdict = "not comparable" if outcome.error.kind == "missing" or not where else "differs"
    return Check(kernel.id, None, None, verdict, f"{where}{outcome.error.message}"), launch, mine


def _against(check: Check, launch: Launched, mine: Sequence[Any]) -> Check:
    """With the worst of what it stores, once the reference interpreter has stored it too."""
    if check.verdict != "equal":
        return check
    found = [
        compared(launch.names[place], mine[place], launch.arguments[place], relative=True) for place in launch.written
    ]
    worst = max(found, key=lambda item: (_WORST.index(item.verdict), item.max_relative or 0.0))
    note = "; ".join(filter(None, (worst.subject, worst.note.replace("eager", "the interpreter"), launch.note)))
    return replace(worst, subject=check.subject, note=note)
