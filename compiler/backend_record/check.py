"""`--check kernels` for our own backend: compare each Triton kernel with the reference interpreter.

Kernels run in Triton's interpreter, on the arguments of the explored call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from compiler.backend_record.rerun import Launched, launches
from compiler.binary.sources import constants_of, grid_of, launch_of, own_source
from compiler.calls.kept_graphs import KeptFrame
from compiler.numerics.policy.judge import Scope, judge, worst
from compiler.record import Artifact, Check, Kernel
from compiler.triton_interpreter.kernel_inputs import own_copies
from compiler.triton_interpreter.process import Interpreter
from compiler.triton_interpreter.program import ProgramError

MOST_PROGRAMS = 4000
"""Maximum number of programs of a launch: larger launches take too long in the interpreter."""


def own_checks(
    artifact: Artifact, kernels: Sequence[Kernel], frame: KeptFrame, interpreter: Interpreter
) -> Iterator[Check]:
    """Yield a check of each kernel of an artifact. Raises InterpreterError if the interpreter can't be started."""
    kind: Any = artifact.half
    known = {kernel.name: kernel for kernel in kernels}
    why = "it was not launched"
    waiting: tuple[Check, Launched, Sequence[Any]] | None = None
    try:
        for name, launch in launches(frame, kind):
            if waiting is not None:
                yield _compare(*waiting)
            waiting = _run_kernel(artifact, known.pop(name), launch, interpreter) if name in known else None
    except ProgramError as error:
        why = str(error)
    if waiting is not None:
        yield _compare(*waiting)
    yield from (Check(kernel.id, None, None, "not comparable", why) for kernel in known.values())


def _run_kernel(
    artifact: Artifact, kernel: Kernel, launch: Launched, interpreter: Interpreter
) -> tuple[Check, Launched, Sequence[Any]]:
    """Run a kernel on copies of its arguments; returns a check, the launch and the copies.

    The check reports errors of the run only; the results are compared later.
    """
    how: Mapping[str, Any] = launch_of(artifact, kernel)
    mine, grid = own_copies(launch.arguments), grid_of(how, 0)
    if prod(grid) > MOST_PROGRAMS:
        note = f"{prod(grid):,} programs take the interpreter long: explore a smaller call"
        return Check(kernel.id, None, None, "not comparable", note), launch, mine
    source = own_source(artifact, kernel)
    outcome = interpreter.run_plain(source, kernel.name, mine, how["types"], constants_of(how, 0), grid)
    ran = Check(kernel.id, None, None, "equal", launch.note)
    return ran if outcome.error is None else outcome.error.as_check(kernel.id), launch, mine


def _compare(check: Check, launch: Launched, mine: Sequence[Any]) -> Check:
    """Compare a kernel's results with the reference interpreter's; returns the check of the worst result."""
    if check.verdict != "equal":
        return check
    scope = Scope.of_results(launch.arguments[place] for place in launch.written)
    found = worst(
        judge(launch.names[place], mine[place], launch.arguments[place], scope=scope) for place in launch.written
    )
    note = "; ".join(filter(None, (found.subject, found.note, launch.note)))
    return replace(found, subject=check.subject, note=note)
