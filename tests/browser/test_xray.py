"""The x-ray on a saved page; test_live_tools.py has the one that is asked for in a notebook."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.explorer.small_record import small_record, xrayed_record


def test_page_tells_how_to_get_an_xray_and_shows_a_saved_one(open_page: OpenPage) -> None:
    view = open_page(small_record())
    view.chip("breaks").click()
    expect(view.stage.locator(".tc-why").first).to_contain_text("run.xray() finds them all")
    view = open_page(xrayed_record())
    view.chip("xray").click()
    patch = view.stage.get_by_role("region", name="Patch")
    expect(patch.locator(".tc-added")).to_contain_text("return scores.softmax(-1)")
    expect(patch.get_by_role("checkbox")).to_have_count(0)
    expect(patch.get_by_role("button")).to_have_text(["Copy the diff"])
    card = view.stage.locator(".tc-break-card").last
    card.locator(".tc-lead").click()
    expect(view.line(view.source, "torch.softmax")).to_contain_class("tc-linked")
    expect(view.root.locator(".tc-inspector .tc-break-card")).to_contain_text("Tried: verified")
