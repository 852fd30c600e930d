"""Read the schedules of torch.distributed.pipelining."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from compiler.record.distributed_facts import PipelineSchedule, PipelineStep
from compiler.torch_api.collectives import is_simulated
from compiler.torch_api.patching import Function, call_after, call_hidden, hide_frame, replace_attribute

_KINDS = ("F", "B", "I", "W")


def pipeline_schedules(fn: Callable[..., Any] | None, values: Iterable[Any]) -> list[PipelineSchedule]:
    """The schedules that a function runs: its own object, an argument, or a variable that its code names."""
    module = sys.modules.get("torch.distributed.pipelining.schedules")  # not imported: no schedule exists
    if module is None:
        return []
    reached = [value for value in [*_reachable_values(fn), *values] if isinstance(value, module._PipelineSchedule)]
    return [found for each in dict.fromkeys(reached) if (found := _schedule(each)) is not None]


@contextmanager
def decide_without_other_stages() -> Iterator[None]:
    """Let the stages of a simulated rank use the shapes that they were given, whatever the other ranks have.

    In torch 2.12 and 2.13, all stages vote on whether shapes have to be sent. A simulated rank sends votes, and gets
    none.
    """
    module = sys.modules.get("torch.distributed.pipelining.stage")
    kind = getattr(module, "PipelineStage", None)
    if not is_simulated() or not hasattr(kind, "_warmup_forward_vote"):
        yield
        return
    votes: dict[Any, Any] = {}

    def own_vote(stage: Any, has_backward: bool) -> Any:
        asks = module.InferenceMode.needs_dynamic(stage._user_meta, has_backward)  # type: ignore[union-attr]
        return torch.tensor([0 if asks else 1], dtype=torch.int32, device=stage.device)

    def make_vote(original: Function) -> Function:
        @hide_frame
        def vote(stage: Any, has_backward: bool, **others: Any) -> Any:
            original(stage, has_backward, **others)
            votes[stage] = call_hidden(own_vote, stage, has_backward)
            return votes[stage]

        return vote

    def make_result(original: Function) -> Function:
        @hide_frame
        def result(stage: Any, *vote: Any, **others: Any) -> Any:
            original(stage, *vote, **others)
            return votes[stage]

        return result

    with (
        replace_attribute(kind, "_warmup_forward_vote", make_vote),
        replace_attribute(kind, "_warmup_backward_result", make_result),
    ):
        yield


@contextmanager
def note_schedules(note: Callable[[Any], None]) -> Iterator[None]:
    """Call `note` for each schedule that is made in the block; the package must be imported before."""
    module = sys.modules.get("torch.distributed.pipelining.schedules")
    if module is None:
        yield
        return

    def note_made(_: None, schedule: Any, *_args: Any, **_options: Any) -> None:
        note(schedule)

    with replace_attribute(module._PipelineSchedule, "__init__", call_after(note_made)):
        yield


class RunningStep:
    """The step of a pipeline's schedule that runs now: its number, from 1, and 0 outside of steps."""

    def __init__(self) -> None:
        self.number = 0
        self._count = 0

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Count the steps of schedules in the block; no schedule can exist if their module is not imported."""
        module = sys.modules.get("torch.distributed.pipelining.schedules")
        with ExitStack() as stack:
            for kind in (module.PipelineScheduleSingle, module.PipelineScheduleMulti) if module is not None else ():
                stack.enter_context(replace_attribute(kind, "step", self._observe))
            yield

    def _observe(self, step: Function) -> Function:
        @hide_frame
        def run(*args: Any, **kwargs: Any) -> Any:
            call_hidden(self._begin)
            try:
                return step(*args, **kwargs)
            finally:
                call_hidden(self._end)

        return run

    def _begin(self) -> None:
        self._count += 1
        self.number = self._count

    def _end(self) -> None:
        self.number = 0


def _reachable_values(fn: Callable[..., Any] | None) -> Iterator[Any]:
    """The object that a method belongs to, and the values of variables that the function names."""
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
