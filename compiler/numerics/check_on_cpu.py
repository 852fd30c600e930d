"""`--check` without the target GPU: compile the same call for the CPU and check that."""

from __future__ import annotations

from dataclasses import replace

from compiler.calls.call import Call
from compiler.calls.explored import ExploreAgain
from compiler.record import Check, Problem
from compiler.record.builder import Builder
from compiler.record.options import Options
from compiler.targets import target


def check_apart(builder: Builder, call: Call, options: Options, explore_again: ExploreAgain) -> None:
    """Put the checks of a compilation for the CPU into a record; what can't be had is a problem of it."""
    builder.started("timing")
    try:
        on_cpu = replace(options, target="cpu", stages=(), time=False, step=False)
        found = explore_again(call, on_cpu).record
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        reason = f"the call could not be repeated: {type(error).__name__}: {error}"
        builder.problem(Problem("timing", reason, "explore a call that can run more than once"))
        return
    known = {entity.id for artifact in builder.artifacts.values() for entity in artifact.entities}
    gpu = target(options.target).title
    builder.checks.extend(_say_where_it_ran(check, gpu, known) for check in found.checks)
    for problem in found.problems:
        builder.problem(replace(problem, reason=f"in the check on the CPU: {problem.reason}"))


def _say_where_it_ran(check: Check, gpu: str, known: set[str]) -> Check:
    """Of the call: say what was run. A node is one of this record's only if that has it."""
    if check.subject != "the call" or check.stage:
        return check if check.node in known else replace(check, node="")
    label = (
        f"numbers of the code for the CPU, as {gpu} is not here: check='kernels' (--check kernels) runs the kernels "
        "for it in Triton's interpreter"
    )
    return replace(check, note="; ".join(filter(None, [label, check.note])))
