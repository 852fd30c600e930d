"""Results and side effects of calls, and the one comparison that decides whether a change leaves them as they are.

Results and gradients are compared by the numerics policy. Output, logs, warnings, and the contents of the user's
objects are compared too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compiler.advise.trial import Result, agreement, results_of
from compiler.calls.state import State
from compiler.numerics.policy.judge import judge
from compiler.torch_api.apart import keep_saved_tensors
from compiler.torch_api.pytrees import tree_leaves, tree_structure
from compiler.xray.outside import STOPS, Heard, unheard
from compiler.xray.substitution import PREFIX

_NUMBERS = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
_GRAD_FN = re.compile(r",\s+(grad_fn=<\w+>|requires_grad=True)")
Said = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Outcome:
    """Results and side effects of one or several calls.

    `results` includes gradients. `said` is the output, as pairs of kind and text. `held` are the contents of the user's
    objects by name. `raised` describes the exception, "" if there was none.
    """

    results: Sequence[Result] = ()
    said: Said = ()
    held: Mapping[str, Any] = field(default_factory=dict)
    raised: str = ""


def run_and_hear(calls: Sequence[Callable[[], Any]], roots: Sequence[tuple[str, Any]]) -> Outcome:
    """Run calls and return their results, gradients, output, and the contents of the objects in `roots`.

    An error ends the run. Gradients are those of the sum of all differentiable results of one call.
    """
    heard, state, results, raised = Heard(), State.of(roots), list[Result](), ""
    with unheard(heard), keep_saved_tensors():
        try:
            for number, call in enumerate(calls, 1):
                mine = _results_and_gradients(call(), state.tensors())
                results += [replace(each, name=f"{each.name} of call {number}") for each in mine]
        except STOPS as error:
            raised = f"{type(error).__name__}: {error}"
    return Outcome(results, tuple(heard.said), _contents_of(State.of(roots)), raised)


def _contents_of(state: State) -> dict[str, Any]:
    """The user's tensors and plain values in a state's objects, and whether the tensors require grad, by name."""
    tensors = ((name, value) for name, value in state.objects if isinstance(value, torch.Tensor))
    found = state.values() | {f"{name}.requires_grad": value.requires_grad for name, value in tensors}
    return {name: value for name, value in found.items() if not name.startswith(PREFIX)}


def _results_and_gradients(value: Any, leaves: Sequence[torch.Tensor]) -> list[Result]:
    """The results of a call, their structure, and gradients.

    If the call ran the backward pass itself, so that there is none left, torch's error takes the gradients' place.
    """
    outputs = [each for number, leaf in enumerate(tree_leaves(value)) for each in _contents(f"output {number}", leaf)]
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    structure = f"{tree_structure(value)}, requires_grad: {[each.requires_grad for each in tensors]}"
    outputs.append(Result("structure", structure))
    try:
        gradients = _gradients(tensors, leaves)
    except RuntimeError as error:
        return [*outputs, Result("gradient", str(error).partition("\n")[0])]
    return [*outputs, *results_of((), gradients)]


def _contents(name: str, leaf: Any) -> Iterator[Result]:
    """Yield a tensor or plain value as a result; of any other object, the tensors and plain values in it."""
    if isinstance(leaf, torch.Tensor):
        yield Result(name, leaf.detach().clone())
    elif isinstance(leaf, str | bytes | int | float | complex | bool | None):
        yield Result(name, leaf)
    else:
        yield from (Result(*each) for each in State.of([(name, leaf)], largest=0).values().items())


def _gradients(results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradient of the sum of all differentiable results for each leaf; None for a leaf without gradient."""
    floats = [each.float().sum() for each in results if each.is_floating_point() and each.grad_fn is not None]
    if floats:
        torch.stack(floats).sum().backward(retain_graph=True)
    return [None if leaf.grad is None else leaf.grad.detach().clone() for leaf in leaves]


def compare_outcomes(first: Outcome, second: Outcome, mine: Outcome) -> tuple[str, str]:
    """The difference in results or side effects of a changed run `mine`, and a difference in the order of output only.

    Each is "" if there is none. `first` and `second` are two runs of the unchanged program; differences between these
    two are ignored.
    """
    if mine.raised != first.raised:
        return f"the call raises {mine.raised or 'nothing, where it raised'}".splitlines()[0], ""
    verdict, words = agreement(*_steady_results(first.results, second.results, mine.results))
    if verdict == "differs":
        return words, ""
    if held := next(iter(_differences_held(first.held, second.held, mine.held)), ""):
        return held, ""
    texts, again, mine_texts = (_remove_grad_fn(each.said) for each in (first, second, mine))
    said, mine_said = (_mask_numbers(texts, again, each) for each in (texts, mine_texts))
    if said == mine_said:
        return "", ""
    if texts != again:
        said, mine_said = _mask_all_numbers(texts), _mask_all_numbers(mine_texts)
    if said != mine_said and sorted(_lines(said)) == sorted(_lines(mine_said)):
        return "", "what it prints, logs and warns of comes in another order"
    return "it prints, logs or warns of something else", ""


def _steady_results(
    first: Sequence[Result], second: Sequence[Result], mine: Sequence[Result]
) -> tuple[Sequence[Result], Sequence[Result]]:
    """The results of the first run and of the changed one, without those that differ between two unchanged runs."""
    if first is second or len(first) != len(second) or len(first) != len(mine):
        return first, mine
    pairs = zip(first, second, mine, strict=True)
    steady = [(old, new) for old, again, new in pairs if agreement([old], [again])[0] != "differs"]
    return [old for old, _ in steady], [new for _, new in steady]


def _lines(said: Said) -> list[tuple[str, str]]:
    return [(kind, line) for kind, text in said for line in text.splitlines()]


def _remove_grad_fn(said: Said) -> Said:
    """Output without the grad_fn of tensors: those that compiled code prints have none."""
    return tuple((kind, _GRAD_FN.sub("", text)) for kind, text in said)


def _mask_numbers(first: Said, second: Said, said: Said) -> list[tuple[str, str]]:
    """Mask the numbers in a call's output that differ between two unchanged runs, for example times.

    If these runs differ in more than numbers, all numbers are masked.
    """
    if first == second:
        return list(said)
    if _mask_all_numbers(first) != _mask_all_numbers(second):
        return _mask_all_numbers(said)
    pairs = zip(_numbers(first), _numbers(second), strict=True)
    varying = {at for at, (number, other) in enumerate(pairs) if number != other}
    count = itertools.count()
    return [(kind, _NUMBERS.sub(lambda m: "#" if next(count) in varying else m[0], text)) for kind, text in said]


def _numbers(said: Said) -> list[str]:
    return [match[0] for _, text in said for match in _NUMBERS.finditer(text)]


def _mask_all_numbers(said: Said) -> list[tuple[str, str]]:
    return [(kind, _NUMBERS.sub("#", text)) for kind, text in said]


def _differences_held(first: Mapping[str, Any], second: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    """Describe attributes and items with changed values, except for those that differ between unchanged runs too."""
    for name, value in first.items():
        if name not in mine:
            yield f"`{name}` is not there"
            continue
        steady = name in second and judge(name, second[name], value).verdict != "differs"
        if type(mine[name]) is not type(value):
            yield f"`{name}` was a {type(value).__name__}, is a {type(mine[name]).__name__}"
        elif steady and judge(name, mine[name], value).verdict == "differs":
            yield f"`{name}` is another"
    owners = {name.rpartition(".")[0] for name in first}
    added = (name for name in mine if name not in first and name not in second)
    yield from (f"`{name}` is new" for name in added if name.rpartition(".")[0] in owners)
