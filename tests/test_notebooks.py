"""Every notebook runs from top to bottom in a fresh kernel, and can be read without running it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import partial, reduce
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from compiler.backend.passes.fit import merge_kernels
from explorer.teach.catalogue import EXERCISES

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ANSWERS = [
    cell
    for cell in nbformat.read(ROOT / "notebooks/answers/answers.ipynb", as_version=4).cells
    if cell.cell_type == "code"
]
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
AN_EXPLORATION = re.compile(r"%%tcompile|%%predict|(\w+) = tcompile\.(?:chain_rule|load)\(.*\)\n\1$")
A_USERS_FOLDER = re.compile(rf"/(home|root|Users|tmp|work)/|{re.escape(str(ROOT))}")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> nbformat.NotebookNode:
    notebook = nbformat.read(request.param, as_version=4)
    notebook.metadata["lesson"] = request.param.stem
    return notebook


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def cells_text(notebook: nbformat.NotebookNode) -> str:
    return "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


def exercises(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if "exercise" in cell.metadata.get("tags", ())]


def answers_to(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in ANSWERS if cell.metadata.answer.lesson == notebook.metadata.lesson]


def answer_exercises(notebook: nbformat.NotebookNode) -> None:
    """Put after each exercise a cell with its answer instead of the blank, so that the exercise's own check runs."""
    for exercise, answer in zip(exercises(notebook), answers_to(notebook), strict=True):
        _, check = exercise.source.split("\n\n", 1)
        cell = nbformat.v4.new_code_cell(f"{answer.source}\n\n{check}")
        notebook.cells.insert(notebook.cells.index(exercise) + 1, cell)


def test_each_exercise_has_an_answer_elsewhere(notebook: nbformat.NotebookNode) -> None:
    """The learner's cell begins with a blank; in order, each has a number, a folded hint and an answer."""
    found = exercises(notebook)
    assert [cell.metadata.answer.exercise for cell in answers_to(notebook)] == [n + 1 for n in range(len(found))]
    for number, cell in enumerate(found, 1):
        question = notebook.cells[notebook.cells.index(cell) - 1].source
        assert f"**Exercise {number}.**" in question
        assert "<summary>Hint</summary>" in question
        assert "..." in cell.source.split("\n\n")[0]
        assert not cell.outputs


def test_lesson_has_goals_and_predictions(notebook: nbformat.NotebookNode) -> None:
    text = cells_text(notebook)
    assert "you can\n\n- " in text
    assert "**Predict" in text
    assert any(cell.source.startswith("%%predict") for cell in code_cells(notebook))


def only_displays(source: str) -> bool:
    """Whether a cell is an exploration, or only has expressions that are shown."""
    statements = ast.parse("" if source.startswith("%%") else re.sub("^%", "#", source, flags=re.MULTILINE)).body
    return all(isinstance(statement, ast.Expr) for statement in statements)


def test_syllabus_has_the_lessons_minutes_and_exercises() -> None:
    """The table of docs/teaching.md, against the lessons themselves."""
    page = (ROOT / "docs/teaching.md").read_text()
    rows = re.findall(r"^\| (\w+) [^|]*\| ([\d+ ]+) \|.*\| (\d+) \|$", page, re.MULTILINE)
    words = {"fifteen": "15", "twenty": "20"}
    lessons = [nbformat.read(path, as_version=4) for path in NOTEBOOKS]
    minutes = [words[re.findall(r"takes\s(\w+)\sminutes", cells_text(lesson))[0]] for lesson in lessons]
    found = [(path.name.split("_")[0], exercises(lesson)) for path, lesson in zip(NOTEBOOKS, lessons, strict=True)]
    assert [(lesson, int(count)) for lesson, _, count in rows] == [(name, len(each)) for name, each in found]
    assert [time.split(" ")[0] for _, time, _ in rows] == minutes
    assert f"{len(EXERCISES)} short exercises over {len({each.topic for each in EXERCISES.values()})} topics" in page


def test_compiler_from_scratch_has_300_lines() -> None:
    """Lines that are neither blank nor comments, formatted at 100 columns, checks included."""
    notebook = nbformat.read(ROOT / "notebooks/10_torch_compile_from_scratch.ipynb", as_version=4)
    code = "\n".join(cell.source for cell in code_cells(notebook) if not only_displays(cell.source))
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=100", "--stdin-filename=code.py", "-"],
        input=re.sub("^%", "magic = 1  # ", code, flags=re.MULTILINE),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    lines = [line for line in formatted.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert 250 < len(lines) <= 300


def cells_of(stem: str, *ids: str) -> str:
    """Code of the cells, without magics."""
    cells = {cell.id: cell for cell in nbformat.read(ROOT / f"notebooks/{stem}.ipynb", as_version=4).cells}
    return re.sub("^%.*$", "", "\n".join(cells[each].source for each in ids), flags=re.MULTILINE)


def test_tracer_from_scratch_takes_numbers_on_the_left() -> None:
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "x": torch.ones(3), "model": lambda x: 2 / (1 - x * x) + 1}
    exec(cells_of("10_torch_compile_from_scratch", "94cf2aeb", "1bf25338"), names)
    assert [f"{node.name} {names['names'](node.args)} {node.shape}" for node in names["captured"].nodes] == [
        "mul_0 input_0, input_0 (3,)", "sub_1 1, mul_0 (3,)", "div_2 2, sub_1 (3,)", "add_3 div_2, 1 (3,)"
    ]  # fmt: skip


def test_exercise_on_fusion_refuses_a_pass_that_moves_more_bytes() -> None:
    """One kernel, but each value is still stored: nothing made the buffers local."""
    names: dict[str, Any] = {}
    exec(cells_of("09_write_a_compiler_pass", "d261dafe", "5bbfa8ac", "3cd9b5c3", "e4b5413b", "4fc825ae"), names)

    def merge_all(program: Any, ctx: Any) -> Any:
        first, *rest = program.steps
        return program.with_steps((reduce(partial(merge_kernels, ctx=ctx), rest, first),))

    blank, check = cells_of("09_write_a_compiler_pass", "a605038e").split("\n\n", 1)
    assert blank.startswith("fuse_with_reductions = ...")
    with pytest.raises(AssertionError, match="`mul` still goes through memory"):
        exec(check, names | {"fuse_with_reductions": merge_all})


def test_exercises_keep_the_results_of_explorations(notebook: nbformat.NotebookNode) -> None:
    """So that cells before an exercise can be run again after it."""
    explored = set(re.findall(r"^%%.* -o (\w+)", "\n".join(cell.source for cell in code_cells(notebook)), re.MULTILINE))
    bound = {
        node.id
        for cell in exercises(notebook)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    assert not explored & bound


def test_first_notebook_exists() -> None:
    assert NOTEBOOKS[0].name == "01_first_look.ipynb"


def test_notebook_was_run_in_order(notebook: nbformat.NotebookNode) -> None:
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert not [output for cell in code_cells(notebook) for output in cell.outputs if output.output_type == "error"]


def test_each_exploration_has_output_without_a_kernel(notebook: nbformat.NotebookNode) -> None:
    explored = [cell for cell in code_cells(notebook) if AN_EXPLORATION.match(cell.source)]
    assert explored
    for cell in explored:
        shown = [output.data for output in cell.outputs if "data" in output]
        assert any("text/html" in data and "text/plain" in data for data in shown), cell.source


def test_notebook_outputs_contain_no_user_folder(notebook: nbformat.NotebookNode) -> None:
    assert not A_USERS_FOLDER.search(nbformat.writes(notebook))


def test_notebook_runs_within_the_memory_of_binder(
    notebook: nbformat.NotebookNode, kernel_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_exercises(notebook)
    notebook.cells.append(nbformat.v4.new_code_cell(PEAK_MEMORY))
    NotebookClient(
        notebook, timeout=600, kernel_name=kernel_name, resources={"metadata": {"path": ROOT / "notebooks"}}
    ).execute()
    peak = int(notebook.cells.pop().outputs[0].text)
    with capsys.disabled():
        print(f" (peak memory of the kernel: {peak / GIB:.2f} GiB)", end="")  # noqa: T201
    assert peak < BINDER_BYTES
