"""Calls of compiled graphs skip AOTAutograd's wrappers only if these do nothing."""

from __future__ import annotations

import dis
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from torch import Tensor
from torch.fx import GraphModule

from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.torch_glue.direct import Watched
from compiler.torch_api.aot import Call, mark_boxed
from compiler.torch_api.unread import without_marks


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@dataclass
class Caller:
    """A backend whose graphs run in eager mode.

    It records whether AOTAutograd's wrappers were around each call, and the modes inside it.
    """

    wrapped: list[bool] = field(default_factory=list)
    modes: list[tuple[bool, bool]] = field(default_factory=list)
    fails: bool = False

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with_autograd(module, inputs, self.graph, self.graph, self.graph)

    def graph(self, module: GraphModule, _: Sequence[Any]) -> Call:
        def call(args: list[Any]) -> Sequence[Any]:
            self.wrapped.append(any("runtime_wrappers" in frame.f_code.co_filename for frame in frames()))
            self.modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            if self.fails:
                raise ArithmeticError("it fails")
            given = list(args)
            args.clear()
            found: Sequence[Any] = module(*given)
            return found

        return mark_boxed(call)


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def test_runtime_wrappers_are_skipped_after_the_first_call() -> None:
    caller, x, y = Caller(), torch.randn(4, 8), torch.randn(4, 8)
    fn = torch.compile(lambda x, y: (x.sin() * y, (x + y).sum(0)), backend=caller)
    for _ in range(3):
        torch.testing.assert_close(fn(x, y), (x.sin() * y, (x + y).sum(0)))
    assert caller.wrapped == [True, False, False]


def test_grad_is_disabled_inside_and_restored_after_errors() -> None:
    caller, w = Caller(), torch.randn(4, 8, requires_grad=True)
    fn = torch.compile(lambda w: w.detach() * 2, backend=caller)
    for _ in range(2):
        assert not fn(w).requires_grad
        assert torch.is_grad_enabled()
    caller.fails = True
    with pytest.raises(ArithmeticError):
        fn(w)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        caller.fails = False
        fn(w)
        assert not torch.is_grad_enabled()
    assert not any(gradients for gradients, _ in caller.modes)
    assert caller.wrapped == [True, False, False, True], "gradients off is a graph of its own"


def test_autocast_is_disabled_inside_and_restored() -> None:
    caller, x = Caller(), torch.randn(4, 4)
    fn = torch.compile(lambda x: x @ x, backend=caller)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            torch.testing.assert_close(fn(x), x @ x, rtol=0, atol=0)
            assert torch.is_autocast_enabled("cpu")
    assert caller.wrapped == [True, False, False]
    assert caller.modes == [(False, False)] * 3


def test_mutations_and_views_keep_the_wrappers() -> None:
    def changed(x: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return x[0], x + 1

    def views(x: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x[0], y, y[1]

    for fn in (changed, views):
        caller, ours, theirs = Caller(), torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4)
        call = torch.compile(fn, backend=caller)
        for _ in range(3):
            before = ours._version
            torch.testing.assert_close((call(ours), ours), (fn(theirs), theirs))
            assert (ours._version > before) == (fn is changed)
        assert caller.wrapped == [True] * 3


@pytest.mark.parametrize("is_ours", [True, False])
def test_input_writes_bump_the_version_without_wrappers(is_ours: bool) -> None:
    """Our own code does not bump the version counters of the memory it writes; eager mode does."""

    def written(x: Tensor, cache: Tensor) -> Tensor:
        cache[1:3] = x
        return cache.sin()

    caller, ours, theirs = Caller(), torch.zeros(4, 4), torch.zeros(4, 4)
    call = torch.compile(written, backend="tcompile" if is_ours else caller)
    for _ in range(3):
        x, w, before = torch.randn(2, 4), torch.randn(4, 4, requires_grad=True), ours._version
        loss = (w * ours).sum()
        torch.testing.assert_close((call(x, ours), ours), (written(x, theirs), theirs))
        assert ours._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    assert caller.wrapped == [True, False, False][: 0 if is_ours else 3]


def test_graph_that_disables_gradients_does_so_each_call() -> None:
    def off(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    call = torch.compile(off, backend=Caller())
    for _ in range(3):
        with torch.enable_grad():
            call(torch.ones(3))
            assert not torch.is_grad_enabled()


def test_view_outputs_alias_in_each_call() -> None:
    x = torch.randn(3, 4)
    call = torch.compile(lambda x: (x, x[0], x + 1), backend=Caller())
    for _ in range(3):
        same, view, other = call(x)
        assert same is x
        assert view._base is x
        assert other.data_ptr() != x.data_ptr()


def test_symbolic_size_outputs_keep_the_wrappers() -> None:
    caller = Caller()
    fn = torch.compile(lambda x: x.sin() + 1, backend=caller, dynamic=True)
    for length in (5, 6, 7):
        assert fn(torch.ones(length, 4)).shape == (length, 4)
    assert caller.wrapped == [True] * 3


def test_training_is_unchanged() -> None:
    caller, x = Caller(), torch.randn(4, 8, requires_grad=True)
    fn = torch.compile(lambda x: x.sin().sum(), backend=caller)
    for _ in range(2):
        (found,) = torch.autograd.grad(fn(x), x)
        torch.testing.assert_close(found, x.detach().cos())
    assert caller.modes[0] == (False, False)


def test_concurrent_first_calls() -> None:
    """Each sees its own call; any of them may decide to skip the wrappers."""
    barrier, wrappers = threading.Barrier(6), 0

    def call(args: list[Any]) -> Sequence[Any]:
        (x,) = args
        time.sleep(0.01)  # other threads run in between
        return [x + 1]

    def wrapped(x: Tensor) -> Sequence[Any]:
        nonlocal wrappers
        wrappers += 1
        with torch.no_grad():
            return watched.run([x])

    watched = Watched(call, autocast=False)
    fn = watched.wrap(wrapped, wrapped)

    def calls(start: int) -> list[Any]:
        barrier.wait(20)
        return [fn(torch.full((3,), float(start + step))) for step in range(20)]

    with ThreadPoolExecutor(6) as pool:
        for start, found in enumerate(pool.map(calls, range(6))):
            torch.testing.assert_close(found, [[torch.full((3,), start + step + 1.0)] for step in range(20)])
    assert watched.is_direct
    assert 1 <= wrappers <= 6, "only first calls go through the wrappers"


def test_wrappers_that_change_inputs_or_outputs_stay() -> None:
    for into, out in ((torch.clone, torch.relu_), (torch.relu_, torch.clone)):
        calls: list[Tensor] = []
        watched = Watched(lambda args: [args[0]], autocast=False)

        def wrapped(x: Tensor, watched: Any = watched, calls: Any = calls, into: Any = into, out: Any = out) -> Any:
            calls.append(x)
            return [*map(out, watched.run([into(x)]))]

        fn = watched.wrap(wrapped, wrapped)
        with torch.no_grad():
            for _ in range(3):
                fn(torch.randn(3))
        assert len(calls) == 3


def test_inputs_released_by_wrappers_are_not_held() -> None:
    alive: list[bool] = []

    def call(args: list[Any]) -> Sequence[Any]:
        known = weakref.ref(args[0])
        args.clear()
        alive.append(known() is not None)
        return [torch.ones(3)]

    def wrapped(box: list[Any]) -> Sequence[Any]:
        args = [*box]
        box.clear()
        return watched.run(args)

    watched = Watched(call, autocast=False)
    fn = watched.wrap(wrapped, wrapped)
    for _ in range(3):
        fn([torch.ones(3)])
    assert alive == [True, False, False], "only the first call is watched"


def prologue_is_marked(backend: Callable[..., Any]) -> bool:
    made: list[Any] = []
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda _, new: made.append(new))
    torch.compiler.reset()
    try:
        torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(3))
    finally:
        handle.remove()
    return any("pregraph_bytecode" in str(line.argval) for code in made for line in dis.get_instructions(code))


def test_only_the_compiled_frame_skips_the_profiler_mark() -> None:
    def unmarked(module: GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        without_marks()
        return module.forward

    def failing(*_: Any) -> Callable[..., Any]:
        without_marks()
        raise ArithmeticError("it fails")

    for _ in range(2):
        assert not prologue_is_marked(unmarked)
        assert dynamo_config.record_runtime_overhead
        assert prologue_is_marked(lambda module, _: module.forward)
    with pytest.raises(Exception, match="it fails"):
        prologue_is_marked(failing)
    assert dynamo_config.record_runtime_overhead
    without_marks()
    assert dynamo_config.record_runtime_overhead, "nothing is compiled here"


@pytest.mark.timeout(120, method="thread")
def test_backward_compiled_inside_compiled_code_does_not_deadlock() -> None:
    """Callbacks at the end of a compilation hold a lock, and TorchDynamo must not compile them."""
    torch.compiler.reset()
    torch.compile(lambda x: x.sin(), backend="tcompile")(torch.ones(3))
    weight = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> None:
        (x * weight).sin().sum().backward()

    torch.compile(step, backend="inductor")(torch.ones(3))
    assert weight.grad is not None


def test_user_setting_is_kept() -> None:
    with dynamo_config.patch(record_runtime_overhead=False):
        assert not prologue_is_marked(Caller())
        assert not dynamo_config.record_runtime_overhead
