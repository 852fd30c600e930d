"""Fusion and memory on the saved page, by pointer and keyboard; linked to source and kernels both ways."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.waiting import expect_equal, wait_until
from tests.explorer.explored import mlp_record


def bytes_in_use(view: ExplorerView) -> str:
    return view.stage.locator(".tc-memory-step b").inner_text()


def test_memory_opens_at_the_peak_and_keys_step(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.chip("memory").click()
    expect(view.stage.locator(".tc-memory-badge")).to_be_visible()
    peak = bytes_in_use(view)
    chart = view.stage.get_by_role("slider", name="Step of the call")
    chart.focus()
    page.keyboard.press("Home")
    wait_until(lambda: bytes_in_use(view) != peak)
    expect(chart).to_have_attribute("aria-valuenow", "1")
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuetext", re.compile("step 2 of .* is allocated"))
    page.keyboard.press("p")
    expect_equal(lambda: bytes_in_use(view), peak)


def test_memory_row_links_to_its_line_and_kernel(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("memory").click()
    view.chip("kernels").click(modifiers=["Shift"])
    memory, kernels = view.two_panes()
    row = memory.locator(".tc-tensors tr").filter(has_text="self.hidden(x)").first
    row.locator("td").first.click()
    expect(row).to_contain_class("tc-primary")
    wait_until(lambda: any("self.hidden(x)" in line for line in view.marked(view.source)))
    wait_until(lambda: view.marked(kernels))


def test_line_shows_when_its_tensors_are_in_memory(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("memory").click()
    view.line(view.source, "x = self.deeper(x)").click()
    expect(view.stage.locator(".tc-tensors tr.tc-linked").first).to_be_visible()
    band = view.stage.locator(".tc-memory-band")
    wait_until(lambda: float(band.get_attribute("width") or 0) > 0)


def test_memory_of_eager_has_its_own_steps(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("memory").click()
    view.stage.get_by_role("button", name="eager").click()
    expect(view.stage.get_by_role("button", name="eager")).to_be_focused()
    expect(view.stage.locator(".tc-tensors tr").first).to_contain_text("torch")


def test_fusion_kernel_opens_as_a_tree_of_nodes(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("fusion").click()
    card = view.stage.locator(".tc-kernels > tbody > tr").filter(has_text="native_dropout_relu_0").first
    card.locator("summary").first.click()
    expect(card.get_by_label("How it was put together")).to_contain_text("round 1")
    card.locator(".tc-tag-code").first.click()
    expect(card).to_contain_class("tc-primary")
    wait_until(lambda: any("self.hidden(x)" in line for line in view.marked(view.source)))


def test_unfused_pairs_are_filtered_by_reason(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("fusion").click()
    view.stage.get_by_role("button", name="Not fused").click()
    pairs = view.stage.locator(".tc-pairs tr")
    expect(pairs.first).to_be_visible()
    every = pairs.count()
    reasons = view.stage.get_by_label("Reason")
    reasons.select_option(index=2)
    expect(pairs).not_to_have_count(every)
    expect(view.stage.get_by_label("Reason")).to_be_focused()
    expect(pairs.first).to_contain_text("torch, round")


def test_line_highlights_its_kernel_in_fusion_view(open_page: OpenPage) -> None:
    view = open_page(mlp_record())
    view.chip("fusion").click()
    view.stage.get_by_role("button", name="Not fused").click()
    view.line(view.source, "return self.head(x)").click()
    expect(view.stage.locator(".tc-kernels tr.tc-linked").first).to_be_visible()
