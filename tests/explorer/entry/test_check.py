"""explorer.check: breaks and recompilations fail a test, with cards that give location, cause and fix."""

from __future__ import annotations

import pytest
import torch

import explorer
from compiler.record import GuardFailure, Recompile, Record
from compiler.record.options import Options
from explorer.findings.cards import all_cards, recompile_texts
from explorer.run.run import Run

X = torch.ones(4)


def whole(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def inner(x: torch.Tensor) -> torch.Tensor:
    print("inside")  # noqa: T201
    return x * 3


def broken(x: torch.Tensor) -> torch.Tensor:
    y = inner(torch.relu(x) + 1)
    return y.exp()


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


def test_function_without_breaks_passes_and_returns_the_run() -> None:
    run = explorer.check(whole, X)
    assert isinstance(run, Run)
    assert torch.equal(run.value, whole(X))
    assert [artifact.stage for artifact in run.record.artifacts] == ["source", "captured"]


def test_a_break_fails_with_its_card() -> None:
    with pytest.raises(explorer.CheckError) as caught:
        explorer.check(broken, X)
    text = str(caught.value)
    assert text.startswith("broken: 1 site, 2 graph breaks, 0 allowed")
    line = inner.__code__.co_firstlineno + 1
    expected = f"""\
graph break 1 of 1, 2 times: Failed to trace builtin operator (GB0059)
  tests/explorer/entry/test_check.py:{line}:5 in inner
      print("inside")
  called in tests/explorer/entry/test_check.py:{broken.__code__.co_firstlineno + 1}  inner(torch.relu(x) + 1)
  and here again in 1/0
  `print("inside")` writes to the terminal, which a graph can't.
  The function resumes in a graph of its own. 2 ops in the graph before, 1 op after; 1 tensor (16 B)
  handed back to Python.
  change (machine-applicable): Print from inside the graph.
      tests/explorer/entry/test_check.py, line {line}:
      + torch._higher_order_ops.print('inside')  # noqa: T201
  or (explanation): Print after the compiled function has returned.
  https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0059.html"""
    assert expected in text
    assert str(all_cards(caught.value.run.record)) in text.partition("\n\n")[2]


def test_allowed_number_of_breaks_passes() -> None:
    assert len(explorer.check(broken, X, breaks=2).record.breaks) == 2


def test_recompilations_are_counted_over_all_calls() -> None:
    calls = [(X, 2), (torch.ones(6), 3)]
    assert len(explorer.check(scaled, calls=calls, recompiles=1).record.recompiles) == 1
    with pytest.raises(explorer.CheckError) as caught:
        explorer.check(scaled, calls=calls)
    text = str(caught.value)
    assert text.startswith("scaled: 1 recompilation, 0 allowed")
    for words in (
        "recompilation 1 of 1: scaled (",
        "shape of `x`",
        "call 2, in tests/explorer/entry/test_check.py:",
        "code of 0/0 does not fit:",
        "size of `x` in dimension 0 was 4, is now 6",
        "`n` was the int 2, is now the int 3",
        "torch._dynamo.mark_dynamic(x,",
    ):
        assert words in text


def test_uncompiled_function_fails() -> None:
    def idle(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(explorer.CheckError, match="nothing was compiled: idle: there is no operation on tensors in it"):
        explorer.check(idle, X)


def test_fullgraph_fails_with_the_same_card() -> None:
    with pytest.raises(explorer.CheckError, match=r"torch\.compile raises here: nothing is compiled"):
        explorer.check(broken, X, fullgraph=True)


def test_errors_of_the_function_are_raised_unchanged() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        explorer.check(wrong, X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((X,), {"calls": [(X,)]}), "it got both"),
        (((), {"calls": [X]}), r"each of `calls` is a tuple of arguments, like \(x,\); got Tensor"),
    ],
)
def test_invalid_calls_are_refused(arguments: tuple, message: str) -> None:
    positional, named = arguments
    with pytest.raises(TypeError, match=message):
        explorer.explore(whole, *positional, **named)


def test_break_in_a_loop_skips_the_whole_function() -> None:
    def looping(x: torch.Tensor) -> torch.Tensor:
        for n in range(2):
            x = x + n
            print(n)  # noqa: T201
        return x

    text = str(all_cards(explorer.explore(looping, X, stages=("captured",)).record))
    assert "The whole function runs as plain Python (a graph break in loop)." in text


def test_cards_print_and_can_be_indexed() -> None:
    run = explorer.explore(broken, X, stages=("captured",))
    assert str(run.cards) == repr(run.cards) == str(all_cards(run.record))
    assert run.cards[0].startswith("graph break 1 of 1, 2 times: Failed to trace builtin operator")
    assert str(explorer.explore(whole, X, stages=("captured",)).cards) == "no graph breaks and no recompilations"


def test_equal_guard_failures_are_shown_once() -> None:
    failures = [
        GuardFailure("0/0", "training mode", f"self.layers.{n}.training", "True", "False", f"`layers.{n}` was, is")
        for n in range(12)
    ]
    other = GuardFailure("0/0", "dtype", "x", "float32", "float64", "dtype of `x` was float32, is now float64")
    found = Recompile("recompile[0/1]", "0/1", "f", "cell", 1, (), failures=(*failures, other))
    (card,) = recompile_texts(Record("", Options(), recompiles=(found,)))
    told = [line.strip() for line in card.splitlines()[2:]]
    assert told == ["`layers.0` was, is", "and so for 11 more: run.recompiles has all", other.words]
