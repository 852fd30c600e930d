"""Read the schedules of torch.distributed.pipelining."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from compiler.record.distributed_facts import PipelineSchedule, PipelineStep

_KINDS = ("F", "B", "I", "W")


def pipeline_schedules(fn: Callable[..., Any], values: Iterable[Any]) -> list[PipelineSchedule]:
    """The schedules that a function runs: its own object, an argument, or a variable that its code names."""
    module = sys.modules.get("torch.distributed.pipelining.schedules")  # not imported: no schedule exists
    if module is None:
        return []
    reached = [value for value in [*_reached(fn), *values] if isinstance(value, module._PipelineSchedule)]
    return [found for each in dict.fromkeys(reached) if (found := _schedule(each)) is not None]


def _reached(fn: Callable[..., Any]) -> Iterator[Any]:
    yield getattr(fn, "__self__", None)
    function = getattr(fn, "__func__", fn)
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    known = getattr(function, "__globals__", {})
    yield from (known[name] for name in names if name in known)


def _schedule(schedule: Any) -> PipelineSchedule | None:
    """A schedule as data; None if torch has no order for it."""
    order = schedule.pipeline_order
    if not order:
        return None
    stages = getattr(schedule, "_stages", None) or [schedule._stage]
    steps = tuple(_numbered_from_zero([*_steps(order[rank])]) for rank in sorted(order))
    name, rank = type(schedule).__name__.lstrip("_"), stages[0].group_rank
    return PipelineSchedule(name, schedule._num_stages, schedule._n_microbatches, rank, steps)


def _numbered_from_zero(steps: Sequence[PipelineStep]) -> tuple[PipelineStep, ...]:
    """The steps with the microbatches of each stage from 0; torch numbers the forwards of 1F1B's last rank from 1."""
    first: dict[tuple[int, str], int] = {}
    for step in steps:
        first[step.stage, step.kind] = min(step.microbatch, first.get((step.stage, step.kind), step.microbatch))
    return tuple(replace(step, microbatch=step.microbatch - first[step.stage, step.kind]) for step in steps)


def _steps(actions: Iterable[Any]) -> Iterator[PipelineStep]:
    """The computations among a rank's actions; two that overlap are listed one after the other."""
    for action in actions:
        if action is not None and getattr(action, "sub_actions", None):
            yield from _steps(action.sub_actions)
        elif action is not None and action.computation_type.value in _KINDS:
            yield PipelineStep(action.stage_index, action.computation_type.value, action.microbatch_index)
