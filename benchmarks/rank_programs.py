"""Programs whose ranks are equal, and what programs of ranks share. `benchmarks/ranks.py` runs and counts them.

Each function is a program. `odd` is true on the rank that differs, here on none.
"""

# ruff: noqa: ARG001 (all programs have the same parameters)
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._inductor.compile_fx
import torch.distributed as dist
import torch.distributed._functional_collectives as fun
from torch import Tensor, nn

EQUAL: dict[str, Case] = {}
DIFFERENT: dict[str, Case] = {}


@dataclass(frozen=True)
class Case:
    """A program of each rank, its process group, the kinds of difference that are right, the number of ranks, and
    its caches: "off", "own" ones of each rank, or "shared".
    """

    name: str
    run: Callable[[int, bool], None]
    group: str = "fake"
    kinds: tuple[str, ...] = ()
    ranks: int = 2
    caches: str = "off"
    lines: tuple[int, ...] = ()


def differs(*kinds: str, ranks: int = 2, caches: str = "off") -> Callable[[Callable[[int, bool], None]], None]:
    """Register a program whose odd rank differs in one of `kinds`."""

    def add(run: Callable[[int, bool], None]) -> None:
        DIFFERENT[run.__name__] = Case(run.__name__, run, "fake", kinds, ranks, caches, marked_lines(run))

    return add


def equal(group: str = "gloo", ranks: int = 2, caches: str = "off") -> Callable[[Callable[[int, bool], None]], None]:
    """Register a program that is equal on all ranks."""

    def add(run: Callable[[int, bool], None]) -> None:
        EQUAL[run.__name__] = Case(run.__name__, run, group, (), ranks, caches)

    return add


def marked_lines(run: Callable[[int, bool], None]) -> tuple[int, ...]:
    """Lines with the mark in a program: any of them is right."""
    lines = Path(run.__code__.co_filename).read_text(encoding="utf-8").splitlines()
    first = run.__code__.co_firstlineno
    last = next((place for place in range(first + 1, len(lines)) if lines[place - 1].startswith("@")), len(lines))
    return tuple(place for place in range(first, last) if "# differs" in lines[place - 1])


class StartAgainError(Exception):
    """Raised by a program that only filled the caches; the rank is run again, with `odd` false."""


class Net(nn.Module):
    """Two linear layers with dropout."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.relu(self.a(x))))


def net() -> Net:
    """A model with weights of this process's seed."""
    return Net()


def world() -> dist.ProcessGroup:
    """The group of all ranks."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def rand(*sizes: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> Tensor:
    """Random numbers of this process's seed."""
    return torch.randn(sizes, dtype=dtype, requires_grad=requires_grad)


def train(model: Callable[[Tensor], Tensor], steps: int = 2, size: int = 8) -> None:
    for _ in range(steps):
        model(rand(size, 16)).pow(2).mean().backward()


def train_in_one_graph(compiled_autograd: bool) -> None:
    """A step with its backward, which compiled autograd may compile."""
    model = net()

    @torch.compile
    def step(x: Tensor) -> None:
        model(x).pow(2).mean().backward()

    with torch._dynamo.config.patch(compiled_autograd=compiled_autograd):
        step(rand(8, 16))


@equal()
def plain_inference(rank: int, odd: bool) -> None:
    torch.compile(net().eval())(rand(8, 16))


@equal()
def plain_training(rank: int, odd: bool) -> None:
    train(torch.compile(net()))


@equal()
def breaks_and_recompiles(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor, scale: int) -> Tensor:
        y = x.sin() * scale
        if y.sum() > 1e9:
            y = y + 1
        return y.cos()

    for size, scale in ((4, 1), (8, 1), (8, 2), (5, 3)):
        step(rand(size, 3), scale)


@equal()
def ddp(rank: int, odd: bool) -> None:
    train(torch.compile(nn.parallel.DistributedDataParallel(net())))


@equal()
def ddp_two_buckets(rank: int, odd: bool) -> None:
    layers = nn.Sequential(Net(), nn.Linear(4, 512), nn.Linear(512, 1024), nn.Linear(1024, 8))
    train(torch.compile(nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)))


@equal()
def fsdp2(rank: int, odd: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model.a)
    fully_shard(model)
    train(torch.compile(model))


@equal()
def collectives_in_graph(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = fun.all_reduce(x * 2, "sum", world())
        return fun.all_gather_tensor(y + 1, 0, world()).relu()

    step(rand(8, 4))


@equal()
def own_part_of_a_tensor(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        return x.chunk(2)[dist.get_rank()].sin()

    step(rand(8, 4))


@equal()
def rank_in_an_attribute(rank: int, odd: bool) -> None:
    class Ranked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rank = rank

        def forward(self, x: Tensor) -> Tensor:
            return x.sin() if self.rank >= 0 else x

    torch.compile(Ranked())(rand(4))


@equal()
def one_rank_prints_between_steps(rank: int, odd: bool) -> None:
    model = torch.compile(net())
    for _ in range(3):
        loss = model(rand(8, 16)).mean()
        loss.backward()
        if rank == 0:
            print(f"loss {loss:.3f}", file=sys.stderr)


@equal(ranks=4)
def four_ranks(rank: int, odd: bool) -> None:
    train(torch.compile(nn.parallel.DistributedDataParallel(net())))


@equal()
def compiled_backward_of_all(rank: int, odd: bool) -> None:
    train_in_one_graph(compiled_autograd=True)


@equal()
def tensor_parallel(rank: int, odd: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(net(), mesh, {"a": ColwiseParallel(), "b": RowwiseParallel()})
    train(torch.compile(model))


@equal(ranks=4)
def mesh_of_two_by_two(rank: int, odd: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    group = mesh["tensor"].get_group()

    @torch.compile
    def step(x: Tensor) -> Tensor:
        return fun.all_reduce(x.sin(), "sum", group) + 1

    step(rand(8, 4))


@equal()
def own_slice_of_a_tensor(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        first = dist.get_rank() * 4
        return x[first : first + 4].sin()

    step(rand(8, 4))


@equal()
def other_data_on_each_rank(rank: int, odd: bool) -> None:
    torch.manual_seed(rank)
    with torch.autocast("cpu", torch.bfloat16):
        train(torch.compile(Net(0.1)))


@equal(caches="shared")
def cold_cache_that_ranks_share(rank: int, odd: bool) -> None:
    train(torch.compile(net()))


@equal()
def dynamic_batch_of_each_rank(rank: int, odd: bool) -> None:
    @torch.compile(dynamic=True)
    def step(x: Tensor) -> Tensor:
        return x.sin().sum(0)

    step(rand(8 + 4 * rank, 4))


@equal()
def checkpointed_training(rank: int, odd: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model = Net(0.1)
    train(torch.compile(lambda x: checkpoint(model, x, use_reentrant=False)))


@equal()
def gather_and_scatter_in_turn(rank: int, odd: bool) -> None:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = fun.all_gather_tensor(x.sin(), 0, world())
        return fun.reduce_scatter_tensor(y * 2, "avg", 0, world()).cos()

    step(rand(8, 4))


@equal()
def own_part_of_a_vocabulary(rank: int, odd: bool) -> None:
    table, first = nn.Embedding(20, 8), 20 * rank

    @torch.compile
    def step(ids: Tensor) -> Tensor:
        own = ids - first
        inside = (own >= 0) & (own < 20)
        return fun.all_reduce(table(own.clamp(0, 19)) * inside[:, None], "sum", world())

    step(torch.arange(0, 40, 3))


@equal()
def optimizer_step(rank: int, odd: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    model(rand(8, 16)).mean().backward()
    torch.compile(optimizer.step)()
