"""Takes the picture in the README: GPT-2 explored in JupyterLab, one activation function selected in every stage.

    .venv/bin/python -m build_tools.take_screenshot

It runs JupyterLab and Chromium as the tests do, and writes docs/screenshot.png.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import running_server
from tests.browser.notebook_page import PANEL, NotebookPage, write_notebook
from tests.conftest import chromium

PICTURE = Path(__file__).parents[1] / "docs/screenshot.png"
SIZE = {"width": 1590, "height": 900}
MODEL = """%load_ext explorer
import torch
from transformers import GPT2Config, GPT2LMHeadModel

gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=2, vocab_size=8192, bos_token_id=0, eos_token_id=0))
gpt2.loss_type = "ForCausalLM"
tokens = torch.randint(0, 8192, (1, 64))"""
EXPLORE = """%%tcompile -o run
gpt2(tokens, labels=tokens).loss.backward()"""
MIDDLE = 4  # of the eight operations of the activation, the one in the middle
SELECT = """run.selection = [
    node.id for node in run["captured"].entities if node.attrs.get("module") == "transformer.h.0.mlp.act"
]"""


def picture(page: Page, notebook: NotebookPage) -> None:
    for index in range(2):
        notebook.run_cell(index)
    view = ExplorerView(notebook.output(1))
    view.open_stage("captured", "Graph")
    view.root.locator(".tc-ribbon [data-stage=kernels]").click(modifiers=["Shift"])
    notebook.run_cell(2)
    view.root.get_by_label("Show or hide the inspector").click()
    for _ in range(MIDDLE):
        view.stage.get_by_label("Next linked").click()
    page.mouse.move(0, 0)
    page.evaluate(f"() => {PANEL}.content.widgets[1].node.scrollIntoView({{block: 'start'}})")
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURE)


with tempfile.TemporaryDirectory() as root, running_server("lab", Path(root)) as server, sync_playwright() as driver:
    write_notebook(server.folder / "gpt2.ipynb", MODEL, EXPLORE, SELECT)
    browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
    page = browser.new_context(viewport=SIZE).new_page()
    notebook = NotebookPage(page, server, "gpt2.ipynb").open()
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    picture(page, notebook)
    browser.close()
