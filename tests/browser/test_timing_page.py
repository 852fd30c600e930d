"""Times of a call on the saved page: a row per candidate, bars to scale, the keyboard, light and dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.notebook_page import ARTIFACTS
from tests.browser.waiting import wait_until
from tests.explorer.findings.timed_record import NOISE, timed_record


@pytest.fixture
def view(open_page: OpenPage) -> ExplorerView:
    shown = open_page(timed_record())
    shown.open_stage("timing", "View")
    expect(rows(shown).first).to_be_visible()
    return shown


def rows(view: ExplorerView) -> Locator:
    return view.stage.get_by_role("table", name="Time of a call by candidate").locator("tbody tr")


def width(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["width"]


def test_bar_lengths_match_times_with_eager_reference_line(view: ExplorerView) -> None:
    eager, aot, inductor = (rows(view).nth(index).locator(".tc-bar") for index in range(3))
    assert width(inductor) / width(eager) == pytest.approx(1 / 2, abs=0.02)
    assert width(aot) / width(eager) == pytest.approx(2.6 / 2, abs=0.02)
    lines = rows(view).locator(".tc-reference")
    expect(lines).to_have_count(5)
    wait_until(lambda: len({round((line.bounding_box() or {"x": 0})["x"]) for line in lines.all()}) == 1)


def test_bars_show_numbers_and_failures_show_reasons(view: ExplorerView) -> None:
    inductor = rows(view).filter(has_text="24.0 s")
    for told in ("1.00 ms", "0.980 to 1.02 ms", "2.00 ×", "after 24,000 calls", "256.0 KiB"):
        expect(inductor).to_contain_text(told)
    expect(view.stage.locator(".tc-time-table")).to_contain_text("not measured: CUDA graphs need a GPU")
    expect(view.stage.locator(".tc-time-warnings")).to_contain_text(NOISE)


def test_host_time_is_stacked_above_gpu_time(view: ExplorerView) -> None:
    host = view.stage.get_by_role("table", name="Where the time of a call goes").locator("tr").first
    pieces = host.locator(".tc-time-bar .tc-part:visible")
    expect(pieces).to_have_count(4)
    guards, wrapper, launches, gpu = (piece.bounding_box() or {} for piece in pieces.all())
    assert wrapper["x"] == pytest.approx(guards["x"] + guards["width"], abs=1)
    assert launches["x"] == pytest.approx(wrapper["x"] + wrapper["width"], abs=1)
    assert gpu["y"] > launches["y"]


def test_estimate_has_its_own_frame_and_no_bar(view: ExplorerView) -> None:
    estimate = view.stage.get_by_role("region", name="Estimate, not a measurement")
    expect(estimate).to_contain_text("A call takes at least")
    expect(estimate.locator(".tc-bar, .tc-part")).to_have_count(0)
    expect(view.stage.locator(".tc-times").get_by_text("stimate")).to_have_count(0)


def test_arrow_keys_move_between_candidates(view: ExplorerView, page: Page) -> None:
    rows(view).first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(rows(view).nth(2)).to_have_attribute("aria-current", "true")
    expect(view.root.locator(".tc-inspector")).to_contain_text("2.00 × (1.86 to 2.14)")
    view.open_stage("timing", "Text")
    expect(view.stage.locator(".tc-row.tc-primary").first).to_contain_text("inductor")


@pytest.mark.parametrize("wide", [700, 1100, 1900])
def test_timing_page_never_overflows(view: ExplorerView, page: Page, wide: int) -> None:
    scroller = view.stage.locator(".tc-finding")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": wide, "height": 1000})
        page.wait_for_timeout(300)
        page.screenshot(path=ARTIFACTS / f"page-{scheme}-timing-{wide}.png")
        wait_until(lambda: scroller.evaluate("element => element.scrollWidth <= element.clientWidth + 1"))
        for row in rows(view).all():
            assert row.evaluate("row => row.scrollWidth <= row.clientWidth + 1")
