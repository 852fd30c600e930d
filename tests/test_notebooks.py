"""Every notebook runs from top to bottom in a fresh kernel, and can be read without running it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
GIB = 1024**3
BINDER_BYTES = 1 * GIB
# VmHWM, not ru_maxrss, which also counts the parent process before the fork.
PEAK_MEMORY = """
import re, resource
from pathlib import Path

status = Path("/proc/self/status")
if status.exists():
    print(1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]))
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
MEASURE_BRIEFLY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.brief_measurements import measure_briefly
del sys.path[0]
measure_briefly()
"""
A_USERS_FOLDER = re.compile(rf"/(home|root|Users|tmp|work)/|{re.escape(str(ROOT))}")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_first_notebook_exists() -> None:
    assert NOTEBOOKS[0].name == "01_first_look.ipynb"


def test_notebook_was_run_in_order(notebook: nbformat.NotebookNode) -> None:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for cell in code_cells(notebook) for output in cell.outputs if output.output_type == "error"]


def test_each_exploration_has_output_without_a_kernel(notebook: nbformat.NotebookNode) -> None:
    explored = [cell for cell in code_cells(notebook) if cell.source.startswith("%%tcompile")]
    assert explored
    for cell in explored:
        shown = [output.data for output in cell.outputs if "data" in output]
        assert any("text/html" in data and "text/plain" in data for data in shown), cell.source


def test_notebook_outputs_contain_no_user_folder(notebook: nbformat.NotebookNode) -> None:
    assert not A_USERS_FOLDER.search(nbformat.writes(notebook))


def test_notebook_runs_within_the_memory_of_binder(
    notebook: nbformat.NotebookNode, capsys: pytest.CaptureFixture[str]
) -> None:
    first = code_cells(notebook)[0]
    notebook.cells.insert(notebook.cells.index(first) + 1, nbformat.v4.new_code_cell(MEASURE_BRIEFLY))
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK_MEMORY))
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": ROOT / "notebooks"}}
    ).execute()
    peak = int(notebook.cells.pop().outputs[0].text)
    with capsys.disabled():
        print(f" (peak memory of the kernel: {peak / GIB:.2f} GiB)", end="")  # noqa: T201
    assert peak < BINDER_BYTES
