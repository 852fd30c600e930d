"""`run.xray()`: sites as data, a table and cards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tcompile
from explorer.run.run import Run
from tests.explorer.small_record import small_record, xrayed_record


def looped(x):
    y = x + 1
    for _ in range(2):
        scale = y.sum().item()
        print("scale", scale)  # noqa: T201
        y = y / scale
    return y


def test_sites_are_data_a_table_and_cards(capsys: pytest.CaptureFixture[str]) -> None:
    run = tcompile.explore(looped, torch.ones(4), stages="captured")
    capsys.readouterr()
    found = run.xray()
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


def test_saved_run_has_its_xray(tmp_path: Path) -> None:
    run = tcompile.explore(looped, torch.ones(4), stages="captured")
    assert "xray" not in {artifact.stage for artifact in run._shown.artifacts}
    found = run.xray()
    assert run.xray() is found
    found.try_fixes()
    first = run["xray"].entity("site[0]")
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
