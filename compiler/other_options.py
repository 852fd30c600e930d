"""The same call under other options: with another backend (`--vs`), and on the CPU to check it without its GPU."""

from __future__ import annotations

from dataclasses import replace

from compiler.calls.call import Call
from compiler.calls.explored import ExploreAgain, cannot_repeat
from compiler.record import Check, Problem, Record
from compiler.record.builder import Builder
from compiler.record.options import Options
from compiler.targets import target
from compiler.targets.destination import WRITERS


def explore_with_backend(builder: Builder, call: Call | None, explore_again: ExploreAgain) -> Record | None:
    """The record of the call with the backend of `vs`; None, and a Problem, where it can't be had."""
    asked = builder.options.vs
    if call is None:
        reason = f"there is no call to compile with {asked} too: the cell calls torch.compile itself"
        builder.problem(Problem("kernels", reason, "call the model or function itself, without torch.compile"))
        return None
    builder.start("kernels")
    builder.progress("kernels", f"the same call with backend {asked}")
    try:
        return explore_again(call, _options_of_other(builder.options, builder.target)).record
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        builder.problem(cannot_repeat(error, "kernels", f"the call could not be repeated with backend {asked}"))
        return None


def _options_of_other(options: Options, target: str) -> Options:
    """Options for the other backend, for the target of the first.

    Settings are the first backend's own and left out. It is timed in turns with the first, as one of its candidates.
    """
    own = replace(options, backend=options.vs, vs="", options={}, target=target, time=False, check=False, step=False)
    return own if options.vs in WRITERS else replace(own, mode="default")


def check_on_cpu(builder: Builder, call: Call, explore_again: ExploreAgain) -> None:
    """Add the checks of a compilation for the CPU to a record whose GPU is not here. A failure is a Problem."""
    builder.start("timing")
    options = builder.options
    try:
        found = explore_again(call, replace(options, target="cpu", stages=(), time=False, step=False)).record
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        builder.problem(cannot_repeat(error))
        return
    known = {entity.id for artifact in builder.artifacts.values() for entity in artifact.entities}
    gpu = target(options.target).title
    builder.checks.extend(_say_where_it_ran(check, gpu, known) for check in found.checks)
    for problem in found.problems:
        builder.problem(replace(problem, reason=f"in the check on the CPU: {problem.reason}"))


def _say_where_it_ran(check: Check, gpu: str, known: set[str]) -> Check:
    """Note in the check of the call what was run; leave out nodes that this record does not have."""
    if check.subject != "the call" or check.stage:
        return check if check.node in known else replace(check, node="")
    label = (
        f"numbers of the code for the CPU, as {gpu} is not here: check='kernels' (--check kernels) runs the kernels "
        "for it in Triton's interpreter"
    )
    return replace(check, note="; ".join(filter(None, [label, check.note])))
