"""The live widget in JupyterLab and Notebook 7: shown while the cell runs, and in sync with Python."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

import nbformat
import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.browser.conftest import VIEWPORT, errors_of
from tests.browser.explorer_view import TWO_FRAMES, ExplorerView
from tests.browser.jupyter_server import JupyterServer
from tests.browser.notebook_page import NotebookPage, write_notebook

NewNotebook = Callable[..., NotebookPage]

LOAD = "%load_ext tcompile\nimport time, torch\nfrom pathlib import Path\nfrom torch import nn"
EXPLORE = """%%tcompile -o run
model = nn.Sequential(
    nn.Linear(64, 128), nn.Dropout(0.1), nn.ReLU(),
    nn.Linear(128, 128), nn.Dropout(0.1), nn.ReLU(),
    nn.Linear(128, 10),
)
x = torch.randn(8, 64)
model(x).sum().backward()"""
EXPLORE_AND_WAIT = """%%tcompile
def normalise(x, w):
    y = x @ w
    return torch.softmax(y, -1)

def wait(result):
    while not Path("enough").exists():
        time.sleep(0.1)
    return result

wait(normalise(torch.randn(8, 64), torch.randn(64, 32)))"""
SELECTION = "print(list(run.selection))"
WIDGET_MS = 60_000
STAGES = [
    "source",
    "bytecode",
    "guards",
    "captured",
    "pre_grad",
    "autograd",
    "joint",
    "forward",
    "backward",
    "decomposed",
    "post_grad",
    "ir",
    "fused_ir",
    "fusion",
    "kernels",
    "ttir",
    "passes",
    "layouts",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "memory",
    "advice",
]

# Console messages of Notebook 7 and the widget manager themselves.
NOT_OURS = ("reading 'schema'", "widget model not found")


@pytest.fixture(scope="module", params=["lab", "notebook7"])
def server(request: pytest.FixtureRequest) -> JupyterServer:
    running: JupyterServer = request.getfixturevalue(request.param)
    running.use_theme(dark=False)
    return running


@pytest.fixture(scope="module")
def opened(server: JupyterServer, browser: Browser) -> Iterator[tuple[NotebookPage, list[str]]]:
    """A notebook in a page of its own, whose first two cells have run; and the page's errors."""
    with browser.new_context(viewport=VIEWPORT) as context:
        notebook = NotebookPage(context.new_page(), server, "explored.ipynb")
        errors = errors_of(notebook.page)
        write_notebook(notebook.path, LOAD, EXPLORE, SELECTION, "run.selection = 'source[cell].L8'")
        notebook.open()
        for cell in range(2):
            notebook.run_cell(cell)
        yield notebook, errors
    server.stop_kernel(notebook.name)


@pytest.fixture
def notebook(opened: tuple[NotebookPage, list[str]]) -> NotebookPage:
    """A notebook whose cell 1 has explored an MLP and shows the widget; its cell 2 prints the selection."""
    return opened[0]


@pytest.fixture
def view(notebook: NotebookPage) -> ExplorerView:
    view = ExplorerView(notebook.output(1))
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=WIDGET_MS)
    return view


@pytest.fixture
def our_errors(opened: tuple[NotebookPage, list[str]]) -> Callable[[], list[str]]:
    return partial(own_errors, opened[1], len(opened[1]))


def own_errors(errors: list[str], start: int = 0) -> list[str]:
    """The errors from the given one on that are neither Notebook 7's nor the widget manager's."""
    return [error for error in errors[start:] if not any(known in error for known in NOT_OURS)]


def selection(notebook: NotebookPage) -> list[str]:
    """What Python has as the selection, which may come late: a widget sends one change at a time."""
    for _ in range(10):
        if chosen := ast.literal_eval(notebook.run_cell(2)):
            return chosen
    raise AssertionError("the selection in Python stays empty")


def test_widget_shows_every_stage(
    notebook: NotebookPage, view: ExplorerView, our_errors: Callable[[], list[str]]
) -> None:
    assert view.stages == STAGES
    for theme in ("Dark", "Light"):
        notebook.use_theme(theme)
        for stage, mode in (("captured", "Graph"), ("backward", "Graph"), ("kernels", "Text")):
            view.open_stage(stage, mode)
            notebook.page.evaluate(TWO_FRAMES)
            notebook.show(view.root)
            notebook.screenshot(f"{notebook.server.app}-{theme.lower()}-{stage}")
    assert not our_errors()


def test_clicking_a_line_selects_it_in_python(notebook: NotebookPage, view: ExplorerView) -> None:
    view.open_stage("forward")
    view.line(view.stage, "aten.addmm").click()
    expect(view.source.locator(".tc-row.tc-linked")).not_to_have_count(0)
    [chosen] = selection(notebook)
    assert chosen.startswith("forward[0/0].")
    assert chosen.split(".")[-1].startswith("addmm")


def test_clicking_a_node_selects_it_in_python(notebook: NotebookPage, view: ExplorerView) -> None:
    view.open_stage("captured", "Graph")
    view.click_a_node()
    [chosen] = selection(notebook)
    assert chosen.startswith("captured[0/0].")
    expect(view.source.locator(".tc-row.tc-linked")).not_to_have_count(0)
    notebook.show(view.root)
    notebook.screenshot(f"{notebook.server.app}-node")


def test_selection_from_python_is_marked_in_every_pane(notebook: NotebookPage, view: ExplorerView) -> None:
    view.open_stage("forward")
    assert not notebook.run_cell(3)
    expect(view.line(view.source, "model(x).sum().backward()")).to_contain_class("tc-primary")
    assert view.marked(view.stage)
    assert selection(notebook) == ["source[cell].L8"]


def test_widget_is_usable_while_the_cell_runs(lab: JupyterServer, new_notebook: NewNotebook) -> None:
    notebook = new_notebook(lab, LOAD, EXPLORE_AND_WAIT)
    notebook.run_cell(0)
    notebook.start_cell(1)
    view = ExplorerView(notebook.output(1))
    view.root.locator("[data-stage=captured]").wait_for(state="attached", timeout=WIDGET_MS)
    assert notebook.is_running(1)
    view.open_stage("captured")
    view.line(view.stage, "= torch.softmax").click()
    expect(view.line(view.source, "torch.softmax(y, -1)")).to_contain_class("tc-linked")
    view.root.locator("[data-stage=kernels]").wait_for(state="attached", timeout=WIDGET_MS)
    assert notebook.is_running(1)
    notebook.screenshot("lab-while-running")
    (lab.folder / "enough").touch()
    notebook.wait_for_cell(1)


def test_rare_view_is_loaded_when_its_stage_opens(
    lab: JupyterServer, new_notebook: NewNotebook, console_errors: list[str]
) -> None:
    notebook = new_notebook(lab, LOAD, EXPLORE.replace("-o run", "--step"))
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    view.chip("steps").click(timeout=WIDGET_MS)
    expect(view.stage.get_by_role("slider")).to_be_visible()
    assert not own_errors(console_errors)


def test_reloaded_page_shows_the_widget_again(notebook: NotebookPage, view: ExplorerView) -> None:
    notebook.save()
    notebook.open()
    expect(view.source.locator(".tc-row").first).to_be_visible(timeout=WIDGET_MS)
    assert view.stages == STAGES


@pytest.mark.usefixtures("view")
def test_static_view_is_hidden_beside_the_widget(notebook: NotebookPage) -> None:
    expect(static_twin(notebook)).to_be_hidden()


@pytest.mark.usefixtures("view")
def test_notebook_without_kernel_shows_the_static_view(
    notebook: NotebookPage, our_errors: Callable[[], list[str]]
) -> None:
    saved = notebook.save()
    assert has_twin_before_widget(saved.cells[1])
    notebook = NotebookPage(notebook.page, notebook.server, "without-its-kernel.ipynb")
    nbformat.write(saved, notebook.path)
    for theme in ("Light", "Dark"):
        notebook.open(kernel=False)
        notebook.use_theme(theme)
        expect(static_twin(notebook)).to_be_visible(timeout=WIDGET_MS)
        expect(static_twin(notebook)).to_contain_text("Kernels", ignore_case=True)
        expect(ExplorerView(notebook.output(1)).root).to_have_count(0)
        notebook.show(static_twin(notebook))
        notebook.screenshot(f"{notebook.server.app}-{theme.lower()}-reopened")
    assert not our_errors()


def static_twin(notebook: NotebookPage) -> Locator:
    return notebook.output(1).get_by_title("tcompile-static")


def has_twin_before_widget(cell: nbformat.NotebookNode) -> bool:
    kinds = [set(output.get("data", ())) for output in cell.outputs]
    return "text/html" in kinds[0] and "application/vnd.jupyter.widget-view+json" in kinds[1]


TRAINS = """%%tcompile -o run --stages captured,forward,backward
def batch():
    return torch.randn(8, 64)

class Trainer:
    def __init__(self, model):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(self, x):
        self.opt.zero_grad()
        self.model(x).square().mean().backward()
        self.opt.step()

trainer = Trainer(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
for _ in range(2):
    x = batch()
    trainer.step(x)"""


def test_a_click_switches_to_another_call(lab: JupyterServer, new_notebook: NewNotebook) -> None:
    notebook = new_notebook(lab, LOAD, TRAINS, "print(run.record.explored.callee, run.record.title)")
    notebook.run_cell(0)
    notebook.run_cell(1)
    view = ExplorerView(notebook.output(1))
    line = view.root.locator(".tc-explored")
    expect(line).to_have_text(
        "Explored: self.model, called in trainer.step (line 17)Switch to: batch--fn trainer.step", timeout=WIDGET_MS
    )
    for theme in ("Light", "Dark"):
        notebook.use_theme(theme)
        notebook.show(view.root)
        notebook.screenshot(f"switch-{theme.lower()}")
    line.get_by_role("button", name="batch").click()
    expect(line).to_contain_text("Explored: batch (line 16)", timeout=WIDGET_MS)
    expect(view.line(view.stage, "torch.randn")).not_to_have_count(0)
    notebook.show(view.root)
    notebook.screenshot("switched")
    assert notebook.run_cell(2).split() == ["batch", "batch"]
