"""Find and share: search over all stages, history, permalinks, pictures as files, two texts side by side."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.browser.test_live_widget import EXPLORE, LOAD, WIDGET_MS
from tests.browser.waiting import wait_until
from tests.explorer.explored import broken_record, mlp_record


def search_for(view: ExplorerView, text: str) -> Locator:
    """Open the search box with its key, type, and wait for the list of lines."""
    view.source.locator(".tc-scroll").focus()
    view.root.page.keyboard.press("/")
    view.root.page.keyboard.type(text)
    results = view.root.locator(".tc-result")
    expect(results.first).to_be_visible()
    return results


def visit(page: Page, address: str) -> None:
    """Open the page again at an address."""
    page.goto("about:blank")
    page.goto(address)


def test_search_opens_a_line_of_any_stage_and_escape_returns(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    search_for(view, "relu")
    heads = view.root.locator(".tc-results-head b")
    assert {"Captured", "Forward", "Kernels"} <= set(heads.all_inner_texts())
    expect(view.root.locator(".tc-search-all")).to_have_text(re.compile(r"^[\d,]+ lines in \d+ stages$"))
    forward = view.root.get_by_role("group", name=re.compile("^Forward"))
    chosen = forward.get_by_role("option").first
    for _ in range(200):
        page.keyboard.press("ArrowDown")
        if chosen.get_attribute("aria-selected") == "true":
            break
    page.keyboard.press("Enter")
    expect(view.stage.locator(".tc-choose")).to_have_value("forward[0/0]")
    expect(view.stage.locator(".tc-current")).to_have_text("relu")
    page.keyboard.press("Escape")
    expect(view.root.locator(".tc-hit:visible")).to_have_count(0)
    expect(view.stage.locator(".tc-scroll")).to_be_focused()


def test_history_goes_back_and_forward(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    back, forward = (view.root.get_by_role("button", name=f"{name} (Alt") for name in ("Back", "Forward"))
    expect(back).to_be_disabled()
    view.open_stage("forward")
    view.line(view.source, "x = self.hidden(x)").click()
    view.open_stage("backward")
    page.keyboard.press("Alt+ArrowLeft")
    expect(view.stage.locator(".tc-choose")).to_have_value("forward[0/0]")
    expect(view.line(view.source, "x = self.hidden(x)")).to_contain_class("tc-primary")
    back.click()
    expect(view.root.locator(".tc-primary")).to_have_count(0)
    page.keyboard.press("Alt+ArrowRight")
    expect(view.line(view.source, "x = self.hidden(x)")).to_contain_class("tc-primary")
    forward.click()
    expect(view.chip("backward")).to_have_attribute("aria-pressed", "true")
    expect(forward).to_be_disabled()


def test_address_is_written_and_read(open_page: OpenPage, page: Page) -> None:
    view = open_page(broken_record())
    page.keyboard.press("Escape")
    view.open_stage("captured")
    view.line(view.source, "graph_break()").locator(".tc-break").click()
    expect(page).to_have_url(re.compile(r"#break=1&panes=source,captured\[0/0\]$"))
    visit(page, page.url)
    expect(view.root.locator(".tc-inspector h3")).to_have_text("Graph break 1 of 1")
    expect(view.chip("captured")).to_have_attribute("aria-pressed", "true")
    visit(page, f"{page.url.partition('#')[0]}#panes=kernels,breaks,source&find=sin")
    expect(view.root.locator(".tc-pane")).to_have_count(3)
    expect(view.root.locator(".tc-search input")).to_have_value("sin")
    expect(view.root.locator(".tc-notice")).to_have_count(0)


def test_bad_address_is_ignored_with_one_line(open_page: OpenPage, page: Page) -> None:
    view = open_page(broken_record())
    for bad, told in {"break=7": "can't be read", "%E0%A4%A": "can't be read", "panes=nothing": "no nothing"}.items():
        visit(page, f"{page.url.partition('#')[0]}#{bad}")
        expect(view.root.locator(".tc-notice")).to_contain_text(told)
        expect(view.chip("breaks")).to_have_attribute("aria-pressed", "true")


def test_graph_zooms_and_is_saved_as_a_picture(open_page: OpenPage, page: Page, tmp_path: Path) -> None:
    view = open_page(mlp_record())
    view.open_stage("forward", "Graph")
    canvas = view.stage.locator("canvas").first
    for name in ("Zoom out", "1:1", "Zoom in", "Fit into the pane"):
        before = canvas.screenshot()
        view.stage.get_by_role("button", name=name).click()
        wait_until(lambda before=before: canvas.screenshot() != before)
    for dark in (False, True):
        if dark:
            view.root.get_by_role("button", name="Light or dark").click()
            page.wait_for_timeout(200)
        for kind in ("svg", "png"):
            with page.expect_download() as saved:
                view.stage.get_by_role("button", name=kind.upper()).click()
            saved.value.save_as(tmp_path / f"graph.{kind}")
        drawn = ElementTree.parse(tmp_path / "graph.svg").getroot()
        texts = {text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")}
        assert {"addmm", "relu", "hidden.0.weight"} & texts
        width, height = struct.unpack(">II", (tmp_path / "graph.png").read_bytes()[16:24])
        assert (width, height) == (2 * int(drawn.attrib["width"]), 2 * int(drawn.attrib["height"]))
        (paper,) = drawn.findall("{http://www.w3.org/2000/svg}rect")
        assert (int(paper.attrib["fill"][1:3], 16) < 128) == dark
        assert "class=" not in (tmp_path / "graph.svg").read_text()


def test_two_kernels_are_compared_side_by_side(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.open_stage("kernels", "List")
    kernels = view.stage.locator(".tc-table tbody tr").filter(has_text="triton_")
    names = [kernel.locator(".tc-name").inner_text() for kernel in (kernels.first, kernels.last)]
    kernels.first.click()
    kernels.last.click(modifiers=["Control"])
    view.root.get_by_role("button", name="Compare the two kernels").click()
    view.stage.get_by_role("button", name="Side by side").click()
    left, right = view.stage.get_by_role("grid").all()
    for side, name in ((left, names[0]), (right, names[1])):
        expect(side.locator(".tc-line").filter(has_text=f"def {name}")).to_have_count(1)
    tops = [
        side.locator(".tc-row").filter(has_text="@triton.jit").evaluate("row => row.style.top")
        for side in (left, right)
    ]
    assert tops[0] == tops[1]
    right.evaluate("side => { side.scrollTop = 190 }")
    wait_until(lambda: left.evaluate("side => side.scrollTop") == right.evaluate("side => side.scrollTop") > 0)
    view.stage.get_by_role("button", name="Unified").click()
    expect(view.stage.get_by_role("grid")).to_have_count(1)


def test_view_fills_the_screen(open_page: OpenPage, page: Page) -> None:
    view = open_page(mlp_record())
    view.root.get_by_role("button", name="Full screen").click()
    wait_until(lambda: page.evaluate("document.fullscreenElement?.classList.contains('tcompile')"))
    view.source.locator(".tc-scroll").focus()
    page.keyboard.press("Shift+F")
    wait_until(lambda: page.evaluate("document.fullscreenElement === null"))


def test_reloaded_notebook_shows_the_same_panes(
    lab: JupyterServer, page: Page, new_notebook: Callable[..., NotebookPage]
) -> None:
    notebook = new_notebook(lab, LOAD, EXPLORE)
    for cell in range(2):
        notebook.run_cell(cell)
    view = ExplorerView(notebook.output(1))
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=WIDGET_MS)
    search_for(view, "addmm")
    notebook.show(view.root)
    notebook.screenshot("lab-search")
    page.keyboard.press("Escape")
    view.open_stage("forward", "Graph")
    view.chip("kernels").click(modifiers=["Shift"])
    page.keyboard.press("Alt+ArrowLeft")
    expect(view.root.locator(".tc-pane")).to_have_count(2)
    page.keyboard.press("Alt+ArrowRight")
    forward, kernels = view.two_panes()
    with page.expect_download() as saved:
        forward.get_by_role("button", name="SVG").click()
    assert saved.value.suggested_filename == "forward-0-0.svg"
    notebook.screenshot("lab-panes")
    notebook.save()
    notebook.open()
    forward, kernels = view.two_panes()
    expect(forward.locator("canvas").first).to_be_visible(timeout=WIDGET_MS)
    expect(kernels.locator(".tc-choose")).to_have_value("kernels[0/0 forward]")
