"""`--check` runs every stage on the inputs of the call: all agree with eager, or it names the first that differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
import torch._inductor.decomposition as inductor_decomposition
from torch import Tensor, nn
from torch.fx import Graph, Node, symbolic_trace

from compiler.engine import Exploration
from compiler.numerics import call_check
from compiler.numerics.stage_check import by_origin
from compiler.record import Check, Record
from compiler.record.options import Options
from tests.compiler.models import MLP, Block

LEVELS = ["decomposed ATen", "decomposed core ATen", "decomposed Inductor", "decomposed prims"]
ALL = ["captured", "joint", "joint passes", "forward + backward", *LEVELS, "post_grad"]


class Bf16Block(nn.Module):
    """A transformer-like block in bf16 autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


class Small(nn.Module):
    """One layer with graphs that compile fast."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)).exp() * 3


class Dropped(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(nn.functional.dropout(self.first(x), 0.3)))


class Residual(nn.Module):
    """The stem of a ResNet and one block with a projection; more would take long to trace at four levels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = Block(16, 32, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean((2, 3)))


def trained(model: nn.Module, *args: Any, **kwargs: Any) -> Record:
    """A training step explored with `--check`; `backend` is an option, the rest are the call's arguments."""
    options = Options(check=True, backend=kwargs.pop("backend", "inductor"))
    with Exploration(options) as exploration:
        value = exploration.compile(model)(*args, **kwargs)
        (value.loss if hasattr(value, "loss") else value.square().sum()).backward()
    return exploration.record


def by_stage(record: Record) -> dict[str, list[Check]]:
    found: dict[str, list[Check]] = {}
    for check in record.checks:
        if check.stage:
            found.setdefault(check.stage, []).append(check)
    return found


def departing(record: Record) -> list[Check]:
    return [check for check in record.checks if check.stage and check.verdict == "differs"]


def assert_agree(record: Record) -> None:
    """Check that every stage is compared, and has eager's numbers."""
    assert [problem for problem in record.problems if problem.stage != "kernels"] == []
    wrong = [check for check in record.checks if check.stage and check.verdict not in ("equal", "close")]
    assert wrong == []


@pytest.mark.needs("g++")
def test_every_stage_uses_the_dropout_masks_of_eager() -> None:
    torch.manual_seed(0)
    model, x = Dropped().train(), torch.randn(8, 16)
    state, weight = torch.random.get_rng_state(), model.first.weight.detach().clone()
    torch.nn.functional.dropout(x)
    record = trained(model, x)
    assert_agree(record)
    assert list(by_stage(record)) == ALL
    for check in [check for found in by_stage(record).values() for check in found]:
        assert check.max_absolute is not None
        assert check.max_absolute <= 1e-6
        assert check.max_relative_float64 is not None
        assert 0 < check.max_relative_float64 < 1e-5
    assert torch.equal(weight, model.first.weight)
    assert not torch.equal(state, torch.random.get_rng_state())


@pytest.mark.needs("g++")
def test_autocast_is_nearer_to_eager_than_to_float64() -> None:
    torch.manual_seed(0)
    record = trained(Bf16Block(), torch.randn(4, 32))
    assert_agree(record)
    stages = by_stage(record)
    assert list(stages) == ALL
    told = f"{call_check.SETTING} rounds as eager does"
    assert record.checks[0].verdict == "equal" or told in record.checks[0].note
    for (check,) in stages.values():
        assert check.max_absolute is not None
        assert check.max_absolute_float64 is not None
        assert check.max_absolute < 0.02
        assert check.max_absolute_float64 > 1e-4


def test_tutorial_model_agrees_at_every_level() -> None:
    torch.manual_seed(0)
    record = trained(MLP().train(), torch.randn(8, 64), backend="aot_eager")
    assert_agree(record)
    assert {"joint", "forward + backward", *LEVELS} <= set(by_stage(record))


def test_resnet_values_and_mutations_match_at_every_stage() -> None:
    torch.manual_seed(0)
    model = Residual().train()
    record = trained(model, torch.randn(4, 3, 32, 32), backend="aot_eager")
    assert_agree(record)
    stages = by_stage(record)
    assert [name for name in ALL if name in stages] == [*ALL[:2], "forward + backward", *LEVELS]
    assert [check.subject.rpartition(", ")[2] for check in stages["joint"]] == ["float32 and int64"]
    assert int(model.get_buffer("stem.1.num_batches_tracked")) == 1


def test_gpt2_agrees_at_every_stage() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=200, n_positions=32, loss_type="ForCausalLM")
    ids = torch.randint(0, 200, (1, 16))
    record = trained(GPT2LMHeadModel(config).train(), backend="aot_eager", input_ids=ids, labels=ids)
    assert departing(record) == []
    told = {check.stage for check in record.checks if check.verdict in ("equal", "close")}
    assert {"joint", "forward + backward", *LEVELS} <= told


def replacing(target: Any, other: Any, graph: Graph) -> None:
    """A pass that is wrong: the first call of `target` calls `other`."""
    node = next((node for node in graph.nodes if node.target is target), None)
    if node is not None:
        node.target = other


aten = torch.ops.aten


@pytest.mark.needs("g++")
@pytest.mark.parametrize(
    ("setting", "wrong", "stage", "node"),
    [
        ("joint_custom_post_pass", (aten.exp.default, aten.sigmoid.default), "joint passes", "forward[0/0].exp"),
        ("post_grad_custom_post_pass", (aten.exp.default, aten.sigmoid.default), "post_grad",
         "post_grad[0/0 forward].exp"),
    ],
)  # fmt: skip
def test_wrong_pass_is_found_and_named(setting: str, wrong: Any, stage: str, node: str) -> None:
    torch.manual_seed(0)
    spoil: Callable[[Graph], None] = partial(replacing, *wrong)
    with inductor_config.patch({setting: spoil}):
        record = trained(Small(), torch.randn(4, 8))
    found = departing(record)
    assert (found[0].stage, found[0].node) == (stage, node)
    assert all(check.node == "" for check in found[1:])
    assert [check.stage for check in found] == [name for name in ALL if name in {check.stage for check in found}]
    assert not any(check.stage in LEVELS or check.stage in ("captured", "joint") for check in found)
    assert {check.verdict for check in record.checks if not check.stage} == {"differs"}


@pytest.mark.needs("g++")
def test_wrong_decomposition_is_found_in_the_joint_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joint graph's operators differ from the captured ones: values are compared by their nodes' origins."""

    def wrong(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x * 1.1)

    class Gated(Small):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(nn.functional.silu(self.layer(x)))

    monkeypatch.setitem(inductor_decomposition.select_decomp_table(), aten.silu.default, wrong)
    torch.manual_seed(0)
    record = trained(Gated(), torch.randn(4, 8))
    first = departing(record)[0]
    assert first.stage == "joint"
    entity = next(entity for entity in record["joint[0/0]"].entities if entity.id == first.node)
    assert [origin.partition(".")[2] for origin in entity.origins] == ["silu"]
    assert entity.label.startswith("mul")


def sine_unless_traced(x: Tensor) -> Tensor:
    return x.sin() if type(x) is Tensor else x.cos()


another_when_traced: Any = torch.compiler.allow_in_graph(sine_unless_traced)


def test_first_wrong_aten_node_is_named() -> None:
    """An output that is a view of an input can't be compared in the joint graph, so this is the first stage."""

    def traced(x: Tensor) -> tuple[Tensor, Tensor]:
        return another_when_traced(x * 2).exp(), x.t()

    torch.manual_seed(0)
    with Exploration(Options(check=True, backend="aot_eager")) as exploration:
        exploration.compile(traced)(torch.randn(3, 4, requires_grad=True))
    record = exploration.record
    assert {check.verdict for check in by_stage(record)["joint"]} == {"not comparable"}
    first = departing(record)[0]
    assert (first.stage, first.node) == ("decomposed ATen", "decomposed[0/0 forward ATen].cos")
    assert record.checks[0].verdict == "differs"


@pytest.mark.parametrize(
    ("function", "trains", "factor"),
    [(lambda x: x.t(), True, 1), (lambda x: x.mul_(2).exp(), False, 2), (lambda x: torch.rand_like(x) + x, True, 1)],
)
def test_views_mutations_and_random_numbers_are_compared(
    function: Callable[[Tensor], Tensor], trains: bool, factor: int
) -> None:
    x = torch.randn(3, 4, requires_grad=trains)
    before = x.detach().clone()
    with Exploration(Options(check=True, backend="aot_eager")) as exploration:
        exploration.compile(function)(x)
    assert_agree(exploration.record)
    assert set(LEVELS) <= set(by_stage(exploration.record))
    assert torch.equal(x, before * factor)  # changed by the user's call only
    assert x.grad is None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_checkpointed_dropout_is_checked_at_every_stage(backend: str) -> None:
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(lambda y: nn.functional.dropout(self.layer(y)), x, use_reentrant=False)

    record = trained(Again(), torch.randn(4, 8), backend=backend)
    assert {check.verdict for check in record.checks} <= {"equal", "close"}
    assert set(LEVELS) | {"captured", "joint", "forward + backward"} <= set(by_stage(record))


def test_only_a_decompositions_last_part_must_have_its_value() -> None:
    parts = symbolic_trace(lambda x: (x + 1) * 2)
    before, half, whole = ({name: torch.tensor([value])} for name, value in (("op", 4.0), ("add", 2.0), ("mul", 4.0)))

    def origins(node: Node) -> tuple[str, ...]:
        return ("op",) if node.op == "call_function" else ()

    assert by_origin(parts, half | whole, before, origins) == ""
    assert by_origin(parts, half | {"mul": torch.tensor([5.0])}, before, origins) == "mul"
