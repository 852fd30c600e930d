"""Profile a fresh copy of a call, with code built for its tensors' device, and add the times to a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from compiler.calls.call import Call
from compiler.calls.copies import copy_call
from compiler.calls.explored import ExploreAgain, Explored, cannot_repeat
from compiler.record import KernelTime, LineTime, Problem, Record
from compiler.record.builder import Builder
from compiler.record.options import Options
from compiler.timing.one_process import check_one_process
from compiler.timing.profile import Profile, kernel_and_line_times

WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes with CUDA graphs, and the same modes without: a replay does not show which call launched a kernel."""
Optimizer = Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]


def profile_in_place(builder: Builder, call: Call, files: Mapping[str, str]) -> None:
    """Profile a call within its exploration, after its code was built. A failure is added to the record as a problem.

    Calls that replay CUDA graphs are skipped; `profile_copy` handles them.
    """
    if builder.target == "cuda" and builder.options.mode in WITHOUT_GRAPHS:
        return
    _put(builder, lambda: kernel_and_line_times(call, builder.record(), files))


def profile_copy(builder: Builder, call: Call, explore_again: ExploreAgain) -> None:
    """Profile a copy of a call, with its code built, and add the times to the record under construction."""
    _put(builder, lambda: profile_again(call, builder.record(), explore_again))


def _put(builder: Builder, profile: Callable[[], Profile]) -> None:
    builder.start("timing")
    builder.progress("timing", "profile of kernels and lines")
    try:
        found = profile()
    except KeyboardInterrupt:
        builder.problem(
            Problem("timing", "kernels and lines were not timed: it was interrupted", "run.timing.profile() does it")
        )
        return
    except Exception as error:  # noqa: BLE001 - whatever the user's call raises when it is repeated
        builder.problem(cannot_repeat(error, what="kernels and lines were not timed"))
        return
    builder.kernel_times[:] = found.kernel_times
    builder.line_times[:] = found.line_times
    for problem in found.problems:
        builder.problem(problem)


def profile_again(
    call: Call, record: Record, explore_again: ExploreAgain, optimizer: Optimizer | None = None
) -> Profile:
    """Explore a fresh copy of the call, with its code built and without CUDA graphs, and profile it.

    Times are matched to the record's kernels. Without the target GPU no kernel matches, because C++ code runs instead.
    Raises OptionError in a job of ranks, CannotCopyError, and any exception of the call.
    """
    check_one_process(call)
    fresh = copy_call(call)
    step = optimizer(fresh.parameters()).step if optimizer is not None else None
    found: list[Profile] = []

    def profile(explored: Explored) -> None:
        assert explored.call is not None
        times = kernel_and_line_times(explored.call, explored.record, explored.files, step)
        found.append(_Matched(record, explored.record).profile(times))

    again = replace(call, fn=fresh.fn, args=fresh.args, kwargs=fresh.kwargs, later=())
    explore_again(again, _options(record), build=True, inside=profile)
    return found[0]


def _options(record: Record) -> Options:
    target = record.options.target if record.target == "cuda" else "cpu"
    mode = WITHOUT_GRAPHS.get(record.options.mode, record.options.mode)
    return replace(record.options, target=target, mode=mode, stages=(), time=False, check=False, step=False)


class _Matched:
    """Maps the times of a copy to ids of the original call's record."""

    def __init__(self, record: Record, found: Record) -> None:
        own = {key: name for name, key in _identities(record).items()} if record.target == found.target else {}
        self._same = {name: own[key] for name, key in _identities(found).items() if key in own}
        self._entities = {entity.id for entity in record.entities()}

    def profile(self, profile: Profile) -> Profile:
        lines: dict[LineTime, list[LineTime]] = {}
        for time in profile.line_times:
            known = replace(time, line=self._line(time.line))
            lines.setdefault(replace(known, seconds=0.0, total=0.0), []).append(known)
        return Profile(
            tuple(map(self._kernel_time, profile.kernel_times)),
            tuple(_sum_times(times) for times in lines.values()),
            profile.problems,
        )

    def _kernel_time(self, time: KernelTime) -> KernelTime:
        time = replace(time, lines=tuple(filter(None, map(self._line, time.lines))))
        if time.kernel not in self._same:
            return replace(time, kernel="", call="", nodes=())
        nodes = tuple(node for node in time.nodes if node in self._entities)
        return replace(time, kernel=self._same[time.kernel], call=self._same.get(time.call, ""), nodes=nodes)

    def _line(self, line: str) -> str:
        """Id of a line in the record, "" if the record does not have it."""
        return line if line in self._entities else ""


def _identities(record: Record) -> dict[str, tuple[object, ...]]:
    """Keys that identify a kernel or kernel call across wrappers, because CUDA graphs split a wrapper into functions.

    A kernel's key is its artifact, name, text and index; a call's key is its artifact, label and index.
    """
    texts = {artifact.id: artifact.text.splitlines() for artifact in record.of_stage("kernels")}
    keys: dict[str, tuple[object, ...]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for kernel in record.kernels:
        first, last = kernel.lines
        key = (kernel.artifact, kernel.name, *(line.strip() for line in texts[kernel.artifact][first - 1 : last]))
        keys[kernel.id] = (*key, counts[key])
        counts[key] += 1
    for artifact in record.of_stage("kernels"):
        for entity in artifact.entities:
            if entity.kind == "call":
                call = (artifact.id, entity.kind, entity.label)
                keys[entity.id] = (*call, counts[call])
                counts[call] += 1
    return keys


def _sum_times(times: Sequence[LineTime]) -> LineTime:
    """Add the times of one line; for unknown lines, the total is the own time."""
    seconds = sum(time.seconds for time in times)
    return replace(times[0], seconds=seconds, total=sum(time.total for time in times) if times[0].line else seconds)
