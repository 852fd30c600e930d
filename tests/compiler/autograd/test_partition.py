"""AOTAutograd's partition: roles of nodes, saved values and their reasons, other partitions."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from compiler.autograd.eager_memory import saved_by_eager
from compiler.autograd.partition import partition
from compiler.calls.kept_graphs import KeptFrame
from compiler.engine import Exploration
from compiler.record import Entity, Record
from compiler.record.options import Options
from tests.compiler.models import MLP, Block

OPTIONS = Options(stages=("joint", "forward", "backward"))


def explored(model: nn.Module, arguments: dict, loss) -> tuple[Record, KeptFrame]:
    with Exploration(OPTIONS) as exploration:
        loss(exploration.compile(model)(**arguments)).backward()
    frames = [frame for frame in exploration.kept.values() if frame.joint is not None]
    return exploration.record, frames[0]


@pytest.fixture(scope="module")
def mlp() -> tuple[Record, KeptFrame]:
    return explored(MLP().train(), {"x": torch.randn(8, 64)}, torch.sum)


@pytest.fixture(scope="module")
def block() -> tuple[Record, KeptFrame]:
    """A residual block: three convolutions, each with batch norm."""
    return explored(Block(4, 8, 2).train(), {"x": torch.randn(2, 4, 16, 16)}, torch.sum)


@pytest.fixture(scope="module")
def language_model() -> tuple[Record, KeptFrame]:
    from tests.compiler.triton_interpreter.test_interpret import Transformer  # needs Triton

    return explored(Transformer().train(), {"words": torch.randint(0, 50, (2, 16))}, lambda loss: loss)


def calls(record: Record) -> list[Entity]:
    return [entity for artifact in record.of_stage("backward") for entity in artifact.entities if entity.kind == "call"]


@pytest.mark.parametrize("model", ["mlp", "block", "language_model"])
def test_every_backward_node_has_a_role(model: str, request: pytest.FixtureRequest) -> None:
    record, _ = request.getfixturevalue(model)
    found = calls(record)
    known = {entity.id for entity in record.entities()}
    told = [entity for entity in found if entity.attrs.get("role", "made by a pass") != "made by a pass"]
    assert len(told) >= 0.98 * len(found) > 20
    for entity in found:
        assert known.issuperset(entity.attrs.get("derivative_of", ()))
        assert entity.attrs["role"] != "derivative" or entity.attrs["derivative_of"]


def test_linear_layer_derivative_links_to_its_matmul(mlp: tuple[Record, KeptFrame]) -> None:
    record, _ = mlp
    products = [entity for entity in calls(record) if entity.attrs["target"].startswith("aten.mm")]
    for entity in products:
        [forward] = [name for name in entity.attrs["derivative_of"] if "addmm" in name]
        assert record["forward"].entity(forward).attrs["module"] == entity.attrs["module"]
    assert len({entity.attrs["module"] for entity in products}) == 3


def test_gradients_of_several_uses_are_accumulation() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.cos() + x.exp()

    with Exploration(OPTIONS) as exploration:
        exploration.compile(f)(torch.randn(4, requires_grad=True)).sum().backward()
    roles = Counter(entity.attrs["role"].partition(":")[0] for entity in calls(exploration.record))
    assert roles["accumulation"] == 2


def test_tangents_and_saved_values_are_named(mlp: tuple[Record, KeptFrame]) -> None:
    record, _ = mlp
    inputs = [entity for entity in record["backward"].entities if entity.kind == "placeholder"]
    roles = Counter(entity.attrs["role"].partition(":")[0] for entity in inputs)
    assert roles == {"saved by the forward": len(inputs) - 1, "tangent": 1}


def test_dropout_role_is_random_numbers(mlp: tuple[Record, KeptFrame]) -> None:
    record, _ = mlp
    assert "random numbers" in {entity.attrs.get("role") for entity in record["forward"].entities}


def test_each_saved_value_has_a_partitioner_reason(block: tuple[Record, KeptFrame]) -> None:
    record, _ = block
    saved = {
        one.subjects[-1]: one for one in record.decisions if (one.pass_name, one.verdict) == ("partition", "saved")
    }
    inputs = {entity.id for entity in record["backward"].entities if str(entity.attrs.get("role")).startswith("saved")}
    assert saved.keys() == inputs
    convolutions = [one.why for name, one in saved.items() if "convolution" in name]
    assert convolutions
    assert all("cheap to compute again" in why or "has to be in memory" in why for why in convolutions)


def test_running_statistics_are_reported_as_mutated_inputs(block: tuple[Record, KeptFrame]) -> None:
    record, _ = block
    mutated = [one for one in record.decisions if one.verdict == "mutated input"]
    layers = sum(isinstance(module, nn.BatchNorm2d) for module in Block(4, 8, 2).modules())
    assert len(mutated) == 3 * layers
    needs = {
        entity.id: entity.attrs["requires_grad"]
        for entity in record["forward"].entities
        if entity.kind == "placeholder"
    }
    assert not any(needs[one.subjects[0]] for one in mutated)


def test_frozen_parameters_and_input_views_are_reported() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.requires_grad_(False)

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return layer(x), x.view(-1)

    with Exploration(OPTIONS) as exploration:
        exploration.compile(f)(torch.randn(2, 4))[0].sum().backward()
    record = exploration.record
    needs = [entity.attrs["requires_grad"] for entity in record["forward"].entities if entity.kind == "placeholder"]
    assert sorted(needs) == [False, False, True]
    assert any(one.verdict == "aliased output" and "view of input" in one.why for one in record.decisions)


@pytest.mark.parametrize("model", ["mlp", "block"])
def test_bytes_saved_by_eager_are_exact(model: str, request: pytest.FixtureRequest) -> None:
    _, frame = request.getfixturevalue(model)
    net, size = (MLP(), (8, 64)) if model == "mlp" else (Block(4, 8, 2), (2, 4, 16, 16))
    kept: dict[int, torch.Tensor] = {}
    pack = lambda tensor: kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)  # noqa: E731
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = net.train()(torch.randn(size))
    assert saved_by_eager(frame.captured).saved_bytes == sum(t.untyped_storage().nbytes() for t in kept.values())
    del result


def test_counting_saved_bytes_has_no_side_effects(block: tuple[Record, KeptFrame]) -> None:
    _, frame = block
    before, state = [value.clone() for value in frame.arguments], torch.get_rng_state()
    saved_by_eager(frame.captured)
    assert all(map(torch.equal, before, frame.arguments))
    assert torch.equal(state, torch.get_rng_state())


def test_smaller_memory_budget_saves_less_and_recomputes_more(block: tuple[Record, KeptFrame]) -> None:
    _, frame = block
    found = [partition(frame.joint, budget) for budget in (1.0, 0.5, 0.0)]
    kept = [one.activation_bytes for one in found]
    assert kept[0] > kept[1] > kept[2] == 0
    work = [one.recomputed_flops for one in found]
    assert work[0] < work[1] < work[2]


def test_default_budget_reproduces_the_actual_partition(block: tuple[Record, KeptFrame]) -> None:
    record, frame = block
    saved = {one.subjects[-1] for one in record.decisions if (one.pass_name, one.verdict) == ("partition", "saved")}
    again = partition(frame.joint, 1.0)
    assert {f"backward[0/0].{value.name}" for value in again.saved} == saved


def test_saving_everything_recomputes_nothing(block: tuple[Record, KeptFrame]) -> None:
    _, frame = block
    everything = partition(frame.joint, None)
    assert everything.activation_bytes > partition(frame.joint, 1.0).activation_bytes
    assert everything.recomputed_flops == 0


def test_memory_budget_outside_0_to_1_is_refused(mlp: tuple[Record, KeptFrame]) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        partition(mlp[1].joint, 1.5)
