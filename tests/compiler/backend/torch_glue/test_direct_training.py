"""Training calls without AOTAutograd's wrappers: the same gradients, errors and memory as through them."""

from __future__ import annotations

import contextvars
import copy
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from compiler.backend import tcompile
from tests.compiler.backend.torch_glue.direct_halves import Halves, described, grown, leaf, product
from tests.compiler.broken import TORCH


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


def test_runtime_wrappers_are_skipped_after_the_first_step() -> None:
    halves, compiled = Halves(), None
    x, w = leaf(4, 4), leaf(4, 4)
    compiled = torch.compile(product, backend=halves)
    for _ in range(3):
        found = torch.autograd.grad(compiled(x, w).exp().sum(), (x, w))
        torch.testing.assert_close(found, torch.autograd.grad(product(x, w).exp().sum(), (x, w)))
    assert halves.wrapped("forward") == [True, False, False]
    assert halves.wrapped("backward") == [True, False, False]
    assert halves.modes == [(False, False)] * 6
    for half in ("forward", "backward"):
        first, *others = halves.args(half)
        assert others == [first, first]


def test_grad_fn_keeps_its_name() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    _, compiled = grown(product, x, w)
    assert compiled(x, w).grad_fn.name() == "CompiledFunctionBackward"


TANGENTS = {
    "as expected": lambda: torch.randn(3, 4),
    "expanded": lambda: torch.randn(()).expand(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "of other memory": lambda: torch.randn(3, 8)[:, ::2],
    "with an offset": lambda: torch.randn(4, 4)[1:],
}


@pytest.mark.parametrize("name", TANGENTS)
def test_tangent_is_restrided_to_the_compiled_layout(name: str) -> None:
    x, w = leaf(3, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    tangent = TANGENTS[name]()
    found = torch.autograd.grad(compiled(x, w), (x, w), tangent)
    torch.testing.assert_close(found, torch.autograd.grad(product(x, w), (x, w), tangent))
    first, second = halves.args("backward")
    assert [arg[1:4] for arg in second] == [arg[1:4] for arg in first]
    assert halves.wrapped("forward")[-1] is False


def test_channels_last_tangent() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    halves, compiled = grown(torch.sin, x)
    for tangent in (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        (found,) = torch.autograd.grad(compiled(x), x, tangent)
        torch.testing.assert_close(found, x.detach().cos() * tangent)
        assert halves.args("backward")[-1] == halves.args("backward")[0]


def test_unused_output_gradients() -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.exp()

    x = leaf(4, 4)
    halves, compiled = grown(two, x)
    for place in (0, 1):
        (found,) = torch.autograd.grad(compiled(x)[place].sum(), x)
        torch.testing.assert_close(found, torch.autograd.grad(two(x)[place].sum(), x)[0])
    assert halves.wrapped("backward") == [True, False, False]
    assert halves.args("backward")[1:] == [halves.args("backward")[0]] * 2


def test_outputs_without_a_gradient() -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y.argmax(), x.sin(), y.detach() + 1, (y > 0)

    x = leaf(4, 4)
    halves, compiled = grown(several, x)
    for ours, theirs in zip(compiled(x), several(x), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad
    (found,) = torch.autograd.grad(compiled(x)[1].sum(), x)
    torch.testing.assert_close(found, x.detach().cos())
    assert halves.wrapped("forward") == [True, False, False]


def test_output_view_is_hidden_from_autograd() -> None:
    def shaped(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).view(2, 2, 4)

    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(shaped, x, w)
    for _ in range(2):
        found = compiled(x, w)
        assert not found._is_view()
        torch.testing.assert_close(found, shaped(x, w))
        gradients = torch.autograd.grad(found.mul_(2).sin().sum(), (x, w))
        torch.testing.assert_close(gradients, torch.autograd.grad((shaped(x, w) * 2).sin().sum(), (x, w)))
    assert halves.wrapped("forward") == [True, False, False]


def test_gradients_of_some_inputs_only() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    _, compiled = grown(product, x, w)
    for of in ((x,), (w,)):
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x, w).sum(), of), torch.autograd.grad(product(x, w).sum(), of)
        )
    compiled(x, w).sum().backward(inputs=[w])
    assert x.grad is None
    torch.testing.assert_close(w.grad, torch.autograd.grad(product(x, w).sum(), w)[0])


def test_retained_graph_runs_twice_others_raise() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    loss = compiled(x, w).sum()
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, (x, w)), first, rtol=0, atol=0)
    assert halves.wrapped("backward") == [True, False, False]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, (x, w))


def test_no_grad_calls_in_between() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    with torch.no_grad():
        assert not compiled(x, w).requires_grad
    with torch.inference_mode():
        compiled(x, w)
    assert not compiled(x.detach(), w.detach()).requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x, w).sum(), x), torch.autograd.grad(product(x, w).sum(), x)
    )
    assert halves.wrapped("forward") == [True, False]


def test_saved_tensor_hooks_see_the_same_tensors() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    compiled = torch.compile(product, backend=Halves())
    seen: list[list[Any]] = []

    def pack(value: Tensor) -> tuple[Any, Tensor]:
        seen[-1].append(described(value))
        return ("packed", value.detach().clone())

    def unpack(kept: tuple[str, Tensor]) -> Tensor:
        seen[-1].append(kept[0])
        return kept[1]

    for _ in range(3):
        seen.append([])
        with saved_tensors_hooks(pack, unpack):
            output = compiled(x, w)
        found = torch.autograd.grad(output, (x, w), torch.ones(4, 4))
        torch.testing.assert_close(found, torch.autograd.grad(product(x, w).sum(), (x, w)))
    assert seen[0]
    assert seen == [seen[0]] * 3


def test_mutating_a_saved_tensor_fails_the_backward() -> None:
    compiled = torch.compile(product, backend=Halves())
    for _ in range(3):
        x, w = leaf(4, 4), leaf(4, 4)
        compiled(x, w).sum().backward()
        loss = compiled(x, w).sum()
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_mutating_a_saved_output_fails_the_backward() -> None:
    x = leaf(4, 4)
    _, compiled = grown(torch.exp, x)
    output = compiled(x)
    output.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_view_input_is_not_saved_as_a_view() -> None:
    base = torch.randn(8, 4)
    x, w = base[4:], leaf(4, 4)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin()

    halves = Halves()
    compiled = torch.compile(fn, backend=halves)
    for _ in range(2):
        (found,) = torch.autograd.grad(compiled(x, w).sum(), w)
        torch.testing.assert_close(found, torch.autograd.grad(fn(x, w).sum(), w)[0])
    assert halves.args("backward")[0] == halves.args("backward")[1]
    assert halves.wrapped("backward") == [True, False]


@pytest.mark.parametrize("around_backward", [False, True])
def test_autocast_is_disabled_in_both_graphs_and_restored(around_backward: bool) -> None:
    halves = Halves()
    x, w = leaf(4, 4), leaf(4, 4)
    compiled = torch.compile(lambda x, w: x @ w, backend=halves)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            output, expected = compiled(x, w), x @ w
            assert torch.is_autocast_enabled("cpu")
        assert output.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16) if around_backward else nullcontext():
            found = torch.autograd.grad(output.sum(), (x, w))
            assert torch.is_autocast_enabled("cpu") == around_backward
        torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), (x, w)))
    assert halves.modes == [(False, False)] * 6
    assert halves.wrapped("backward") == [True, False, False]


@pytest.mark.skipif(TORCH >= "2.14", reason="torch 2.14 finds no NaN of a compiled function")
def test_anomaly_mode_finds_nan() -> None:
    x = leaf(4, 4)
    halves, compiled = grown(lambda x: x.clamp(min=0).sqrt(), x)
    with torch.no_grad():
        x.zero_()
    with warnings.catch_warnings(record=True) as told, torch.autograd.set_detect_anomaly(True):
        loss = (compiled(x) * 0).sum()
        with pytest.raises(RuntimeError, match=r"CompiledFunctionBackward.* returned nan"):
            loss.backward()
    assert any("Error detected in CompiledFunctionBackward" in str(warning.message) for warning in told)
    assert halves.wrapped("backward") == [True, False]


def test_concurrent_training() -> None:
    barrier = threading.Barrier(4)
    fresh = torch.compile(product, backend=Halves())
    fresh(leaf(4, 4), leaf(4, 4))  # torch refuses calls by other threads while one traces: its flag is process-wide

    def steps(number: int) -> None:
        x, w = leaf(4, 4), leaf(4, 4)
        barrier.wait(60)
        for _ in range(10):
            found = torch.autograd.grad(fresh(x, w).sum(), (x, w))
            torch.testing.assert_close(found, torch.autograd.grad(product(x, w).sum(), (x, w)))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(steps, range(4))] == [None] * 4


def test_backward_releases_tensors_after_use() -> None:
    """No caller keeps a saved tensor (from torch 2.13 on also a tangent) alive once the backward has dropped it."""
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(lambda x, w: (x @ w).sin().exp(), x, w)
    alive: list[bool] = []

    def within(given: list[Any]) -> None:
        known = [weakref.ref(value) for value in given if value.data_ptr() not in (x.data_ptr(), w.data_ptr())]
        given[:] = [value.clone() for value in given]
        alive.extend(ref() is not None for ref in known)

    loss = compiled(x, w).exp().sum()
    halves.within = within
    loss.backward()
    assert halves.wrapped("backward") == [True, False]
    assert len(alive) == len(halves.args("backward")[-1]) - 2
    *saved, tangent = alive
    assert not any(saved)
    assert tangent == (TORCH < "2.13")


def test_backward_sees_the_callers_contextvars() -> None:
    """From torch 2.13 on that is a copy, made at the time of the call."""
    marked: contextvars.ContextVar[int] = contextvars.ContextVar("marked", default=0)
    x, w = leaf(4, 4), leaf(4, 4)
    halves = Halves()
    compiled = torch.compile(product, backend=halves)
    seen: list[int] = []
    halves.within = lambda _: seen.append(marked.get())
    for _ in range(2):
        marked.set(1)
        output = compiled(x, w)
        output.register_hook(lambda _: (marked.set(2), None)[1])
        output.sum().backward()
    assert halves.wrapped("backward") == [True, False]
    assert seen[2:] == seen[:2]
    assert seen[0] == 1


def test_backward_inside_a_compiled_function_is_not_retraced() -> None:
    """If a compiled function calls it, TorchDynamo sees the frames inside."""
    x, w = leaf(4, 4), leaf(4, 4)
    halves, compiled = grown(product, x, w)
    loss = compiled(x, w).sum()
    codes: list[str] = []
    handle = torch._dynamo.convert_frame.register_bytecode_hook(lambda old, _: codes.append(old.co_name))

    def step(loss: Tensor) -> None:
        loss.backward()

    try:
        torch.compile(step, backend="eager")(loss)
    finally:
        handle.remove()
    assert not {"backward", "call"}.intersection(codes), codes
    assert halves.wrapped("backward") == [True, False]
    torch.testing.assert_close((x.grad, w.grad), torch.autograd.grad(product(x, w).sum(), (x, w)))


def test_sizes_are_saved_with_tensors() -> None:
    halves, w = Halves(), leaf(4, 4)
    compiled = torch.compile(lambda x, w: (w.sin() * x.shape[0]).exp().sum(), backend=halves)
    for length in (3, 5, 7):
        x = torch.randn(length, 4)
        torch._dynamo.mark_dynamic(x, 0)
        (found,) = torch.autograd.grad(compiled(x, w), w)
        torch.testing.assert_close(found, torch.autograd.grad((w.sin() * length).exp().sum(), w)[0])
    assert halves.wrapped("forward") == [True, False, False]
    assert [[arg for arg in args if isinstance(arg, int)] for args in halves.args("backward")] == [[3], [5], [7]]


class Kept(torch.autograd.Function):
    """A function that saves a tensor for its backward without a version check."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.kept = y
        ctx.save_for_backward(x)
        return x.sin() * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * x.cos() * ctx.kept, None


def test_saved_tensors_without_version_checks() -> None:
    halves, x, base = Halves(), leaf(4, 4), torch.randn(8, 4)
    compiled = torch.compile(Kept.apply, backend=halves)
    for _ in range(3):
        y = base[4:]
        output = compiled(x, y)
        y.add_(1)
        (found,) = torch.autograd.grad(output.sum(), x)
        torch.testing.assert_close(found, x.detach().cos() * y)
    assert halves.wrapped("backward") == [True, False, False]
    first, *others = ([arg[:-1] for arg in args] for args in halves.args("backward"))  # without whether it is a view
    assert others == [first] * 2


@pytest.mark.parametrize("is_ours", [True, False])
def test_batch_norm_statistics_need_no_wrappers(is_ours: bool) -> None:
    halves, own = Halves(), nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    ours, theirs = own.double(), copy.deepcopy(own).double()
    compiled = torch.compile(ours, backend="tcompile" if is_ours else halves)
    for step in range(6):
        x = torch.randn(8, 4, dtype=torch.float64)
        before = [buffer._version for buffer in ours.buffers()]
        for model, fn in ((ours, compiled), (theirs, theirs)):
            model.zero_grad()
            with torch.no_grad() if step == 4 else nullcontext():
                loss = fn(x).square().sum()
            if step != 4:
                loss.backward()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)
        assert all(old < buffer._version for old, buffer in zip(before, ours.buffers(), strict=True))
    if not is_ours:
        assert halves.wrapped("forward") == halves.wrapped("backward") == [True, *[False] * 4]


@pytest.mark.parametrize("is_ours", [True, False])
def test_autograd_sees_input_writes(is_ours: bool) -> None:
    """Eager mode's backward raises if it needs an overwritten value."""

    def followed(x: Tensor, mean: Tensor) -> Tensor:
        mean.add_(x.detach().mean(0))
        return x.sin() * mean

    halves, x, mean = Halves(), leaf(8, 4), torch.zeros(4)
    compiled = torch.compile(followed, backend="tcompile" if is_ours else halves)
    compiled(x, mean).sum().backward()
    for _ in range(3):
        eager = (x * mean).sum()
        compiled(x, mean)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            eager.backward()
    assert halves.wrapped("forward")[1:] == [False] * (0 if is_ours else 3)


def test_training_with_our_code_matches_eager() -> None:
    """Its backward overwrites its donated buffers, unless the graph is retained."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.0), nn.LayerNorm(16), nn.Linear(16, 4))
    ours, theirs = nn.Sequential(*layers).double(), nn.Sequential(*layers).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 8, dtype=torch.float64)
    gradients: list[list[Tensor]] = []
    for model, fn in ((ours, torch.compile(ours, backend="tcompile")), (theirs, theirs)):
        gradients.append([])
        for step in range(4):
            loss = fn(x).square().sum()
            for is_kept in (True, False) if step % 2 else (False,):
                model.zero_grad()
                loss.backward(retain_graph=is_kept)
                gradients[-1] += [
                    parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
                ]
    assert len(gradients[0]) == 6 * 6
    torch.testing.assert_close(gradients[0], gradients[1])


class Layers(nn.Module):
    """Layers of more than DDP's first bucket; the last weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(600, 600) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return (x @ self.layers[-1].weight).square().mean()


def test_pieces_between_ddp_buckets_return_real_tensors(tmp_path: Path) -> None:
    """DDPOptimizer calls each piece once with fake tensors; the program's first call gets none of them."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model, x = Layers(), torch.randn(8, 600)
        pieces: list[torch.fx.GraphModule] = []

        def compile_piece(module: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
            pieces.append(module)
            return tcompile(module, inputs)

        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
        compiled: Any = torch.compile(wrapped, backend=compile_piece)
        for _ in range(2):
            loss = compiled(x)
            found = torch.autograd.grad(loss, [*model.parameters()])
            expected = torch.autograd.grad(model(x), [*model.parameters()])
            torch.testing.assert_close((loss, *found), (model(x), *expected))
        assert len(pieces) > 1
    finally:
        dist.destroy_process_group()
