"""Pairs of two backends' kernels on the saved page: facts and sources of both, fully visible at any width."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from explorer.run.both_sides import both_sides
from tests.browser.conftest import OpenPage
from tests.browser.test_accessibility import two_backends
from tests.browser.waiting import expect_equal
from tests.explorer.findings.fused_record import fused_record

CLIPPED = """view => [...view.querySelectorAll("table, td, th, code, figure")]
    .filter((part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth).map((part) => part.outerHTML)"""


@pytest.mark.parametrize("width", [1280, 900])
def test_kernel_pairs_show_facts_and_full_sources(open_page: OpenPage, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 860})
    view = open_page(two_backends())
    view.chip("versus").click()
    shown = view.root.locator(".tc-document:has(.tc-pair)")
    pair = shown.locator(".tc-card").first
    expect(pair.locator("tr").filter(has_text="Bytes").locator("td")).to_have_count(2)
    pair.locator("summary").click()
    expect(pair.locator("pre")).to_have_count(2)
    expect(pair.get_by_text("Loading…")).to_have_count(0)
    names = pair.locator("thead code").all_inner_texts()
    for name, source in zip(names, pair.locator("pre").all_inner_texts(), strict=True):
        assert name in source
    expect_equal(lambda: shown.evaluate(CLIPPED), [])
    pair.locator("th").filter(has_text="Bytes").click()
    expect(pair).to_contain_class("tc-primary")


def test_artifact_is_compared_with_the_other_side(open_page: OpenPage) -> None:
    view = open_page(both_sides(fused_record("h100"), fused_record("a100"), ("h100", "a100")))
    opened = view.stage.locator(".tc-choose")  # a diff, from the first side to the second
    expect(opened.first).not_to_have_value(re.compile("^a100: "))
    expect(opened.last).to_have_value(re.compile("^a100: "))
    view.open_stage("post_grad")
    view.stage.locator(".tc-choose").first.select_option("post_grad[0/0 inference]")
    view.stage.get_by_role("button", name="Compare with another artifact").click()
    choices = view.stage.locator(".tc-choose")
    expect(choices).to_have_count(2)
    expect(choices.first).to_have_value("post_grad[0/0 inference]")
    expect(choices.last).to_have_value("a100: post_grad[0/0 inference]")
