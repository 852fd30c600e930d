"""Try advice on communication by simulation: explore again with the change, and compare what the rank sends."""

from __future__ import annotations

from compiler.advise.facts import Advice
from compiler.advise.trial import CannotApplyError, changed_options
from compiler.calls.call import Call
from compiler.calls.explored import ExploreAgain
from compiler.record import Record, Traffic
from compiler.record.measure_facts import Trial
from compiler.record.options import Options
from compiler.timing.overlap import schedules


def simulate_trial(advice: Advice, record: Record, call: Call, explore_again: ExploreAgain) -> Trial:
    """Explore the call with a change. Raises ValueError for advice without one, CannotApplyError if that fails."""
    if advice.change is None or not advice.change.can_be_tried:
        raise ValueError(f"there is nothing to try: {advice.title!r} is to be done by hand")
    changed = explore_with(record, call, changed_options(record.options, advice.change), explore_again)
    before, after = traffic_of(record), traffic_of(changed)
    expected = advice.gain.seconds if advice.gain is not None else None
    return Trial(advice.id, expected=expected, traffic_before=before, traffic_after=after)


def explore_with(record: Record, call: Call, options: Options, explore_again: ExploreAgain) -> Record:
    """Explore the call of a record with other options, for the same target. Raises CannotApplyError."""
    own = Options(
        **{name: getattr(options, name) for name in ("mode", "dynamic", "fullgraph", "backend", "options", "grad")},
        target=record.target,
        stages=("post_grad", "fused_ir", "ir", "kernels", "forward", "backward", "inference"),
    )
    try:
        found = explore_again(call, own).record
    except Exception as error:
        raise CannotApplyError(f"the call raises {type(error).__name__} with the change: {error}") from error
    if problem := next((each for each in found.problems if each.stage in ("post_grad", "kernels", "ir")), None):
        raise CannotApplyError(problem.reason)
    return found


def traffic_of(record: Record) -> Traffic:
    """What a rank sends in one step: collectives, bytes, and estimated times; no times if a call's time is unknown."""
    found, calls = schedules(record), len(record.collectives)
    size = sum(each.bytes for each in record.collectives)
    if not found or any(schedule.unknown for schedule in found):
        return Traffic(calls, size)
    sent = sum(schedule.busy("communication") for schedule in found)
    exposed, whole = (sum(getattr(each, name) for each in found) for name in ("exposed_seconds", "seconds"))
    return Traffic(calls, size, sent, exposed, whole)
