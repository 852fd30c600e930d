"""The form of `%%predict` in JupyterLab: answered by mouse and keyboard, compared, linked to its stages, saved."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage
from tests.browser.test_accessibility import Scheme, severe, told
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
SCHEMES: tuple[Scheme, ...] = ("light", "dark")


def look_at(notebook: NotebookPage, state: str) -> dict[str, set[str]]:
    """Take pictures of the form in both themes; return what axe-core finds."""
    form = notebook.output(1).locator(".tc-predict")
    found = {}
    for scheme in reversed(SCHEMES):
        notebook.use_theme("Light" if scheme == "light" else "Dark")
        notebook.page.wait_for_timeout(300)
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
    assert not any(found.values()), told(found)

    fields.nth(0).get_by_role("button", name="Breaks").first.click()
    chips = notebook.output(1).locator(".tc-ribbon .tc-chip[aria-pressed=true]")
    expect(chips.filter(has_text="Breaks")).to_be_visible()
    notebook.screenshot("predict-stage")
    assert "print" in notebook.run_cell(2)
    outputs = notebook.save().cells[1].outputs
    assert any("2 of 3 right" in str(output.get("data", {}).get("text/html")) for output in outputs)
