"""Models in distributed wrappers: no crash, and the record has every graph that torch compiles."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from compiler.engine import explore
from compiler.record import RankPlace, Record
from compiler.record.options import Options
from compiler.timing.one_process import NOT_SENT
from compiler.torch_api.pipelines import pipeline_schedules
from explorer.findings import findings
from explorer.findings.pipeline import most_in_flight, timed_steps
from explorer.reading.placements import placed_lines

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not in this build")


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Blocks(nn.Module):
    """The same model as in `trials/distributed/models.py`."""

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def fake_group() -> Iterator[None]:
    """Rank 3 of 8, alone in this process."""
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    try:
        yield
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


def in_ddp(bucket_cap_mb: float = 1) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    return DistributedDataParallel(Blocks(256, 2), bucket_cap_mb=bucket_cap_mb), torch.randn(8, 256)


def graphs_of(record: Record, stage: str) -> list[str]:
    return [artifact.graph for artifact in record.of_stage(stage)]


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
@pytest.mark.parametrize("target", ["h100", "cpu"])
def test_every_ddp_bucket_is_recorded(fake_group: None, backend: str, target: str) -> None:
    model, x = in_ddp()
    found = explore(model, (x,), options=Options(target=target, backend=backend))
    record = found.record
    assert torch.equal(found.value, model(x))
    assert not record.problems
    captured = graphs_of(record, "captured")
    assert [name.partition(" ")[2] for name in captured] == ["submod_0", "submod_1", "submod_2", "submod_3"]
    for stage in ("autograd", "joint", "forward", "backward"):
        assert graphs_of(record, stage) == captured, stage
    assert {kernel.graph for kernel in record.kernels} == set(captured)
    assert max(Counter(artifact.id for artifact in record.artifacts).values()) == 1
    for kernel in record.kernels:
        assert any(name.startswith("source[") for name in record.linked_ids(kernel.id)), kernel.id
        assert kernel.half in ("forward", "backward")
    split = [found for found in record.decisions if found.pass_name == "DDPOptimizer"]
    assert [found.graph for found in split] == captured
    assert sum(found.numbers["bytes"] for found in split) == sum(p.nbytes for p in model.parameters())


def test_ddp_counts_match_torch(fake_group: None) -> None:
    model, x = in_ddp()
    alone = CompileCounter()
    torch.compile(model, backend=alone)(x)
    torch._dynamo.reset()
    record = explore(model, (x,), options=Options(stages=("captured",))).record
    assert len(record.of_stage("captured")) == alone.frame_count == 4


def test_small_ddp_bucket_cap_is_a_clear_problem(fake_group: None) -> None:
    model, x = in_ddp(bucket_cap_mb=0.5)
    found = explore(model, (x,), options=Options(stages=("captured",)))
    assert torch.equal(found.value, model(x))
    problem = next(problem for problem in found.record.problems if "bucket_cap_mb" in problem.reason)
    assert "First bucket" not in problem.reason
    assert "bucket_cap_mb=1" in problem.hint
    step = explore(lambda x: model(x).sum().backward(), (x,), options=Options(stages=("captured",))).record
    assert [(each.kind, each.half) for each in step.collectives] == [("all_reduce", "backward")] * len(step.collectives)
    assert step.collectives
    fixed = explore(in_ddp(bucket_cap_mb=1)[0], (x,), options=Options(stages=("captured",))).record
    assert not fixed.problems


GLOO = """
import sys, torch, torch.distributed as dist
from compiler.engine import explore
from compiler.record.options import Options
from tests.compiler.test_distributed import in_ddp
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model, x = in_ddp()
found = explore(model, (x,), options=Options(target="cpu", check=True))
found.value.sum().backward()
assert not found.record.problems, found.record.problems
assert all(check.verdict in ("equal", "close") for check in found.record.checks), found.record.checks
assert all(parameter.grad is not None for parameter in model.parameters())
print(len(found.record.of_stage("backward")), len({kernel.graph for kernel in found.record.kernels}))
dist.destroy_process_group()
"""


def test_ddp_passes_the_check_under_gloo(python: Path, tmp_path: Path) -> None:
    done = subprocess.run([python, "-c", GLOO, tmp_path / "store"], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "4 4\n")


@pytest.mark.parametrize("options", [Options(), Options(target="cpu", check=True, time=True)])
def test_tensor_parallel_stages(fake_group: None, options: Options) -> None:
    model = Blocks(16, 2)
    styles = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    plan = {f"blocks.{index}.{name}": style for index in (0, 1) for name, style in styles.items()}
    parallelize_module(model, init_device_mesh("cpu", (8,), mesh_dim_names=("tp",)), plan)  # type: ignore[arg-type]
    record = explore(model, (torch.randn(8, 16),), options=options).record
    assert Record.from_json(record.to_json()) == record
    assert record.of_stage("autograd")
    assert [problem.reason for problem in record.problems] == ([NOT_SENT.reason] if options.check else [])
    if not options.time:
        assert {event.half for event in record.memory if event.side == "eager"} == {"forward", "backward"}

    linear = record["captured"].entity("linear_1").attrs
    assert [linear[name] for name in ("placements", "mesh", "local_shape")] == [["Partial(sum)"], [["tp", 8]], [8, 16]]
    weight = record["forward"].entity("primals_2" if torch.__version__ < "2.12" else "primals_3")
    assert weight.attrs["placements"] == ["Shard(0)"]
    made = "`linear` of the input Shard(1), weight Shard(1) and bias Replicate() gives Partial(sum)"
    for stage in ("joint", "forward"):
        wait = record[stage].entity("wait_tensor").attrs
        assert wait["cause"] == f"{made}; RowwiseParallel of `blocks.0.down` asks for Replicate()"
        assert (wait["from_placements"], wait["placements"]) == (["Partial(sum)"], ["Replicate()"])
        assert wait["code"] == "return x + self.down(torch.relu(self.up(x)))"
    (sent,) = [entity for entity in record["backward"].entities if "all_reduce" in entity.label]
    gradient = "gradient of the result of `add`, Partial(sum) becomes Replicate()"
    assert sent.attrs["cause"] == f"ColwiseParallel of `blocks.1.up`: {gradient}"
    assert record.origin == "simulated"
    assert record.place == RankPlace(rank=3, world=8, mesh=(("tp", 8),), coordinates=(3,))
    assert [group.ranks for group in record.groups] == [tuple(range(8))]
    assert [(found.kind, found.half) for found in record.collectives] == [
        ("all_reduce", "forward"), ("all_reduce", "forward"), ("all_reduce", "backward"),
    ]  # fmt: skip
    for found in record.collectives:
        assert (found.reduction, found.group_size, found.input_bytes) == ("sum", 8, 8 * 16 * 4)
        assert found.output_bytes == found.input_bytes
        assert any("kernels[" in name for name in found.entities)
    assert record.collectives[0].cause == wait["cause"]

    [text] = [found.artifact.text for found in findings(record) if found.artifact.stage == "placements"]
    assert "20 DTensors on the mesh tp=8; DTensor changes placements 5 times, which takes 3 collectives." in text
    [marks] = placed_lines(record).values()
    [words] = marks.values()
    assert "input_tensor: f32[8, 16] Replicate() on tp=8" in words
    assert f"redistributed in the backward: {sent.attrs['cause']}" in words


def test_pipeline_schedules_as_charts() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    try:
        schedules = [
            schedule([stage_of_rank(1, 8), stage_of_rank(5, 8)] if count > 1 else stage_of_rank(1, 4), 8)
            for schedule, count in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2))
        ]
        found = [pipeline_schedules(schedule.step, ())[0] for schedule in schedules]
        ran = explore(schedules[1].step, (), options=Options(stages=("captured",))).record
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()
    assert ran.pipelines == (found[1],)
    assert "linear" in ran["captured"].text
    assert {each.kind for each in ran.collectives} == {"send", "recv"}
    assert [(each.name, each.stages, each.rank) for each in found] == [
        ("ScheduleGPipe", 4, 1), ("Schedule1F1B", 4, 1), ("ScheduleInterleaved1F1B", 8, 1),
    ]  # fmt: skip
    timed = [timed_steps(each) for each in found]
    lengths = [max(steps[-1].end for steps in ranks) for ranks in timed if ranks]
    assert lengths == [33, 33, 57]  # (3 ranks + 8 microbatches) * 3 units; interleaved: 9 idle units instead of 9 of 33
    assert [most_in_flight(ranks[1]) for ranks in timed if ranks] == [8, 3, 9]
    record = Record("f", Options(), pipelines=tuple(found))
    assert Record.from_json(record.to_json()) == record
    text = next(each.artifact.text for each in findings(record) if each.artifact.stage == "pipeline")
    assert "`Schedule1F1B`: 4 stages on 4 ranks, 8 microbatches a step." in text
    assert "33 units of time, of which this rank is idle for 9 (27%" in text
    circle = replace(found[0], steps=tuple(steps[::-1] for steps in found[0].steps))
    assert timed_steps(circle) is None


def stage_of_rank(index: int, count: int) -> PipelineStage:
    x = torch.randn(4, 8, requires_grad=True)
    return PipelineStage(Block(8), index, count, torch.device("cpu"), input_args=(x,), output_args=(x,))
