"""The ribbon with the stages of two backends: two rows at most, groups that fold to a list, and keys for all of it."""

from __future__ import annotations

import pytest
import torch
from playwright.sync_api import Page, expect

import explorer
from compiler.record import Record
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView

TWO_ROWS = 2 * 42
ROWS = "ribbon => new Set([...ribbon.children].map(group => group.offsetTop)).size"


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1) * x


@pytest.fixture(scope="module")
def record() -> Record:
    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    return explorer.explore(gate, *inputs, backend="tcompile", vs="inductor", target="h100").record


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.querySelector('.tc-chip-name')?.textContent ?? ''")


@pytest.mark.parametrize("width", [760, 830, 1280, 1600])
def test_it_takes_two_rows_at_most(open_page: OpenPage, page: Page, record: Record, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    view = open_page(record)
    ribbon = view.root.locator(".tc-ribbon")
    assert ribbon.evaluate(ROWS) <= 2
    area = ribbon.bounding_box()
    assert area is not None
    assert area["height"] <= TWO_ROWS
    groups = ribbon.locator(".tc-group")
    ends = groups.evaluate_all("groups => groups.map(group => group.getBoundingClientRect().right)")
    assert max(ends) <= area["x"] + area["width"] + 1


def test_what_has_room_is_not_folded(open_page: OpenPage, page: Page, record: Record) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view = open_page(record)
    own = view.root.get_by_role("group", name="tcompile", exact=True)
    expect(own.locator(".tc-group-head")).to_be_visible()
    expect(own.locator("[data-stage=fused]")).to_be_hidden()
    page.set_viewport_size({"width": 2600, "height": 800})
    expect(own.locator("[data-stage=fused]")).to_be_visible()
    expect(own.locator(".tc-group-head")).to_be_hidden()


def test_a_folded_group_is_opened_and_left_by_keys(open_page: OpenPage, page: Page, record: Record) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view = open_page(record)
    head = view.root.get_by_role("group", name="tcompile", exact=True).locator(".tc-group-head")
    head.focus()
    page.keyboard.press("ArrowDown")
    expect(head).to_have_attribute("aria-expanded", "true")
    assert focused(page) == "Lowered"
    page.keyboard.press("End")
    assert focused(page) == "Scheduled"
    page.keyboard.press("Home")
    for _ in range(4):
        page.keyboard.press("ArrowDown")
    assert focused(page) == "Fused"
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(head).to_contain_text("Fused")
    assert focused(page) == "tcompile"
    page.keyboard.press("Enter")
    assert focused(page) == "Fused"
    view.line(view.source, "softmax").click()
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    page.keyboard.press("Escape")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(view.root.locator(".tc-row.tc-primary")).not_to_have_count(0)


def test_a_folded_group_says_how_much_of_the_selection_is_in_it(
    open_page: OpenPage, page: Page, record: Record
) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view: ExplorerView = open_page(record)
    head = view.root.get_by_role("group", name="tcompile", exact=True).locator(".tc-group-head")
    expect(head.locator(".tc-chip-links")).to_have_text("")
    view.line(view.source, "softmax").click()
    links = view.root.locator(".tc-group[aria-label=tcompile] .tc-group-chips .tc-chip-links").all_text_contents()
    total = sum(int(number or 0) for number in links)
    assert total > 0
    expect(head.locator(".tc-chip-links")).to_have_text("99+" if total > 99 else str(total))
