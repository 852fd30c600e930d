"""For a lecture hall: presenter mode, and a page of one stage in a frame."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from explorer.run.page import stage_page
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.waiting import wait_until
from tests.explorer.explored import mlp_record


def test_presenter_shows_one_large_pane_by_keys(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.open_stage("captured")
    line = view.stage.locator(".tc-row").first
    height = line.evaluate("row => row.clientHeight")
    view.stage.locator(".tc-scroll").first.focus()
    page.keyboard.press("P")
    where = view.root.locator(".tc-presenter-bar [role=status]")
    expect(where).to_have_text("Captured, pane 2 of 2")
    expect(view.root.locator(".tc-ribbon")).to_be_hidden()
    assert line.evaluate("row => row.clientHeight") > 1.5 * height
    page.keyboard.press("o")
    expect(where).to_contain_text("pane 1 of 2")
    wait_until(lambda: view.source.evaluate("pane => getComputedStyle(pane).opacity") == "1")
    assert view.stage.evaluate("pane => getComputedStyle(pane).opacity") == "0"
    page.keyboard.press("o")
    page.keyboard.press("]")
    expect(where).not_to_contain_text("Captured")
    page.keyboard.press("P")
    expect(view.root.locator(".tc-ribbon")).to_be_visible()
    expect(view.root.locator(".tc-presenter-bar")).to_have_count(0)


def test_page_of_one_stage_works_in_a_frame(page: Page, console_errors: list[str], tmp_path: Path) -> None:
    (tmp_path / "stage.html").write_text(stage_page(mlp_record(), "captured", as_graph=True), encoding="utf-8")
    frame = '<iframe src="stage.html" style="width: 900px; height: 420px"></iframe>'
    (tmp_path / "lesson.html").write_text(f"<h1>A lesson</h1>{frame}", encoding="utf-8")
    page.goto((tmp_path / "lesson.html").as_uri())
    view = ExplorerView(page.frame_locator("iframe").locator("body"))
    expect(view.stage.locator("canvas").first).to_be_visible()
    expect(view.root.locator(".tc-ribbon, .tc-inspector").locator("visible=true")).to_have_count(0)
    view.stage.get_by_role("button", name="Text").click()
    view.line(view.stage, "relu").click()
    expect(view.source.locator(".tc-linked").first).to_be_visible()
    assert console_errors == []
