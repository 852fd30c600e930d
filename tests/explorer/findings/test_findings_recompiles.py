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
from tests.explorer.findings.documents import parts_of, words_of


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


@pytest.fixture(scope="module")
def storm() -> Record:
    """A module that counts its calls, called eleven times: torch allows eight compilations."""
    x = torch.randn(3)
    return explore(Counting(), calls=[(x,)] * 11, stages=("captured",)).record


@pytest.fixture(scope="module")
def finding(storm: Record) -> Finding:
    found = recompiles_finding(storm)
    assert found is not None
    return found


def rows_of(finding: Finding) -> list[list[dict[str, Any]]]:
    """The marks of each row of the timeline."""
    table = next(iter(parts_of(finding.data, "table")))
    return [[mark for cell in row["cells"][1:] for mark in parts_of(cell, "link")] for row in table["rows"]]


def calls_of(finding: Finding) -> list[str]:
    return list(map(words_of, next(iter(parts_of(finding.data, "table")))["head"][1:]))


def test_repeated_recompiles_are_one_row_to_the_limit(finding: Finding) -> None:
    (row,) = rows_of(finding)
    assert [mark["style"] for mark in row] == ["compiled", *["recompiled"] * 7, "limit", "plain"]
    assert calls_of(finding) == [*map(str, range(1, 10)), "10-11"]
    assert {mark["detail"] for mark in row[1:9]} == {"self.calls"}


def test_each_recompile_links_to_its_card(finding: Finding) -> None:
    (row,) = rows_of(finding)
    led = [mark["id"] for mark in row if "id" in mark]
    assert led == [name for card in parts_of(finding.data, "card") for name in card["ids"]]
    assert led == [entity.id for entity in finding.artifact.entities]


def test_cause_has_one_card_with_every_recompile(storm: Record, finding: Finding) -> None:
    (card,) = parts_of(finding.data, "card")
    (lead,) = (text["words"] for text in parts_of(card, "text") if text.get("style") == "lead")
    assert words_of(lead).startswith("`self.calls` the int 0 → the int 1")
    again = next(table for table in parts_of(card, "table") if table.get("caption") == "and again")
    assert [words_of(row["cells"][0]) for row in again["rows"]] == [found.frame for found in storm.recompiles[1:]]
    assert [words_of(row["cells"][2]).startswith(f"`self.calls` the int {number}") for number, row in
            enumerate(again["rows"], 1)] == [True] * 7  # fmt: skip
    assert [link["compare"] for link in parts_of(card, "link") if "compare" in link] == [
        (f"captured[0/{number}]", f"captured[0/{number + 1}]") for number in (1, 2, 3, 4, 5, 6, 0)
    ]


def test_card_compares_every_entry_closest_first() -> None:
    def scaled(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    x = torch.randn(3)
    calls = [(x, 1), (x.double(), 1), (x.double(), 2)]
    record = explore(scaled, calls=calls, stages=("captured",)).record
    found = recompiles_finding(record)
    assert found is not None
    *_, card = parts_of(found.data, "card")
    tables = parts_of(card, "table")
    assert [table["caption"] for table in tables] == ["code of 0/1 does not fit", "code of 0/0 does not fit"]
    assert words_of(tables[0]["rows"][0]["cells"][0]) == "`factor`"
    assert "float64" in words_of(tables[1]["rows"][0]["cells"][1])


def test_card_reports_the_recompile_limit(finding: Finding) -> None:
    (card,) = parts_of(finding.data, "card")
    (warning,) = (text["words"] for text in parts_of(card, "text") if text.get("style") == "warning")
    assert "recompile_limit of 8 is reached; calls 9 to 11 ran as plain Python" in warning


def test_recompile_links_to_its_failed_guard_and_line(storm: Record, finding: Finding) -> None:
    shown = with_findings(storm)
    known = {entity.id: entity for entity in shown.entities()}
    linked = shown.linked_ids(finding.artifact.entities[0].id)
    assert {known[name].label for name in linked if known[name].kind == "guard"} == {"`self.calls` is the int 0"}
    assert "self.calls += 1" in {known[name].label for name in linked if known[name].kind == "line"}


def test_reused_code_is_shown_single_call_is_not() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    x = torch.randn(3)
    found = recompiles_finding(explore(double, calls=[(x,)] * 3, stages=("captured",)).record)
    assert found is not None
    assert [[mark["style"] for mark in row] for row in rows_of(found)] == [["compiled", "reused"]]
    assert calls_of(found) == ["1", "2-3"]
    assert recompiles_finding(explore(double, x, stages=("captured",)).record) is None
