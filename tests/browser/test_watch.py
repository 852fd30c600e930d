"""`%tcompile_watch` in JupyterLab: a saved module and a cell that runs again show what changed."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage

MODULE = "import torch\n\n\ndef scale(x):\n    return x * 2\n"
START = "%load_ext tcompile\nimport threading, torch\nfrom watched_blocks import scale\nx = torch.randn(8, 64)"
FUNCTION = "%%tcompile --stages captured\ndef f(x):\n    return torch.softmax(scale(x), -1)\n\nf(x)"
COUNT = "sorted(thread.name for thread in threading.enumerate())"


def test_saved_module_and_run_cell_show_changes(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage], console_errors: list[str]
) -> None:
    module = lab.folder / "watched_blocks.py"
    module.write_text(MODULE)
    change = "def f(x):\n    return torch.log_softmax(scale(x), -1)"
    cells = (START, FUNCTION, COUNT, "%tcompile_watch f(x)", change, "%tcompile_watch --stop", COUNT)
    notebook = new_notebook(lab, *cells)
    for cell in range(4):
        notebook.run_cell(cell)
    output = notebook.output(3)
    expect(output).to_contain_text("watching f(x)")
    ExplorerView(output).root.locator("[data-stage=captured]").wait_for(state="attached")

    module.write_text(MODULE.replace("x * 2", "x.sin() * 3"))
    expect(output).to_contain_text("watched_blocks.py changed", timeout=20_000)
    expect(output).to_contain_text("x.sin()")

    module.write_text("def scale(:\n")
    expect(output).to_contain_text("watched_blocks.py:1: SyntaxError", timeout=20_000)

    notebook.run_cell(4)
    expect(output).to_contain_text("log_softmax")
    notebook.run_cell(5)
    expect(output).to_contain_text("stopped")
    assert notebook.run_cell(6) == notebook.text(2)
    assert not console_errors
