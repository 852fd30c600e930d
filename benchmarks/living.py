"""How fast a living graph of about 200 nodes follows a number that is dragged: in JupyterLab, with a live kernel.

python -m benchmarks.living
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import explorer
from benchmarks.figures import Figure
from benchmarks.frontend import chromium, timed

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOVES, WARM_UP, BAR = 60, 5, 100
CELLS = (
    "import torch, tcompile\nfrom torch import nn\n"
    "net = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.Tanh())])\n"
    "x = torch.randn(8, 8)\nw = torch.tensor(0.5, requires_grad=True)",
    "tcompile.chain_rule(lambda: net(x * w).sum())",
)
WATCH = """() => {
    // From a pointer's move to the end of the frame in which the graph is painted anew.
    const { canvas } = window.watched = { canvas: document.querySelector(".tc-living-canvas"), times: [] };
    let since = 0;
    canvas.addEventListener("pointermove", (event) => { since ||= event.timeStamp; }, { capture: true });
    const context = canvas.getContext("2d");
    const clear = context.clearRect.bind(context);
    context.clearRect = (...area) => {
        clear(...area);
        const start = since;
        since = 0;
        const { port1, port2 } = new MessageChannel();
        port1.onmessage = () => start && window.watched.times.push(performance.now() - start);
        port2.postMessage(0);
    };
}"""
NUMBER = "() => document.querySelector('.tc-living-canvas').getBoundingClientRect().toJSON()"


def figures() -> list[Figure]:
    """Milliseconds from a pointer's move to the repainted graph, and of the kernel's part."""
    return [timed("dragging, from input to repaint", dragged(), BAR), timed("of which the kernel", evaluated(), BAR)]


def evaluated() -> list[float]:
    net = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.Tanh())])
    x, w = torch.randn(8, 8), torch.tensor(0.5, requires_grad=True)
    evaluate = explorer.chain_rule(lambda: net(x * w).sum()).compiler.evaluate
    assert evaluate is not None, "the graph can't be evaluated again"
    times = []
    for number in range(MOVES):
        start = time.perf_counter()
        data, _ = evaluate({"sources": {"1": {"cells": {"0": 0.5 + number / 100}}}})
        times.append(1e3 * (time.perf_counter() - start))
    assert len(data["values"]) > 200
    return times[WARM_UP:]


def dragged() -> list[float]:
    from tests.browser.jupyter_server import running_server
    from tests.browser.notebook_page import NotebookPage, write_notebook

    with tempfile.TemporaryDirectory() as folder, running_server("lab", Path(folder)) as server, chromium() as browser:
        page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
        notebook = NotebookPage(page, server, "living.ipynb")
        write_notebook(notebook.path, *CELLS)
        notebook.open()
        for cell in range(len(CELLS)):
            notebook.run_cell(cell)
        page.wait_for_selector(".tc-living-canvas")
        notebook.show(notebook.output(1))
        page.wait_for_timeout(1000)
        page.evaluate(WATCH)
        return times_of_a_drag(page, number_of_w(page))


def number_of_w(page: Page) -> tuple[float, float]:
    """Where the number of `w` is: on the node that shows that it can be dragged."""
    area = page.evaluate(NUMBER)
    for row in range(10, int(area["height"]), 6):
        for column in range(20, int(area["width"]), 20):
            x, y = area["x"] + column, area["y"] + row
            page.mouse.move(x, y)
            if page.evaluate("() => window.watched.canvas.style.cursor") == "ew-resize":
                return x, y
    raise AssertionError("no number can be dragged")


def times_of_a_drag(page: Page, start: Sequence[float]) -> list[float]:
    """Move the pointer, and wait for the repaint each time."""
    x, y = start
    page.mouse.down()
    for move in range(MOVES):
        before = page.evaluate("() => window.watched.times.length")
        page.mouse.move(x + 1 + move, y)
        page.wait_for_function("before => window.watched.times.length > before", arg=before)
        page.wait_for_timeout(30)
    page.mouse.up()
    times = page.evaluate("() => window.watched.times")
    assert statistics.median(times) > 0
    return list(times)[WARM_UP:]


if __name__ == "__main__":
    for each in figures():
        print(each.line())
