"""The map of a program: before and with fixes, by mouse and by keyboard."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.waiting import wait_until
from tests.explorer.findings.test_program_map import mended


def test_map_opens_first_and_shows_fixes_one_by_one(open_page: OpenPage, page: Page) -> None:
    view = open_page(mended())
    expect(view.stage.locator(".tc-map-fn")).to_have_count(2)
    before, after = view.stage.locator(".tc-map-table tbody tr").first.locator(".tc-map-strip").all()
    assert before.get_attribute("aria-label") == "f, as it is"
    expect(before.locator(".tc-map-break")).to_have_count(2)
    expect(after.locator(".tc-map-run")).to_have_count(1)
    slider = view.stage.get_by_role("slider", name="Fixes")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "1 of 2 fixes")
    expect(after.locator(".tc-map-break")).to_have_count(1)
    expect(view.stage.locator(".tc-map-words")).to_contain_text("1 of 2 fixes: 1 graph, 1 break,")


def test_map_is_saved_as_a_picture(open_page: OpenPage, page: Page) -> None:
    view = open_page(mended())
    with page.expect_download() as saved:
        view.stage.get_by_role("button", name="SVG").click()
    drawn = ElementTree.parse(saved.value.path()).getroot()
    words = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"f", "graph", "break"} <= words
    assert not {"SVG", "PNG"} & words
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) > 3


def test_break_on_the_map_selects_its_card_and_line(open_page: OpenPage, page: Page) -> None:
    view = open_page(mended())
    view.stage.locator(".tc-map-strip .tc-map-run").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(view.root.locator(".tc-inspector h3")).to_have_text("Site 1 of 2")
    wait_until(lambda: any('print("y")' in line for line in view.marked(view.source)))
    view.line(view.source, "y = x.sin()").locator(".tc-number").click()
    run = view.stage.locator(".tc-map-strip .tc-map-run").first
    expect(run).to_have_attribute("aria-pressed", "true")
    run.click()
    expect(run).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: any("y = x.sin()" in line for line in view.marked(view.source)))


def test_map_zooms_and_its_address_keeps_it(open_page: OpenPage, page: Page) -> None:
    view = open_page(mended())
    first = view.stage.locator(".tc-map-strip").first
    first.locator(".tc-map-run").first.focus()
    for _ in range(4):
        page.keyboard.press("+")
    expect(first.locator(".tc-map-run").filter(has_text="for k in range(2):")).to_be_visible()
    page.keyboard.press("End")
    last = first.locator(".tc-map-run").last
    expect(last).to_be_focused()
    expect(last).to_be_in_viewport()
    view.root.get_by_label("Colour by source line (r)").click()
    slider = view.stage.get_by_role("slider", name="Fixes")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(
        re.compile(r"frame_map:view@1l-[\d.]+-[\d.]+.*&colours=lines$|frame_map@1l-.*colours=lines$")
    )
    page.reload()
    expect(slider).to_have_attribute("aria-valuetext", "1 of 2 fixes")
    expect(view.root.get_by_label("Colour by source line (r)")).to_have_attribute("aria-pressed", "true")
    expect(first.locator(".tc-map-run").filter(has_text="for k in range(2):")).to_be_visible()
    view.stage.get_by_role("button", name="The whole program").click()
    expect(first.locator(".tc-map-run").filter(has_text="for k in range(2):")).to_have_count(0)
