"""The view's cards of graph breaks, from functions that break."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import with_findings
from explorer.findings.breaks import breaks_finding
from explorer.render.finding import Finding
from tests.explorer.findings.documents import parts_of, words_of


def shout(y: torch.Tensor) -> torch.Tensor:
    print("rows", y.shape[0])  # noqa: T201 - this breaks the graph
    return y * 2


def three_breaks(x: torch.Tensor) -> torch.Tensor:
    h = shout(torch.relu(x))
    h = h / h.max().item()
    if h.mean() > 0.1:  # noqa: SIM108 - this is how people write it
        h = h + 1
    else:
        h = h - 1
    return left_alone(h) * 3


@torch.compiler.disable
def left_alone(h: torch.Tensor) -> torch.Tensor:
    return h.sum()


@pytest.fixture(scope="module")
def record() -> Record:
    return explore(three_breaks, torch.randn(8, 4), stages=("captured",)).record


@pytest.fixture(scope="module")
def finding(record: Record) -> Finding:
    found = breaks_finding(record)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def cards(finding: Finding) -> list[dict[str, Any]]:
    return parts_of(finding.data, "card")


def way_of(card: dict[str, Any]) -> list[dict[str, Any]]:
    return list(card["parts"][0]["steps"])


def meant(card: dict[str, Any]) -> dict[str, Any]:
    """The user's own line in the call chain."""
    (step,) = (step for step in way_of(card) if "how" not in step)
    return step


def marked(step: dict[str, Any]) -> str:
    code = step["code"]
    return "\n".join(text[first:last] for text, (first, last) in zip(code["lines"], code["marks"], strict=True))


def test_every_break_marks_its_exact_code(record: Record, cards: list[dict[str, Any]]) -> None:
    culprits = {f"breaks.{found.id}": found.chain[-1].code for found in record.breaks}
    assert [marked(meant(card)) for card in cards] == [culprits[card["ids"][0]] for card in cards]
    assert [marked(meant(card)) for card in cards][:3] == [
        'print("rows", y.shape[0])',
        "h.max().item()",
        "h.mean() > 0.1",
    ]


def test_break_in_a_callee_shows_the_call_chain(cards: list[dict[str, Any]]) -> None:
    assert [(step["function"], marked(step), "how" not in step) for step in way_of(cards[0])] == [
        ("three_breaks", "shout(torch.relu(x))", False),
        ("shout", 'print("rows", y.shape[0])', True),
    ]


def test_each_location_links_to_its_source_row(record: Record, cards: list[dict[str, Any]]) -> None:
    for card in cards:
        artifact, row = card["about"]["row"]
        assert record[artifact].text.splitlines()[row - 1].strip() == meant(card)["code"]["lines"][0]


def test_rewrite_is_shown_against_the_replaced_lines(cards: list[dict[str, Any]]) -> None:
    branch = parts_of(cards[2], "change")[0]
    assert [line.strip() for line in branch["old"]] == [
        "if h.mean() > 0.1:  # noqa: SIM108 - this is how people write it",
        "h = h + 1",
        "else:",
        "h = h - 1",
    ]
    assert [line.strip() for line in branch["new"]] == ["h = torch.where(h.mean() > 0.1, h + 1, h - 1)"]
    assert "torch._dynamo.config.capture_scalar_outputs = True" in parts_of(cards[1], "change")[1]["settings"]


def test_break_names_the_graphs_before_and_after(record: Record, cards: list[dict[str, Any]]) -> None:
    graphs = {artifact.id for artifact in record.of_stage("captured")}
    (flow,) = parts_of(cards[2], "flow")
    assert flow["before"]["open"] in graphs
    assert [after[0]["open"] in graphs for after in flow["after"]] == [True]
    assert flow["after"][0][1].startswith(" the rest of three_breaks, from line ")
    assert flow["across"] == "2 tensors, 129 B"


def test_selected_break_highlights_its_line_and_graph_end(record: Record) -> None:
    shown = with_findings(record)
    known = {entity.id: entity for entity in shown.entities()}
    (found,) = [found for found in record.breaks if "item()" in found.chain[-1].code]
    linked = shown.linked_ids(f"breaks.{found.id}")
    assert {known[name].label for name in linked if known[name].kind == "line"} == {"h = h / h.max().item()"}
    assert {name for name in linked if known[name].kind == "output"} == {f"{found.ended}.output"}


def test_uncompiled_function_shows_a_reason_without_breaks() -> None:
    def unchanged(h: torch.Tensor) -> torch.Tensor:
        return h

    found = breaks_finding(explore(unchanged, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    assert parts_of(found.data, "card") == []
    assert "Nothing was compiled:" in found.artifact.text
    assert "no operation on tensors" in words_of(parts_of(found.data, "items")[0]["items"])


def test_a_failure_with_fullgraph_has_the_same_card(cards: list[dict[str, Any]]) -> None:
    found = breaks_finding(explore(three_breaks, torch.randn(8, 4), stages=("captured",), fullgraph=True).record)
    assert found is not None
    (card,) = parts_of(found.data, "card")
    (flow,) = parts_of(card, "flow")
    assert (words_of(flow["after"]), card["about"], way_of(card)) == ("an error", cards[0]["about"], way_of(cards[0]))
    assert [change.get("new") for change in parts_of(card, "change")] == [
        change.get("new") for change in parts_of(cards[0], "change")
    ]
    assert parts_of(found.data, "section") == []


def test_breaks_of_one_place_share_a_card() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return shout(x) + shout(x + 1)

    found = breaks_finding(explore(twice, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    cards = parts_of(found.data, "card")
    ids = [name for card in cards for name in card["ids"]]
    assert ids == [entity.id for entity in found.artifact.entities]
    assert len(cards) < len(ids)
    assert "and here again in" in found.artifact.text


def unsure(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    torch._dynamo.graph_break()
    torch._dynamo.graph_break(msg="again")
    return torch.cos(y)


def test_break_without_a_next_graph_says_so() -> None:
    found = breaks_finding(explore(unsure, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    first, second = parts_of(found.data, "flow")
    assert words_of(first["after"][0]).startswith("no graph in")
    assert first["words"].startswith("Its next graph comes after another break. 1 op in the graph before, 1 op after")
    assert second["words"].startswith("The function resumes in a graph of its own.")
