"""Graph breaks, guards and recompilations on the saved page: cards, the tree, the timeline, and their links."""

from __future__ import annotations

import pytest
import torch
from playwright.sync_api import Page, expect

from compiler.record import Record
from explorer import explore
from tests.browser.conftest import OpenPage
from tests.browser.waiting import expect_equal


class Normalised(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers(x)
        return h / h.max().item()


@pytest.fixture(scope="module")
def record() -> Record:
    """A function with a break in the middle, recompiled for a second batch size."""
    return explore(Normalised(), calls=[(torch.randn(2, 8),), (torch.randn(3, 8),)], stages=("captured",)).record


def test_mark_beside_a_line_opens_the_break_card(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    view.source.locator(".tc-break").first.click()
    card = view.root.locator(".tc-inspector .tc-break-card")
    expect(card).to_be_visible()
    culprit = card.locator(".tc-snippet").first.locator(".tc-culprit")
    expect_equal(lambda: "".join(culprit.all_inner_texts()), "h.max().item()")
    expect(card.locator(".tc-rewrite .tc-added")).to_contain_text("h / h.max()")
    view.chip("breaks").click()
    same = view.stage.locator(".tc-break-card.tc-primary")
    expect(same.locator(".tc-lead")).to_have_text(card.locator(".tc-lead").inner_text())
    expect(same).to_have_attribute("aria-current", "true")
    expect(same.locator("a")).to_have_attribute("rel", "noopener noreferrer")


def test_break_card_links_to_its_line_and_graph(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    view.root.get_by_role("button", name="2 graph breaks").click()
    card = view.stage.locator(".tc-break-card").first
    card.locator(".tc-lead").click()
    expect(view.line(view.source, "h.max().item()")).to_contain_class("tc-linked")
    card.locator(".tc-flow .tc-link").first.click()
    beside = view.root.locator(".tc-pane:not(.tc-home)").nth(1)
    expect(view.line(beside, "def forward")).to_be_visible()
    expect(card).to_be_visible()
    expect(view.line(beside, "return (")).to_contain_class("tc-linked")


def test_timeline_mark_opens_recompile_card_and_graph_diff(open_page: OpenPage, record: Record) -> None:
    view = open_page(record)
    view.chip("recompiles").click()
    mark = view.stage.locator(".tc-timeline .tc-recompiled").first
    expect(mark).to_contain_text("x")
    mark.click()
    expect(mark).to_have_attribute("aria-pressed", "true")
    card = view.stage.locator(".tc-recompile-card.tc-primary")
    expect(card.locator(".tc-lead")).to_contain_text("2 → 3")
    card.get_by_role("button", name="Compare graph 0/0 with graph 0/1").click()
    beside = view.root.locator(".tc-pane:not(.tc-home)").nth(1)
    expect(beside.locator(".tc-row.tc-added").first).to_be_visible()


def test_guards_render_when_unfolded_or_found_by_search(open_page: OpenPage, page: Page, record: Record) -> None:
    view = open_page(record)
    view.chip("guards").click()
    guards = view.stage.locator(".tc-guards tr")
    expect(guards.filter(has_text="x is float32, contiguous, 2×8, on cpu")).to_be_visible()
    bias = guards.filter(has_text="self.layers.2.bias is float32")
    expect(bias).to_have_count(0)
    view.stage.get_by_label("Search").first.click()
    page.keyboard.type("self.layers.2.bias is float32")
    expect(bias.first).to_be_visible()
    bias.first.locator("summary").click()
    expect(bias.first.locator("pre")).to_contain_text("check_tensor(")
