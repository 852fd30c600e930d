"""The collectives of a simulated rank: table, links, schedule, report, advice that is tried by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import explorer
from explorer.run.run import Run

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not in this build")
RANKS = 8


class Gathered(nn.Linear):
    """A linear layer whose weight is sharded, and gathered where it is read."""

    def forward(self, x: Tensor) -> Tensor:
        from torch.distributed.tensor import Partial, Replicate

        whole: Any = self.weight
        weight = whole.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
        return torch.relu(x @ weight.t())


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=RANKS)
    try:
        mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
        model = nn.Sequential(*(Gathered(256, 256, bias=False) for _ in range(4)))
        for layer in model:
            sharded = distribute_tensor(layer.weight.data, mesh, [Shard(0)], src_data_rank=None)
            layer.weight = nn.Parameter(sharded)
        yield explorer.explore(model, torch.randn(512, 256), target="h100")
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


WHOLE = 256 * 256 * 4


def test_bytes_are_those_of_the_shards(run: Run) -> None:
    table = run.collectives
    gathers, scatters = (table[table.kind == kind] for kind in ("all_gather", "reduce_scatter"))
    assert len(gathers) == len(scatters) == 4
    assert set(gathers.input_bytes) == set(scatters.output_bytes) == {WHOLE // RANKS}
    assert set(gathers.output_bytes) == set(scatters.input_bytes) == {WHOLE}
    assert set(table.half) == {"forward", "backward"}
    assert set(gathers.code) == {next(line for line in set(gathers.code) if "redistribute" in line)}
    lines = run.tables.collective_lines
    assert lines.calls.max() == 8


def test_collectives_are_linked_to_lines_and_code(run: Run) -> None:
    for found in run.record.collectives:
        linked = run.record.linked_ids(found.entities[0])
        assert any(name.startswith("source[") for name in linked), found.id
        assert any("kernels[" in name for name in found.entities), found.id
        assert any(name.startswith("kernels[") for name in run.record.linked_ids(found.wait)), found.id


def test_schedule_adds_up(run: Run) -> None:
    from compiler.timing.overlap import schedules

    forward, backward = schedules(run.record)
    for schedule in (forward, backward):
        assert not schedule.unknown
        assert schedule.busy("compute") + schedule.exposed_seconds == pytest.approx(schedule.seconds)
        assert schedule.exposed_seconds <= schedule.busy("communication") * 1.0001
        ends = [span.end for span in schedule.spans if span.lane == "communication"]
        assert ends == sorted(ends)
    text = str(run["collectives"])
    assert "makes 8 collectives in one step (4 in the forward, 4 in the backward)" in text
    assert "Seconds are estimates" in text
    assert "exposed" in text


def test_buckets_are_tried_by_simulation(run: Run) -> None:
    number = next(at for at, advice in enumerate(run.advice) if advice.rule == "bucket-collectives")
    trial = run.advice.measure(number).trial
    assert trial.traffic_before is not None, trial.problem
    assert trial.traffic_after is not None
    assert trial.traffic_before.calls == 8 > trial.traffic_after.calls
    assert trial.traffic_before.bytes == trial.traffic_after.bytes
    assert not any("edit" in text and "torch/" in text for text in run.advice.texts())
