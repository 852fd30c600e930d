"""Breaks are counted by site and recompilations by cause, with the number of compilations, in every view."""

from __future__ import annotations

import pytest
import torch

from compiler.advise import advise
from compiler.engine import Exploration, explore
from compiler.record import Record
from compiler.record.options import Options
from explorer.findings.advice.words import gain_words
from explorer.findings.cards import all_cards
from explorer.run.payload import Payload
from explorer.run.static_view import twin
from explorer.run.text import summary
from tests.compiler.broken import function

LOOPED = """
def f(x, n):
    y = x * n
    print("between")
    return y + 1
"""


def recorded() -> Record:
    original = function(LOOPED)
    with Exploration(Options(stages=("captured",))) as exploration:
        compiled = exploration.compile(original)
        for dtype in (torch.float32, torch.float64, torch.float16):
            compiled(torch.ones(4, dtype=dtype), 2)
    return exploration.record


def test_sites_and_causes_are_counted_first() -> None:
    record = recorded()
    assert (len(record.breaks), len(record.recompiles)) == (3, 4)
    text, html, manifest = summary(record), twin(record), Payload(record).manifest()
    chips = {stage["name"]: (stage["count"], stage["unit"]) for stage in manifest["stages"]}
    assert chips["breaks"] == (1, "site, 3 breaks")
    assert chips["recompiles"] == (2, "causes, 4 recompilations")
    assert manifest["counts"] == {"breaks": "1 site, 3 graph breaks", "recompiles": "2 causes, 4 recompilations"}
    for told in ("1 site, 3 graph breaks", "2 causes, 4 recompilations"):
        assert told in text
        assert told in html
    cards = all_cards(record)
    assert [card.splitlines()[0].partition(":")[0] for card in cards] == [
        "graph break 1 of 1, 3 times",
        "recompilation 1 of 2, 2 times",
        "recompilation 2 of 2, 2 times",
    ]
    assert "and again: 0/2 in call 3, dtype of `x`" in cards[1]


def test_problem_links_to_the_card_of_its_break() -> None:
    original = function("def f(x):\n    y = x + 1\n    for n in range(2):\n        print(n)\n    return y\n")
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(original)(torch.ones(4))
    record = exploration.record
    assert "print(run.cards[0])" in summary(record)
    assert "its card is number 1 under the graph breaks above" in twin(record)
    problems = [problem for stage in Payload(record).manifest()["stages"] for problem in stage["problems"]]
    assert [problem["card"] for problem in problems] == [f"breaks.{record.breaks[0].id}"]


EVICTS = """
def f(x):
    y = x + 1
    print("one")
    y = y * 2
    for n in range(2):
        print(n)
        y = y.sin()
    return y
"""


def test_advice_ranks_breaks_by_lines_left_in_python() -> None:
    record = explore(function(EVICTS), (torch.ones(4),), options=Options(target="h100")).record
    first, second, *others = advise(record)
    assert [first.rule, second.rule] == ["break", "break"]
    assert first.plain_lines >= second.plain_lines > 0 == sum(advice.plain_lines for advice in others)
    assert gain_words(first.gain) == "gain not known"
    assert not any("at least" in gain_words(advice.gain) for advice in advise(record))


def test_no_advice_counts_no_findings() -> None:
    record = explore(lambda x: x.sin() + 1, (torch.ones(4),), options=Options(stages=("captured",))).record
    assert [advice.title for advice in advise(record)] == ["Nothing to change"]
    (chip,) = [stage for stage in Payload(record).manifest()["stages"] if stage["name"] == "advice"]
    assert (chip["count"], chip["unit"]) == (0, "findings")


@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_graph_returning_its_input_has_nothing_to_compute(target: str) -> None:
    record = explore(lambda x: x.contiguous(), (torch.ones(4),), options=Options(target=target)).record
    (problem,) = record.problems
    assert problem.reason.startswith("there is nothing to compute")
    assert "backend" not in problem.reason + problem.hint
