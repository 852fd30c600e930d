"""`run.xray()`: sites as data, a table and cards."""

from __future__ import annotations

import pytest
import torch

import tcompile
from explorer.run.run import Run
from tests.explorer.small_record import small_record


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


def test_run_without_a_call_has_no_xray() -> None:
    with pytest.raises(ValueError, match="no call to x-ray"):
        Run(small_record()).xray()
