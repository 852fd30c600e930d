"""%%predict in an IPython shell: asked in text, run once, graded; what can not be graded says why, loses no answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from explorer.teach.progress import FILE

CELL = """
def f(x, w):
    h = x @ w
    print("hello")
    return torch.relu(
        h
    )
w = torch.ones(2, 2, requires_grad=True)
f(torch.ones(1, 2), w).sum().backward()"""


class Learner:
    """A shell whose prompts are answered, in a folder of its own."""

    def __init__(self, shell: InteractiveShell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shell, self.folder, self._monkeypatch = shell, folder, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, cell: str, *answers: str) -> str:
        """Run a cell, answer its prompts, and return the text it shows."""
        left = iter(answers)
        self._monkeypatch.setattr("builtins.input", lambda _: next(left))
        with capture_output() as captured:
            self.result = self.shell.run_cell(cell, store_history=True)
        shown = "".join(str(output.data.get("text/plain", "")) for output in captured.outputs)
        return captured.stdout + shown

    @property
    def error(self) -> str:
        error = self.result.error_before_exec or self.result.error_in_exec
        return f"{type(error).__name__}: {error}" if error else ""

    @property
    def entries(self) -> dict[str, dict]:
        return json.loads((self.folder / FILE).read_text())["entries"]


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    found = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    found.run_line_magic("colors", "nocolor")
    found.run_cell("%load_ext tcompile\nimport torch")
    yield found
    found.run_cell("%unload_ext tcompile")
    InteractiveShell.clear_instance()


@pytest.fixture
def learner(shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learner:
    return Learner(shell, tmp_path, monkeypatch)


def test_answers_are_compared_with_the_run(learner: Learner) -> None:
    asked = "--ask breaks,graphs,shape:h,gradient:w,kernels,plain"
    options = "--title first --stages captured,autograd,forward,backward,joint,inference -o run"
    text = learner.run(
        f"%%predict {asked} {options}{CELL}", "the print", "line 4", "1", "2, 2", "[[1, 1], [1.0, 1]]", "2", "4"
    )
    assert learner.error == ""
    assert "This can't be read: give line numbers" in text
    assert re.search(r"you: line 4 +found: 4 +right", text)
    assert re.search(r"you: 1 +found: 2 +not as found", text)
    assert "2 graphs (1 operation, 1 operation): 1 graph break, 0 recompilations → Captured" in text
    assert re.search(r"you: 2, 2 +found: \[1, 2\] +not as found", text)
    assert "can't be graded, because this run has no generated code: only captured" in text
    assert "3 of 5 right, 1 not graded" in text
    assert text.index("How many graphs") < text.index("hello")  # asked before it runs
    assert learner.shell.user_ns["run"].record.breaks
    entry = learner.entries["first"]
    assert entry["answers"]["gradient:w"] == "[[1, 1], [1.0, 1]]"
    assert entry["verdicts"]["kernels"] == "not graded"


def test_failing_cell_keeps_the_answers(learner: Learner) -> None:
    text = learner.run("%%predict --ask breaks --title fails\nnobody(torch.ones(2))", "none")
    assert learner.error == "NameError: name 'nobody' is not defined"
    assert "nothing can be graded, because the code fails: NameError: name 'nobody' is not defined" in text
    assert learner.entries["fails"]["answers"] == {"breaks": "none"}
    assert not (learner.folder / f".{FILE}").exists()


def test_code_of_an_earlier_cell_is_asked_about(learner: Learner) -> None:
    learner.run("def g(x):\n    y = x.cos()\n    if y.sum() > 0:\n        return y\n    return -y")
    text = learner.run("%%predict --ask breaks --stages captured\ng(torch.zeros(2))", "9", "3")
    assert "there is no line 9: the lines are 1 to 5" in text
    assert "3      if y.sum() > 0:" in text
    assert "1 of 1 right" in text


def test_code_of_an_earlier_function_of_the_same_name_is_not_asked_about(learner: Learner) -> None:
    learner.run("def same(x):\n    return x @ x.T")
    cell = "def same(x):\n    return {'a': x}\nsame(torch.zeros(2))"
    text = learner.run(f"%%predict --ask breaks --stages captured\n{cell}", "none")
    assert "x @ x.T" not in text
    assert "nothing breaks: there is no graph" in text
    text = learner.run("%%predict --ask breaks --stages captured\nsame = abs\nsame(torch.zeros(2))", "none")
    assert "def same" not in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--ask brakes", "did you mean 'breaks'"),
        ("--asks breaks", "there is no option asks"),
        ("--ask breaks --target h1000", "h1000"),
    ],
)
def test_mistakes_are_usage_errors_before_anything_is_asked(learner: Learner, line: str, message: str) -> None:
    text = learner.run(f"%%predict {line}\nf(torch.ones(1, 2), w)")
    assert message in text + learner.error
    assert "you:" not in text
    assert not (learner.folder / FILE).exists()


def test_nobody_there_runs_at_once_and_folds_the_answers(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a program executes the notebook: a kernel that allows no input."""
    monkeypatch.setattr(type(learner.shell), "kernel", type("Kernel", (), {"_allow_stdin": False})(), raising=False)
    with capture_output() as captured:
        cell = "%%predict --ask graphs --stages captured --no-widget\ndef k(x):\n    return x + 1\nk(torch.ones(1))"
        assert learner.shell.run_cell(cell).success
        assert not learner.shell.run_cell("%%predict --ask graphs\nnobody(1)").success
    (shown,) = (
        output.data
        for output in captured.outputs
        if "Not answered" in output.data["text/plain"] and "k(x)" in output.data["text/html"]
    )
    assert "found" not in shown["text/plain"]
    assert re.search(r"<details.*What torch.compile does.*found: .*1", shown["text/html"], re.DOTALL)
    assert not (learner.folder / FILE).exists()


def test_page_of_questions_is_written(learner: Learner) -> None:
    text = learner.run(
        "%%predict --ask graphs --stages captured --page q.html\ndef k(x):\n    return x + 1\nk(torch.ones(1))"
    )
    assert "q.html: 1 question that any browser can grade" in text
    assert 'id="tc-forms"' in (learner.folder / "q.html").read_text()
    assert not (learner.folder / FILE).exists()
