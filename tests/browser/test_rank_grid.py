"""The grid of ranks on its page: by pointer and keyboard, with a table behind it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, expect

from compiler.distributed.ranks import Ranks
from explorer.run.rank_page import page_of_ranks
from tests.browser.conftest import errors_of
from tests.explorer.explored import mlp_record


def thousand_ranks() -> Ranks:
    """1,024 ranks, of which three were simulated: two are equal, the last one has another captured graph."""
    record = mlp_record()
    artifacts = (
        replace(each, text=each.text.replace("relu", "gelu")) if each.stage == "captured" else each
        for each in record.artifacts
    )
    other = record.with_fields(artifacts=tuple(artifacts))
    shapes = (tuple(range(1000)), (1023,))
    return Ranks(1024, {0: record, 8: record, 1023: other}, (("data", 128), ("tensor", 8)), shapes)


def test_grid_opens_ranks_and_tells_two_apart(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "ranks.html"
    path.write_text(page_of_ranks(thousand_ranks()))
    errors = errors_of(page)
    page.goto(path.as_uri())
    grid = page.get_by_role("grid", name="1,024 ranks in mesh order")
    expect(grid.get_by_role("gridcell")).to_have_count(1024)
    grid.focus()
    page.keyboard.press("ArrowDown")
    status = page.get_by_role("status").filter(has_text="Rank")
    expect(status).to_have_text(
        "Rank 64 (data 8, tensor 0): not simulated; shards of the same shapes as rank 0, group A."
    )
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    grid.locator("[data-rank='0']").click()
    expect(page.get_by_role("heading", name="Rank 0 against rank 1023")).to_be_visible()
    expect(page.get_by_text("gelu", exact=False).first).to_be_visible()
    grid.locator("[data-rank='1010']").click()
    expect(page.get_by_text("Nothing is known of this rank")).to_be_visible()
    page.get_by_text("The groups as a table").click()
    expect(page.get_by_role("cell", name="not simulated: ranks 1000-1022")).to_be_visible()
    grid.locator("[data-rank='8']").click()
    page.get_by_role("button", name="Open the record of rank 0, which is equal").click()
    expect(page.get_by_role("navigation", name="Job")).to_contain_text("rank 0")
    assert errors == []
