"""Guards as a tree by argument."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import with_findings
from explorer.findings.guards import argument_parts, guards_finding
from explorer.render.finding import Finding

SCALE = 3


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * SCALE


@pytest.fixture(scope="module")
def record() -> Record:
    """A function compiled for four rows, then for any number of rows."""
    return explore(Scaled(), calls=[(torch.randn(4, 4),), (torch.randn(5, 4),)], stages=("captured",)).record


@pytest.fixture(scope="module")
def finding(record: Record) -> Finding:
    found = guards_finding(record)
    assert found is not None
    return found


def guards_of(branch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from branch["guards"]
    for below in branch["branches"]:
        yield from guards_of(below)


def branches_of(branch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield branch
    for below in branch["branches"]:
        yield from branches_of(below)


def test_every_guard_is_in_one_tree_and_line(record: Record, finding: Finding) -> None:
    shown = [
        guard["id"]
        for frame in finding.data["frames"]
        for side in ("own", "inside")
        for guard in guards_of(frame[side])
    ]
    assert sorted(shown) == sorted(f"guards.{guard.id}" for guard in record.guards)
    on_lines = [name for names in finding.artifact.lines.values() for name in names]
    assert sorted(on_lines) == sorted(shown)


def test_tree_branches_count_and_name_their_guards(record: Record, finding: Finding) -> None:
    names = {f"guards.{guard.id}": "".join(argument_parts(guard)) for guard in record.guards}
    for frame in finding.data["frames"]:
        for branch in [*branches_of(frame["own"]), *branches_of(frame["inside"])]:
            guards = list(guards_of(branch))
            assert branch["count"] == len(guards)
            assert all(names[guard["id"]].startswith(branch["name"]) for guard in guards)


def test_guards_order_arguments_globals_and_torch_state(finding: Finding) -> None:
    names = [branch["name"] for branch in finding.data["frames"][0]["own"]["branches"]]
    assert names[-1] == "torch and the process"
    assert names.index("x") < names.index("global SCALE")
    words = {guard["words"] for guard in guards_of(finding.data["frames"][0]["own"])}
    assert {"`x` is float32, contiguous, 4×4, on cpu", "global `SCALE` is the int 3"} <= words


def test_guard_that_rejected_a_call_says_so(finding: Finding) -> None:
    first, second = finding.data["frames"]
    failed = [guard["words"] for guard in guards_of(first["own"]) if guard["failed"]]
    assert failed == ["`x` is float32, contiguous, 4×4, on cpu"]
    assert (first["failed"], second["failed"]) == (1, 0)


def test_each_guard_has_its_measured_seconds(record: Record, finding: Finding) -> None:
    seconds = {f"guards.{guard.id}": guard.seconds for guard in record.guards}
    shown = {guard["id"]: guard["seconds"] for frame in finding.data["frames"] for guard in guards_of(frame["own"])}
    assert any(shown.values())
    assert shown == {name: seconds[name] for name in shown}


def test_symbolic_size_is_one_constraint(finding: Finding) -> None:
    (symbol,) = finding.data["frames"][1]["symbols"]
    assert symbol["range"].startswith("2 <= s")
    assert (symbol["source"], symbol["hint"]) == ("x.size(0)", 5)
    (why,) = symbol["whys"]
    assert why["words"].endswith(": 0 and 1 have code of their own; first used at")
    assert finding.data["frames"][0]["symbols"] == []


def test_guard_links_to_its_graph_input(record: Record) -> None:
    shown = with_findings(record)
    known = {entity.id: entity for entity in shown.entities()}
    (about_x,) = [
        guard
        for guard in record.guards
        if guard.frame == "0/0" and guard.kind == "TENSOR_MATCH" and guard.argument == "x"
    ]
    linked = shown.linked_ids(f"guards.{about_x.id}")
    assert [known[name].attrs["source"] for name in linked if known[name].kind == "placeholder"] == ["L['x']"]
