"""`run.xray()`: sites as data, a table and cards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tcompile
from compiler.record import Cause, CauseFix, Span
from compiler.record.xray_facts import ProgramCost
from compiler.xray.fixes import UNTRIED
from explorer.findings.cause_cards import cause_promises
from explorer.findings.xray import cost_words
from explorer.run.run import Run
from tests.explorer.small_record import small_record, xrayed_record


def looped(x):
    y = x + 1
    for _ in range(2):
        scale = y.sum().item()
        print("scale", scale)  # noqa: T201
        y = y / scale
    return y


@pytest.fixture(scope="module")
def run() -> Run:
    return tcompile.explore(looped, torch.ones(4), stages="captured")


def test_sites_are_data_a_table_and_cards(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "xray" not in {artifact.stage for artifact in run._shown.artifacts}
    capsys.readouterr()
    found = run.xray()
    assert {fix.words for fix in found.try_fixes(0.0).fixes} == {UNTRIED}
    found.try_fixes()
    assert {fix.together for fix in found.fixes} == {True}
    assert capsys.readouterr().out == ""
    assert [site.span.code for site in found.sites] == ["y.sum().item()", 'print("scale", scale)']
    table = found.table
    assert list(table["line"]) == [site.line for site in found.sites]
    assert list(table["as_it_is"]) == [True, False]
    assert table["branch"][1] == "for _ in range(2)"
    text = str(found)
    assert text.startswith("2 sites, 1 of them only behind others; 3 captures, ")
    assert f"It shows only when the break at test_xray.py:{found.sites[0].line} is gone." in text
    assert "`scale` at" in text
    assert "`scale = y.sum().item()`" in text
    assert len(found.cards) == len(found) == 2


class Decays(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x):
        self.scale = self.scale * 0.5
        return x * self.scale


def test_causes_of_recompilation_are_data_a_table_and_cards(tmp_path: Path) -> None:
    run = tcompile.explore(Decays(), calls=[(torch.ones(4),)] * 3, stages="captured")
    assert run.compiler.makers["xray"].left(run.record) == 1
    found = run.xray().try_fixes()
    assert run.compiler.makers["xray"].left(run.record) == 0
    (cause,) = found.causes
    assert (cause.kind, cause.span.code, cause.count) == (
        "module attribute",
        "self.scale = self.scale * 0.5",
        1,
    )
    assert cause.fix is not None
    assert (cause.fix.state, cause.fix.before, cause.fix.after) == ("verified", 2, 1)
    assert list(found.causes_table["line"]) == [cause.line]
    assert "Compilations of all calls: 2 before, 1 after." in " ".join(str(found).split())
    assert "+        self.scale = torch.tensor(1.0)" in str(found.patch())
    assert "Changes for 1 cause of recompilation" in str(found.patch())
    loaded = tcompile.load(run.save(tmp_path / "run.json"))
    assert (loaded.xray().causes, str(loaded.xray())) == (found.causes, str(found))


def test_saved_run_has_its_xray(run: Run, tmp_path: Path) -> None:
    found = run.xray()
    assert run.xray() is found
    found.try_fixes()
    first = run["xray"].entity("site[1]")
    assert run.record.linked_ids(first.origins[0]) >= set(first.origins)
    for suffix in ("json", "html"):
        loaded = tcompile.load(run.save(tmp_path / f"run.{suffix}"))
        assert loaded.record.xray == run.record.xray
        assert str(loaded.xray().try_fixes()) == str(found)
        assert (loaded.xray().patch(), loaded.xray().left) == (found.patch(), found.left)
        assert [str(each["xray"]) for each in (loaded, run)] == [str(run["xray"])] * 2


def test_loaded_run_without_tried_fixes_says_so() -> None:
    record = xrayed_record()
    untried = replace(record.xray, fixes=(), left=None)
    found = Run(record.with_fields(xray=untried)).xray()
    assert len(found) == 2
    with pytest.raises(ValueError, match="no call to x-ray"):
        found.patch()


def test_run_without_a_call_has_no_xray() -> None:
    with pytest.raises(ValueError, match="no call to x-ray"):
        Run(small_record()).xray()


def test_live_view_makes_the_xray_and_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    run = tcompile.explore(looped, torch.ones(4), stages="captured")
    widget = run.widget()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", lambda message, **_: sent.append(message))

    def chip() -> dict[str, Any]:
        return next(stage for stage in widget.manifest["stages"] if stage["name"] == "xray")

    heard: list[dict[str, Any]] = []
    widget.observe(lambda change: heard.append(change["new"]), names="compiling")
    assert (chip()["pending"], chip()["makes"]) == (1, "Find all graph breaks, and try fixes")
    widget._on_message(widget, {"type": "make", "stage": "xray"}, [])
    assert {"trying fixes for site 1 of 2", "1 site found"} <= {each.get("words") for each in heard}
    assert heard[-1] == {}
    assert (chip()["pending"], chip()["count"], chip()["unit"]) == (0, 2, "sites")
    assert run.record.xray is not None
    widget._on_message(widget, {"type": "patch", "fixes": ["site[1]"]}, [])
    assert sent[-1]["text"] == str(run.patch(sites=[1]))
    assert sent[-1]["promise"][0].startswith("Fixes for 1 of 2 sites: test_xray.py:")
    widget._on_message(widget, {"type": "patch", "fixes": ["site[9]"]}, [])
    assert sent[-1]["problem"].startswith("there is no site 'site[9]'")
    widget._on_message(widget, {"type": "new_cell", "fixes": ["site[1]"]}, [])
    assert sent[-1]["problem"].startswith("the fixes edit no cell, but ")


def test_a_patch_names_the_causes_that_it_leaves() -> None:
    first, second = (
        Cause(f"cause.{line}", "m.py", line, Span("m.py", line, line), "length", "it grows", "len", "xs", "1", "2")
        for line in (3, 9)
    )
    done, left = "Changes for 1 cause of recompilation: m.py:3", "Left, without a change that was tried and works"
    for removed, told in (
        (["cause.3"], [done, left]),
        (["cause.3", "cause.9"], ["Changes for 2 causes"]),
        ([], [left]),
    ):
        found = cause_promises((first, second), removed, ())
        assert [each.startswith(words) for each, words in zip(found, told, strict=True)] == [True] * len(told)
    tried = replace(first, fix=CauseFix("verified", "", "", "f()"))
    assert cause_promises((tried,), (), ()) == [
        "Left, with a change that works alone, on its card in run.xray(): 1 cause of recompilation: m.py:3."
    ]


@dataclass
class Batch:
    x: torch.Tensor
    scale: float


def scale_batch(batch: Batch) -> torch.Tensor:
    return batch.x.relu() * batch.scale


def test_a_change_that_ends_two_causes_of_a_line_leaves_none() -> None:
    calls = [(Batch(torch.ones(n, 8), float(n)),) for n in (4, 6, 7)]
    run = tcompile.explore(scale_batch, calls=calls, stages="captured", backend="eager")
    assert {cause.kind for cause in run.xray().causes} == {"shape", "number"}
    told = run.patch().splitlines()
    assert told[0].startswith("# Changes for 2 causes of recompilation: test_xray.py:")
    assert told[1:] == ["# Add where you compile or call it: torch.compile(…, dynamic=True)"]


def test_costs_are_told_in_the_singular_too() -> None:
    before, after = ProgramCost(2, 1, 9, 3), ProgramCost(1, 0, 9, 3)
    assert cost_words(before, after) == "2 graphs become 1, 1 break becomes 0"
