"""Machine-code stages in JupyterLab: compiled lazily when they are opened, while the notebook stays usable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.browser.waiting import wait_until

LOAD = "%load_ext tcompile\nimport torch"
EXPLORE = """%%tcompile -o run --target h100
def block(x, w):
    y = torch.nn.functional.gelu(x @ w)
    return torch.nn.functional.layer_norm(y, (256,))

block(torch.randn(64, 128), torch.randn(128, 256))"""
TWO_KERNELS = """%%tcompile --target h100
def both(x):
    rows = torch.softmax(x, 1)
    return rows, x.sum(0) * 2

both(torch.randn(64, 128))"""
FACTS = "print((run.binaries['registers'] > 0).all(), run.record.of_stage('sass')[0].id)"
COMPILE_MS = 120_000

pytest.importorskip("triton")


@pytest.fixture
def explored(lab: JupyterServer, new_notebook: Callable[..., NotebookPage]) -> tuple[NotebookPage, ExplorerView]:
    lab.use_theme(dark=False)
    notebook = new_notebook(lab, LOAD, EXPLORE, FACTS, "1 + 1")
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=60_000)
    return notebook, view


def test_a_stage_is_compiled_when_it_is_opened(
    explored: tuple[NotebookPage, ExplorerView], console_errors: list[str]
) -> None:
    notebook, view = explored
    chip = view.chip("sass")
    expect(chip).to_contain_text("not compiled")
    chip.click()
    expect(view.stage.locator(".tc-compiling")).to_contain_text("Compiling")
    assert notebook.run_cell(3) == "2"
    notebook.screenshot("lab-compiling")
    expect(view.stage.locator(".tc-row").first).to_be_visible(timeout=COMPILE_MS)
    expect(chip).to_contain_text("lines")
    assert notebook.run_cell(2).startswith("True")
    view.line(view.source, "gelu").click()
    expect(view.stage.locator(".tc-row.tc-linked")).not_to_have_count(0)
    view.chip("kernels").click(modifiers=["Shift"])
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.show(view.root)
        notebook.screenshot(f"lab-{theme.lower()}-sass")
    assert not [error for error in console_errors if "tcompile" in error or "tc-" in error]


def test_a_kernel_is_opened_in_the_lab(explored: tuple[NotebookPage, ExplorerView]) -> None:
    notebook, view = explored
    view.open_stage("kernels", "List")
    view.stage.locator("tbody tr", has_text="triton_").locator("td").first.click()
    view.root.get_by_role("button", name="Open in the kernel lab").click()
    expect(view.root.locator(".tc-notice")).to_contain_text("In a new cell below: edit the kernel, and run it.")
    made = notebook.source(2)
    assert made.startswith("%%tkernel run triton_per_fused_gelu_native_layer_norm_0\n")
    assert "@triton.jit" in made
    notebook.delete_cell(2)


def test_stage_requested_from_python_appears_in_widget(explored: tuple[NotebookPage, ExplorerView]) -> None:
    notebook, view = explored
    assert "sass[" in notebook.run_cell(2)
    expect(view.root.locator("[data-stage=ptx]")).to_contain_text("lines")
    view.open_stage("ptx")
    expect(view.stage.locator(".tc-row").first).to_be_visible()


def test_compiled_stage_shows_the_selected_kernel(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage]
) -> None:
    notebook = new_notebook(lab, LOAD, TWO_KERNELS)
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    view.open_stage("kernels", "List")
    kernels = view.stage.locator("tbody tr", has_text="triton_")
    expect(kernels).not_to_have_count(0, timeout=60_000)
    wait_until(lambda: kernels.count() > 1)
    kernels.last.locator("td").first.click()
    view.chip("ptx").click()
    expect(view.stage.locator(".tc-row").first).to_be_visible(timeout=COMPILE_MS)
    expect(view.stage.locator(".tc-row.tc-linked")).not_to_have_count(0)


LOADED = """import explorer
loaded = explorer.load(run.save("loaded.json"))
loaded"""


def is_within(inner: Locator, outer: Locator) -> bool:
    """True if one element lies between the left and right edges of another."""
    inside, around = inner.bounding_box(), outer.bounding_box()
    assert inside
    assert around
    return around["x"] <= inside["x"] and inside["x"] + inside["width"] <= around["x"] + around["width"]


def test_a_loaded_run_asks_before_it_compiles(lab: JupyterServer, new_notebook: Callable[..., NotebookPage]) -> None:
    notebook = new_notebook(lab, LOAD, EXPLORE, LOADED, "print(len(loaded.record.binaries))")
    for cell in range(3):
        notebook.run_cell(cell)
    view = ExplorerView(notebook.output(2))
    view.chip("ptx").click()
    card = view.stage.locator(".tc-confirm")
    expect(card).to_contain_text("Execute code from the file?", timeout=60_000)
    expect(card.locator("li")).to_have_text(["triton_per_fused_gelu_native_layer_norm_0"])
    notebook.show(view.root)
    notebook.page.set_viewport_size({"width": 1100, "height": 900})
    wait_until(lambda: is_within(card, view.stage))
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.screenshot(f"lab-confirm-{theme.lower()}")
    assert notebook.run_cell(3).strip() == "0"
    card.get_by_role("button", name="Not now").click()
    view.stage.get_by_role("button", name="Compile 1 kernel").click()
    view.stage.get_by_role("button", name="Read the source").click()
    expect(view.line(view.stage, "@triton.jit")).to_be_attached()
    view.chip("ptx").click()
    view.stage.get_by_role("button", name="Trust the file and compile 1 kernel").click()
    expect(view.stage.locator(".tc-row").first).to_be_visible(timeout=COMPILE_MS)
