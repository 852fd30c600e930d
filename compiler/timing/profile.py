"""Profile one call with torch.profiler, eager and compiled: seconds of each kernel and each Python line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from compiler.calls.call import Call, leave_no_trace
from compiler.record import Artifact, KernelTime, LineTime, Problem, Record
from compiler.record.measure_facts import Side
from compiler.targets import known_target
from compiler.timing import marks
from compiler.timing.kernel_times import Kernels, compiled_times, eager_times, line_times
from compiler.timing.line_chains import works
from compiler.timing.marks import MarkedLines, line_id
from compiler.timing.spent import Trace, phase, profile_events
from compiler.timing.spread import Spread
from compiler.torch_api import autograd_nodes
from compiler.torch_api.pytrees import tree_leaves

WARM_UP_CALLS = 3
MOST_CALLS = 10
FEWEST_CALLS = 3
SECONDS = 1.0
"""Target duration of all profiled calls, eager and compiled; their number has a minimum and a maximum."""


NOISY = 0.5
"""Interquartile range of the calls' times, relative to their median, above which a problem is added."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Times from the profiler; `problems` describe missing times."""

    kernel_times: tuple[KernelTime, ...] = ()
    line_times: tuple[LineTime, ...] = ()
    problems: tuple[Problem, ...] = ()


def kernel_and_line_times(
    call: Call, record: Record, files: Mapping[str, str], optimizer: Callable[[], object] | None = None
) -> Profile:
    """Profile the call, compiled and eager: forward, backward if there is one, and an optimizer step if given.

    Times are medians of several calls. `record` is the record of this call; `files` maps source paths to names in it.
    RNG state and buffers are restored; gradients are kept only for an optimizer. Raises any exception of the call.
    """
    gpu = record.target == "cuda" or "cuda" in call.devices()
    lines = MarkedLines(files, _call.__code__)
    artifacts = [each for each in record.of_stage("kernels") if _makes_calls(each)]
    with ExitStack() as stack:
        stack.enter_context(leave_no_trace(call))
        args, kwargs = call.copied_arguments()
        compiled = _Step("compiled", call.compiled, args, kwargs, nullcontext(), optimizer)
        compiled()  # the first call loads the generated code, which is marked next
        found = stack.enter_context(marks.mark_calls(artifacts))
        args, kwargs = call.copied_arguments()
        eager = _Step("eager", call.fn, args, kwargs, lines, optimizer)
        calls = _calls([compiled, eager])
        events = profile_events(lambda: _in_turns([compiled, eager]), calls, gpu=gpu)
    outer = tuple(line_id(files[site.file], site.line) for site in call.site if site.file in files)
    chains = [tuple(dict.fromkeys((*outer, *chain))) for chain in lines.chains]
    kernels = Kernels(record, known_target(torch.cuda.get_device_name()) if gpu else None)
    traced = Trace(events, "compiled", marks.CALL_MARK, calls, gpu=gpu, whole=True)
    placed = compiled_times(traced, kernels, works(record))
    eagerly = Trace(events, "eager", marks.LINE_MARK, calls, gpu=gpu)
    placed += eager_times(eagerly, chains)
    missing = [artifact.id for artifact in artifacts if artifact.id not in found]
    problems = (*_missing_problems(missing), *_noise(traced), *_noise(eagerly))
    return Profile(tuple(time for time, _ in placed), line_times(placed), problems)


def _makes_calls(artifact: Artifact) -> bool:
    """Whether an artifact has a function that calls kernels; our backend has a separate artifact for this function."""
    return any(entity.kind in ("call", "extern") for entity in artifact.entities)


@dataclass(frozen=True)
class _Step:
    """One step to profile. `around` is a context manager for the forward."""

    side: Side
    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    around: AbstractContextManager[Any]
    optimizer: Callable[[], object] | None

    def __call__(self) -> None:
        with phase(self.side, "forward"), self.around:
            value = _call(self.fn, self.args, self.kwargs)
        roots = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        behind = map(autograd_nodes.leaf_of, autograd_nodes.nodes_behind(root.grad_fn for root in roots))
        leaves = [leaf for leaf in behind if leaf is not None]
        if leaves:
            given = [torch.ones_like(root) for root in roots]
            with phase(self.side, "backward"):
                gradients = torch.autograd.grad(roots, leaves, given, allow_unused=True)
            if self.optimizer is not None:
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    leaf.grad = gradient
        if self.optimizer is not None:
            with phase(self.side, "optimizer"):
                self.optimizer()


def _in_turns(steps: Sequence[_Step]) -> None:
    for step in steps:
        step()


def _calls(steps: Sequence[_Step]) -> int:
    """Warm up, and return the number of calls to profile on each side."""
    for _ in range(WARM_UP_CALLS):
        _in_turns(steps)
    begun = time.perf_counter()
    _in_turns(steps)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return min(MOST_CALLS, max(FEWEST_CALLS, int(SECONDS / (time.perf_counter() - begun))))


def _call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function in a separate frame, from which the chains of the user's lines begin."""
    return fn(*args, **kwargs)


def _missing_problems(missing: Sequence[str]) -> Iterator[Problem]:
    if missing:
        reason = f"the code of {', '.join(missing)} was not found among what is loaded: its kernels have no times"
        yield Problem("timing", reason, "explore the call again with --time")


def _noise(trace: Trace) -> Iterator[Problem]:
    """Yield a problem if the profiled calls varied too much."""
    totals = [0.0] * trace.calls
    for each in trace.spent_times():
        totals[each.call] += each.seconds
    spread = Spread.of_numbers(totals)
    if spread.middle and spread.relative > NOISY:
        varied = f"{100 * spread.relative:.0f} %"
        reason = f"the profiled {trace.side} calls varied by {varied}: times of kernels and lines are rough"
        yield Problem("timing", reason, "let nothing else run on the machine, and profile again: run.timing.profile()")
