"""The cards of graph breaks as the view gets them, made of functions that break."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import with_findings
from explorer.findings.breaks import breaks_finding
from explorer.render.finding import Finding


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
    return list(finding.data["cards"])


def marked(spot: dict[str, Any]) -> str:
    return "\n".join(text[first:last] for text, (first, last) in zip(spot["code"], spot["marks"], strict=True))


def test_every_break_has_the_exact_piece_of_code_marked(record: Record, cards: list[dict[str, Any]]) -> None:
    culprits = {f"breaks.{found.id}": found.chain[-1].code for found in record.breaks}
    assert [marked(card["at"]) for card in cards] == [culprits[card["ids"][0]] for card in cards]
    assert [marked(card["at"]) for card in cards][:3] == [
        'print("rows", y.shape[0])',
        "h.max().item()",
        "h.mean() > 0.1",
    ]


def test_a_break_in_a_call_has_the_way_there(cards: list[dict[str, Any]]) -> None:
    assert [(step["function"], marked(step), step["main"]) for step in cards[0]["chain"]] == [
        ("three_breaks", "shout(torch.relu(x))", False),
        ("shout", 'print("rows", y.shape[0])', True),
    ]


def test_each_place_leads_to_its_row_in_the_source(record: Record, cards: list[dict[str, Any]]) -> None:
    for card in cards:
        artifact, row = card["at"]["place"]
        assert record[artifact].text.splitlines()[row - 1].strip() == card["at"]["code"][0]


def test_a_rewrite_stands_against_the_lines_it_replaces(cards: list[dict[str, Any]]) -> None:
    branch = cards[2]["changes"][0]
    assert [line.strip() for line in branch["old"]] == [
        "if h.mean() > 0.1:  # noqa: SIM108 - this is how people write it",
        "h = h + 1",
        "else:",
        "h = h - 1",
    ]
    assert [line.strip() for line in branch["new"]] == ["h = torch.where(h.mean() > 0.1, h + 1, h - 1)"]
    assert "torch._dynamo.config.capture_scalar_outputs = True" in cards[1]["changes"][1]["settings"]


def test_a_break_says_which_graph_it_ended_and_which_go_on(record: Record, cards: list[dict[str, Any]]) -> None:
    graphs = {artifact.id for artifact in record.of_stage("captured")}
    branch = cards[2]
    assert branch["before"]["id"] in graphs
    assert [after["graph"]["id"] in graphs for after in branch["after"]] == [True]
    assert branch["after"][0]["words"].startswith("the rest of three_breaks, from line ")
    assert branch["crossing"] == "2 tensors, 129 B"


def test_selecting_a_break_lights_its_lines_and_the_end_of_its_graph(record: Record) -> None:
    shown = with_findings(record)
    known = {entity.id: entity for entity in shown.entities()}
    (found,) = [found for found in record.breaks if "item()" in found.chain[-1].code]
    linked = shown.linked_ids(f"breaks.{found.id}")
    assert {known[name].label for name in linked if known[name].kind == "line"} == {"h = h / h.max().item()"}
    assert {name for name in linked if known[name].kind == "output"} == {f"{found.ended}.output"}


def test_where_nothing_is_compiled_the_reason_is_told_and_no_break() -> None:
    def unchanged(h: torch.Tensor) -> torch.Tensor:
        return h

    found = breaks_finding(explore(unchanged, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    assert found.data["cards"] == []
    assert "Nothing was compiled:" in found.artifact.text
    assert any("no operation on tensors" in note["words"] for note in found.data["notes"])


def test_a_failure_with_fullgraph_has_the_same_card(cards: list[dict[str, Any]]) -> None:
    found = breaks_finding(explore(three_breaks, torch.randn(8, 4), stages=("captured",), fullgraph=True).record)
    assert found is not None
    (card,) = found.data["cards"]
    assert (card["outcome"], card["at"], card["chain"]) == ("error", cards[0]["at"], cards[0]["chain"])
    assert [change["new"] for change in card["changes"]] == [change["new"] for change in cards[0]["changes"]]
    assert found.data["notes"] == []


def test_breaks_of_one_place_share_a_card() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return shout(x) + shout(x + 1)

    found = breaks_finding(explore(twice, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    ids = [name for card in found.data["cards"] for name in card["ids"]]
    assert ids == [entity.id for entity in found.artifact.entities]
    assert len(found.data["cards"]) < len(ids)
    assert "and here again in" in found.artifact.text


def unsure(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    torch._dynamo.graph_break()
    torch._dynamo.graph_break(msg="again")
    return torch.cos(y)


def test_what_goes_on_without_a_graph_is_not_said_to_have_one() -> None:
    found = breaks_finding(explore(unsure, torch.randn(3), stages=("captured",)).record)
    assert found is not None
    first, second = found.data["cards"]
    assert first["after"][0]["graph"] is None
    assert first["words"].startswith("Its next graph comes after another break. 1 op in the graph before, 1 op after")
    assert second["words"].startswith("The function resumes in a graph of its own.")
