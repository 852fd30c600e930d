"""`--vs`: what another backend makes of the same call, as a record of its own beside the first."""

from __future__ import annotations

from dataclasses import replace

from compiler.builder import Builder
from compiler.destination import WRITERS
from compiler.measure.calls import Call, unnoticed
from compiler.options import Options
from compiler.record import Problem, Record


def beside(builder: Builder, call: Call | None) -> Record | None:
    """The record of the other side. What can't be had is a problem, and the first side stands alone."""
    asked = builder.options.vs
    if call is None:
        reason = f"there is no call to compile with {asked} too: the cell calls torch.compile itself"
        builder.problem(Problem("kernels", reason, "call the model or function itself, without torch.compile"))
        return None
    builder.started("kernels")
    builder.progress("kernels", f"the same call with backend {asked}")
    try:
        return _explored(call, options_of(builder.options, builder.target))
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


def _explored(call: Call, options: Options) -> Record:
    from compiler.engine import Exploration  # it imports this

    with unnoticed(call):
        args, kwargs = call.copied_arguments()
        with Exploration(options, site=call.site) as exploration:
            exploration.compile(call.fn)(*args, **kwargs)
        return exploration.record
