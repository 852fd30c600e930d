"""Run the user's call with other graphs in place of compiled code.

Everything between the graphs runs as usual: Python after a graph break, AOTAutograd's wrapper around the halves, and
autograd from one graph to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.numerics.call_results import CallResults, results
from compiler.numerics.compiled_random import drawing
from compiler.numerics.stage_runs import NotComparableError
from compiler.torch_api.aot import Boxed
from compiler.torch_api.buffers import Kind
from compiler.triton_interpreter.reference import Reference, Unknown


def with_captured_graphs(call: Call, kept: Mapping[str, KeptFrame]) -> CallResults:
    """Results of the call with the captured graphs in place of compiled code."""
    with replace_graph_calls(kept, {name: _run_captured(frame) for name, frame in kept.items()}):
        return results(call, call.compiled)


def with_own_draws(call: Call, kept: Mapping[str, KeptFrame]) -> CallResults:
    """Results of the call, run with the graphs from which code was generated and with that code's random numbers.

    Raises NotComparableError if the code draws on a GPU, or was not generated from these graphs.
    """
    with ExitStack() as stack:
        for frame in kept.values():
            runs = {kind: _run_boxed(run) for kind, run in drawing(frame).items()}
            if frame.halves.keys() != runs.keys() or call.devices() - {"cpu"}:
                raise NotComparableError("the random numbers of its code are not known")
            stack.enter_context(_replace_halves(frame, runs))
        return results(call, call.compiled)


@contextmanager
def replace_graph_calls(kept: Mapping[str, KeptFrame], calls: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace calls of compiled graphs by `call(compiled, *arguments)` during a block."""
    try:
        for name, call in calls.items():
            kept[name].around = call
        yield
    finally:
        for frame in kept.values():
            frame.around = None


@contextmanager
def _replace_halves(frame: KeptFrame, runs: Mapping[Kind, Boxed]) -> Iterator[None]:
    """Replace the compiled halves of a capture during a block."""
    try:
        for kind, half in frame.halves.items():
            half.instead = runs[kind]
        yield
    finally:
        for half in frame.halves.values():
            half.instead = None


def _run_boxed(runs: Callable[[], Reference]) -> Boxed:
    """A callable that runs a graph on the CPU, with boxed arguments like compiled code."""

    def half(arguments: list[Any]) -> list[Any]:
        inputs = [*arguments]
        arguments.clear()
        with torch.no_grad(), _no_autocast():
            return _require_values(runs().run(*inputs))

    return half


def _require_values(values: Sequence[Any]) -> list[Any]:
    unknown = next((value for value in values if isinstance(value, Unknown)), None)
    if unknown is not None:
        raise NotComparableError(unknown.reason)
    return list(values)


def _run_captured(frame: KeptFrame) -> Callable[..., Any]:
    assert frame.eager is not None
    eager = frame.eager
    return lambda _compiled, *args: eager(*args)


@contextmanager
def _no_autocast() -> Iterator[None]:
    """Disable autocast during a block: graphs after capture already contain its casts."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
