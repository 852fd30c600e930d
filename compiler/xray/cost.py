"""The cost of a program with and without a change: graphs, breaks, operations, guards, kernels and milliseconds."""

from __future__ import annotations

import io
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace

import torch
from torch.fx import GraphModule

from compiler.calls.call import Call
from compiler.capture.sources import is_installed
from compiler.record import ProgramCost, Record
from compiler.record.break_facts import BreakFacts
from compiler.torch_api import dynamo
from compiler.torch_api.compilations import CompileKey
from compiler.torch_api.ddp_buckets import Bucket
from compiler.torch_api.guards import GuardTree
from compiler.torch_api.patching import Function, call_instead, replace_attribute
from compiler.xray.bench import Bench, repeatable, restore_before
from compiler.xray.outside import STOPS, inside_the_process
from compiler.xray.search import Search
from compiler.xray.substitution import Change, Program

WARM_UPS, ROUNDS = 3, 11
"""Numbers of repetitions of all calls before they are timed, and while they are."""


class _Counter(dynamo.BreakCounter):
    """Counts graphs, lines that break, operations and guards of compiled calls."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs = self.operations = self.guards = 0
        self.lines: set[tuple[str, int | None]] = set()

    def on_break(self, _key: CompileKey, facts: BreakFacts) -> None:
        """Count the line of a break once, as torch's log does.

        The log tells of a skipped frame too; in a library, it is a function of its own that has no graph to break.
        """
        frame = facts.stack[-1] if facts.stack else None
        file, line = (frame.filename, frame.lineno) if frame else ("", None)
        if not (facts.skips and is_installed(file)):
            self.lines.add((file, line))

    def on_graph(self, key: CompileKey, module: GraphModule, run: Function, bucket: Bucket | None) -> Function:
        """Count a graph and its operations."""
        self.graphs += 1
        self.operations += sum(node.op.startswith("call_") for node in module.graph.nodes)
        return super().on_graph(key, module, run, bucket)

    def on_guards(self, _key: CompileKey, tree: GuardTree) -> None:
        """Count the guards of one compilation."""
        self.guards += len(tree.guards)


def with_kernels(cost: ProgramCost | None, record: Record | None) -> ProgramCost | None:
    """The cost with the numbers of kernels and launches of a record; as it is if the record has no kernels."""
    if cost is None or record is None or not record.kernels:
        return cost
    own = [kernel for kernel in record.kernels if kernel.variant == record.kernels[0].variant]
    return replace(cost, kernels=len(own), launches=sum(kernel.calls for kernel in own))


@contextmanager
def _silent() -> Iterator[None]:
    """Hide output in the block. Unlike `unheard`, do not replace functions that TorchDynamo traces."""
    unread = io.StringIO()
    with (
        inside_the_process(),
        redirect_stdout(unread),
        redirect_stderr(unread),
        replace_attribute(logging.Logger, "callHandlers", call_instead(lambda *_: None)),
    ):
        yield


def cost_of(search: Search, change: Change) -> ProgramCost | None:
    """The cost of all calls with a change, compiled in order; None if a call raises or writes outside of the process.

    No site is replaced by a value: the counts are those of the program as the user would run it.
    """
    counter = _Counter()
    try:
        with dynamo.observe(counter), _compile_with_change(search, change, "eager") as run:
            run()
    except STOPS:
        return None
    return ProgramCost(counter.graphs, len(counter.lines), counter.operations, counter.guards)


def milliseconds_of(search: Search, change: Change) -> float | None:
    """Median time of all calls together with a change, compiled for the explored backend; None if a call raises."""
    try:
        with _compile_with_change(search, change, search.record.options.backend) as run:
            for _ in range(WARM_UPS):
                run()
            return 1e3 * statistics.median(run() for _ in range(ROUNDS))
    except STOPS:
        return None


@contextmanager
def _compile_with_change(search: Search, change: Change, backend: str) -> Iterator[Callable[[], float]]:
    """Yield a function that makes all calls with a change, compiled, and returns the seconds that they took."""
    program = Program(search.functions, {}, change.edits, change.definitions)
    calls = (search.call, *search.call.later)
    with ExitStack() as stack:
        stack.enter_context(program.with_stand_ins({}))
        stack.enter_context(change.apply_settings())
        compiled = Bench(search.call, lambda: None).compile_function(backend)
        restore = stack.enter_context(repeatable(*calls))

        def run() -> float:
            restore()
            return sum(_seconds_of(call, compiled, Bench(call, restore, search.limit)) for call in calls)

        yield run


def _seconds_of(call: Call, compiled: Function, bench: Bench) -> float:
    restore_before(call)
    with _silent(), bench.in_its_modes():
        _wait_for_gpu()
        start = time.perf_counter()
        compiled(*call.args, **call.kwargs)
        _wait_for_gpu()
        return time.perf_counter() - start


def _wait_for_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
