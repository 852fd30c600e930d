"""A long `--time` in JupyterLab: it shows progress, can be interrupted, and then shows the finished results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage

LOAD = """%load_ext tcompile
import time, torch
def slow(module, inputs):
    time.sleep(120)  # as a backend that compiles for long
    return module.forward"""
EXPLORE = """%%tcompile -o run --backend aot_eager --time aot_eager
model = torch.nn.Linear(64, 8)
model(torch.randn(32, 64)).sum().backward()"""
AGAIN = "run.timing.measure(['aot_eager', slow])"
SAYS = "print(list(run.timing.candidates['name']), run.record.measurement.interrupted)"


@pytest.mark.usefixtures("console_errors")
def test_timing_shows_progress_and_can_be_interrupted(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage]
) -> None:
    lab.use_theme(dark=False)
    notebook = new_notebook(lab, LOAD, EXPLORE, AGAIN, SAYS)
    notebook.run_cell(0)
    notebook.start_cell(1)
    view = ExplorerView(notebook.output(1))
    running = view.root.locator(".tc-running")
    expect(running.filter(has_text="all in turns: rounds")).to_be_visible(timeout=60_000)
    notebook.screenshot("lab-light-timing-progress")
    notebook.wait_for_cell(1)
    assert "['eager', 'aot_eager'] False" in notebook.run_cell(3)
    notebook.start_cell(2)
    expect(notebook.output(2)).to_contain_text("Timing slow: compiling (3 of 3)", timeout=60_000)
    notebook.screenshot("lab-light-timing-again")
    notebook.page.keyboard.press("Escape")
    notebook.page.keyboard.press("i")
    notebook.page.keyboard.press("i")
    notebook.wait_for_cell(2)
    assert "['eager', 'aot_eager'] True" in notebook.run_cell(3)
    notebook.use_theme("Dark")
    notebook.show(notebook.output(2))
    notebook.screenshot("lab-dark-timing-interrupted")
