"""Guards as a tree by argument."""

from __future__ import annotations

import pytest
import torch

from compiler.record import Record
from explorer import explore
from explorer.findings import with_findings
from explorer.findings.guards import argument_parts, guards_finding
from explorer.reading.shapes import seconds_text
from explorer.render.finding import Finding
from tests.explorer.findings.documents import Part, parts_of, words_of

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


def trees_of(finding: Finding) -> list[Part]:
    """The fold of each compilation."""
    [choice] = finding.data["parts"]
    name, trees = choice["options"][0]
    assert name == "By argument"
    return list(trees)


def guards_of(value: object) -> list[Part]:
    """The rows of guards in parts."""
    return [row for table in parts_of(value, "table") for row in table["rows"]]


def own_of(tree: Part) -> list[Part]:
    """The parts of a compilation without those on the insides of modules, which come last."""
    return list(tree["parts"][:-1])


def said(row: Part) -> str:
    return words_of(row["cells"][0])


def test_every_guard_is_in_one_tree_and_line(record: Record, finding: Finding) -> None:
    shown = [guard["ids"][0] for guard in guards_of(trees_of(finding))]
    assert sorted(shown) == sorted(f"guards.{guard.id}" for guard in record.guards)
    on_lines = [name for names in finding.artifact.lines.values() for name in names]
    assert sorted(on_lines) == sorted(shown)


def test_tree_branches_count_and_name_their_guards(record: Record, finding: Finding) -> None:
    names = {f"guards.{guard.id}": "".join(argument_parts(guard)) for guard in record.guards}
    branches = [fold for fold in parts_of(trees_of(finding), "fold") if fold.get("style") == "branch"]
    assert branches
    for branch in branches:
        guards = guards_of(branch["parts"])
        assert words_of(branch["title"][1]) == f" {len(guards)}"
        assert all(names[guard["ids"][0]].startswith(branch["title"][0].strip("`")) for guard in guards)


def test_guards_order_arguments_globals_and_torch_state(record: Record, finding: Finding) -> None:
    arguments = {f"guards.{guard.id}": guard.argument for guard in record.guards}
    own = guards_of(own_of(trees_of(finding)[0]))
    found = [arguments[guard["ids"][0]] for guard in own]
    assert found[-1] == ""
    assert found.index("x") < found.index("global SCALE")
    assert {"`x` is float32, contiguous, 4×4, on cpu", "global `SCALE` is the int 3"} <= set(map(said, own))


def test_guard_that_rejected_a_call_says_so(finding: Finding) -> None:
    first, second = trees_of(finding)
    failed = [said(guard) for guard in guards_of(own_of(first)) if "failed 1 time" in words_of(guard["cells"][1])]
    assert failed == ["`x` is float32, contiguous, 4×4, on cpu"]
    assert "failed 1 time" in words_of(first["title"])
    assert "failed" not in words_of(second["title"])


def test_each_guard_has_its_measured_seconds(record: Record, finding: Finding) -> None:
    seconds = {f"guards.{guard.id}": guard.seconds for guard in record.guards}
    shown = {guard["ids"][0]: words_of(guard["cells"][1]) for guard in guards_of(trees_of(finding))}
    assert any(seconds.values())
    assert all(seconds_text(seconds[name] or 0) in told for name, told in shown.items() if seconds[name])


def test_symbolic_size_is_one_constraint(finding: Finding) -> None:
    first, second = trees_of(finding)
    (symbols,) = [section for section in parts_of(second, "section") if section.get("style") == "symbols"]
    (items,) = symbols["parts"]
    bounds, why = map(words_of, items["items"])
    assert bounds.startswith("2 <= s")
    assert bounds.endswith(" `x.size(0)`, 5 when it was compiled")
    assert ": 0 and 1 have code of their own; first used at " in why
    assert not [section for section in parts_of(first, "section") if section.get("style") == "symbols"]


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
