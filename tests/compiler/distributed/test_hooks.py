"""Collectives that FSDP and DDP call in hooks: in the record, between its graphs, with units and buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.utils import counters

if not dist.is_available():
    pytest.skip("torch.distributed is not in this build", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from compiler.advise import advise
from compiler.capture.by_design import is_by_design
from compiler.distributed.group import simulate_group
from compiler.engine import Exploration
from compiler.record import Artifact, CollectiveKind, Record
from compiler.record.options import Options
from compiler.torch_api.hook_collectives import METHODS
from explorer.findings.collectives import lead_words
from explorer.findings.units import ddp_finding, fsdp_finding
from explorer.run import tables

SIZE, WORLD = 16, 8
BLOCK = 4 * (2 * 4 * SIZE * SIZE + 4 * SIZE + SIZE)
"""Bytes of a block's parameters in float32."""


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    def __init__(self, size: int = SIZE, count: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass
class Step:
    record: Record
    model: Any


@pytest.fixture(scope="module")
def rank() -> Iterator[None]:
    with simulate_group(WORLD, 3):
        yield
    torch._dynamo.reset()


def step_of(wrap: Callable[[Any], Any], size: int = SIZE) -> Step:
    """A training step, explored: forward and backward."""
    torch.manual_seed(0)
    before = dict(vars(dist.ProcessGroup))
    model = wrap(Blocks(size))
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(model)(torch.randn(4, size)).sum().backward()
    assert dict(vars(dist.ProcessGroup)) == before
    record = exploration.record
    assert not record.problems
    assert Record.from_json(record.to_json()) == record
    assert any(parameter.grad is not None for parameter in model.parameters())
    return Step(record, model)


def wrap_each(model: Any, **options: Any) -> Any:
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


@pytest.fixture(scope="module")
def fsdp2(rank: None) -> Record:
    return step_of(wrap_each).record


def hooks(record: Record) -> list[tuple[CollectiveKind, str]]:
    return [(found.kind, found.half) for found in record.collectives if found.origin == "hook"]


def test_fsdp2_gathers_and_reduces_each_unit(fsdp2: Record) -> None:
    gather, again, reduce = ("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")
    assert hooks(fsdp2) == [gather, gather, again, again, reduce, reduce]
    assert [found.order for found in fsdp2.collectives] == list(range(6))
    for found in fsdp2.collectives:
        big, small = sorted((found.output_bytes, found.input_bytes), reverse=True)
        assert (big, small, found.group_size, found.dtype) == (BLOCK, BLOCK // WORLD, WORLD, "float32")
    forwards = fsdp2.collectives[:2]
    assert [found.graph for found in forwards] == [artifact.graph for artifact in fsdp2.of_stage("captured")][-2:]
    assert {found.lines[0].code for found in forwards} == {"x = block(x)"}
    assert "gathers the parameters of blocks.0 for its forward" in forwards[0].cause
    assert any("prefetch" in found.cause for found in fsdp2.collectives if found.half == "backward")


def test_fsdp2_units_have_policy_and_graph(fsdp2: Record) -> None:
    assert [unit.name for unit in fsdp2.units] == ["blocks.0", "blocks.1"]
    for unit in fsdp2.units:
        assert (unit.wrapper, unit.bytes, unit.shard_bytes) == ("fully_shard", BLOCK, BLOCK // WORLD)
        assert (unit.policy, unit.gathers_again, unit.shards, unit.replicas) == ("freed", True, WORLD, 1)
        assert unit.parameters[0] == f"{unit.name}.up.weight"
        assert unit.graphs
        assert len(unit.collectives) == 3
    table = tables.units(fsdp2)
    assert list(table["gathered"]) == list(table["gathered_again"]) == list(table["reduced"]) == [BLOCK, BLOCK]
    found = fsdp_finding(fsdp2)
    assert found is not None
    assert "blocks.1" in found.artifact.text
    assert ddp_finding(fsdp2) is None


def test_fsdp2_cards_ask_for_no_edit(fsdp2: Record) -> None:
    assert fsdp2.breaks
    assert all(map(is_by_design, fsdp2.breaks))
    assert fsdp2.recompiles
    assert all(map(is_by_design, fsdp2.recompiles))
    trained = Artifact("backward[1/0]", "backward", "", "", "", fsdp2.collectives[0].graph)
    advice = advise(replace(fsdp2, artifacts=(*fsdp2.artifacts, trained)))
    assert not [found for found in advice if found.rule in ("break", "recompile", "kept-gathers")]


def test_collectives_of_a_shared_graph_are_counted(rank: None) -> None:
    mesh = init_device_mesh("cpu", (WORLD,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}

    class Shared(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                torch._dynamo.graph_break()
                x = block(x)
            return x

    model = Shared(count=3)
    for block in model.blocks:
        parallelize_module(block, mesh, plan)  # type: ignore[arg-type]
    with Exploration(Options(stages=("captured", "forward", "backward"))) as exploration:
        exploration.compile(model)(torch.randn(4, SIZE)).sum().backward()
    forward = [found for found in exploration.record.collectives if found.half == "forward"]
    assert sum(found.calls for found in forward) == 3
    assert max(found.calls for found in forward) == 2


def test_mixed_precision_and_replicas(rank: None) -> None:
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicas", "shards"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    record = step_of(lambda model: wrap_each(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)).record
    gather, reduce, replicate = ("all_gather", "forward"), ("reduce_scatter", "backward"), ("all_reduce", "backward")
    assert hooks(record) == [gather, gather, reduce, replicate, reduce, replicate]
    assert [found.dtype for found in record.collectives[:3]] == ["bfloat16", "bfloat16", "float32"]
    for unit in record.units:
        assert (unit.policy, unit.gathered_as, unit.reduced_as) == ("kept", "bfloat16", "float32")
        assert (unit.shards, unit.replicas) == (4, 2)


def wrap_flat(model: Any) -> Any:
    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, use_orig_params=True, auto_wrap_policy=policy, device_id=torch.device("cpu"))


def dynamo_counts() -> dict[str, dict[str, int]]:
    return {name: dict(counters[name]) for name in ("frames", "graph_break", "stats")}


def test_hooks_of_observers_are_not_traced(rank: None) -> None:
    torch._dynamo.reset()
    counters.clear()
    torch.compile(wrap_flat(Blocks()), backend="eager")(torch.randn(4, SIZE)).sum().backward()
    alone = dynamo_counts()
    assert alone["stats"]["unique_graphs"]
    counters.clear()
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(wrap_flat(Blocks()))(torch.randn(4, SIZE)).sum().backward()
        assert dynamo_counts() == alone
    sources = [artifact.title for artifact in exploration.record.of_stage("source")]
    assert sources
    assert not [title for title in sources if title.startswith("compiler/")]


def test_a_backward_of_dtensors_inside_compiled_code_is_not_traced(rank: None) -> None:
    mesh = init_device_mesh("cpu", (WORLD,))
    weight = distribute_tensor(torch.randn(SIZE, SIZE), mesh, [Shard(0)]).requires_grad_()

    def step(x: Tensor) -> None:
        y: Any = DTensor.from_local(x, mesh, [Replicate()]) @ weight.t()
        y.redistribute(mesh, [Replicate()]).to_local().square().sum().backward()

    torch._dynamo.reset()
    counters.clear()
    torch.compile(step, backend="aot_eager")(torch.randn(4, SIZE))
    alone = dict(counters["stats"])
    counters.clear()
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(step)(torch.randn(4, SIZE))
        assert dict(counters["stats"]) == alone
    record = exploration.record
    assert [found.kind for found in record.breaks] == ["Unsupported Tensor.backward() call"]
    assert not [frame.file for frame in record.frames if frame.file.startswith("compiler/")]


def test_flat_parameters_are_units(rank: None) -> None:
    record = step_of(wrap_flat).record
    assert ("all_gather", "forward") in hooks(record)
    assert hooks(record).count(("reduce_scatter", "backward")) == 2
    assert [unit.name for unit in record.units] == ["blocks.0", "blocks.1"]
    for unit in record.units:
        assert (unit.wrapper, unit.bytes, unit.policy) == ("FullyShardedDataParallel", BLOCK, "freed")


def test_ddp_reduces_in_a_simulated_backward(rank: None) -> None:
    step = step_of(lambda model: DistributedDataParallel(model, bucket_cap_mb=1), 256)
    record, total = step.record, sum(parameter.nbytes for parameter in step.model.parameters())
    reduced = [found for found in record.collectives if found.kind == "all_reduce"]
    assert sum(found.input_bytes for found in reduced) == total
    units = [unit for unit in record.units if unit.wrapper == "DistributedDataParallel"]
    (used,) = [plan for plan in record.bucket_plans if plan.is_used]
    assert tuple(unit.bytes for unit in units) == used.graphs
    assert sum(used.reductions) == total
    assert sum((unit.parameters for unit in units), ()) == tuple(
        name for name, _ in step.model.module.named_parameters()
    )
    assert [len(plan.graphs) for plan in record.bucket_plans] == sorted(
        (len(plan.graphs) for plan in record.bucket_plans), reverse=True
    )
    assert list(tables.buckets(record)["graphs"]) == [len(plan.graphs) for plan in record.bucket_plans]
    assert record.breaks
    assert all(map(is_by_design, record.breaks))
    step.model.register_comm_hook(None, lambda _, bucket: bucket.buffer())  # it still has none
    found = ddp_finding(record)
    assert found is not None
    assert "\n1 of 4 " in found.artifact.text


def test_what_a_program_sends_after_its_steps_of_ddp_is_outside_of_graphs(rank: None) -> None:
    """In its second forward, DDP rebuilds its buckets: it calls its process group in code that TorchDynamo traces."""
    model, x = torch.compile(DistributedDataParallel(Blocks(16, 2))), torch.randn(2, 16)
    with Exploration(Options(stages=("captured",))) as exploration:
        for _ in range(2):
            loss = model(x).sum()
            loss.backward()
        dist.all_reduce(loss.detach())
    record = exploration.record
    assert not any("hook_collectives" in frame.file for frame in record.frames)
    assert not record.problems
    assert [each.half for each in record.collectives if each.kind == "all_reduce"] == ["backward", "backward", ""]
    assert "1 outside of graphs" in lead_words(record)


class Partly(Blocks):
    """The loss does not depend on its last block."""

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[0](x)  # type: ignore[no-any-return]


def test_ddp_with_parameters_that_get_no_gradient(rank: None) -> None:
    def problems_and_causes(**options: Any) -> tuple[list[str], list[str]]:
        torch._dynamo.reset()
        model = DistributedDataParallel(Partly(), **options)
        with Exploration(Options(stages=("captured",))) as exploration:
            exploration.compile(model)(torch.randn(4, SIZE)).sum().backward()
        record = exploration.record
        return [problem.reason for problem in record.problems], [found.cause for found in record.collectives]

    (problem,), causes = problems_and_causes()
    assert "waits for gradients of blocks.1.up.weight and 3 more" in problem
    assert not causes
    problems, causes = problems_and_causes(find_unused_parameters=True)
    assert not problems
    assert sorted(cause.partition("DistributedDataParallel ")[2][:24] for cause in causes) == [
        "finds out which paramete", "reduces the gradients of",
    ]  # fmt: skip


def test_every_kind_has_a_method_in_this_torch() -> None:
    known = {kind for name, (kind, _) in METHODS.items() if name in vars(dist.ProcessGroup)}
    assert known == {kind for kind, _ in METHODS.values()}
