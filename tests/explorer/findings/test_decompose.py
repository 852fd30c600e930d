"""explorer.decompose, and a run at each level: as text, as HTML, as tables, in the live view and in the terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import explorer
from compiler.decompose.graphs import LevelError
from compiler.decompose.one_op import Decomposition, Level
from compiler.decompose.tree import OpCall, Source, TensorType
from compiler.numerics.policy.by_dtype import Numbers, not_comparable
from compiler.record import Record
from explorer import cli
from explorer.findings.decompose.op_levels import OpLevels
from explorer.run.payload import manifest
from explorer.run.run import Run
from explorer.run.widget import Explorer
from tests.explorer.golden import assert_golden

LEVELS = ["torch", "ATen", "core ATen", "Inductor", "prims"]
MATRIX = (TensorType("float32", (4, 8)),)


def silu() -> Decomposition:
    """A hand-written decomposition of silu: composite, with a random level and a wrong level."""
    kernel = Source("ATen's CompositeImplicitAutograd kernel of aten.silu, in C++")
    python = Source("silu", "torch/_refs/nn.py", 10, 12, "def silu(a):\n    # <b>\n    return a * sigmoid(a)\n")
    sigmoid = OpCall("aten.sigmoid.default", MATRIX, "sigmoid", why="a core ATen operator")
    product = OpCall("aten.mul.Tensor", MATRIX, "mul", why="a core ATen operator")
    prims = OpCall("prims.mul.default", MATRIX, "mul", why="a prim")
    aten = OpCall("aten.silu.default", MATRIX, source=kernel, calls=(sigmoid, product))
    inductor = OpCall("aten.silu.default", MATRIX, source=python, calls=(sigmoid, product))
    multiplied = OpCall("aten.mul.Tensor", MATRIX, source=python, calls=(prims,))
    deep = OpCall("aten.silu.default", MATRIX, source=python, calls=(multiplied, prims))
    close = Numbers("float32", 1, 2.4e-7, 1.1e-7, 1e-5, "close", "output 0")
    equal = Numbers("float32", 1, 0.0, 0.0, 1e-5, "equal", "output 0")
    wrong = Numbers("float32", 1, 3.0, 0.5, 1e-5, "differs", "output 0")
    levels = (
        Level("torch", (OpCall("aten.silu.default", MATRIX, "silu", why="called by F.silu"),), "silu(x)\n", (equal,)),
        Level("ATen", (aten,), "mul(sigmoid(x), x)\n", (equal,)),
        Level("core ATen", (sigmoid, product), "mul(sigmoid(x), x)\n", (close,)),
        Level("Inductor", (inductor,), "mul(sigmoid(x), x)\n", (not_comparable("float32", "random: other numbers"),)),
        Level("prims", (deep,), "mul(mul(x), x)\n", (wrong,)),
    )
    source = Source("silu", "torch/nn/functional.py", 2100, 2120, "def silu(input):\n    ...\n")
    return Decomposition("torch.nn.functional.silu", MATRIX, (("inplace", False),), MATRIX, source, levels, "made up")


def test_text_has_numbers_and_a_tree_per_level() -> None:
    assert_golden("decompose_silu.txt", str(OpLevels(silu())))


def test_html_has_escaped_code_and_no_script() -> None:
    html = OpLevels(silu())._repr_html_()
    assert html.count("<details") == 5 + 5 + 2
    assert "2.4e-07" in html
    assert "random: other numbers" in html
    assert "&lt;b&gt;" in html
    assert "<b>\n" not in html
    assert "<script" not in html


def test_operator_tables_and_code() -> None:
    found = explorer.decompose("torch.nn.functional.silu", torch.randn(4, 8))
    assert list(found.ops.columns) == LEVELS
    assert found.ops.loc["prims.mul.default", "Inductor"] == 0
    assert found.numbers.verdict.isin(["equal", "close"]).all()
    assert (found.numbers.tolerance == 1e-5).all()
    assert "def silu(" in found.source("prims")
    assert "torch.ops.prims" in found.code("prims")


def test_level_of_an_operator_prints_its_trees() -> None:
    levels = explorer.decompose("aten.gelu", torch.randn(4))
    prims = levels.level("prims")
    assert prims.ops == levels.found.level("prims").ops()
    assert "prims.erf.default" in prims.ops
    assert str(prims).startswith(f"prims ({len(prims.ops)} ops)")
    assert "erf" in prims.code
    assert "<details open" in prims._repr_html_()
    with pytest.raises(ValueError, match="no level"):
        levels.level("assembly")


def test_operators_table_has_method_and_quoted_counts() -> None:
    table = explorer.decompose()
    assert table.loc["registered in aten", "quoted"] == "2000+ overloads, 1200+ names"
    assert (table.overloads >= table.names).all()
    assert table.method.str.len().gt(10).all()


class Classifier(nn.Module):
    """A layer with dropout and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(nn.functional.dropout(self.layer(x), 0.5))


@pytest.fixture(scope="module")
def run() -> Run:
    """A training step, explored with all of Inductor's stages."""
    from compiler.engine import Exploration

    torch.manual_seed(0)
    with Exploration() as exploration:
        exploration.compile(Classifier())(torch.randn(3, 8)).sum().backward()
    return Run(exploration.record, kept=exploration.kept)


def test_levels_are_computed_on_request_and_listeners_notified(run: Run) -> None:
    heard: list[Record] = []
    assert not run.record.of_stage("decomposed")
    run.compiler.listen(lambda record, _: heard.append(record))
    assert run["decomposed[0/0 forward prims]"].attrs["level"] == "prims"
    assert heard == [run.record]
    assert [artifact.id for artifact in run.decompose("prims")] == [
        "decomposed[0/0 forward prims]",
        "decomposed[0/0 backward prims]",
    ]
    assert "torch.ops.prims.erf" in str(run.decompose("prims"))
    assert run.decompose("captured")[0].id == "captured[0/0]"
    assert len(heard) == 1


def test_live_view_computes_levels_when_opened() -> None:
    run = explorer.explore(Classifier(), torch.randn(3, 8), stages=("captured", "forward"))
    widget = run.widget()

    def chip() -> dict[str, Any]:
        return next(stage for stage in widget.manifest["stages"] if stage["name"] == "decomposed")

    assert (chip()["pending"], chip()["makes"], chip()["artifacts"]) == (1, "Click to generate", [])
    heard: list[dict[str, Any]] = []
    widget.observe(lambda change: heard.append(change["new"]), names="compiling")
    widget._on_message(widget, {"type": "make", "stage": "decomposed"}, [])
    assert heard == [{"done": 0, "total": 1, "stage": "decomposed"}, {}]
    levels = {artifact["level"] for artifact in chip()["artifacts"]}
    assert levels == set(LEVELS) - {"torch"}
    captured = next(stage for stage in widget.manifest["stages"] if stage["name"] == "captured")
    assert captured["artifacts"][0]["level"] == "torch"
    assert run["decomposed"] in run.record.artifacts
    assert chip()["pending"] == 0


def test_live_view_decomposes_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    run = explorer.explore(Classifier(), torch.randn(3, 8), stages=("captured", "forward"))
    widget = run.widget()
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(widget, "send", lambda message, **_: sent.append(message))
    assert {"captured", "forward"} <= set(widget.manifest["trees"])
    name = next(entity.id for entity in run["captured"].entities if "gelu" in entity.attrs.get("target", ""))
    for asked in (name, "captured[0/0].nonsense"):
        widget._on_message(widget, {"type": "tree", "id": asked}, [])
    assert [message["id"] for message in sent] == [name, "captured[0/0].nonsense"]
    assert sent[0]["text"] == str(run.decompose(name))
    assert sent[1]["text"].startswith("no entity 'captured[0/0].nonsense'")
    assert not Explorer(run.record).manifest["trees"]


def test_failed_level_is_reported_on_its_chip() -> None:
    run = explorer.explore(Classifier(), torch.randn(3, 8), stages=("captured",))
    widget = run.widget()

    def fails(_: Record) -> Record:
        raise RuntimeError("no graph of that kind")

    run.compiler.makers["decomposed"] = replace(run.compiler.makers["decomposed"], make=fails)
    widget._on_message(widget, {"type": "make", "stage": "decomposed"}, [])
    chip = next(stage for stage in widget.manifest["stages"] if stage["name"] == "decomposed")
    assert [problem["reason"] for problem in chip["problems"]] == [
        "it could not be made: RuntimeError: no graph of that kind"
    ]
    assert chip["pending"] == 0
    assert widget.compiling == {}


def test_levels_table_has_counts_and_numbers(run: Run) -> None:
    table = run.decompose().table
    assert list(dict.fromkeys(table.level)) == LEVELS
    assert set(table.half) == {"", "forward", "backward"}
    assert table[table.level != "torch"].verdict.isin(["equal", "close"]).all()
    assert (table.ops >= table.different).all()
    ops = run.decompose().operators
    assert list(ops.columns) == LEVELS
    assert ops.loc["aten.gelu_backward.default", "ATen"] == 1
    assert ops.loc["aten.gelu_backward.default", "prims"] == 0
    assert "operator.getitem" not in ops.index
    assert isinstance(table, pd.DataFrame)


def test_node_names_its_decomposition_and_why_it_stays(run: Run) -> None:
    entities = run["decomposed[0/0 backward Inductor]"].entities
    erf = next(entity for entity in entities if entity.attrs.get("target") == "aten.erf.default")
    assert erf.attrs["decomposed_from"] == "aten.gelu_backward.default"
    assert erf.attrs["decomposed_by"].startswith("torch/_decomp/decompositions.py:")
    assert "Inductor lowers it" in erf.attrs["stays"]


def test_frontend_gets_levels_as_a_drawable_stage(run: Run) -> None:
    run.decompose("ATen")
    stage = next(stage for stage in manifest(run.record)["stages"] if stage["name"] == "decomposed")
    assert (stage["title"], stage["count"], stage["unit"]) == ("Decomposed", 8, "graphs")
    assert all(artifact["drawable"] for artifact in stage["artifacts"])


@pytest.mark.parametrize("name", ["captured.{}", "captured[0/0].{}"])
def test_any_captured_node_can_be_decomposed(run: Run, name: str) -> None:
    gelu = next(entity for entity in run["captured"].entities if "gelu" in str(entity.attrs.get("target")))
    found = run.decompose(name.format(gelu.label))
    assert found.levels[0].ops() == ["aten.gelu.default"]
    assert found.numbers.verdict.isin(["equal", "close"]).all()
    assert not found.found.note


@pytest.mark.parametrize("stage", ["joint", "forward", "backward", "post_grad"])
def test_aot_autograd_nodes_can_be_decomposed(run: Run, stage: str) -> None:
    product = next(entity for entity in run[stage].entities if "mm" in str(entity.attrs.get("target")))
    found = run.decompose(product.id)
    assert "mm" in found.levels[0].ops()[0]
    assert found.numbers.verdict.isin(["equal", "close"]).all()


def test_nodes_of_a_level_can_be_decomposed_further(run: Run) -> None:
    found = run.decompose(f"{run.decompose('ATen')[1].id}.gelu_backward")
    assert "aten.erf.default" in found.levels[3].ops()
    assert found.found.note == ""


def test_unknown_node_suggests_a_similar_name(run: Run) -> None:
    with pytest.raises(KeyError, match=r"no entity 'captured.gelo': did you mean captured\.gelu\?"):
        run.decompose("captured.gelo")
    with pytest.raises(ValueError, match="the levels are: torch, ATen, core ATen, Inductor, prims"):
        run.decompose("assembler")


def test_loaded_run_has_only_its_saved_levels(run: Run, tmp_path: Path) -> None:
    bare = explorer.load(Run(run.record.with_fields(artifacts=tuple(
        artifact for artifact in run.record.artifacts if artifact.stage != "decomposed"
    ))).save(tmp_path / "bare.json"))  # fmt: skip
    with pytest.raises(ValueError, match="a saved record has the text of its graphs"):
        _ = bare.decompose().table
    with pytest.raises(LevelError, match="a saved record has its text, and no graph or inputs"):
        bare.decompose(run["captured"].entities[-2].id)
    run.decompose("prims")
    loaded = explorer.load(run.save(tmp_path / "run.json"))
    pd.testing.assert_frame_equal(loaded.decompose().table, run.decompose().table)


def test_command_decomposes_an_operator(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["decompose", "aten.silu", "--input", "randn(4, 8)"]) == 0
    assert "aten.silu(f32[4, 8]) -> f32[4, 8]" in capsys.readouterr().out
    assert cli.main(["decompose", "aten.silo"]) == cli.WRONG_USE
    assert "there is no operator aten.silo" in capsys.readouterr().err
