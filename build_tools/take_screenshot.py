"""Take the README's pictures in JupyterLab: a tour, GPT-2 as a graph, a kernel with its machine code, graph breaks, and
the map of a program after an x-ray.

    .venv/bin/python -m build_tools.take_screenshot [PICTURE ...]

It runs JupyterLab and Chromium like the tests, and writes to docs/pictures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer, running_server
from tests.browser.notebook_page import PANEL, NotebookPage, write_notebook
from tests.conftest import chromium

PICTURES = Path(__file__).parents[1] / "docs/pictures"
SIZE: ViewportSize = {"width": 1590, "height": 900}
COMPILE_MS = 60_000
GPT2 = (
    """%load_ext tcompile
import torch
from transformers import GPT2Config, GPT2LMHeadModel

gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, vocab_size=8192, bos_token_id=0, eos_token_id=0))
gpt2.loss_type = "ForCausalLM"
tokens = torch.randint(0, 8192, (1, 64))""",
    """%%tcompile -o run
gpt2(tokens, labels=tokens).loss.backward()""",
    """run.selection = [
    node.id for node in run["captured"].entities if node.attrs.get("module") == "transformer.h.0.mlp.act"
]""",
)
BREAKS = (
    """%load_ext tcompile
import logging

import torch
from torch import nn

log = logging.getLogger("classifier")


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.narrow = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        h = torch.relu(self.embed(x))
        print("activations:", h.shape)
        h = h / h.max().item()
        if h.mean() > 0.1:
            h = self.wide(h)
        else:
            h = self.narrow(h)
        strong = h[h.mean(-1) > h.mean()]
        log.info("%d rows are strong", len(strong))
        return self.head(strong).sum(0)


torch.manual_seed(0)
model = Classifier().eval()""",
    """%%tcompile -o run --stages captured
result = model(torch.randn(8, 16))""",
)
XRAY = (
    """%load_ext tcompile
import logging

import torch
from torch import nn

log = logging.getLogger("classifier")


def scaled(h):
    print("activations:", h.shape)
    return h / h.max().item()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.inner = nn.Linear(32, 32)

    def forward(self, h):
        return h + torch.relu(self.inner(self.norm(h)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(16, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        h = torch.relu(self.embed(x))
        h = scaled(h)
        for block in self.blocks:
            h = block(h)
            print("norm:", h.norm().item())
        if h.mean() > 0.1:
            h = h * 2
        else:
            h = h - 1
        return self.head(h).sum(0)


torch.manual_seed(0)
model = Classifier().eval()""",
    """%%tcompile -o run --stages captured
result = model(torch.randn(8, 16))""",
    "run.xray().try_fixes();",
)
TOUR = (
    "%load_ext tcompile\nimport torch",
    """%%tcompile -o run
def attention_weights(x, w):
    return torch.softmax(x @ w, -1)

attention_weights(torch.randn(64, 128), torch.randn(128, 256))""",
)
FILM_SIZE = (1120, 656)
MIDDLE = 4  # index of the middle one of the activation's eight operations
KERNEL = (
    "%load_ext tcompile\nimport torch",
    """%%tcompile -o run
def gelu_norm(x, weight, bias):
    y = torch.nn.functional.gelu(x)
    return torch.nn.functional.layer_norm(y, y.shape[-1:], weight, bias)

gelu_norm(torch.randn(1000, 768), torch.randn(768), torch.randn(768)).shape""",
)


def gpt2(notebook: NotebookPage, view: ExplorerView) -> None:
    """The captured graph next to the kernels, with an activation function selected."""
    view.open_stage("captured", "Graph")
    view.chip("kernels").click(modifiers=["Shift"])
    notebook.run_cell(2)
    view.root.get_by_label("Show or hide the inspector").click()
    for _ in range(MIDDLE):
        view.stage.get_by_label("Next linked").click()


def kernel(_: NotebookPage, view: ExplorerView) -> None:
    """A kernel next to its machine code, with one of its two lines of Python selected."""
    view.open_stage("kernels")
    view.chip("sass").click(modifiers=["Shift"])
    expect(view.root.locator(".tc-pane").nth(2).locator(".tc-row").first).to_be_visible(timeout=COMPILE_MS)
    view.root.get_by_label("Show or hide the inspector").click()
    view.line(view.source, "gelu(x)").click()


def breaks(_: NotebookPage, view: ExplorerView) -> None:
    """The source by graph, the map of the program, and the card of one of five breaks."""
    view.open_stage("frame_map", "View")
    view.chip("breaks").click(modifiers=["Shift"])
    view.root.get_by_label("Show or hide the inspector").click()
    card = view.root.locator(".tc-break-card").nth(1)
    card.click(position={"x": 8, "y": 8})
    card.evaluate("card => { card.closest('.tc-scroll').scrollTop = card.offsetTop - 12; }")
    view.source.locator(".tc-scroll").evaluate("source => { source.scrollTop = 180; }")


def xray_map(notebook: NotebookPage, view: ExplorerView) -> None:
    """The map that opens after an x-ray: as it is and with all fixes, with a break selected."""
    notebook.run_cell(2)
    expect(view.stage.locator(".tc-map-strip")).not_to_have_count(0, timeout=COMPILE_MS)
    view.stage.locator(".tc-map-strip .tc-map-break").nth(1).click()
    view.source.locator(".tc-scroll").evaluate("source => { source.scrollTop = 160; }")


class Film:
    """Screenshots of a page, as frames of an animation."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.frames: list[Image.Image] = []
        self.milliseconds: list[int] = []

    def shoot(self, milliseconds: int) -> None:
        """Add a screenshot of the page as a frame, shown for this many milliseconds."""
        self.page.mouse.move(0, 0)
        self.page.wait_for_timeout(700)
        image = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        self.frames.append(image.resize(FILM_SIZE, Image.Resampling.LANCZOS))
        self.milliseconds.append(milliseconds)

    def save(self, path: Path) -> None:
        first, *others = self.frames
        first.save(path, save_all=True, append_images=others, duration=self.milliseconds, loop=0, quality=70, method=6)


def tour(browser: Browser, server: JupyterServer) -> None:
    """Animate the README's first cell: run it, show the graph, the kernel, a selected line, the machine code."""
    notebook = open_notebook(browser, server, "tour", TOUR, {"width": 1400, "height": 820})
    film = Film(notebook.page)
    notebook.run_cell(0)
    film.shoot(1800)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    view.open_stage("captured", "Graph")
    notebook.page.evaluate(f"() => {PANEL}.content.widgets[1].node.scrollIntoView({{block: 'start'}})")
    film.shoot(2200)
    view.chip("kernels").click(modifiers=["Shift"])
    view.root.get_by_label("Show or hide the inspector").click()
    film.shoot(2200)
    view.line(view.source, "torch.softmax").click()
    film.shoot(2600)
    view.chip("sass").click(modifiers=["Shift"])
    machine_code = view.root.get_by_role("region", name="Stage: SASS")
    expect(machine_code.locator(".tc-row").first).to_be_visible(timeout=COMPILE_MS)
    film.shoot(3200)
    film.save(PICTURES / "tour.webp")
    notebook.page.close()


def open_notebook(
    browser: Browser, server: JupyterServer, name: str, cells: tuple[str, ...], size: ViewportSize
) -> NotebookPage:
    write_notebook(server.folder / f"{name}.ipynb", *cells)
    page: Page = browser.new_context(viewport=size).new_page()
    notebook = NotebookPage(page, server, f"{name}.ipynb").open()
    page.evaluate(
        "() => { if (window.jupyterapp.shell.leftCollapsed === false)"
        " window.jupyterapp.commands.execute('application:toggle-left-area') }"
    )
    return notebook


def take(
    browser: Browser,
    server: JupyterServer,
    name: str,
    cells: tuple[str, ...],
    prepare: Callable[[NotebookPage, ExplorerView], None],
    size: ViewportSize = SIZE,
) -> None:
    notebook = open_notebook(browser, server, name, cells, size)
    page = notebook.page
    for index in range(2):
        notebook.run_cell(index)
    prepare(notebook, ExplorerView(notebook.output(1)))
    page.mouse.move(0, 0)
    page.evaluate(f"() => {PANEL}.content.widgets[1].node.scrollIntoView({{block: 'start'}})")
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")
    page.close()


with tempfile.TemporaryDirectory() as root, running_server("lab", Path(root)) as lab, sync_playwright() as driver:
    chrome = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
    wanted = sys.argv[1:] or ["tour", "screenshot", "machine_code", "graph_breaks", "xray_map"]
    if "tour" in wanted:
        tour(chrome, lab)
    if "screenshot" in wanted:
        take(chrome, lab, "screenshot", GPT2, gpt2)
    if "machine_code" in wanted:
        take(chrome, lab, "machine_code", KERNEL, kernel)
    if "graph_breaks" in wanted:
        take(chrome, lab, "graph_breaks", BREAKS, breaks, {"width": 1400, "height": 900})
    if "xray_map" in wanted:
        take(chrome, lab, "xray_map", XRAY, xray_map)
    chrome.close()
