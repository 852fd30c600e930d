"""The stepper of the chain rule, on a saved page and in JupyterLab; levels of decomposition, made by a click."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from playwright.sync_api import Locator, expect
from torch import Tensor

import explorer
from explorer import ChainRule
from tests.browser.conftest import OpenPage
from tests.browser.explorer_view import ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage

NewNotebook = Callable[..., NotebookPage]
MADE_MS = 60_000


def weighted(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    return (y * y.exp()).sum()


@pytest.fixture
def chain() -> ChainRule:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    return explorer.chain_rule(weighted, x, w)


def card(view: ExplorerView) -> Locator:
    return view.root.locator(".tc-chain-card")


def heading(view: ExplorerView) -> Locator:
    return card(view).locator("h3")


def step(view: ExplorerView) -> Locator:
    return view.root.get_by_role("status").filter(has_text="step ")


def test_keys_go_through_the_steps_and_the_source_follows(open_page: OpenPage, chain: ChainRule) -> None:
    view = open_page(chain.record)
    expect(heading(view)).to_contain_text("mul = self · other")
    view.root.locator(".tc-chain-scroll").focus()
    keyboard = view.root.page.keyboard
    keyboard.press("ArrowRight")
    expect(heading(view)).to_contain_text("exp = exp(self)")
    expect(view.line(view.source, "y * y.exp()")).to_contain_class("tc-linked")
    keyboard.press("End")
    expect(step(view)).to_have_text("step 10 of 10, leaf")
    expect(heading(view)).to_contain_text(".grad")
    keyboard.press("Home")
    keyboard.press("ArrowLeft")
    expect(step(view)).to_have_text("step 1 of 10, forward")
    keyboard.press("Shift+ArrowRight")  # keys of the browser's and of JupyterLab's stay theirs
    expect(step(view)).to_have_text("step 1 of 10, forward")


def test_a_backward_step_shows_the_rule_in_numbers_and_leads_on(open_page: OpenPage, chain: ChainRule) -> None:
    view = open_page(chain.record)
    view.root.get_by_role("button", name="backward", exact=True).click()
    view.root.get_by_label("Forward (→)").click()
    expect(heading(view)).to_contain_text("d mul_1")
    section = card(view).locator("section").filter(has_text="Gradient of self")
    expect(section).to_contain_text("d self = grad · other")
    expect(section.locator(".tc-matrix").nth(1).locator("td")).to_have_text(["1.649", "0.1353", "403.4"])
    section.locator("summary").click()
    expect(section.locator("details .tc-matrix td")).to_have_count(9)
    section.get_by_role("button", name="mul", exact=True).click()
    expect(heading(view)).to_contain_text("d mul")
    expect(card(view)).to_contain_text("the sum of 2")
    expect(card(view)).to_contain_text("summed, bit-exact")


def test_the_graph_is_beside_it_and_a_node_selected_elsewhere_moves_it(open_page: OpenPage, chain: ChainRule) -> None:
    view = open_page(chain.record)
    graph = view.root.locator(".tc-pane").nth(2)
    expect(graph.locator("canvas")).to_be_visible()
    graph.locator(".tc-modes").get_by_text("Text", exact=True).click()
    view.line(graph, "ExpBackward0").click()
    expect(heading(view)).to_contain_text("exp = exp(self)")
    view.root.get_by_role("button", name="backward", exact=True).click()
    view.line(graph, "SumBackward0").click()
    view.line(graph, "ExpBackward0").click()
    expect(heading(view)).to_contain_text("d exp")


def test_it_plays_and_stops(open_page: OpenPage, chain: ChainRule) -> None:
    view = open_page(chain.record)
    view.root.get_by_label("Play (space)").click()
    expect(step(view)).to_have_text("step 2 of 10, forward")
    view.root.get_by_label("Pause (space)").click()
    expect(view.root.get_by_label("Play (space)")).to_be_visible()


def test_what_is_not_finite_is_one_click_away(open_page: OpenPage) -> None:
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    view = open_page(explorer.chain_rule(lambda: torch.sum(x.sqrt() * 0)).record)
    view.root.get_by_role("button", name="backward of sqrt").click()
    expect(heading(view)).to_contain_text("d sqrt")
    expect(card(view)).to_contain_text("nan")


def test_in_jupyterlab_it_is_shown_and_levels_are_made_by_a_click(
    lab: JupyterServer, new_notebook: NewNotebook
) -> None:
    notebook = new_notebook(
        lab,
        "%load_ext explorer\nimport explorer, torch\nx = torch.randn(3, requires_grad=True)",
        "explorer.chain_rule(lambda: x.sigmoid().sum())",
        "%%tcompile --stages captured,forward\ndef f(x):\n    return torch.nn.functional.gelu(x).sum()\nf(x)",
    )
    for cell in range(3):
        notebook.run_cell(cell)
    chain = ExplorerView(notebook.output(1))
    expect(heading(chain)).to_contain_text("sigmoid", timeout=MADE_MS)
    run = ExplorerView(notebook.output(2))
    chip = run.chip("decomposed")
    expect(chip).to_contain_text("not generated")
    chip.click()
    levels = run.root.get_by_role("group", name="Level of decomposition")
    expect(levels.get_by_role("button")).to_have_text(
        ["torch", "ATen", "core ATen", "Inductor", "prims"], timeout=MADE_MS
    )
    levels.get_by_role("button", name="prims").click()
    erf = run.line(run.stage, "prims.erf")
    expect(erf).to_be_visible()
    run.open_stage("captured")
    run.line(run.stage, "_nn.gelu(").click()
    run.root.get_by_role("button", name="Decompose it, level by level").click()
    expect(run.root.locator(".tc-inspector .tc-tree")).to_contain_text("prims.erf.default", timeout=MADE_MS)
