"""Run notebooks from top to bottom and save them with their outputs, so that readers need not run them.

    .venv/bin/python build_tools/run_notebook.py notebooks/01_first_look.ipynb

Live views are not saved: they need a kernel, and the static view shows the same content without one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 600


def run(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": path.parent}},
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", ())]
    notebook.metadata.pop("widgets", None)
    nbformat.write(notebook, path)


for name in sys.argv[1:]:
    run(Path(name))
