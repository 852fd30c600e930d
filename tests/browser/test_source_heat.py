"""Measured times next to source lines, in the list of kernels, on the graph and in the inspector of a saved page."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.explorer.reading.test_heat import timed
from tests.explorer.small_record import small_record

LINE = "scores = x @ w"


def test_line_has_eager_and_compiled_bars(open_page: OpenPage) -> None:
    view = open_page(timed())
    bars = view.line(view.source, LINE).locator(".tc-heat")
    expect(bars.locator("i")).to_have_count(2)
    title = bars.get_attribute("title") or ""
    assert title.splitlines() == [
        "eager: 70 µs (forward 60 µs, backward 10 µs), 50 µs of them on the line itself",
        "compiled: 40 µs (forward 40 µs), 30 µs of them on the line itself",
        "measured on the GPU",
    ]
    expect(bars.locator("i").first).to_be_visible()
    eager, compiled = (bars.locator("i").nth(side).bounding_box() for side in range(2))
    assert eager is not None
    assert compiled is not None
    assert eager["width"] > compiled["width"] > 0
    expect(view.line(view.source, "def f(x, w)").locator(".tc-heat i")).to_have_count(0)


def test_bars_follow_the_chosen_half_and_can_hide(open_page: OpenPage) -> None:
    view = open_page(timed())
    choice = view.source.get_by_label("Which times are beside the lines")
    bars = view.line(view.source, LINE).locator(".tc-heat")
    choice.select_option("backward")
    expect(bars).to_have_attribute("title", "eager: 10 µs\ncompiled: 0 µs\nmeasured on the GPU")
    choice.select_option("hidden")
    expect(view.source.locator(".tc-heat i")).to_have_count(0)
    choice.select_option("both")
    expect(bars.locator("i")).to_have_count(2)


def test_record_without_times_shows_no_bars(open_page: OpenPage) -> None:
    view = open_page(small_record())
    expect(view.line(view.source, LINE)).to_be_visible()
    expect(view.source.locator(".tc-heat, .tc-heat-choice")).to_have_count(0)


def test_inspector_states_times_of_line_and_kernel(open_page: OpenPage) -> None:
    view = open_page(timed())
    view.line(view.source, LINE).locator(".tc-line").click()
    card = view.root.locator(".tc-inspector")
    expect(card).to_contain_text("70 µs: 60 µs forward, 10 µs backward")
    expect(card).to_contain_text("40 µs forward")
    view.open_stage("kernels", "List")
    view.stage.get_by_text("extern_kernels.mm").first.click()
    expect(card).to_contain_text("Bandwidth")
    expect(card).to_contain_text("25 %")


def test_the_graph_is_coloured_by_measured_time(open_page: OpenPage) -> None:
    view = open_page(timed())
    view.open_stage("captured", "Graph")
    view.stage.get_by_label("Overlay").select_option("by measured time")
    expect(view.stage.locator(".tc-graph-legend, .tc-legend").filter(has_text="10 µs to 30 µs")).to_be_visible()
