"""explorer.autograd and explorer.chain_rule: tables, texts, views, files; errors in the user's terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import explorer
from compiler.autograd.values import Value
from explorer import AutogradRun, ChainRule
from explorer.findings.chain.values import value_data
from explorer.render.static import values_html
from explorer.run.payload import Payload
from tests.explorer.explored import MLP, mlp_record
from tests.explorer.findings.documents import parts_of, words_of


@pytest.fixture(scope="module")
def mlp() -> AutogradRun:
    torch.manual_seed(0)
    model, x = MLP(), torch.randn(32, 64)
    return explorer.autograd(lambda: model(x).square().mean(), health=True)


def test_tables_have_nodes_saved_tensors_and_leaves(mlp: AutogradRun) -> None:
    nodes, saved, leaves = mlp.nodes, mlp.saved, mlp.leaves
    assert list(nodes.name[:2]) == ["mean", "pow"]
    assert nodes.set_index("name").rule["addmm"] == "matrix product and sum"
    assert set(leaves.name) == {name for name, _ in MLP().named_parameters()}
    assert leaves.parameter.all()
    assert not leaves.has_grad.any()
    relu = saved[saved.op == "ReluBackward0"].iloc[0]
    assert (relu.bytes, relu.storage_bytes, relu["shape"]) == (32 * 128 * 4, 32 * 128 * 4, "[32, 128]")
    assert "addmm_1.mat1" in relu.shared_with or "addmm_2.mat1" in relu.shared_with
    kept = saved[~saved.free].drop_duplicates("storage").storage_bytes.sum()
    assert f"{kept:,} bytes, besides the leaves" in str(mlp)


def test_text_is_a_program_with_locations(mlp: AutogradRun) -> None:
    text = str(mlp)
    assert "relu_1 = ReluBackward0(addmm_2[1], result=f32[32, 128])  # -> mul_1" in text
    assert "# head (Linear)  tests/explorer/explored.py:27  return self.head(x)" in text
    assert "head.bias.grad += addmm_2[0]  # f32[10]" in text
    assert text.splitlines()[-1] == "All gradients, and all results that are known, are finite."


def test_health_norms_match_torch(mlp: AutogradRun) -> None:
    table = mlp.health.set_index("name")
    value = mlp.value
    assert isinstance(value, Tensor)
    leaf = next(row for row in mlp.leaves.itertuples() if row.name == "head.weight")
    assert leaf.gradients == 1
    assert table.gradient_norm["mean"] == 1.0
    assert 0 < table.gradient_zeros["mul_1"] < 1
    assert 0 < table.value_zeros["relu_1"] < 1
    assert (table["first"] == "").all()
    with pytest.raises(ValueError, match="health=True"):
        _ = explorer.autograd(value).health


def test_autograd_run_is_shown_saved_and_loaded(mlp: AutogradRun, tmp_path: Path) -> None:
    stages = {stage["name"]: stage for stage in Payload(mlp.record).manifest()["stages"]}
    assert stages["autograd"]["title"] == "Autograd"
    assert stages["autograd"]["artifacts"][0]["drawable"]
    assert stages["autograd"]["count"] == len(mlp.nodes)
    assert "addmm_2" in mlp._repr_mimebundle_()["text/html"] or "AddmmBackward0" in mlp._repr_mimebundle_()["text/html"]
    assert "cluster" in mlp.drawing("autograd").source
    loaded = explorer.load(mlp.save(tmp_path / "graph.json"))
    assert loaded.record == mlp.record
    assert loaded.autograd.saved.equals(mlp.saved)
    assert mlp.save(tmp_path / "graph.html").stat().st_size > 10_000


def test_run_has_the_autograd_graphs_of_its_calls() -> None:
    run = explorer.Run(mlp_record())
    graph = run.autograd
    assert set(graph.nodes.graph) == {"0/0"}
    assert set(graph.leaves.name) == {name for name, _ in MLP().named_parameters()}
    assert graph.nodes.module.notna().all()
    assert "autograd" in str(run).lower()


SHIFT = torch.randn(3, requires_grad=True)


def test_global_leaves_have_their_variable_name() -> None:
    def shifted(x: Tensor) -> Tensor:
        return (x * SHIFT).exp().sum()

    run = explorer.explore(shifted, torch.randn(3), stages=("captured", "autograd"))
    assert list(run.autograd.leaves.name) == ["SHIFT"]
    assert "SHIFT.grad += mul  # f32[3]" in run["autograd"].text
    source = run.drawing("autograd").source
    assert "<B>SHIFT.grad</B>" in source
    assert ": 3 ops, 1 leaf" in source


def test_modules_functions_blocks_and_tensors_are_accepted() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    by_module = explorer.autograd(model, x)
    assert by_module.record.title == "Linear"
    with explorer.autograd() as recorded:
        loss = model(x).sum()
    by_block = recorded.graph(loss)
    assert list(by_block.nodes.name) == ["sum", "addmm", "bias", "t", "weight"]
    assert by_block.nodes.loc[0, "code"] == "loss = model(x).sum()"
    by_tensor = explorer.autograd(loss)
    assert set(by_tensor.nodes.name) == {"sum", "addmm", "model.bias", "t", "model.weight"} or set(
        by_tensor.leaves.name
    ) == {"bias", "weight"}
    assert by_tensor.nodes["where"].isna().all()


def test_unsupported_value_says_why() -> None:
    with pytest.raises(ValueError, match="nothing that it was computed from wants a gradient"):
        explorer.autograd(torch.randn(3).sum())
    with pytest.raises(TypeError, match="has no tensor to look behind: got int"):
        explorer.autograd(lambda: 3)
    with pytest.raises(TypeError, match="takes arguments only for a function or module"):
        explorer.autograd(torch.randn(3, requires_grad=True), 3)
    with pytest.raises(ZeroDivisionError):
        explorer.autograd(lambda: 1 / 0)
    with pytest.raises(ValueError, match=r"gradient has the shape \(2,\), but the result has the shape \(3,\)"):
        explorer.chain_rule(torch.randn(3, requires_grad=True) * 2, gradient=torch.ones(2))
    with pytest.raises(ValueError, match="gradient is a float"):
        explorer.chain_rule(torch.randn(3, requires_grad=True) * 2, gradient=2.0)  # type: ignore[arg-type]
    loss = torch.randn(3, requires_grad=True).sin().sum()
    loss.backward()
    with pytest.raises(ValueError, match="freed by the backward pass"):
        explorer.chain_rule(loss)


def weighted(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    return (y * y.exp()).sum()


@pytest.fixture(scope="module")
def chain() -> ChainRule:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
    return explorer.chain_rule(weighted, x, w)


def test_chain_rule_text_goes_forward_then_backward(chain: ChainRule) -> None:
    text = str(chain)
    assert text.startswith("The chain rule on weighted: 4 operations forward, 4 steps backward, to 2 leaves.")
    assert text.index("mul_1 = y · exp") < text.index("mul_1: product rule (MulBackward0)")
    assert "y = x * w" in text
    step = str(chain.step(6))
    assert "d y = grad · exp  ->  mul\n        = [1, 1, 1] · [1.649, 0.1353, 403.4] = [1.649, 0.1353, 403.4]" in step
    added = str(chain.step(8))
    assert "incoming gradient: [1.649, 0.1353, 403.4]  from mul_1, its y" in added
    assert "summed: grad = [2.473, -0.1353, 2824], bit-exact" in added
    assert "[ 1  1  1 ]" in str(chain.step(5))
    scalar = explorer.chain_rule(torch.tensor(2.0, requires_grad=True).square())
    assert "= 1 · 4 = 4" in str(scalar.step(2))
    assert "Jacobian" not in str(scalar)
    shown = chain._repr_mimebundle_()["text/plain"].splitlines()
    assert shown == [*text.splitlines()[:60], *shown[60:]]
    assert [str(step) for step in chain] == [str(chain.step(number)) for number in chain.steps.index]
    with pytest.raises(IndexError, match="numbered from 1 to 10"):
        chain.step(0)


def test_chain_rule_steps_table_and_checks(chain: ChainRule) -> None:
    steps = chain.steps
    assert list(steps.direction) == ["forward"] * 4 + ["backward"] * 4 + ["leaf"] * 2
    assert steps.loc[8, "added"] == 2
    assert steps.loc[6, "formula"] == "d y = grad · exp; d exp = grad · y"
    checks = chain.check()
    assert list(checks.verdict) == ["equal", "equal"]
    assert checks.equal.all()
    assert (checks.difference < 1e-6).all()


def test_existing_graph_has_only_saved_values() -> None:
    w = torch.randn(3, 2, requires_grad=True)
    chain = explorer.chain_rule((torch.randn(4, 3) @ w).log_softmax(1).sum())
    text = str(chain)
    assert "tcompile.chain_rule(lambda: ...)" in text
    assert "mm = ?" in text
    assert chain.check().equal.all()
    assert chain.check().difference.isna().all()


def test_sparse_complex_and_checkpointed_gradients_are_supported() -> None:
    torch.manual_seed(0)
    rows = nn.Embedding(5, 3, sparse=True)
    checks = explorer.chain_rule(lambda: rows(torch.tensor([1, 1, 2])).sin().sum()).check()
    assert list(checks.verdict) == ["equal"]
    assert (checks.difference < 1e-6).all()
    z = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    assert explorer.chain_rule((z * z).abs().sum()).check().equal.all()
    x = torch.randn(3, requires_grad=True)
    again = explorer.chain_rule(lambda: checkpoint(torch.sin, x, use_reentrant=False).sum()).check()
    assert again.equal.all()
    # torch 2.13 rejects a recomputation in another dtype, torch 2.11 does not.
    assert again.note.isna()[0] or "can't be repeated in float64: CheckpointError" in again.note[0]


class HalfOfTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.real**2 + z.imag**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0].real + 0j


def test_complex_gradients_are_checked_in_both_parts() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    right = explorer.chain_rule(lambda z: (z * z.conj()).real.sum(), z).check()
    assert list(right.verdict) == ["equal"]
    assert (right.difference < 1e-6).all()
    assert (right.rounding < 1e-6).all()
    assert list(explorer.chain_rule(lambda z: HalfOfTheGradient.apply(z).sum(), z).check().verdict) == ["differs"]


def test_nan_in_a_gradient_is_no_difference() -> None:
    x = torch.tensor([1.0, -1.0, 4.0], requires_grad=True)
    checks = explorer.chain_rule(lambda x: torch.where(x > 0, x.sqrt(), x).sum(), x).check()
    assert checks.equal.all()
    assert "NaN or infinity" in checks.note[0]


def test_last_of_several_results_is_differentiated() -> None:
    x = torch.randn(3, requires_grad=True)

    def loss_and_more() -> tuple[Tensor, Tensor]:
        hidden = x.sin()
        return hidden.square().sum(), hidden

    chain = explorer.chain_rule(loss_and_more)
    checks = chain.check()
    assert checks.equal.all()
    assert (checks.difference < 1e-6).all()


def test_missing_formula_is_stated() -> None:
    x = torch.eye(3, requires_grad=True)
    assert "linalg_matrix_exp: formula not in the table (LinalgMatrixExpBackward0)" in str(
        explorer.chain_rule(lambda: torch.linalg.matrix_exp(x).sum())
    )


def view_of(chain: ChainRule) -> dict[str, Any]:
    """The input of the chain rule's live view."""
    part = Payload(chain.record).part("chain_rule", "view")
    assert part is not None
    return part.content()


def test_chain_rule_view_has_the_step_values(chain: ChainRule) -> None:
    steps = view_of(chain)["cards"]
    assert [step["direction"] for step in steps] == [step.direction for step in chain.data]
    product = next(step for step in steps if step["node"] == "mul_1" and step["direction"] == "backward")
    assert product["select"] == "autograd.mul_1"
    assert "return (y * y.exp()).sum()" in product["said"]
    departure, *_ = (part for part in parts_of(product["card"], "section") if part["heading"] == "Gradient of y")
    assert words_of(departure["parts"][0]["words"]) == "`d y = grad · exp`"
    grad, derivative, result, jacobian = (
        torch.tensor(each["data"]["numbers"]) for each in parts_of(departure, "values")
    )
    assert "diagonal" in departure["parts"][-1]["title"]
    assert torch.equal(jacobian, torch.diag(derivative))
    assert torch.allclose(grad @ jacobian, result)
    added = next(step for step in steps if step["node"] == "mul" and step["direction"] == "backward")
    incoming, *_ = parts_of(added["card"], "section")
    assert [link["words"] for link in parts_of(incoming, "link")] == ["mul_1", "exp"]
    assert incoming["parts"][0]["rows"][-1]["cells"][-1] == "summed, bit-exact"


def test_chain_rule_opens_and_is_linked_to_the_graph(chain: ChainRule) -> None:
    manifest = Payload(chain.record).manifest()
    assert manifest["first"] == ["chain_rule"]
    stage = next(stage for stage in manifest["stages"] if stage["name"] == "chain_rule")
    assert (stage["title"], stage["count"], stage["artifacts"][0]["view"]) == ("Chain rule", len(chain), "chain_rule")
    node = chain.record["autograd"].entity("mul")
    assert node.attrs["gradient_norm"] > 0
    assert chain.health.set_index("name").gradient_norm["x"] > 0
    selected = chain.record.linked_ids("autograd.exp")
    assert {"chain_rule.forward.exp", "chain_rule.backward.exp"} <= selected
    assert any(name.startswith("source[") for name in selected)


def test_chain_rule_is_saved_loaded_and_shown_statically(chain: ChainRule, tmp_path: Path) -> None:
    page = chain.save(tmp_path / "chain.html")
    loaded = explorer.load(page)
    assert loaded.record == chain.record
    assert loaded["chain_rule"].text == str(chain)
    html = chain._repr_mimebundle_()["text/html"]
    assert 'title="tcompile-static"' in html
    assert "summed" in html
    assert "<td" in html
    assert "<script" not in html
    assert "product rule (MulBackward0)" in html
    assert "grad · exp" in chain.step(6)._repr_mimebundle_()["text/html"]


def test_autograd_has_the_living_graph_unless_backward_runs_hooks() -> None:
    x, ran = torch.randn(3, requires_grad=True), []

    def hooked() -> Tensor:
        y = x.exp()
        y.register_hook(ran.append)
        return y.sum()

    with explorer.autograd() as recorded:
        loss = (x.exp() * x).mean()
    for run in (explorer.autograd(lambda: x.exp().sum()), recorded.graph(loss)):
        assert run.compiler.evaluate is not None
        assert Payload(run.record).manifest()["first"] == ["autograd", "chain_rule"]
    for run in (explorer.autograd(loss), explorer.autograd(hooked)):
        assert not run.record.of_stage("chain_rule")
    assert x.grad is None
    assert not ran


def test_nonfinite_values_are_words_and_first_is_known() -> None:
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    chain = explorer.chain_rule(lambda: torch.sum(x.sqrt() * 0))
    view = view_of(chain)
    sick = [view["cards"][at] for at in view["sick"]]
    assert [(step["direction"], step["node"]) for step in sick] == [("backward", "sqrt")]
    departure = parts_of(sick[0]["card"], "section")[-1]
    assert parts_of(departure, "table")[0]["rows"][0]["cells"][1]["data"]["numbers"] == [0.0, "nan", 0.0]
    assert any("first gradient that is not finite comes out of sqrt" in line for line in view["health"])


def test_view_of_many_large_jacobians_is_limited() -> None:
    net = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.Tanh())])
    x = torch.randn(8, 8)
    chain = explorer.chain_rule(lambda: net(x).sum())
    cards = view_of(chain)["cards"]
    shown = [each for each in parts_of(cards, "values") if "Jacobian" in each.get("name", "")]
    diagonal = [fold for fold in parts_of(cards, "fold") if "diagonal" in fold["title"]]
    numbers = [each["data"]["count"] for each in (*shown, *parts_of(diagonal, "values"))]
    assert sum(numbers) <= 60_000
    words = [words_of(text["words"]) for text in parts_of(cards, "text")]
    assert any("J is 64 × 64" in told and told.endswith("not zero") for told in words)


def test_stops_are_a_table_without_nodes() -> None:
    net, x = nn.Linear(2, 2), torch.randn(3, 2)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    run = explorer.autograd(lambda: torch.sum(net(x) * frozen(x) * net(x).detach()))
    assert dict(zip(run.stops.name, run.stops.kind, strict=True)) == {
        "Linear.weight": "frozen", "Linear.bias": "frozen", "detach": "detached",
    }  # fmt: skip
    assert not set(run.nodes.name) & set(run.stops.name)
    assert "stop" not in set(run.nodes.kind)
    chain = explorer.chain_rule(lambda: torch.sum(net(x) * net(x).detach()))
    told = [tag["words"] for tag in parts_of(view_of(chain)["cards"], "tag") if tag["style"] == "badge"]
    assert told == ["detached"]
    assert "no gradient for detach: cut off from" in str(chain)


def test_values_of_three_dimensions_are_one_line() -> None:
    html = values_html(value_data(Value.of_tensor(torch.arange(8.0).reshape(2, 2, 2))))
    assert "<table" not in html
    assert "7" in html


def test_large_derivative_is_described_without_elements() -> None:
    chain = explorer.chain_rule(torch.randn(1000, requires_grad=True).sin().sum())
    (step,) = [step for step in chain.data if step.direction == "backward" and step.node == "sin"]
    html = chain.step(step.index)._repr_mimebundle_()["text/html"]
    assert "cos" in html
    assert "element by element" not in html
