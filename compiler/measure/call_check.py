"""The user's own call: compiled against eager, and the captured graph against eager.

What the graph's inputs and outputs are in the call is known by identity, from the compiled call, which is listened to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from compiler.decompose.graphs import CHECKPOINTED, autocast, is_checkpointed
from compiler.decompose.numbers import numbers
from compiler.interpret.kept import KeptFrame
from compiler.interpret.reference import copied
from compiler.measure.calls import Call, unnoticed
from compiler.measure.check import compared
from compiler.measure.stage_words import not_comparable, stage_check
from compiler.record import Check
from compiler.torch_api.pytrees import tree_leaves

_MORE = "the call is more than this graph: run as it is, the graph stands for eager in what follows"


@dataclass(frozen=True, slots=True)
class CallResults:
    """The tensors that a call gives, and the gradients of the sum of those that want one, by tensor of the call."""

    outputs: Sequence[Tensor]
    gradients: Sequence[Tensor | None]

    def named(self) -> list[tuple[str, Tensor]]:
        outputs = [(f"output {index}", output.detach()) for index, output in enumerate(self.outputs)]
        gradients = [(f"gradient {index}", found) for index, found in enumerate(self.gradients) if found is not None]
        return outputs + gradients


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A call of a compiled graph: its arguments, copies of them from before, and what it gave."""

    frame: str
    arguments: Sequence[Any]
    copies: Sequence[Any]
    results: Sequence[Any]


def checks(call: Call, kept: Mapping[str, KeptFrame]) -> tuple[Check, ...]:
    """One `Check` for each output and each gradient of the sum of the outputs; and for each format of those, one for
    the graph that was captured, run as it is with the same inputs and random numbers.

    A call that draws random numbers is not comparable: Inductor draws others than eager does, by design
    (`torch._inductor.config.fallback_random`).
    """
    with unnoticed(call):
        before = torch.random.get_rng_state()
        eager = _results(call, compiled=False)
        draws = not torch.equal(before, torch.random.get_rng_state())
        heard: list[GraphCall] = []
        with _hearing(kept, heard):
            mine = _results(call, compiled=True)
        torch.random.set_rng_state(before)
        captured = _captured_checks(call, kept, heard, eager, mine, draws)
    if draws:
        return (Check("outputs", None, None, "not comparable", "the call draws random numbers"), *captured)
    pairs = zip(mine.named(), eager.named(), strict=True)
    return (*(compared(name, own, theirs) for (_, own), (name, theirs) in pairs), *captured)


def _results(call: Call, *, compiled: bool) -> CallResults:
    args, kwargs = call.copied_arguments()
    value = (call.compiled if compiled else call.fn)(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return CallResults(outputs, _gradients(call, outputs))


def _gradients(call: Call, outputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
    roots = [output.sum() for output in outputs if output.requires_grad]
    inputs = call.tensors()
    return torch.autograd.grad(roots, inputs, allow_unused=True) if roots and inputs else ()


@contextmanager
def _hearing(kept: Mapping[str, KeptFrame], heard: list[GraphCall]) -> Iterator[None]:
    """Put the calls of compiled graphs in the block into `heard`."""

    def hears(frame: str) -> Callable[..., Any]:
        def around(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            copies = [copied(value) for value in args]
            results = run(*args, **kwargs)
            heard.append(GraphCall(frame, args, copies, tree_leaves(results)))
            return results

        return around

    for name, frame in kept.items():
        frame.around = hears(name)
    try:
        yield
    finally:
        for frame in kept.values():
            frame.around = None


def _captured_checks(
    call: Call, kept: Mapping[str, KeptFrame], heard: Sequence[GraphCall], eager: CallResults, mine: CallResults,
    draws: bool,
) -> tuple[Check, ...]:  # fmt: skip
    places = _places(heard[0], mine) if len(heard) == 1 else None
    if places is None:
        return tuple(not_comparable("captured", graph, _MORE) for graph in dict.fromkeys(item.frame for item in heard))
    (graph_call,) = heard
    module = kept[graph_call.frame].captured
    if draws and module is not None and is_checkpointed(module):
        return (not_comparable("captured", graph_call.frame, CHECKPOINTED),)
    try:
        own = _captured_results(call, kept[graph_call.frame], graph_call, places)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = f"it can't be run as it is: {type(error).__name__}: {error}"
        return (not_comparable("captured", graph_call.frame, reason),)
    found = numbers(_all(own), _all(eager))
    return tuple(stage_check(item, "captured", graph_call.frame) for item in found)


def _places(graph_call: GraphCall, mine: CallResults) -> list[int] | None:
    """Which results of the graph the call's outputs are; None where one is not."""
    places = {id(value): place for place, value in enumerate(graph_call.results)}
    found = [places.get(id(output)) for output in mine.outputs]
    return None if None in found else [place for place in found if place is not None]


def _captured_results(call: Call, kept: KeptFrame, graph_call: GraphCall, places: Sequence[int]) -> CallResults:
    """The captured graph's results as those of the call. Gradients of what it does not take are none."""
    assert kept.captured is not None
    arguments = [_wanting(copy, value) for copy, value in zip(graph_call.copies, graph_call.arguments, strict=True)]
    with autocast(kept):
        given = tree_leaves(kept.captured(*arguments))
    outputs = [given[place] for place in places]
    roots = [output.sum() * times for output, times in _counted(outputs) if output.requires_grad]
    owned = {id(value): place for place, value in enumerate(graph_call.arguments)}
    wanted = [owned.get(id(tensor)) for tensor in call.tensors()]
    leaves = [arguments[place] for place in wanted if place is not None]
    found = iter(torch.autograd.grad(roots, leaves, allow_unused=True) if roots and leaves else [None] * len(leaves))
    gradients = [next(found) if place is not None else None for place in wanted]
    return CallResults(outputs, gradients if roots else ())


def _counted(outputs: Sequence[Tensor]) -> Iterator[tuple[Tensor, int]]:
    """Each output once, with how often it is given."""
    times = Counter(id(output) for output in outputs)
    yield from ((output, times[key]) for key, output in {id(output): output for output in outputs}.items())


def _wanting(copy: Any, value: Any) -> Any:
    is_trained = isinstance(value, Tensor) and value.requires_grad
    return copy.to(value.device).requires_grad_() if is_trained else copy


def _all(results: CallResults) -> list[tuple[str, Any]]:
    outputs = [(f"output {index}", output.detach()) for index, output in enumerate(results.outputs)]
    return outputs + [(f"gradient {index}", found) for index, found in enumerate(results.gradients)]
