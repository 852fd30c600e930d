"""Repros: delta debugging, parts of graphs, smaller programs, and a file that is confirmed in a fresh process."""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tcompile
from compiler.numerics.policy.judge import judge
from compiler.record import Record
from compiler.repro.arguments_text import CannotWriteError, arguments_text
from compiler.repro.policy_text import policy_text
from compiler.repro.program import WRONG, Repro, graph_body
from compiler.repro.recorded_text import graphs_of_record
from compiler.repro.reduce import Effort, minimize
from compiler.repro.source import count_statements, reduce_source
from compiler.repro.subgraph import CannotCutError, RecordedGraph
from compiler.repro.values import MAKE_RANDOM, TensorFacts
from explorer import cli
from explorer.entry.repro import ReproError

MODEL = """
import torch

def model(x):
    x = torch.relu(x)
    y = x + 1
    if y.sum() > 0:
        y = y * 2
    return torch.tanh(y)
"""


def test_minimize_finds_the_smallest_part() -> None:
    effort = Effort(60)
    assert minimize(range(64), lambda some: {3, 40} <= set(some), effort) == [3, 40]
    assert minimize(range(8), lambda _some: True, effort) in ([0], [4])
    assert minimize(range(8), lambda some: len(some) == 8, Effort(0)) == list(range(8))


def test_source_is_reduced_to_what_shows_the_fault() -> None:
    text = (
        "import os\n\nclass A:\n    x = 1\n\n    def f(self, y):\n        z = g(y + 1)\n"
        "        if z:\n            bug(z)\n        return z\n"
    )
    small = reduce_source(text, lambda candidate: "bug(" in candidate and ast.parse(candidate) is not None, Effort(60))
    assert small == "class A:\n\n    def f(self, y):\n        bug(z)\n"
    assert count_statements(text) > 5
    text = "class A:\n    def forward(self, y):\n        z, w = 1, y\n        v = w\n        return bug(v)\n\nf = A()\n"
    small = reduce_source(text, lambda each: "bug(" in each and "f" in _names_of(each), Effort(60))
    assert small == "def f(y):\n    return bug(v)\n"


def _names_of(text: str) -> set[str]:
    return {getattr(node, "name", "") or getattr(node, "id", "") for node in ast.walk(ast.parse(text))}


def test_part_of_a_graph_has_inputs_for_what_is_cut(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
            first, second = (x @ x.mT).chunk(2)
            return torch.relu(first) * n + second.log()

    module = torch.fx.symbolic_trace(Model())
    graph = RecordedGraph.of_call(module, (torch.rand(4, 6), 3))
    part = graph.cut(["relu", "mul"])
    assert part.inputs == ("getitem", "n")
    assert len(part.module(torch.ones(2, 4), 3)) == 1
    with pytest.raises(CannotCutError):
        graph.cut([])
    text = Repro(
        WRONG, "wrong number", graph_body(graph, ["relu", "mul", "log"], trains=False), {"backend": "eager"}
    ).text()
    (tmp_path / "repro.py").write_text(text)
    assert runpy.run_path(str(tmp_path / "repro.py"))["show"]() == ([], "all results are eager's, up to rounding")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.complex64])
def test_random_values_have_recorded_layout_and_range(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1, 0, 1], [0, 1, 0]]).to(dtype).mT
    names: dict[str, object] = {"torch": torch}
    exec(MAKE_RANDOM, names)
    made = eval(TensorFacts.of_tensor(tensor).code(trains=True), names)
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), dtype)
    assert torch.view_as_real(made).max() <= 1 if dtype.is_complex else made.max() <= 1


def test_graphs_of_a_record_are_traced_from_their_text() -> None:
    def scale_rows(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.mT)[n] * 2

    run = tcompile.explore(scale_rows, torch.rand(4, 6), torch.tensor([1, 0]), stages="captured")
    (frame,) = graphs_of_record(Record.from_json(run.record.to_json())).values()
    assert frame.captured is not None
    assert frame.arguments is not None
    assert [each.shape for each in frame.captured(*frame.arguments)] == [(2, 4)]
    assert set(frame.arguments[1].tolist()) <= {0, 1}
    assert RecordedGraph.of_call(frame.captured, frame.arguments).names == ("getattr_1", "relu", "getitem", "mul")


def test_repro_judges_by_the_policy() -> None:
    names: dict[str, Any] = {}
    exec(f"from __future__ import annotations\nimport torch\n{policy_text()}", names)
    eager, exact = torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9, dtype=torch.float64)
    for mine in (eager, eager + 1e-7, eager + 1e-3, eager / 0, eager.bfloat16(), (eager * 8).int()):
        for best in (None, exact):
            here, there = judge("r", mine, eager, best), names["judge"]("r", mine, eager, best)
            assert (there.verdict, there.note, there.max_absolute) == (here.verdict, here.note, here.max_absolute)


BACKEND = """
import torch

def backend(module, inputs):
    return lambda *args: [each + 1 for each in module(*args)] if args[0].sum() == 6 else module(*args)

def model(x):
    return x * 2
"""


def test_repro_imports_a_backend_and_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "backend_of_repro.py").write_text(BACKEND)
    module = importlib.import_module("backend_of_repro")
    monkeypatch.delitem(sys.modules, "backend_of_repro")
    monkeypatch.setitem(sys.modules, "backend_of_repro", module)
    (tmp_path / "arguments.py").write_text(f"import sys\n{arguments_text({'backend': module.backend})}")
    assert runpy.run_path("arguments.py")["COMPILE"]["backend"] is module.backend
    places = {tmp_path: True, tmp_path / "a" / "b": True, tmp_path.parent: True, Path("/usr"): False}
    for beside, found in places.items():
        text = arguments_text({"backend": module.backend}, beside)
        assert (str(tmp_path) not in text, "# a folder of this machine" not in text) == (found, found)
        lines = text.replace("__file__", repr(str(beside / "repro.py"))).partition("COMPILE")[0]
        exec(f"import sys\n{lines}")
        assert Path(sys.path.pop(0)).resolve() == tmp_path
    with pytest.raises(CannotWriteError, match="backend is <lambda>, which another process can't import"):
        arguments_text({"backend": lambda module, _inputs: module})
    run = tcompile.explore(module.model, torch.tensor([1.0, 2, 3]), backend=module.backend, check=True, target="cpu")
    with pytest.raises(ReproError, match=r"all results are eager's.*real_inputs=True"):
        tcompile.make_repro(run, "repro.py", seconds=5)


def test_repro_of_a_break_is_confirmed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, output, issue = (tmp_path / name for name in ("model_of_repro.py", "repro.py", "issue.md"))
    model.write_text(MODEL)
    options = ["--input", "randn(4, 5)", "-o", str(output)]
    asked = ["repro", f"{model}:model", *options]
    assert cli.main([*asked, "--issue", str(issue), "graph break"]) == 0
    told = capsys.readouterr().out
    assert "statements" in told
    assert "confirmed in a fresh process" in told
    assert "NOT" not in told
    assert "tanh" not in output.read_text()
    assert "### 🐛 Describe the bug" in issue.read_text()
    output.unlink()
    assert cli.main([*asked[:2], "break[9/9].0", *options]) == 2
    assert not output.exists()
    assert (
        cli.main(["explore", f"{model}:model", "--input", "randn(4, 5)", "--stages", "captured", "--json=run.json"])
        == 0
    )
    assert cli.main(["repro", "run.json", "captured[0/0]", "-o", str(output)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not output.exists()
