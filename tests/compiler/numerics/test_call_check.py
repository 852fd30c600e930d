"""`--check` compares the results of the user's own call: by name, against eager and float64, in words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import Tensor, nn
from torch.fx import Graph
from torch.utils.checkpoint import checkpoint

from compiler.calls.call import Call
from compiler.engine import Exploration
from compiler.numerics import compiled_random as own_draws
from compiler.numerics.call_results import exact, outputs_of, record_draws, results
from compiler.numerics.call_words import check_call, check_result, ulps
from compiler.numerics.policy.judge import Scope
from compiler.numerics.stage_words import input_name
from compiler.record import Check, Record
from compiler.record.options import Options
from compiler.torch_api.widened import WidenedError

aten = torch.ops.aten


class Heads(nn.Module):
    """Two named results, a mutated buffer, and three graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.last = nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.norm(x)
        torch._dynamo.graph_break()
        hidden = torch.relu(self.first(hidden))
        torch._dynamo.graph_break()
        hidden = nn.functional.dropout(hidden, 0.5, self.training)
        torch._dynamo.graph_break()
        return {"logits": self.last(hidden), "hidden": hidden}


class Pair(NamedTuple):
    mean: Tensor
    spread: Tensor


def checked(function: Callable[..., Any], *args: Any, **options: Any) -> Record:
    with Exploration(Options(check=True, **options)) as exploration:
        exploration.compile(function)(*args)
    return exploration.record


def own(record: Record) -> dict[str, Check]:
    """The call and its results, by name."""
    return {check.subject: check for check in record.checks if not check.stage}


def whole_call(record: Record) -> dict[str, Check]:
    """The stages that were run in the whole call."""
    return {check.stage: check for check in record.checks if check.stage and not check.graph}


def by_graph(record: Record, graph: str) -> dict[str, Check]:
    """The stages of one capture."""
    return {check.stage: check for check in record.checks if check.graph == graph}


def heads() -> tuple[Heads, Tensor]:
    torch.manual_seed(0)
    return Heads().train(), torch.randn(16, 8)


@pytest.fixture(scope="module")
def trained_heads() -> tuple[Heads, Record]:
    model, x = heads()
    return model, checked(model, x, backend="aot_eager")


def test_results_are_named_as_in_user_code(trained_heads: tuple[Heads, Record]) -> None:
    model, record = trained_heads
    parameters = [f"gradient of {name}" for name, _ in model.named_parameters()]
    changed = [f"norm.{name}, changed in place" for name in ("num_batches_tracked", "running_mean", "running_var")]
    assert list(own(record)) == ["the call", "logits", "hidden", *parameters, *changed]
    assert {check.verdict for check in own(record).values()} <= {"equal", "close"}
    assert own(record)["the call"].words.startswith(("equal", "as close to float64 as eager is", "closer"))


def test_call_of_four_graphs_is_checked_graph_by_graph(trained_heads: tuple[Heads, Record]) -> None:
    """Dropout has eager's mask, although a graph before it and one after it draw no random numbers."""
    model, record = trained_heads
    stages = whole_call(record)
    levels = [f"decomposed {level}" for level in ("ATen", "core ATen", "Inductor", "prims")]
    assert list(stages) == ["captured"]
    assert {check.verdict for check in record.checks if check.stage} <= {"equal", "close"}
    assert {check.subject for check in stages.values()} == {"11 results, float32 and int64"}
    assert {check.graph for check in record.checks if check.stage} == {"", "0/0", "1/0", "2/0", "3/0"}
    assert list(by_graph(record, "0/0")) == ["joint", "forward + backward", *levels]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert int(model.norm.num_batches_tracked or 0) == 1  # the user's call, and no other


def replacing(graph: Graph) -> None:
    """A pass that is wrong: relu becomes tanh."""
    for node in graph.nodes:
        if node.target is aten.relu.default:
            node.target = aten.tanh.default


@pytest.mark.needs("g++")
def test_wrong_pass_in_one_graph_differs_in_results() -> None:
    model, x = heads()
    with inductor_config.patch({"joint_custom_pre_pass": replacing}), torch.no_grad():
        record = checked(model.eval(), x)
    call = own(record)["the call"]
    assert call.verdict == "differs"
    assert call.words.startswith("differs: ")
    assert "of the largest value, where 1.0e-5 is allowed; eager itself is" in call.words
    assert whole_call(record)["captured"].verdict == "equal"
    wrong = by_graph(record, "1/0")
    assert wrong["decomposed prims"].verdict in ("equal", "close")
    assert wrong["post_grad"].verdict == "differs"
    (node,) = {check.node for check in record.checks if check.node}
    assert node.startswith("inference[1/0].")


@pytest.mark.needs("g++")
def test_inductor_dropout_is_compared_with_its_own_numbers() -> None:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layer(x), 0.4) + torch.randn_like(x)

    torch.manual_seed(0)
    call = own(checked(Dropped().train(), torch.randn(16, 32)))
    assert {check.verdict for check in call.values()} <= {"equal", "close"}
    assert "with random numbers of Inductor" in call["the call"].note
    assert "fallback_random = True" in call["the call"].note
    assert (call["output"].max_absolute or 0.0) < 1e-5


class Dropping(nn.Module):
    """Dropout, and a later graph without random numbers."""

    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.layer = nn.Linear(32, 32)

    def dropped(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x), 0.4)

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.dropped, x, use_reentrant=False) if self.is_checkpointed else self.dropped(x)
        torch._dynamo.graph_break()
        return x.sin()


@pytest.mark.needs("g++")
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_random_numbers_of_our_backend_are_replayed(is_checkpointed: bool) -> None:
    record = checked(Dropping(is_checkpointed), torch.randn(16, 32), backend="tcompile")
    assert {check.verdict for check in record.checks} <= {"equal", "close"}, record.checks
    note = own(record)["the call"].note
    assert 'random numbers of backend="tcompile"' in note
    assert 'options={"random": "eager"} draws eager\'s' in note


@pytest.mark.needs("g++")
def test_wrong_random_numbers_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_draws, "SEED", "none")
    call = own(checked(Dropping(False), torch.randn(16, 32), backend="tcompile"))["the call"]
    assert call.verdict == "differs"


@pytest.mark.needs("g++")
def test_eager_random_option_is_compared_with_eager() -> None:
    options = {"random": "eager"}
    call = own(checked(Dropping(False), torch.randn(16, 32), backend="tcompile", options=options))["the call"]
    assert call.verdict in ("equal", "close")
    assert "random numbers" not in call.note


@pytest.mark.needs("g++")
def test_bfloat16_difference_names_the_setting_that_removes_it() -> None:
    def chain(x: Tensor) -> Tensor:
        return torch.sigmoid(torch.tanh(x) * 1.7 + x) * x - torch.exp(-x * x)

    torch.manual_seed(0)
    call = own(checked(chain, torch.randn(1000).bfloat16()))
    whole, output = call["the call"], call["output"]
    assert output.verdict == "close"
    assert output.max_absolute is not None
    assert output.max_absolute > 0
    assert output.dtype == "bfloat16"
    assert output.words.startswith(("closer to float64 than eager is", "as close to float64 as eager is"))
    assert (output.max_absolute_float64 or 1.0) < (output.eager_absolute_float64 or 0.0)
    assert "keeps float32 between operations where eager rounds each result to bfloat16" in whole.note
    assert "torch._inductor.config.emulate_precision_casts = True rounds as eager does" in whole.note


@pytest.mark.needs("g++")
def test_absent_gpu_check_uses_cpu_numbers() -> None:
    torch.manual_seed(0)
    record = checked(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(4, 8), target="h100")
    assert record.target == "h100"
    assert any(kernel.language == "triton" for kernel in record.kernels)
    assert record.problems == ()
    call = own(record)
    assert call["the call"].note.startswith("numbers of the code for the CPU, as NVIDIA H100")
    assert set(call) == {"the call", "output", "gradient of 0.weight", "gradient of 0.bias"}
    assert {check.stage for check in record.checks} >= {"captured", "joint", "post_grad"}


def test_closure_parameters_are_compared() -> None:
    torch.manual_seed(0)
    net, scale = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(4, requires_grad=True)

    def step(batch: dict[str, Tensor]) -> Tensor:
        return (net(batch["x"]) * scale).square().mean()

    record = checked(step, {"x": torch.randn(8, 4)}, backend="aot_eager")
    names = set(own(record))
    assert {"gradient of net.0.weight", "gradient of scale", "net.1.running_mean, changed in place"} <= names
    assert own(record)["the call"].max_absolute_float64 is not None
    assert {check.verdict for check in own(record).values()} <= {"equal", "close"}
    assert scale.grad is None
    assert int(net.get_buffer("1.num_batches_tracked")) == 1


@pytest.mark.parametrize(
    "around", [partial(torch.autocast, "cpu", torch.bfloat16), torch.no_grad, torch.inference_mode]
)
def test_call_is_repeated_in_its_original_context(around: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    with Exploration(Options(check=True, backend="aot_eager")) as exploration:
        compiled = exploration.compile(model)
        with around():
            value = compiled(x)
    record = exploration.record
    assert record.recompiles == ()
    assert [frame.id for frame in record.frames] == ["0/0"]
    assert own(record)["output"].dtype == str(value.dtype).removeprefix("torch.")
    assert own(record)["the call"].verdict == "equal"


def branches(x: Tensor) -> Tensor:
    """A function whose branch depends on bits that float32 loses."""
    return x + 1 if (x + 1e-9 == x).all() else x - 1


def test_diverging_float64_control_flow_is_not_compared() -> None:
    call = own(checked(branches, torch.ones(4), backend="aot_eager"))["the call"]
    assert call.verdict == "equal"
    assert call.max_absolute_float64 is None
    assert "in float64 the call takes another way" in call.note


def test_float64_has_the_random_numbers_of_eager() -> None:
    """Also if attention has a random operator that draws nothing."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    torch.manual_seed(0)
    for dropout in (0.3, 0.0):
        layer.train(dropout > 0)
        for module in layer.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
        layer.self_attn.dropout = 0.0
        call = Call(layer, layer, (torch.randn(2, 4, 16),))
        eager, best = results(call, layer), exact(call, record_draws(call))
        assert eager.draws == (dropout > 0)
        assert best.outputs["output"].dtype == torch.float64
        torch.testing.assert_close(eager.outputs["output"].double(), best.outputs["output"], rtol=0, atol=1e-5)
        for name, gradient in eager.gradients.items():
            assert gradient is not None
            torch.testing.assert_close(gradient.double(), best.gradients[name], rtol=0, atol=1e-4)


def test_operators_with_internal_randomness_have_no_float64() -> None:
    call = Call(nn.RReLU(), nn.RReLU(), (torch.randn(8),))
    with pytest.raises(WidenedError, match="draws its random numbers inside"):
        exact(call, record_draws(call))


# Words


def judged(mine: Tensor, eager: Tensor, best: Tensor | None = None, largest: float = 1.0) -> Check:
    return check_result("output", mine, eager, best, Scope(largest))


def test_wrong_result_states_tolerance_and_eager_error() -> None:
    best = torch.linspace(1, 2, 9, dtype=torch.float64)
    check = judged((best + 0.0625).float(), best.float(), best)
    assert check.verdict == "differs"
    assert check.words.startswith(
        "differs: off by 0.031 of the largest value, where 1.0e-5 is allowed; eager itself is "
    )
    assert check_call([check]).words.startswith("differs: output off by 0.031")


def test_error_shared_with_eager_is_accepted() -> None:
    best = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    check = judged((best + 3e-4).float(), (best - 3e-4).float(), best)
    assert (check.verdict, check.words) == ("close", "as close to float64 as eager is: 3.0e-4 from it, eager 3.0e-4")


def test_eager_kernels_that_are_wrong_are_held_against_the_formula() -> None:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(8), torch.randn(1, 8, 7, 7, requires_grad=True)
    gradient = torch.randn(1, 8, 49).transpose(1, 2)
    eager = torch.autograd.grad(norm(x).flatten(2).transpose(1, 2), x, gradient.contiguous())[0]
    own = torch.autograd.grad(norm(x).flatten(2).transpose(1, 2), x, gradient)[0]
    if torch.allclose(eager, own):
        pytest.skip("eager is right with this torch")
    with Exploration(Options(target="cpu", backend="tcompile", check=True)) as exploration:
        exploration.compile(lambda x: norm(x).flatten(2).transpose(1, 2))(x)
    found = {check.subject: check for check in exploration.record.checks if not check.stage}
    assert (found["gradient of x"].verdict, found["the call"].verdict) == ("close", "close")
    assert found["the call"].words.startswith("eager itself is wrong: ")
    assert {check.verdict for check in exploration.record.checks} == {"close", "equal"}


def test_missing_misshaped_and_nonfinite_results_differ() -> None:
    one = torch.ones(2)
    assert judged(torch.ones(3), one).words == "differs: float32[3] instead of float32[2]"
    assert judged(torch.tensor([1.0, torch.nan]), one).verdict == "differs"
    assert judged(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.nan])).verdict == "equal"
    assert check_result("w", None, one, None, Scope(1.0)).words == "differs: it is missing"
    assert judged(torch.tensor([1, 2]), torch.tensor([1, 3])).words == "differs: 1 of 2 values are wrong"


def test_near_zero_error_is_relative_to_largest_result() -> None:
    mine, eager = torch.tensor([3e-7]), torch.tensor([-4e-7])
    assert judged(mine, eager, largest=1.0).verdict == "close"
    assert judged(mine, eager, largest=1e-6).verdict == "differs"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_ulps_count_the_numbers_between(dtype: torch.dtype) -> None:
    one, least = torch.tensor([1.0], dtype=dtype), torch.finfo(dtype).smallest_normal
    step = torch.tensor([torch.finfo(dtype).eps], dtype=dtype)
    assert ulps(one + 3 * step, one).tolist() == [3]
    assert ulps(one - step / 2, one).tolist() == [1]
    assert ulps(torch.tensor([0.0], dtype=dtype), torch.tensor([-0.0], dtype=dtype)).tolist() == [0]
    across = torch.tensor([least], dtype=dtype)
    assert ulps(across, -across).item() == 2 * ulps(across, 0 * across).item() > 0
    assert ulps(one, one * torch.nan).isnan().all()


def test_outputs_are_named_by_their_python_path() -> None:
    one = torch.ones(1)
    names = dict(outputs_of((one, {"a": one, 3: [one]}, "text", None)))
    assert list(names) == ["output 0", "output 1['a']", "output 1[3][0]"]
    assert [name for name, _ in outputs_of({"logits": one, "cache": (one, one)})] == ["logits", "cache[0]", "cache[1]"]
    assert [name for name, _ in outputs_of(Pair(one, one))] == ["mean", "spread"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['self']._modules['layer1']._parameters['weight']", "layer1.weight"),
        ("L['net']._modules['0']._buffers['running_mean']", "net.0.running_mean"),
        ("L['batch']['x']", "batch['x']"),
        ("L['x']", "x"),
        ("", ""),
    ],
)
def test_graph_inputs_are_named_as_in_user_code(source: str, name: str) -> None:
    assert input_name(source) == name
