"""The graph view in Chromium: dragging, the wheel, zoom, and the size of what is drawn."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.frontend.conftest import open_page
from tests.frontend.graph_page import GraphPage, chain, ident, mlp


def test_dragging_pans_and_selects_nothing(view: GraphPage) -> None:
    view.show(chain(300))
    before = view.camera
    x, y = view.at(ident("mul_5")).middle
    view.page.mouse.move(x, y)
    view.page.mouse.down()
    view.page.mouse.move(x - 40, y - 90, steps=4)
    view.page.mouse.up()
    after = view.camera
    assert (after["left"], after["top"]) == pytest.approx((before["left"] - 40, before["top"] - 90), abs=1)
    assert view.page.evaluate("selected.length") == 0


def test_cancelled_drag_stops_panning(view: GraphPage) -> None:
    view.show(chain(300))
    before = view.camera
    x, y = view.at(ident("mul_5")).middle
    view.page.mouse.move(x, y)
    view.page.mouse.down()
    view.page.evaluate("() => view.canvas.dispatchEvent(new PointerEvent('pointercancel'))")
    view.page.mouse.move(x - 40, y - 90, steps=4)
    assert view.camera == before


def test_wheel_pans_and_ctrl_wheel_zooms_at_pointer(view: GraphPage) -> None:
    view.show(chain(300))
    view.page.mouse.move(500, 300)
    view.page.mouse.wheel(0, 120)
    view.until("view.camera.top < -50")
    point = "() => { const { x, y } = view.unproject(500, 300); return [x, y]; }"
    before, scale = view.page.evaluate(point), view.camera["scale"]
    view.page.keyboard.down("Control")
    view.page.mouse.wheel(0, -100)
    view.until("scale => view.camera.scale > scale * 1.2", scale)
    view.page.keyboard.up("Control")
    assert view.page.evaluate(point) == pytest.approx(before)


def test_view_at_its_end_lets_the_page_scroll(view: GraphPage) -> None:
    view.show(mlp())
    wheel = """delta => {
        const event = new WheelEvent("wheel", { deltaY: delta, cancelable: true, bubbles: true });
        view.canvas.dispatchEvent(event);
        return event.defaultPrevented;
    }"""
    assert view.page.evaluate(wheel, 50)
    assert [view.page.evaluate(wheel, 5000) for _ in range(2)] == [True, False]


def test_fit_shows_everything(view: GraphPage) -> None:
    view.show(chain(300))
    view.press("f")
    first, last = view.at(ident("mul_0")), view.at(ident("mul_299"))
    assert first.y > 0
    assert last.y + last.h < 700
    view.press("+")
    zoomed = view.camera["scale"]
    view.press("-")
    assert view.camera["scale"] == pytest.approx(zoomed / 1.25)
    view.press("+", "+", "0")
    assert view.at(ident("mul_299")).y < 700


def test_canvas_has_device_pixels(browser: Browser) -> None:
    view = GraphPage.start(open_page(browser, device_scale_factor=2))
    view.show(mlp())
    assert view.page.evaluate("[view.canvas.width, view.canvas.height]") == [2000, 1400]
    view.page.context.close()


def test_view_resizes_with_its_root(view: GraphPage) -> None:
    view.show(mlp())
    view.page.evaluate("shell.style.width = '600px'")
    view.until("view.canvas.width === 600")
    assert view.camera["width"] == 600


def test_view_created_hidden_starts_when_shown(view: GraphPage) -> None:
    view.page.evaluate("shell.style.display = 'none'")
    view.show(mlp())
    view.page.evaluate("shell.style.display = ''")
    view.until("view.camera.width === 1000")
    assert 0 < view.at(ident("addmm_1")).x < 1000


def test_only_visible_items_are_painted(view: GraphPage) -> None:
    view.show(chain(3000))
    painted = view.page.evaluate("""async () => {
        const { Painter } = await import("/graph_paint.js");
        const { context, scene, theme, colouring, camera, marks } = view;
        const { boxes, wires } = new Painter(context, scene, theme, colouring, camera, marks);
        return [boxes.length, wires.length];
    }""")
    assert 0 < painted[0] < 40
    assert 0 < painted[1] < 200
