"""Drive a notebook in a browser like a user: run cells, read outputs, save, reopen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import nbformat
from playwright.sync_api import Locator, Page

from tests.browser.explorer_view import TWO_FRAMES
from tests.browser.jupyter_server import JupyterServer

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
READY_MS = 60_000
CELL_MS = 300_000

# JupyterLab and Notebook 7 put this on the page with `expose_app_in_browser`.
PANEL = "window.jupyterapp.shell.currentWidget"


def write_notebook(path: Path, *cells: str) -> None:
    """A new notebook with these code cells, none of them run."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


class NotebookPage:
    """One notebook of one server, in one browser page. Cells are numbered from 0."""

    def __init__(self, page: Page, server: JupyterServer, name: str) -> None:
        self.page = page
        self.server = server
        self.name = name

    @property
    def path(self) -> Path:
        return self.server.folder / self.name

    def open(self, *, kernel: bool = True) -> NotebookPage:
        """Show the notebook, and wait for its cells and, unless told otherwise, for an idle kernel."""
        self.page.goto(self.server.notebook_url(self.name))
        self._wait_until_ready(kernel=kernel)
        return self

    def open_here(self) -> NotebookPage:
        """Show the notebook in JupyterLab's page in place of the one that is open, in the light theme."""
        self.page.evaluate(
            f"path => {{ {PANEL}.dispose(); window.jupyterapp.commands.execute('docmanager:open', {{ path }}); }}",
            self.name,
        )
        self._wait_until_ready()
        self.use_theme("Light")
        return self

    def _wait_until_ready(self, *, kernel: bool = True) -> None:
        self.page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=READY_MS)
        if kernel:
            idle = f"() => {PANEL}?.sessionContext?.session?.kernel?.status === 'idle'"
            self.page.wait_for_function(idle, timeout=READY_MS)

    def start_cell(self, index: int) -> None:
        """Run a cell and return at once."""
        self._activate(index)
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-cell'); }")

    def run_cell(self, index: int) -> str:
        """Run a cell to its end. Returns the text of its outputs."""
        self.start_cell(index)
        self.wait_for_cell(index)
        return self.text(index)

    def run_all(self) -> None:
        """Run every cell to the end of the last one."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        for index in range(self.page.evaluate(f"() => {PANEL}.content.widgets.length")):
            self.wait_for_cell(index)

    def wait_for_cell(self, index: int) -> None:
        done = f"index => {{ const model = {PANEL}.content.widgets[index].model; \
            return model.executionState === 'idle' && model.executionCount !== null }}"
        self.page.wait_for_function(done, arg=index, timeout=CELL_MS)

    def is_running(self, index: int) -> bool:
        return self.page.evaluate(f"index => {PANEL}.content.widgets[index].model.executionState", index) == "running"

    def output(self, index: int) -> Locator:
        """The element that holds a cell's outputs."""
        # JupyterLab draws cells lazily: the first on the page need not be the notebook's first.
        return self.page.locator(f'.jp-Notebook .jp-Cell[data-windowed-list-index="{index}"] .jp-OutputArea').first

    def text(self, index: int) -> str:
        """The text that a cell printed, displayed or raised."""
        outputs: list[dict[str, Any]] = self.page.evaluate(
            f"i => {PANEL}.content.widgets[i].model.outputs.toJSON()", index
        )
        return "".join(_text(output) for output in outputs)

    def source(self, index: int) -> str:
        """The text of a cell."""
        return self.page.evaluate(f"i => {PANEL}.content.widgets[i].model.sharedModel.getSource()", index)

    def delete_cell(self, index: int) -> None:
        self.page.evaluate(f"i => {PANEL}.content.model.sharedModel.deleteCell(i)", index)

    def cells(self) -> list[str]:
        """The ids of the cells, in order. They are the model's: JupyterLab draws only cells near the window."""
        return self.page.evaluate(f"() => Array.from({PANEL}.content.model.cells, cell => cell.id)")

    def close_widgets(self) -> None:
        """Close the widgets in the kernel: a notebook that shares it would load them all."""
        self.page.evaluate(
            f"code => {PANEL}.sessionContext.session.kernel.requestExecute({{ code }}).done.then(() => null)",
            "import ipywidgets\nipywidgets.Widget.close_all()",
        )

    def save(self) -> nbformat.NotebookNode:
        """Save like the menu. Returns the notebook on disk."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.path, as_version=4)

    def use_theme(self, name: Literal["Light", "Dark"]) -> None:
        """Change the theme of the open page, and wait until it is drawn."""
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", f"JupyterLab {name}"
        )
        self.page.locator(f"body[data-jp-theme-name='JupyterLab {name}']").wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")  # it fades out, and covers everything
        self.page.evaluate(TWO_FRAMES)

    def show(self, element: Locator) -> None:
        """Scroll so that an element starts at the top."""
        element.evaluate("element => element.scrollIntoView({block: 'start'})")

    def screenshot(self, name: str) -> Path:
        """Take a picture of the window, kept in artifacts/."""
        path = ARTIFACTS / f"{name}.png"
        self.page.screenshot(path=path)
        return path

    def _activate(self, index: int) -> None:
        activate = "notebook.deselectAll(); notebook.activeCellIndex = index;"
        self.page.evaluate(f"index => {{ const notebook = {PANEL}.content; {activate} }}", index)


def _text(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "".join(output["text"])
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    return "".join(output["data"].get("text/plain", ""))
