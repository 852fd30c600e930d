"""Colours by source line in all panes, and the stripe that shows each line's share of the time or bytes."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.conftest import OpenPage
from tests.browser.test_machine_code import compiled, open_two
from tests.explorer.reading.test_heat import timed


def colour(line: Locator) -> str:
    return line.locator(".tc-line").evaluate("line => getComputedStyle(line).backgroundColor")


def test_a_key_colours_what_came_from_a_line(open_page: OpenPage) -> None:
    view = open_page(compiled())
    open_two(view, "kernels", "ptx")
    kernels, ptx = view.two_panes()
    line = view.line(view.source, "torch.sigmoid")
    view.source.locator(".tc-scroll").press("r")
    expect(view.root.get_by_label("Colour by source line (r)")).to_have_attribute("aria-pressed", "true")
    own = [line, view.line(kernels, "tl.sigmoid(tmp0)"), ptx.locator(".tc-row").nth(1)]
    other = [view.line(view.source, "y.sum(-1)"), view.line(kernels, "tl.sum(tmp1, 1)")]
    assert len({colour(each) for each in own}) == len({colour(each) for each in other}) == 1
    assert colour(own[0]) != colour(other[0])
    expect(view.line(kernels, "@triton.jit")).not_to_contain_class("tc-rainbow")
    line.click()
    assert colour(line) == colour(own[1])
    view.source.locator(".tc-scroll").press("r")
    expect(view.root.locator(".tc-rainbow, .tc-stripe:visible")).to_have_count(0)


def test_a_stripe_is_weighted_by_measured_time(open_page: OpenPage) -> None:
    view = open_page(timed())
    view.root.get_by_label("Colour by source line (r)").click()
    expect(view.source.locator(".tc-rainbow-note")).to_contain_text("compiled time on the GPU")
    stripe = view.source.locator(".tc-stripe")
    stripe.hover(position={"x": 5, "y": 5})
    assert "scores = x @ w" in (stripe.get_attribute("title") or "")
    assert "% of the compiled time" in (stripe.get_attribute("title") or "")
    stripe.click(position={"x": 5, "y": 5})
    expect(view.line(view.source, "scores = x @ w")).to_contain_class("tc-primary")
