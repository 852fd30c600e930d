"""Simulated ranks: the ways in, what is shared, which ranks differ, and a process that is as before."""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from IPython.core.interactiveshell import InteractiveShell
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint import save as save_checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import explorer
from compiler.distributed.distinct import stand_ins_in_mesh
from compiler.distributed.group import simulate_group
from compiler.distributed.hangs import find_hangs
from compiler.distributed.ranks import asked_ranks, mesh_corners
from compiler.record import Collective, Group, RankPlace, Record, Span
from compiler.record.options import OptionError, Options
from explorer.entry.user_code import UserError, run_user_code
from explorer.run.files import read
from explorer.run.run import Run

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch.distributed is not in this build")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
HALVES = "captured,joint,forward,backward"


class Block(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, hidden), nn.Linear(hidden, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def train() -> None:
    """A script for GPUs, as it is started by torchrun."""
    assert torch.cuda.is_available()
    init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    model = Block(40).to(device)
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    for _ in range(2):
        model(torch.randn(4, 16, device=device)).sum().backward()
    torch.save({"step": 2}, "no_such_folder/model.pt")
    save_checkpoint(model.state_dict(), checkpoint_id="no_such_folder/checkpoint")
    dist.barrier()
    destroy_process_group()


def make_uneven() -> nn.Module:
    """A model of which the last of 4 ranks has a smaller part."""
    return fully_shard(Block(7), mesh=init_device_mesh("cpu", (4,)))  # type: ignore[no-any-return]


def state_of_process() -> tuple[Any, ...]:
    names = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}  # set by Inductor
    return dist.is_initialized(), names, torch.cuda.set_device, sys.excepthook, torch.empty(1).device.type


@pytest.fixture(scope="module")
def trained() -> Run:
    torch.manual_seed(0)
    return explorer.explore(train, ranks=8, rank="first,3,corners", stages=HALVES, target="h100")


def test_a_script_for_gpus_is_explored_as_some_of_its_ranks(trained: Run) -> None:
    assert trained.record.place == RankPlace(0, 8, (("dp", 2), ("tp", 4)), (0, 0), 8)
    assert trained.record.origin == "simulated"
    assert {artifact.stage for artifact in trained.record.artifacts} == {"source", *HALVES.split(",")}
    assert tuple(trained.ranks.records) == (0, 3, 4, 7)
    assert trained.ranks.groups == ((0, 3, 4, 7),)
    assert trained.ranks.stand_ins == dict.fromkeys((1, 2, 5, 6), 0)
    assert "not simulated: ranks 1, 2, 5, 6" in str(trained.ranks)
    assert [problem.reason.partition(":")[0] for problem in trained.record.problems] == [
        "torch.save did not write no_such_folder/model.pt",
        "torch.distributed.checkpoint.save did not write no_such_folder/checkpoint",
    ]
    assert list(trained.ranks.table["known"][:3]) == ["simulated", "like rank 0", "like rank 0"]
    for measure in (trained.timing.measure, trained.timing.profile, lambda: trained.timing.sweep(batch=[2, 4])):
        with pytest.raises(OptionError, match="the process group is simulated"):
            measure()


def test_shared_graphs_are_those_of_a_rank_alone(trained: Run) -> None:
    before = state_of_process()
    alone = explorer.explore(train, ranks=8, rank=7, stages=HALVES, target="h100").record
    shared = trained.ranks.records[7]
    assert {found.id: found.text for found in alone.artifacts} == {found.id: found.text for found in shared.artifacts}
    assert [(call.id, call.order, call.bytes) for call in alone.collectives] == [
        (call.id, call.order, call.bytes) for call in shared.collectives
    ]
    assert [event.bytes for event in alone.memory] == [event.bytes for event in shared.memory]
    assert state_of_process() == before


def test_ranks_with_smaller_shards_are_simulated() -> None:
    run = explorer.explore(make_uneven, torch.randn(2, 16), ranks=4, rank="distinct", stages="captured")
    assert run.ranks.shapes == ((0, 1, 2), (3,))
    assert run.ranks.groups == ((0, 1, 2), (3,))


def test_few_ranks_of_a_mesh_are_simulated_to_find_those_that_differ() -> None:
    tried: list[int] = []

    def simulate(rank: int) -> object:
        """Of 100 stages, the first and the last are others; of 4 ranks of each, the third has more experts."""
        tried.append(rank)
        return {0: "first", 99: "last"}.get(rank // 4, ""), rank % 4 == 2

    like = stand_ins_in_mesh([100, 4], simulate, lambda _: None)
    known = set(tried)
    assert len(known) < 30
    assert {rank: simulate(like.get(rank, rank)) for rank in range(400)} == {r: simulate(r) for r in range(400)}
    assert known | like.keys() == set(range(400))


def make_experts() -> nn.Module:
    """Five experts on four ranks, which no DTensor tells of."""
    return nn.Sequential(*(Block(8) for _ in range(2 if dist.get_rank() == 1 else 1)))


def test_uneven_experts_are_seen() -> None:
    run = explorer.explore(make_experts, torch.randn(2, 16), ranks=4, rank="distinct", stages="captured")
    assert run.ranks.groups == ((0, 2, 3), (1,))


def test_a_cell_runs_again_for_each_rank_on_copies(magic_shell: InteractiveShell) -> None:
    magic_shell.push({"model": Block(8), "init_device_mesh": init_device_mesh, "fully_shard": fully_shard})
    magic_shell.push({"torch": torch, "dist": dist, "seen": []})
    before = state_of_process()
    cell = """%%tcompile --ranks 4 --rank first,last --fake --stages captured -o run
mesh = init_device_mesh("cuda", (4,))
fully_shard(model, mesh=mesh)
if dist.get_rank() == 3: raise LookupError("only here")
rank = dist.get_rank()
model(torch.randn(2, 16)).sum()"""
    result = magic_shell.run_cell(cell)
    assert result.success
    run = magic_shell.user_ns["run"]
    assert magic_shell.user_ns["rank"] == 0
    assert run.ranks.failed == {3: "LookupError: only here"}
    assert state_of_process() == before


def test_errors_say_what_to_write() -> None:
    before = state_of_process()

    def refusal(code: Any, *, ranks: int = 8, rank: int = 3) -> str:
        with pytest.raises((OptionError, RuntimeError)) as caught, simulate_group(ranks, rank):
            code()
        return str(caught.value)

    assert "make a mesh of 8" in refusal(lambda: init_device_mesh("cuda", (3, 3)))
    assert "not in the mesh, which has ranks 0 to 1" in refusal(lambda: init_device_mesh("cuda", (2,)))
    assert "--ranks 2" in refusal(lambda: init_process_group("gloo", rank=3, world_size=2))
    assert "nprocs=8" in refusal(lambda: mp.spawn(print, nprocs=3))  # type: ignore[no-untyped-call]
    assert "--rank 0" in refusal(lambda: dist.scatter_object_list([None], None, src=0))
    assert "--rank 0" in refusal(lambda: dist.recv_object_list([None], src=0))
    with simulate_group(8, 3):
        assert "initialized already" in refusal(lambda: None, ranks=4)
    with pytest.raises(UserError) as caught, simulate_group(7, 3):
        run_user_code(Path(__file__), lambda: init_device_mesh("cuda", (2, 4)))
    assert "make a mesh of 7" in str(caught.value.cause)
    with pytest.raises(OptionError, match="a function without"):
        explorer.explore(Block(8), torch.randn(2, 16), ranks=8, rank="first,last")
    assert state_of_process() == before


def test_spawned_function_runs_as_the_simulated_rank() -> None:
    seen: list[int] = []
    with simulate_group(8, 5):
        mp.spawn(seen.append, nprocs=8)  # type: ignore[no-untyped-call]
    assert seen == [5]


class Asking(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.cuda.device_count() if torch.cuda.is_available() else x
        return x.to("cuda").cuda() + torch.zeros(2, device=torch.device("cuda", 1)).to(device="cuda:0", dtype=x.dtype)


@needs_no_gpu
def test_programs_find_the_gpu_that_code_is_written_for() -> None:
    rules = torch._dynamo.trace_rules.get_torch_obj_rule_map()
    with simulate_group(16, 9, target="a100"):
        assert "A100" in torch.cuda.get_device_name()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(torch.cuda.Stream()), torch.random.fork_rng([0]):
            start.record()
            x = torch.ones(2, pin_memory=True).pin_memory().to("cuda", non_blocking=True)
            x.record_stream(torch.cuda.current_stream())
            torch._dynamo.reset()
            assert torch.compile(Asking(), backend="eager", fullgraph=True)(x).tolist() == [8, 8]
        end.record()
        assert math.isnan(start.elapsed_time(end))
    assert not torch.cuda.is_available()
    assert torch._dynamo.trace_rules.get_torch_obj_rule_map() == rules
    with simulate_group(2, 0, target="cpu"):
        assert not torch.cuda.is_available()


def test_functions_compiled_before_run_without_the_mode_for_cpus() -> None:
    modes: list[int] = []
    older = torch.compile(lambda: modes.append(torch._C._len_torch_function_stack()))
    with torch.compiler.set_stance("force_eager"), simulate_group(8, 5):
        older()
    assert modes == [0]


def test_gradients_are_reduced_from_the_part_of_the_rank() -> None:
    with simulate_group(2, 1):
        model = fully_shard(nn.Linear(2, 3, bias=False), mesh=init_device_mesh("cpu", (2,)))
        model(torch.tensor([[1.0, 2.0]])).sum().backward()  # type: ignore[operator]
        gradient = model.weight.grad
        assert isinstance(gradient, DTensor)
        assert gradient.to_local().tolist() == [[1.0, 2.0]]  # the third row of 3, which the other rank has not added to


def test_named_ranks() -> None:
    place = RankPlace(0, 8, (("dp", 2), ("tp", 4)))
    assert mesh_corners(place.mesh, 8) == [0, 3, 4, 7]
    assert asked_ranks(Options(ranks=8, rank="5,corners"), place, ()) == (5, 0, 3, 4, 7)
    assert asked_ranks(Options(ranks=8, rank="distinct"), None, ((0, 1), (2, 3))) == (0, 7, 2)


def talk() -> None:
    """Rank 3 does not come to a collective of rank 2, and sends to rank 0; ranks 0 and 1 receive before they send."""
    rank, x = dist.get_rank(), torch.ones(2, 16)
    BLOCK(x)
    if rank < 2:
        dist.recv(x, 1 - rank)
        dist.send(x, 1 - rank)
    if rank == 2:
        dist.all_reduce(x, group=PAIR[-1])
    elif rank == 3:
        dist.send(x, 0)


BLOCK, PAIR = Block(8), list[Any]()


def talk_in_a_pair(pair: tuple[int, int] = (2, 3)) -> None:
    PAIR.append(dist.new_group(list(pair)))
    talk()


def test_both_lines_of_a_hang_are_told() -> None:
    run = explorer.explore(talk_in_a_pair, ranks=4, rank="0,1,2,3", stages="captured")
    (alone, unmatched, circle) = (str(hang).partition(".py:") for hang in run.ranks.hangs)
    assert (alone[0], unmatched[0], circle[0]) == (
        "Rank 2 waits in all_reduce (tests/explorer/entry/test_ranks",
        "Rank 3 waits in send to rank 0 (tests/explorer/entry/test_ranks",
        "Rank 0 waits in recv from rank 1 (tests/explorer/entry/test_ranks",
    )
    assert "which rank 3 never calls" in alone[2]
    assert alone[2].endswith("if rank == 2:")
    assert "which rank 0 never receives" in unmatched[2]
    assert "Rank 1 sends it in send to rank 0" in circle[2]


def test_a_saved_record_keeps_the_hangs_and_names_the_ranks_that_it_lacks(tmp_path: Path) -> None:
    run = explorer.explore(call_in_loops, ranks=3, rank="0,1,2", stages="captured")
    saved = Run(read(run.save(tmp_path / "run.json")))
    assert [hang.words for hang in saved.ranks.hangs] == [hang.words for hang in run.ranks.hangs]
    alone = "3 ranks; simulated: the record of rank 0 alone\nnot in the record: ranks 1, 2\n"
    assert str(saved.ranks).startswith(alone)
    with pytest.raises(KeyError, match="rank 1 is not in the record; there is rank 0"):
        saved.ranks.difference(0, 1)
    assert str(run.ranks.difference(1, 2)) == "All 2 ranks are equal: graphs, guards, kernels and collectives."


def call_in_loops() -> None:
    """All ranks go into the branch; rank 0 does so once more."""
    rank, x = dist.get_rank(), torch.ones(2, 16)
    BLOCK(x)
    for _ in range(3 if rank == 0 else 2):
        if rank != 3:
            dist.all_reduce(x)
    dist.barrier()


def test_a_branch_that_all_ranks_take_is_not_named_as_the_cause_of_a_hang() -> None:
    (hang,) = explorer.explore(call_in_loops, ranks=3, rank="0,1,2", stages="captured").ranks.hangs
    assert ((hang.waiting, hang.others), "another way" in hang.words) == (((0,), (1, 2)), False)


def join_uneven_steps() -> None:
    """Rank 1 makes one step more than rank 0, for which Join lets rank 0 wait."""
    ddp = DistributedDataParallel(Block(8))
    model = torch.compile(ddp, backend="eager")
    with Join([ddp]):
        for _ in range(2 + dist.get_rank()):
            model(torch.ones(2, 16)).sum().backward()


def test_uneven_steps_with_join_are_no_hang() -> None:
    ranks = explorer.explore(join_uneven_steps, ranks=2, rank="0,1", stages="captured").ranks
    steps = [sum(each.half == "backward" for each in record.collectives) for record in ranks.records.values()]
    assert steps[0] < steps[1]
    assert not ranks.hangs
    for record in ranks.records.values():
        assert ["Join on, it is not known" in each.reason for each in record.problems] == [True]


def run_stages() -> None:
    """A pipeline of two stages, of which the second receives before its first call of a compiled function."""
    rank = dist.get_rank()
    values = [torch.randn(2, 16, requires_grad=True) for _ in range(2)]
    model = torch.compile(Block(8))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"), input_args=values[0], output_args=values[1])  # type: ignore[arg-type]
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, _: out.sum())
    schedule.step(*[torch.randn(8, 16)] * (1 - rank), target=torch.randn(8, 16) if rank else None)


def test_messages_of_a_pipeline_match() -> None:
    run = explorer.explore(run_stages, ranks=2, rank="0,1", stages="captured")
    assert not run.ranks.hangs
    for record in run.ranks.records.values():
        assert [schedule.name for schedule in record.pipelines] == ["Schedule1F1B"]
        microbatches = [found for found in record.collectives if found.bytes > 4]  # torch 2.11 first sends 4 bytes
        assert Counter(found.kind for found in microbatches) == {"send": 4, "recv": 4}


def rank_with(*calls: tuple[str, int]) -> Record:
    """A record of a rank that calls these collectives on these lines."""
    found = [
        Collective(f"{order}", kind, group="0", lines=(Span("a.py", line),), order=order)  # type: ignore[arg-type]
        for order, (kind, line) in enumerate(calls)
    ]
    return Record("", Options(), groups=(Group("0", (0, 1, 2)),), collectives=tuple(found))


def test_a_collective_on_some_ranks_only_is_told_as_a_hang() -> None:
    same = [("all_gather", 1), ("barrier", 9)]
    assert not find_hangs({0: rank_with(*same), 2: rank_with(*same)})
    records = {0: rank_with(("all_reduce", 3), *same), 1: rank_with(*same), 2: rank_with(*same)}
    (hang,) = find_hangs(records)
    assert str(hang) == (
        "Rank 0 waits in all_reduce (a.py:3), which ranks 1, 2 never call: the job hangs there. "
        "Ranks 1, 2 call all_gather (a.py:1) instead."
    )
    (hang,) = find_hangs({0: rank_with(*same, ("all_reduce", 12)), 1: rank_with(*same)})
    assert str(hang) == (
        "Rank 0 waits in all_reduce (a.py:12), which rank 1 never calls: the job hangs there. "
        "Rank 1 calls none after barrier (a.py:9)."
    )
    small, large = rank_with(("all_reduce", 3)), rank_with(("all_reduce", 3))
    large = replace(large, collectives=(replace(large.collectives[0], input_bytes=64),))
    (hang,) = find_hangs({0: small, 1: large, 2: small})
    assert "ranks 0, 2: 0 bytes in all_reduce (a.py:3)" in str(hang).lower()
    assert "rank 1: 64 bytes in" in str(hang)
    typed = [replace(each, collectives=(replace(each.collectives[0], dtype=dtype, input_bytes=64),))
             for each, dtype in ((small, "float32"), (large, "int32"))]  # fmt: skip
    (hang,) = find_hangs(dict(enumerate(typed)))
    words = (
        "Rank 0: float32 in all_reduce (a.py:3); rank 1: int32 in all_reduce (a.py:3). All must pass the same dtype:"
    )
    assert str(hang).startswith(words)


def broadcast_own() -> None:
    BLOCK(torch.ones(2, 16))
    dist.broadcast(torch.ones(2), src=dist.get_rank())


def test_other_roots_are_told() -> None:
    (hang,) = explorer.explore(broadcast_own, ranks=2, rank="0,1", stages="captured").ranks.hangs
    assert hang.words.startswith("Rank 0: root 0 in broadcast (")
    assert "rank 1: root 1 in broadcast (" in hang.words
    assert "All must pass the same root:" in hang.words
