"""The page of a morph: states by keys and slider, a node that is followed, reduced motion, and what axe finds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from explorer.run.morph import Morph
from tests.browser.test_accessibility import Scheme, severe
from tests.conftest import AXE
from tests.explorer.explored import mlp_record
from tests.frontend.conftest import open_page

Motion = Literal["no-preference", "reduce"]
CLOSE = 0.06
PLACES = """async ([film, at]) => {
    const { MorphPainter } = await import("/morph_paint.js");
    const painter = new MorphPainter(film);
    return painter.places(...painter.split(at)).map(({ x, y, w, h }) => [x, y, w, h]);
}"""


def open_morph(browser: Browser, path: Path, scheme: Scheme = "light", motion: Motion = "no-preference") -> Page:
    size: ViewportSize = {"width": 1280, "height": 800}
    context = browser.new_context(viewport=size, bypass_csp=True, color_scheme=scheme, reduced_motion=motion)
    page = context.new_page()
    page.goto(Morph(mlp_record()).save(path / "morph.html").as_uri())
    expect(page.locator(".tm-counts tr[aria-current]")).to_contain_text("Eager")
    return page


def test_keys_go_through_the_states_and_nodes(browser: Browser, tmp_path: Path) -> None:
    morph = Morph(mlp_record())
    page = open_morph(browser, tmp_path, motion="reduce")
    slider, told = page.get_by_role("slider"), page.get_by_role("status")
    page.keyboard.press("ArrowRight")  # without motion it is there at once
    expect(slider).to_have_attribute("aria-valuetext", "Joint, state 2 of 5")
    expect(told).to_contain_text(f"Joint: {morph.states[1].counts.ops} ops")
    slider.focus()
    page.keyboard.press("End")
    expect(page.locator(".tm-words")).to_contain_text("melt into")
    page.get_by_role("button", name="Cut", exact=True).click()
    expect(slider).to_have_value("2")
    page.keyboard.press("ArrowDown")
    expect(told).to_contain_text("Becomes")
    slider.fill("2.5")
    expect(slider).to_have_attribute("aria-valuetext", "Between Cut and Decomposed")
    page.context.close()


def test_play_moves_to_the_last_state(browser: Browser, tmp_path: Path) -> None:
    page = open_morph(browser, tmp_path)
    page.get_by_role("button", name="Play (space)").click()
    expect(page.get_by_role("button", name="Pause (space)")).to_be_visible()
    page.wait_for_function("() => { const at = document.querySelector('input').value; return at > 0 && at < 1; }")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("slider")).to_have_value("1")
    expect(page.get_by_role("button", name="Play (space)")).to_be_visible()
    page.context.close()


def test_page_and_frames_move_nodes_alike(browser: Browser) -> None:
    morph = Morph(mlp_record())
    page = open_page(browser)
    data, film = morph.film_data(), morph.film
    for number in range(len(morph.states) - 1):
        places = page.evaluate(PLACES, [data, number + 0.3])
        expected = [film.box_at(number + 0.3, move) for move in film.moves[number]]
        assert places == [pytest.approx([box.x, box.y, box.w, box.h], abs=CLOSE) for box in expected]
    page.context.close()


@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, tmp_path: Path, scheme: Scheme) -> None:
    page = open_morph(browser, tmp_path, scheme)
    page.add_script_tag(path=AXE)
    assert severe(page.locator("body"), scheme) == set()
    page.context.close()
