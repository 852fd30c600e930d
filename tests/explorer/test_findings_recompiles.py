"""All compilations by call, and the cards of recompilations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import with_findings
from explorer.findings.recompiles import recompiles_finding
from explorer.render.finding import Finding


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@pytest.fixture(scope="module")
def storm() -> Record:
    """A module that counts its calls, called eleven times: torch allows for eight compilations."""
    x = torch.randn(3)
    return explore(Counting(), calls=[(x,)] * 11, stages=("captured",)).record


@pytest.fixture(scope="module")
def finding(storm: Record) -> Finding:
    found = recompiles_finding(storm)
    assert found is not None
    return found


def states(row: dict[str, Any]) -> list[str]:
    return [mark["state"] for marks in row["cells"] for mark in marks]


def test_a_storm_is_a_row_of_recompilations_up_to_the_limit(finding: Finding) -> None:
    (row,) = finding.data["rows"]
    assert states(row) == ["compiled", *["recompiled"] * 7, "limit", "plain"]
    assert [call["name"] for call in finding.data["calls"]] == [*map(str, range(1, 10)), "10-11"]
    assert {mark["blamed"] for marks in row["cells"][1:9] for mark in marks} == {"self.calls"}


def test_each_recompilation_in_the_row_leads_to_its_card(finding: Finding) -> None:
    (row,) = finding.data["rows"]
    led = [mark["id"] for marks in row["cells"] for mark in marks if mark["id"]]
    assert led == [name for card in finding.data["cards"] for name in card["ids"]]
    assert led == [entity.id for entity in finding.artifact.entities]


def test_a_card_has_old_beside_new_for_every_entry_the_closest_first(finding: Finding) -> None:
    card = finding.data["cards"][2]
    assert [entry["entry"] for entry in card["entries"]] == ["0/2", "0/1", "0/0"]
    assert [(item["about"], item["old"], item["new"]) for entry in card["entries"] for item in entry["failures"]] == [
        ("`self.calls`", f"the int {old}", "the int 3") for old in (2, 1, 0)
    ]
    assert card["blamed"] == card["entries"][0]["failures"][0]
    assert [graph["id"] for graph in card["graphs"]] == ["captured[0/2]", "captured[0/3]"]


def test_the_last_card_says_that_torch_gave_up(finding: Finding) -> None:
    *others, last = finding.data["cards"]
    assert "recompile_limit of 8 is reached; calls 9 to 11 ran as plain Python" in last["limit"]
    assert last["graphs"] is None
    assert not any(card["limit"] for card in others)


def test_a_recompilation_is_linked_to_the_guard_that_failed_and_so_to_its_line(storm: Record, finding: Finding) -> None:
    shown = with_findings(storm)
    known = {entity.id: entity for entity in shown.entities()}
    linked = shown.linked_ids(finding.artifact.entities[0].id)
    assert {known[name].label for name in linked if known[name].kind == "guard"} == {"`self.calls` is the int 0"}
    assert "self.calls += 1" in {known[name].label for name in linked if known[name].kind == "line"}


def test_calls_that_use_the_code_again_are_told_and_one_call_tells_nothing() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.randn(3)
    found = recompiles_finding(explore(double, calls=[(x,)] * 3, stages=("captured",)).record)
    assert found is not None
    assert [states(row) for row in found.data["rows"]] == [["compiled", "reused"]]
    assert [call["name"] for call in found.data["calls"]] == ["1", "2-3"]
    assert recompiles_finding(explore(double, x, stages=("captured",)).record) is None
