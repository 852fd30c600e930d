"""The sliders of `explorer.thresholds` in JupyterLab: moved by keys, what they change, and no static table beside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import ARTIFACTS, NotebookPage

CELLS = (
    """%load_ext explorer
import torch
from torch.nn import functional

import compiler
import explorer


def block(x, w):
    return functional.gelu(functional.layer_norm(x @ w, (256,))).sum(0)


p = compiler.open(block, torch.randn(64, 128, requires_grad=True), torch.randn(128, 256, requires_grad=True))
p""",
    "explorer.thresholds(p)",
)
VIEW = ".tcompile-thresholds"
FUSED_LOOPS = 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_slider_is_moved_and_kernels_bytes_and_text_follow(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage], page: Page, dark: bool
) -> None:
    lab.use_theme(dark)
    notebook = new_notebook(lab, *CELLS)
    notebook.run_all()
    opened = notebook.output(0)
    expect(opened.get_by_text("scheduled").first).to_be_visible()
    view = page.locator(VIEW)
    expect(view.get_by_text("as at first").first).to_be_visible()
    expect(notebook.output(1).locator(".tcompile-twin")).to_be_hidden()
    view.locator(".noUi-handle").nth(FUSED_LOOPS).focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(view.get_by_text("- at first, + now")).to_be_visible()
    numbers = view.locator("table").first.locator("tbody tr")
    first, now = (int(numbers.nth(row).locator("td").nth(1).inner_text()) for row in (0, 1))
    assert now > first
    expect(view.get_by_text("+    kernel").first).to_be_visible()
    page.screenshot(path=ARTIFACTS / f"thresholds-{'dark' if dark else 'light'}.png")
    view.get_by_role("button", name="as at first").click()
    expect(numbers.nth(1).locator("td").nth(1)).to_have_text(str(first))
