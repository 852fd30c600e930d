"""Two backends in one view: the ribbon and the panes.

The ribbon has at most two rows, groups that fold to a list, and keyboard access. The two panes show the two sides, and
show findings like a view of one backend.
"""

from __future__ import annotations

import pytest
import torch
from playwright.sync_api import Locator, Page, expect

import explorer
from compiler.record import Record
from explorer.run import both_sides
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.findings.documents import parts_of

TWO_ROWS = 2 * 42
ROWS = "ribbon => new Set([...ribbon.children].map(group => group.offsetTop)).size"


def gate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w, -1) * x


@pytest.fixture(scope="module")
def record() -> Record:
    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    return both_sides.with_other_side(
        explorer.explore(gate, *inputs, backend="tcompile", vs="inductor", target="h100").record
    )


def panes(view: ExplorerView) -> tuple[Locator, Locator]:
    return view.two_panes()


def expect_sides(view: ExplorerView, shown: list[str]) -> None:
    """Wait until the panes of both sides show these artifacts."""
    for pane, artifact in zip(panes(view), shown, strict=True):
        expect(pane.locator(".tc-pane-header .tc-choose")).to_have_value(artifact)


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.querySelector('.tc-chip-name')?.textContent ?? ''")


@pytest.mark.parametrize("width", [470, 760, 830, 1280, 1600])
def test_ribbon_takes_at_most_two_rows(open_page: OpenPage, page: Page, record: Record, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    view = open_page(record)
    ribbon = view.root.locator(".tc-ribbon")
    wait_until(lambda: ribbon.evaluate(ROWS) <= 2)
    wait_until(lambda: ribbon.evaluate("ribbon => ribbon.getBoundingClientRect().height") <= TWO_ROWS)
    overhang = """ribbon => Math.max(...[...ribbon.querySelectorAll(".tc-group")].map(
        group => group.getBoundingClientRect().right)) - ribbon.getBoundingClientRect().right"""
    wait_until(lambda: ribbon.evaluate(overhang) <= 1)


def test_group_with_room_is_not_folded(open_page: OpenPage, page: Page, record: Record) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view = open_page(record)
    own = view.root.get_by_role("group", name="tcompile", exact=True)
    expect(own.locator(".tc-group-head")).to_be_visible()
    expect(own.locator("[data-stage=fused]")).to_be_hidden()
    page.set_viewport_size({"width": 2600, "height": 800})
    expect(own.locator("[data-stage=fused]")).to_be_visible()
    expect(own.locator(".tc-group-head")).to_be_hidden()


def test_folded_group_opens_and_closes_by_keyboard(open_page: OpenPage, page: Page, record: Record) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view = open_page(record)
    head = view.root.get_by_role("group", name="tcompile", exact=True).locator(".tc-group-head")
    head.focus()
    page.keyboard.press("ArrowDown")
    expect(head).to_have_attribute("aria-expanded", "true")
    expect_equal(lambda: focused(page), "Lowered")
    page.keyboard.press("End")
    expect_equal(lambda: focused(page), "Scheduled")
    page.keyboard.press("Home")
    for _ in range(5):
        page.keyboard.press("ArrowDown")
    expect_equal(lambda: focused(page), "Fused")
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(head).to_contain_text("Fused")
    expect_equal(lambda: focused(page), "tcompile")
    page.keyboard.press("Enter")
    expect_equal(lambda: focused(page), "Fused")
    view.line(view.source, "softmax").click()
    expect(head).to_have_attribute("aria-expanded", "false")
    head.click()
    page.keyboard.press("Escape")
    expect(head).to_have_attribute("aria-expanded", "false")
    expect(view.root.locator(".tc-row.tc-primary")).not_to_have_count(0)


def test_folded_group_counts_its_selected_links(open_page: OpenPage, page: Page, record: Record) -> None:
    page.set_viewport_size({"width": 830, "height": 800})
    view: ExplorerView = open_page(record)
    head = view.root.get_by_role("group", name="tcompile", exact=True).locator(".tc-group-head")
    expect(head.locator(".tc-chip-links")).to_have_text("")
    view.line(view.source, "softmax").click()
    links = view.root.locator(".tc-group[aria-label=tcompile] .tc-group-chips .tc-chip-links")
    wait_until(lambda: any(links.all_text_contents()))
    total = sum(int(number or 0) for number in links.all_text_contents())
    expect(head.locator(".tc-chip-links")).to_have_text("99+" if total > 99 else str(total))


def test_shared_stage_opens_on_both_sides(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    for stage, element in (("fusion", ".tc-half"), ("memory", ".tc-memory-chart"), ("guards", ".tc-compilation[open]")):
        view.chip(stage).click()
        expect_sides(view, [stage, f"inductor: {stage}"])
        for pane in panes(view):
            expect(pane.locator(element)).to_be_visible()
    view.chip("fused_ir").click()
    expect_sides(view, ["guards", "inductor: fused_ir[0/0 forward]"])
    view.chip("lowered").click()
    expect_sides(view, ["lowered[0/0 forward]", "inductor: fused_ir[0/0 forward]"])
    view.chip("versus").click()
    view.chip("kernels").click()
    expect_sides(view, ["kernels[0/0 forward]", "inductor: kernels[0/0 forward]"])


def test_kernel_link_affects_only_its_own_side(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    view.chip("fusion").click()
    first, second = panes(view)
    card = second.locator(".tc-kernels > tbody > tr").filter(has_text="triton_").first
    card.locator(".tc-tag-code").first.click()
    expect(card).to_contain_class("tc-primary")
    wait_until(lambda: any("softmax" in line for line in view.marked(view.source)))
    expect_sides(view, ["fusion", "inductor: fusion"])
    expect(first.locator(".tc-kernels tr.tc-linked")).to_have_count(0)
    view.chip("kernels").click()
    expect_sides(view, ["kernels[0/0 forward]", "inductor: kernels[0/0 forward]"])
    expect(second.locator(".tc-row.tc-linked").first).to_be_visible()


def test_line_highlights_views_of_both_sides(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    for stage, linked in (("fusion", ".tc-kernels tr.tc-linked"), ("memory", ".tc-tensors tr.tc-linked")):
        view.chip(stage).click()
        view.line(view.source, "softmax").click()
        for pane in panes(view):
            expect(pane.locator(linked).first).to_be_visible()


def test_bars_of_both_sides_share_one_scale(open_page: OpenPage, record: Record) -> None:
    sides = ("fusion", "inductor: fusion")
    bars = [parts_of(record[side].attrs["viewed"], "bar") for side in sides]
    totals = [[bar["amounts"][0][0] for bar in found if bar["scale"] == "call"] for found in bars]
    most = max(map(max, totals))
    view = open_page(record)
    view.chip("fusion").click()
    for pane, (before, *_) in zip(panes(view), totals, strict=True):
        bar = pane.locator(".tc-totals .tc-amount-before")
        width = float(bar.evaluate("bar => bar.style.width").removesuffix("%"))
        assert width == pytest.approx(100 * before / most, abs=0.01)
