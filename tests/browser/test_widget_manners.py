"""The widget in JupyterLab: its keys do not reach Jupyter, and Jupyter's keys keep working."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import VIEWPORT
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage, write_notebook
from tests.browser.waiting import wait_until

LOAD = "%load_ext tcompile\nimport torch"
EXPLORE = """%%tcompile -o run
def f(x, w):
    y = x @ w
    return torch.softmax(y, -1)

f(torch.randn(8, 64), torch.randn(64, 32))"""
WIDGET_MS = 60_000


@pytest.fixture(scope="module")
def notebook(lab: JupyterServer, browser: Browser) -> Iterator[NotebookPage]:
    """A notebook whose cell 1 has explored a function; its cell 2 shows the same run once more."""
    with browser.new_context(viewport=VIEWPORT) as context:
        notebook = NotebookPage(context.new_page(), lab, "manners.ipynb")
        write_notebook(notebook.path, LOAD, EXPLORE, "run.widget()")
        notebook.open()
        for cell in range(2):
            notebook.run_cell(cell)
        yield notebook
    lab.stop_kernel(notebook.name)


def view_of(notebook: NotebookPage, cell: int) -> ExplorerView:
    view = ExplorerView(notebook.output(cell))
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=WIDGET_MS)
    return view


def test_plain_keys_go_to_the_widget(notebook: NotebookPage) -> None:
    view = view_of(notebook, 1)
    cells = notebook.cells()
    view.source.locator(".tc-scroll").focus()
    for key in ("d", "d", "a", "x", "ArrowDown", "]", "d", "d"):
        notebook.page.keyboard.press(key)
    assert len(cells) == 3
    assert notebook.cells() == cells
    wait_until(lambda: view.root.evaluate("root => root.contains(document.activeElement)"))


def test_ctrl_keys_stay_with_jupyter(notebook: NotebookPage) -> None:
    view = view_of(notebook, 1)
    notebook.run_cell(2)  # so that there is something to save
    saved = notebook.path.stat().st_mtime_ns
    view.source.locator(".tc-scroll").focus()
    notebook.page.keyboard.press("d")
    notebook.page.keyboard.press("Control+s")
    notebook.page.wait_for_function(
        "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=WIDGET_MS
    )
    assert notebook.path.stat().st_mtime_ns > saved


def test_two_views_of_a_run_share_the_selection(notebook: NotebookPage) -> None:
    notebook.run_cell(2)
    first, second = view_of(notebook, 1), view_of(notebook, 2)
    first.line(first.source, "torch.softmax").click()
    expect(second.line(second.source, "torch.softmax")).to_contain_class("tc-primary")
    second.line(second.source, "x @ w").click()
    expect(first.line(first.source, "x @ w")).to_contain_class("tc-primary")


def test_stacked_panes_keep_height_in_a_narrow_cell(notebook: NotebookPage) -> None:
    view = view_of(notebook, 1)
    notebook.page.set_viewport_size({"width": 900, "height": 1000})
    expect(view.root).to_contain_class("tc-narrow")
    view.open_stage("captured")
    view.chip("inference").click(modifiers=["Shift"])
    panes = view.root.locator(".tc-pane")
    expect(panes).to_have_count(3)
    for pane in panes.locator(".tc-scroll").all():
        wait_until(lambda pane=pane: pane.evaluate("scroller => scroller.getBoundingClientRect().height") > 100)


def test_static_view_is_hidden_while_the_widget_exists(notebook: NotebookPage) -> None:
    view = view_of(notebook, 1)
    twin = notebook.output(1).locator(".tcompile-twin")
    expect(twin).to_have_count(1)
    expect(twin).to_be_hidden()
    view.root.evaluate("root => root.remove()")
    expect(twin).to_be_visible()
