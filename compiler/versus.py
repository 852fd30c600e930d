"""`--vs`: what another backend makes of the same call, as a record of its own beside the first."""

from __future__ import annotations

from dataclasses import replace

from compiler.calls.call import Call
from compiler.calls.explored import ExploreAgain
from compiler.record import Problem, Record
from compiler.record.builder import Builder
from compiler.record.options import Options
from compiler.targets.destination import WRITERS


def beside(builder: Builder, call: Call | None, explore_again: ExploreAgain) -> Record | None:
    """The record of the other side. What can't be had is a problem, and the first side stands alone."""
    asked = builder.options.vs
    if call is None:
        reason = f"there is no call to compile with {asked} too: the cell calls torch.compile itself"
        builder.problem(Problem("kernels", reason, "call the model or function itself, without torch.compile"))
        return None
    builder.started("kernels")
    builder.progress("kernels", f"the same call with backend {asked}")
    try:
        return explore_again(call, options_of(builder.options, builder.target)).record
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        reason = f"the call could not be repeated with backend {asked}: {type(error).__name__}: {error}"
        builder.problem(Problem("kernels", reason, "explore a call that can run more than once"))
        return None


def options_of(options: Options, target: str) -> Options:
    """Those of the other side: the same, but for settings, which are the first backend's own. It is timed in turns with
    the first, as a candidate of that, and its code is for what the first one's is for.
    """
    own = replace(options, backend=options.vs, vs="", options={}, target=target, time=False, check=False, step=False)
    return own if options.vs in WRITERS else replace(own, mode="default")
