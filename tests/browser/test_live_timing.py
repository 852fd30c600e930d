"""`--time` in JupyterLab: real times of a real call, as bars in the live view and as a picture in the static one.

A long measurement shows progress, can be interrupted, and then shows the finished results.
"""

from __future__ import annotations

from collections.abc import Callable

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage

LOAD = """%load_ext tcompile
import torch
from torch import nn
from compiler.timing import candidate_times as timing
timing.IN_TURNS_SECONDS = 0.1"""
EXPLORE = """%%tcompile -o run --backend aot_eager --time aot_eager
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model(torch.randn(32, 64)).square().mean().backward()"""
LOAD_SLOW = """%load_ext tcompile
import time, torch
from torch import nn
from compiler.timing import candidate_times as timing
timing.IN_TURNS_SECONDS, timing.ROUNDS = 2.0, (7, 300)
def slow(module, inputs):
    time.sleep(120)  # as a backend that compiles for long
    return module.forward"""
AGAIN = "run.timing.measure(['aot_eager', slow])"
SAYS = "print(list(run.timing.candidates['name']), run.record.measurement.interrupted)"
SWEEP = "run.timing.sweep(batch=[4, 64], rounds=1)"


@pytest.mark.usefixtures("console_errors")
def test_timing_and_sweep_of_a_cell(lab: JupyterServer, new_notebook: Callable[..., NotebookPage]) -> None:
    lab.use_theme(dark=False)
    notebook = new_notebook(lab, LOAD, EXPLORE, SWEEP)
    for index in range(2):
        notebook.run_cell(index)
    view = ExplorerView(notebook.output(1))
    expect(view.root.locator("[data-stage=timing]")).to_contain_text("2 candidates", timeout=60_000)
    view.open_stage("timing", "View")  # its script is loaded lazily, now
    rows = view.stage.locator(".tc-times").first.locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("aot_eager")
    expect(rows.nth(1)).to_contain_text("×")
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.show(view.root)
        notebook.screenshot(f"lab-{theme.lower()}-timing")
    assert "compiling pays" in notebook.run_cell(2)
    notebook.show(notebook.output(2))
    expect(notebook.output(2).locator("img[alt='Speed-up over eager by size']")).to_be_visible()
    notebook.screenshot("lab-dark-sweep")
    assert "Times of a call as bars" in shown_html(notebook.save(), 1)


@pytest.mark.usefixtures("console_errors")
def test_timing_shows_progress_and_can_be_interrupted(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage]
) -> None:
    lab.use_theme(dark=False)
    notebook = new_notebook(lab, LOAD_SLOW, EXPLORE, AGAIN, SAYS)
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


def shown_html(saved: nbformat.NotebookNode, index: int) -> str:
    """The static HTML of a cell in the saved notebook."""
    outputs = saved.cells[index].outputs
    return "".join(output.data.get("text/html", "") for output in outputs if "data" in output)
