"""torch.export as a stage, its failures as cards, and every way to save a compiled model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compiler.engine import explore
from compiler.export.exporting import export_program
from compiler.export.saving import ways_to_save
from compiler.record.options import Options


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.layer(x)))


def branches(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def reads(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "nowhere.pt")
    return x


def loads(x: torch.Tensor) -> torch.Tensor:
    return x * json.loads("[1, ")[0]


@pytest.mark.parametrize("strict", [False, True])
def test_export_lists_inputs_and_dynamic_sizes(strict: bool) -> None:
    open_size = {"x": {0: torch.export.Dim.DYNAMIC}}
    found = export_program(Net(), (torch.randn(3, 4),), strict=strict, dynamic_shapes=open_size)
    words = set(found.inputs.values())
    assert {"parameter layer.weight", "buffer norm.running_mean", "input of the call"} <= words
    [(symbol, bounds)] = found.ranges.items()
    assert bounds == f"2 <= {symbol}"
    assert "#   p_layer_weight: parameter layer.weight" in found.artifact.text


def test_exported_nodes_link_to_the_user_line() -> None:
    found = export_program(Net(), (torch.randn(3, 4),))
    relu = next(entity for entity in found.artifact.entities if entity.attrs["target"].startswith("aten.relu"))
    assert relu.attrs["code"] == "return torch.relu(self.norm(self.layer(x)))"
    assert len(relu.origins) == 1


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a temporary folder, because non-strict export runs Python code, which may write files."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("fn", "code", "advice"), [(branches, "x.sum() > 0", "torch.where"), (reads, "torch.save", "outside")]
)
def test_refused_export_has_a_card_with_its_location(strict: bool, fn: object, code: str, advice: str) -> None:
    card = export_program(fn, (torch.randn(3),), strict=strict).card
    assert card.chain[-1].code.startswith(code)
    assert card.chain[-1].function == fn.__name__
    assert card.outcome == "error"
    assert advice in card.suggestions[0].text


def written(code: str, file: Path) -> Callable[..., torch.Tensor]:
    file.write_text(f"import torch\ndef f(x):\n    {code}\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names["f"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("code", "advice", "edited"),
    [
        ("return torch.zeros(int(x.sum().item())) + x.mean()", "tensor.long().item()", ""),
        ("return torch.zeros(int(x.sum() / 2))", "tensor.long().item()", ""),
        ("return x * float(x.sum() + 1)", "tensor.double().item()", ""),
        ("n = x.sum().long().item()\n    return x + 1 if n > 3 else x", "torch._check(condition)",
         "n = x.sum().long().item()\n    torch._check(n > 3)\n    return x + 1 if n > 3 else x"),
        ("return x + 1 if x.sum().item() > 3 else x", "torch.cond(",
         "return torch.cond(x.sum().item() > 3, lambda x: x + 1, lambda x: x.clone(), (x,))"),
        ("for _ in range(x.sum().long().item()):\n        x = x + 1\n    return x", "torch.while_loop, with the number",
         "n, k = x.sum().long(), torch.zeros((), dtype=torch.int64)\n"
         "    return torch.while_loop(lambda k, x: k < n, lambda k, x: (k + 1, x + 1), (k, x))[1]"),
        ("return [1, 2, 3, 4, 5][x.sum().long().item()] * x", "table.index_select(0, index.unsqueeze(0))",
         "return torch.tensor([1, 2, 3, 4, 5]).index_select(0, x.sum().long().unsqueeze(0)) * x"),
    ],
)  # fmt: skip
def test_advice_on_a_number_that_export_does_not_know_works(
    strict: bool, code: str, advice: str, edited: str, tmp_path: Path
) -> None:
    x, fn = torch.ones(4), written(code, tmp_path / "before.py")
    card = export_program(fn, (x,), strict=False).card
    assert "data-dependent expression" in card.kind
    assert "branch" not in card.what
    assert any(advice in each.text for each in card.suggestions)
    edit = edited or card.suggestions[0].rewrite.strip()
    program = export_program(written(edit, tmp_path / "after.py"), (x,), strict=strict).program
    assert torch.equal(program.module()(x), fn(x))


def test_error_inside_a_package_is_placed_at_its_call() -> None:
    card = export_program(loads, (torch.randn(3),), strict=False).card
    assert (card.chain[-1].function, card.chain[-1].code) == ("loads", 'json.loads("[1, ")')


def test_a_refused_export_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    export_program(branches, (torch.randn(3),))
    export_program(branches, (torch.randn(3),), strict=True)
    assert capfd.readouterr() == ("", "")


def test_export_leaves_compiled_functions_and_generator_unchanged() -> None:
    compilations = []
    compiled = torch.compile(Net().eval(), backend=lambda graph, _: compilations.append(graph) or graph.forward)
    compiled(torch.randn(3, 4))
    net = Net()
    state = torch.get_rng_state()
    for strict in (False, True):
        export_program(net, (torch.ones(3, 4),), strict=strict)
    assert torch.equal(torch.get_rng_state(), state)
    compiled(torch.randn(3, 4))
    assert len(compilations) == 1


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_dynamic_shapes_that_must_be_equal_are_told_with_the_fix_of_torch() -> None:
    shapes = {"x": {0: torch.export.Dim("a")}, "y": {0: torch.export.Dim("b")}}
    found = export_program(Sum(), (torch.randn(6, 8), torch.randn(6, 8)), strict=False, dynamic_shapes=shapes)
    assert found.problem is not None
    assert "must always be equal" in found.problem.reason
    assert found.problem.hint == "change dynamic_shapes as torch suggests: b = a"


def test_exported_stage_or_its_problem_is_recorded() -> None:
    options = Options(stages=("captured", "exported"))
    record = explore(Net(), (torch.randn(3, 4),), options=options).record
    assert [artifact.id for artifact in record.of_stage("exported")] == ["exported[non-strict]", "exported[strict]"]
    refused = explore(branches, (torch.ones(3),), options=options).record
    assert [problem.stage for problem in refused.problems] == ["exported", "exported"]
    assert all("x.sum() > 0" in problem.reason for problem in refused.problems)


def test_every_way_to_save_is_tried_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    model = Net().train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    found = {way.name: way for way in ways_to_save(model, (torch.randn(3, 4),))}
    outcomes = {name: way.outcome for name, way in found.items()}
    assert outcomes.pop("AOTInductor package") == "not tried"
    assert outcomes.pop("weights of torch.compile(model), into the plain model") == "fails"
    assert set(outcomes.values()) == {"equal"}
    assert len(outcomes) == 6
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert model.training


def test_load_failure_names_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    failed = [way for way in ways_to_save(Net(), (torch.randn(3, 4),)) if way.outcome == "fails"]
    assert "`_orig_mod.`" in failed[0].words
    assert "Missing key(s)" in failed[0].words


class Noisy(nn.Module):
    """No two calls give the same."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1e-6 * torch.rand_like(x)


def test_outputs_that_almost_agree_are_close(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = {way.outcome for way in ways_to_save(Noisy(), (torch.ones(3),), backend="eager")}
    assert "close" in found
    assert found <= {"close", "fails", "not tried"}


def test_missing_load_would_be_detected() -> None:
    """The copies that load the file have different weights."""
    from compiler.export.saving import _forget

    model = Net().eval()
    blank = Net().eval()
    _forget(blank)
    x = torch.randn(3, 4)
    assert not torch.allclose(model(x), blank(x))


def test_saving_a_non_module_is_refused() -> None:
    with pytest.raises(TypeError, match="saving is about modules; got function"):
        ways_to_save(branches)
