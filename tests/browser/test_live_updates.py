"""A live view that updates while its cell runs: it ends in the cell's state, despite lost messages, at low cost."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage

NewNotebook = Callable[..., NotebookPage]

LOAD = "%load_ext tcompile\nimport time, torch\nfrom pathlib import Path\nfrom torch import nn"
TRAIN = """%%tcompile --backend tcompile --target h100
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
model(torch.randn(32, 64)).square().mean().backward()"""
PRINT_MUCH = """%%tcompile
def normalise(x, w):
    return torch.softmax(x @ w, -1)

def report(result):
    for _ in range(60):
        print("." * 100_000, end="\\r", flush=True)
    return result

report(normalise(torch.randn(8, 64), torch.randn(64, 32))).shape"""
WAIT = """%%tcompile -o run
def normalise(x, w):
    return torch.softmax(x @ w, -1)

def wait(result):
    while not Path("shown twice").exists():
        time.sleep(0.1)
    return result

wait(normalise(torch.randn(8, 64), torch.randn(64, 32))).shape"""
WIDGET_MS = 60_000
#: A view that renders itself again for every part takes about ten thousand.
MOST_LAYOUTS = 1000


def expect_finished(view: ExplorerView) -> None:
    """Wait until the view offers further stages to compile, as it does when a cell is done."""
    expect(view.root.locator("[data-stage=ttir]")).to_be_attached(timeout=WIDGET_MS)
    expect(view.root.locator(".tc-running")).to_have_count(0, timeout=WIDGET_MS)


def test_widget_requests_messages_that_jupyter_drops(lab: JupyterServer, new_notebook: NewNotebook) -> None:
    notebook = new_notebook(lab, LOAD, PRINT_MUCH)
    notebook.run_cell(0)
    printed = notebook.run_cell(1)
    assert "IOPub data rate exceeded" in printed
    view = ExplorerView(notebook.output(1))
    expect_finished(view)
    assert "kernels" in view.stages


def test_parts_that_arrive_together_are_shown_together(
    lab: JupyterServer, new_notebook: NewNotebook, layouts: Callable[[], int]
) -> None:
    notebook = new_notebook(lab, LOAD, TRAIN)
    notebook.run_cell(0)
    before = layouts()
    notebook.run_cell(1)
    expect_finished(ExplorerView(notebook.output(1)))
    assert layouts() - before < MOST_LAYOUTS


def test_failing_view_does_not_stop_other_views(
    lab: JupyterServer, new_notebook: NewNotebook, console_errors: list[str]
) -> None:
    notebook = new_notebook(lab, LOAD, WAIT)
    notebook.run_cell(0)
    notebook.start_cell(1)
    view = ExplorerView(notebook.output(1))
    view.root.locator("[data-stage=kernels]").wait_for(state="attached", timeout=WIDGET_MS)
    assert notebook.is_running(1)
    view.root.locator(".tc-title").evaluate("title => { title.replaceChildren = () => { throw Error('no title'); }; }")
    (lab.folder / "shown twice").touch()
    notebook.wait_for_cell(1)
    expect_finished(view)
    notebook.page.wait_for_timeout(0)  # lets Playwright deliver the messages that have arrived
    assert any("no title" in error for error in console_errors)
