"""The x-ray in the browser: asked for at the breaks, fixes ticked and tried, and the patched code in a new cell."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.explorer.small_record import small_record, xrayed_record

LOAD = "%load_ext tcompile\nimport torch"
EXPLORE = """%%tcompile -o run --stages captured
def scaled(x):
    y = x / x.sum().item()  # scale
    return y / y.max().item()

scaled(torch.rand(4))"""
WIDGET_MS = 60_000


def test_page_tells_how_to_get_an_xray_and_shows_a_saved_one(open_page: OpenPage) -> None:
    view = open_page(small_record())
    view.chip("breaks").click()
    expect(view.stage.locator(".tc-why").first).to_contain_text("run.xray() finds them all")
    view = open_page(xrayed_record())
    view.chip("xray").click()
    patch = view.stage.get_by_role("region", name="Patch")
    expect(patch.locator(".tc-added")).to_contain_text("return scores.softmax(-1)")
    expect(patch.get_by_role("checkbox")).to_have_count(0)
    expect(patch.get_by_role("button")).to_have_text(["Copy the diff"])
    card = view.stage.locator(".tc-break-card").last
    card.locator(".tc-lead").click()
    expect(view.line(view.source, "torch.softmax")).to_contain_class("tc-linked")
    expect(view.root.locator(".tc-inspector .tc-break-card")).to_contain_text("Tried: verified")


def test_fixes_are_ticked_tried_and_put_into_a_new_cell(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage], console_errors: list[str]
) -> None:
    notebook = new_notebook(lab, LOAD, EXPLORE, "print('the end')")
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    view.root.get_by_role("button", name="X-ray: find all breaks").click(timeout=WIDGET_MS)
    expect(view.chip("xray")).to_contain_text("2 sites", timeout=WIDGET_MS)
    expect(view.root.get_by_role("slider")).to_be_visible(timeout=WIDGET_MS)
    view.chip("xray").click()
    patch = view.stage.get_by_role("region", name="Patch")
    expect(patch.get_by_role("status")).to_contain_text("No site is left.", timeout=WIDGET_MS)
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.page.wait_for_timeout(500)
        notebook.show(view.root)
        notebook.screenshot(f"lab-{theme.lower()}-xray")
    patch.get_by_role("checkbox").last.uncheck()
    patch.get_by_role("button", name="Try these together").click()
    expect(patch.get_by_role("status")).to_contain_text("1 site left: cell:4.", timeout=WIDGET_MS)
    patch.get_by_role("button", name="Put into a new cell").click()
    expect(view.root.locator(".tc-notice")).to_contain_text("In a new cell below")
    expected = EXPLORE.replace("x.sum().item()", "x.sum().detach()")
    assert notebook.source(2).rstrip("\n") == expected
    assert not [error for error in console_errors if "tcompile" in error or "tc-" in error]
