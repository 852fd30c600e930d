"""The collectives of a simulated rank: table, links, schedule, report, advice that is tried by simulation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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


class GatheredAgain(nn.Module):
    """A gathered layer of which the backward gathers the weight again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layer, x, use_reentrant=False, context_fn=self.contexts)

    @staticmethod
    def contexts() -> Any:
        return create_selective_checkpoint_contexts(recompute_gathers)


def recompute_gathers(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    collectives = torch.ops._c10d_functional
    again = (collectives.all_gather_into_tensor.default, collectives.wait_tensor.default)
    return CheckpointPolicy.MUST_RECOMPUTE if operator in again else CheckpointPolicy.PREFER_SAVE


def sharded() -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    model = nn.Sequential(*(Gathered(256, 256, bias=False) for _ in range(4)))
    for layer in model:
        shard = distribute_tensor(layer.weight.data, mesh, [Shard(0)], src_data_rank=None)
        layer.weight = nn.Parameter(shard)
    return model


@pytest.fixture(scope="module")
def run() -> Run:
    return explorer.explore(sharded, torch.randn(512, 256), ranks=RANKS, rank="3", target="h100")


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
    from compiler.timing.overlap import schedules, with_earliest_starts

    forward, backward = schedules(run.record)
    for schedule in (forward, backward):
        assert not schedule.unknown
        assert schedule.busy("compute") + schedule.exposed_seconds == pytest.approx(schedule.seconds)
        assert schedule.exposed_seconds <= schedule.busy("communication") * 1.0001
        ends = [span.end for span in schedule.spans if span.lane == "communication"]
        assert ends == sorted(ends)
        earliest = with_earliest_starts(schedule, run.record)
        assert earliest.busy("compute") + earliest.exposed_seconds == pytest.approx(earliest.seconds)
        assert max(map(earliest.busy, ("compute", "communication"))) <= earliest.seconds <= schedule.seconds
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


def tensor_parallel(tokens: int, between: Any = None, after: Any = None) -> Run:
    """A layer split by columns, one by rows, and a norm split by tokens, with these placements between them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    def make() -> nn.Module:
        layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(2)), nn.LayerNorm(256)).requires_grad_(
            False
        )
        middle = between or Shard(-1)
        rows = RowwiseParallel(input_layouts=middle, output_layouts=after or Shard(0), use_local_output=False)
        plan = {"0": ColwiseParallel(output_layouts=middle), "1": rows, "2": SequenceParallel(sequence_dim=0)}
        return parallelize_module(layers, init_device_mesh("cuda", (RANKS,)), plan)  # type: ignore[arg-type]

    return explorer.explore(make, torch.randn(tokens, 256), ranks=RANKS, target="h100")


def rules(run: Run) -> set[str]:
    return {advice.rule for advice in run.advice}


def test_advice_is_gone_once_followed(run: Run) -> None:
    from torch.distributed.tensor import Replicate

    undone, fitting, large = tensor_parallel(64, Replicate(), Replicate()), tensor_parallel(64), tensor_parallel(8192)
    assert [found.kind for found in undone.record.collectives] == ["all_gather", "all_reduce"]
    assert "cancelling-redistributions" in rules(undone)
    assert [found.kind for found in fitting.record.collectives] == ["reduce_scatter"]
    assert "small-messages" in rules(fitting)
    assert "small-messages" not in rules(large)
    assert "Communication can't overlap" in str(fitting.advice)  # all kernels make its input or need its result

    assert "kept-gathers" in rules(run)
    again = explorer.explore(lambda: nn.Sequential(*map(GatheredAgain, sharded())), torch.randn(512, 256), ranks=RANKS)
    assert {found.half for found in again.record.collectives if found.kind == "all_gather"} == {"forward", "backward"}
    assert "kept-gathers" not in rules(again)

    whole = fitting.overlap.compare("async TP", "overlap scheduling")
    assert [found.operator for found in whole["async TP"].record.collectives] == [
        "symm_mem.fused_matmul_reduce_scatter.default"
    ]
    assert "async TP has no times, as torch has no cost model of symm_mem.fused_matmul_reduce_scatter" in str(whole)
    assert whole.sides[2].traffic == whole.sides[0].traffic  # nothing to overlap: the step takes as long
