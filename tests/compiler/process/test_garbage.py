"""Python's garbage collector: fewer full collections while a big graph compiles, and the settings are restored."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.callback import callback_handler
from torch._dynamo.guards import CheckFunctionManager
from torch._dynamo.utils import graph_break_reasons
from torch._inductor.scheduler import BaseSchedulerNode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import compiler.backend.backend
from compiler.engine import Event, Exploration, explore
from compiler.process import made_to_stay
from compiler.record.options import Options
from compiler.torch_api.released import release_guards


def in_compilations() -> int:
    """The third threshold during a compilation, which torch 2.15 raises itself."""
    raised: int | None = getattr(torch._dynamo.config, "gc_gen2_threshold_during_compile", None)
    return max(gc.get_threshold()[2], raised or 0)


def thresholds_while_lowering(model: nn.Module) -> list[tuple[int, int, int]]:
    heard = []

    def hear(event: Event) -> None:
        if event.kind == "artifact" and event.stage == "ir":
            heard.append(gc.get_threshold())

    with Exploration(listener=hear) as exploration:
        exploration.compile(model)(torch.randn(2, 4))
        heard.append(gc.get_threshold())
    return heard


def large() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), *(nn.Sigmoid() for _ in range(100)))


def test_large_graph_compiles_with_fewer_full_collections() -> None:
    before = gc.get_threshold()
    forward, _, in_the_users_own_code = thresholds_while_lowering(large())
    assert forward[:2] == before[:2]
    assert forward[2] >= 5 * before[2]
    assert in_the_users_own_code == gc.get_threshold() == before


def test_small_graph_keeps_the_collection_threshold() -> None:
    *lowering, in_the_users_own_code = thresholds_while_lowering(nn.Linear(4, 4))
    assert set(lowering) == {(*gc.get_threshold()[:2], in_compilations())}
    assert in_the_users_own_code == gc.get_threshold()


def test_full_collections_resume_after_an_interrupt() -> None:
    before = gc.get_threshold()

    def interrupt(event: Event) -> None:
        if event.kind == "artifact" and event.stage == "ir":
            raise KeyboardInterrupt

    exploration = Exploration(listener=interrupt)
    with pytest.raises(KeyboardInterrupt), exploration:
        exploration.compile(large())(torch.randn(2, 4))
    assert gc.get_threshold() == before


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Unfreeze, as in a user's process: the suite freezes the objects of its test modules' imports."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


class Cyclic:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.parametrize("allocations", range(6))
def test_guards_are_released_despite_concurrent_finalizers(allocations: int) -> None:
    """The next collection, a given number of allocations later, runs another object's finalizer."""
    since = weakref.finalize(release_guards, int)
    other = weakref.finalize(Cyclic, int)
    before = gc.get_threshold()

    def detach(phase: str, info: dict[str, int]) -> None:
        other.detach()

    gc.callbacks.append(detach)
    try:
        gc.set_threshold(gc.get_count()[0] + allocations, *before[1:])
        release_guards(since)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(detach)
        other.detach()
    assert not since.alive


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_made_to_stay_are_still_collectable() -> None:
    with made_to_stay():
        found = weakref.ref(Cyclic())
    assert gc.get_count()[1:] == (0, 0)
    assert gc.get_freeze_count() == 0
    gc.collect(1)
    assert found() is not None
    gc.collect()
    assert found() is None


def test_high_threshold_of_the_user_is_no_error() -> None:
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], 10_000)
    try:
        with made_to_stay():
            assert gc.get_threshold()[2] > 10_000
        assert gc.get_threshold()[2] == 10_000
    finally:
        gc.set_threshold(*before)


@pytest.mark.usefixtures("nothing_frozen")
def test_user_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with made_to_stay():
        pass
    assert before * 0.9 < gc.get_freeze_count()


def thresholds_of_compilations(backend: Any, calls: int) -> list[int]:
    """The third threshold at the start of each of several compilations."""
    heard: list[int] = []
    told = partial(lambda _: heard.append(gc.get_threshold()[2]))
    torch._dynamo.reset()
    callback_handler.register_start_callback(told)
    compiled = torch.compile(lambda x: x.sin(), backend=backend, dynamic=False)
    for number in range(calls):
        compiled(torch.ones(2 + number))
    torch._dynamo.reset()
    return heard


def test_our_compilations_run_without_full_collections() -> None:
    before = gc.get_threshold()
    heard = thresholds_of_compilations("tcompile", compiler.backend.backend.COLLECTED)
    assert sorted(heard) == [in_compilations()] + [1_000_000 * in_compilations()] * (len(heard) - 1)
    assert gc.get_threshold() == before


def test_other_backends_keep_full_collections() -> None:
    assert set(thresholds_of_compilations("eager", 3)) == {in_compilations()}


def guards_held_by_finalizers() -> set[CheckFunctionManager]:
    finalizers = tuple(weakref.finalize._registry)
    callbacks = [found[1] for finalizer in finalizers if (found := finalizer.peek())]
    owners = [getattr(call.func, "__self__", None) for call in callbacks if isinstance(call, partial)]
    return {owner for owner in owners if isinstance(owner, CheckFunctionManager)}


def test_no_guards_outlive_an_exploration() -> None:
    of_others = guards_held_by_finalizers()
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="eager")
    compiled(torch.randn(2, 4))
    of_the_user = guards_held_by_finalizers() - of_others
    assert of_the_user
    explore(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),), options=Options(stages=("captured",)))
    assert guards_held_by_finalizers() - of_others == of_the_user


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(self.first(x), -1)
        torch._dynamo.graph_break()
        return self.second(y).sum()


def graphs_in_memory() -> Counter[str]:
    gc.collect()
    held = (torch.fx.GraphModule, FakeTensorMode, ShapeEnv, BaseSchedulerNode)
    return Counter(type(thing).__name__ for thing in gc.get_objects() if issubclass(type(thing), held))


@pytest.mark.usefixtures("nothing_frozen")
def test_no_graphs_outlive_an_exploration() -> None:
    def step() -> None:
        for target in ("h100", "cpu"):
            explore(Branching(), (torch.randn(4, 8),), options=Options(target=target)).value.backward()

    step()
    graphs, breaks = graphs_in_memory(), len(graph_break_reasons)
    step()
    assert graphs_in_memory() - graphs == Counter()
    assert len(graph_break_reasons) == breaks
