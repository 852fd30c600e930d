"""Tools of the live view in JupyterLab: the form of `%%predict`, `%tcompile_watch`, and the x-ray."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.browser.test_accessibility import Scheme, severe, violations_text
from tests.conftest import AXE

LOAD = "%load_ext tcompile\nimport torch"
PREDICT = """%%predict --ask breaks,graphs,fusion --title "A print in the middle" -o run
def f(x, w):
    a = x * 2
    b = a.sin()
    print("between")
    c = b @ w
    return c.relu()

f(torch.randn(8, 8), torch.randn(8, 8))"""
RUN_MS = 120_000
WIDGET_MS = 60_000
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def look_at(notebook: NotebookPage, state: str) -> dict[str, set[str]]:
    """Take pictures of the form in both themes; return what axe-core finds."""
    form = notebook.output(1).locator(".tc-predict")
    found = {}
    for scheme in reversed(SCHEMES):
        notebook.use_theme("Light" if scheme == "light" else "Dark")
        notebook.show(form)
        notebook.screenshot(f"predict-{state}-{scheme}")
        found[f"{state} {scheme}"] = severe(form, scheme)
    return found


@pytest.mark.needs("axe")
def test_learner_predicts_then_compares(
    new_notebook: Callable[..., NotebookPage], lab: JupyterServer, page: Page
) -> None:
    notebook = new_notebook(lab, LOAD, PREDICT, "run.record.breaks[0].code")
    notebook.run_cell(0)
    notebook.run_cell(1)
    page.add_script_tag(path=AXE)
    form = notebook.output(1).locator(".tc-predict")
    expect(form.get_by_role("status")).to_contain_text("Nothing has run yet")
    assert "NameError" in notebook.run_cell(2)

    form.get_by_role("button", name="Line 3: a = x * 2").click()
    graphs = form.get_by_role("textbox")
    graphs.fill("some")
    graphs.press("Enter")
    expect(form.get_by_role("alert").nth(1)).to_contain_text("give a number")
    graphs.fill("2")
    first = form.get_by_role("button", name="Line 3 is in kernel A")
    first.focus()
    page.keyboard.press("Space")
    page.keyboard.press("ArrowRight")
    form.get_by_role("button", name="Line 4 is in kernel A").click()
    expect(first).to_have_attribute("aria-pressed", "true")
    found = look_at(notebook, "asking")
    form.get_by_role("button", name="Run and compare").press("Enter")

    expect(form).to_have_attribute("data-state", "graded", timeout=RUN_MS)
    expect(form.get_by_role("status")).to_have_text("2 of 3 right")
    fields = form.locator("fieldset")
    assert [fields.nth(index).get_attribute("data-verdict") for index in range(3)] == ["wrong", "right", "right"]
    expect(fields.nth(0)).to_contain_text("Line 5 breaks")
    found |= look_at(notebook, "graded")
    assert not any(found.values()), violations_text(found)

    fields.nth(0).get_by_role("button", name="Breaks").first.click()
    chips = notebook.output(1).locator(".tc-ribbon .tc-chip[aria-pressed=true]")
    expect(chips.filter(has_text="Breaks")).to_be_visible()
    notebook.screenshot("predict-stage")
    assert "print" in notebook.run_cell(2)
    outputs = notebook.save().cells[1].outputs
    assert any("2 of 3 right" in str(output.get("data", {}).get("text/html")) for output in outputs)


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


BREAKS = """%%tcompile -o run --stages captured
def scaled(x):
    y = x / x.sum().item()  # scale
    return y / y.max().item()

scaled(torch.rand(4))"""


def test_fixes_are_ticked_tried_and_put_into_a_new_cell(
    lab: JupyterServer, new_notebook: Callable[..., NotebookPage], console_errors: list[str]
) -> None:
    notebook = new_notebook(lab, LOAD, BREAKS, "print('the end')")
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    view.root.get_by_role("button", name="X-ray: find all breaks").click(timeout=WIDGET_MS)
    expect(view.chip("xray")).to_contain_text("2 sites", timeout=WIDGET_MS)
    expect(view.root.get_by_role("slider")).to_be_visible(timeout=WIDGET_MS)
    view.chip("xray").click()
    patch = view.stage.get_by_role("region", name="Patch")
    expect(patch.get_by_role("status")).to_contain_text("No site is left.", timeout=WIDGET_MS)
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.show(view.root)
        notebook.screenshot(f"lab-{theme.lower()}-xray")
    patch.get_by_role("checkbox").last.uncheck()
    patch.get_by_role("button", name="Try these together").click()
    expect(patch.get_by_role("status")).to_contain_text("1 site left: cell:4.", timeout=WIDGET_MS)
    patch.get_by_role("button", name="Put into a new cell").click()
    expect(view.root.locator(".tc-notice")).to_contain_text("In a new cell below")
    expected = BREAKS.replace("x.sum().item()", "x.sum().detach()")
    assert notebook.source(2).rstrip("\n") == expected
    assert not [error for error in console_errors if "tcompile" in error or "tc-" in error]
