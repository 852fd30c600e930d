"""The CPU's tests on a GPU, and tests for GPUs only: several devices in a graph, streams, very large tensors.

Skipped without a GPU. There: `python -m pytest --noconftest tests/compiler/backend/test_gpu.py`.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from compiler.backend import tcompile
from tests.compiler.backend import test_behaviour, test_operators
from tests.compiler.backend.random_programs import case_of, check

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SEEDS = 96
AT_ONCE = 6


@pytest.fixture(autouse=True)
def _on_the_gpu() -> Iterator[None]:
    torch.compiler.reset()
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    result: Callable[..., Any] = torch.compile(fn, backend=tcompile, fullgraph=True, **options)
    return result


@pytest.mark.parametrize("name", test_operators.NAMES)
def test_operator_matches_eager(name: str) -> None:
    torch.set_default_device(None)
    test_operators.held_against_eager(name, "cuda")


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_random_programs_match_eager(first: int) -> None:
    torch.set_default_device(None)
    for seed in range(first, first + AT_ONCE):
        check(case_of(seed, "cuda"))


def _of_any_device() -> list[Callable[[], None]]:
    """The tests of behaviour that only take tensors; some of them have parameters."""
    found = [fn for name, fn in vars(test_behaviour).items() if name.startswith("test_")]
    return [fn for fn in found if not inspect.signature(fn).parameters and fn not in ELSEWHERE]


ELSEWHERE = (
    test_behaviour.test_index_out_of_range_raises_as_in_eager,
    test_behaviour.test_call_after_an_error_is_correct,
    test_behaviour.test_calls_from_several_threads,
)
"""Tests for the CPU only.

Some errors can be caught on the CPU only: on a GPU no work is possible after them. And another thread has another
default device.
"""


@pytest.mark.parametrize("test", _of_any_device(), ids=lambda test: test.__name__)
def test_behaviour_matches_cpu(test: Callable[[], None]) -> None:
    test()


@pytest.mark.parametrize("layout", test_behaviour.LAYOUTS)
def test_layouts_of_inputs(layout: str) -> None:
    test_behaviour.test_layouts_of_inputs(layout)


PROGRAM = """
import torch
from compiler.backend import tcompile
take = torch.compile(lambda table, ids: table[ids] + 1, backend=tcompile)
table = torch.randn(5, 4, device="cuda")
print(take(table, torch.tensor([0, -1, 4], device="cuda")).shape)
take(table, torch.tensor([0, 5, 1], device="cuda"))
torch.cuda.synchronize()
"""


def test_index_out_of_range_is_a_device_assertion() -> None:
    """Runs in a separate process, because no GPU work is possible after the error."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert "torch.Size([3, 4])" in done.stdout
    assert done.returncode != 0
    assert "device-side assert" in done.stderr


def test_cpu_scalars_with_gpu_tensors() -> None:
    scale, x = torch.tensor(2.5, device="cpu"), torch.randn(8, 8)

    def scaled(x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return x * scale, (x + scale).sum(0), scale * 2, torch.where(x > scale, x, scale)

    torch.testing.assert_close(compiled(scaled)(x, scale), scaled(x, scale))


def test_mixed_device_graph() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        left, right = x.sin().sum(0), y.cos() + 1
        return left, right, left.cpu() + right, right.to("cuda", non_blocking=True) * left

    x, y = torch.randn(6, 5), torch.randn(5, device="cpu")
    torch.testing.assert_close(compiled(both)(x, y), both(x, y))


def test_small_mixed_device_graph() -> None:
    def both(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.abs().exp(), y.sin() + 1

    x, y = torch.tensor(2.0), torch.tensor(3.0, device="cpu")
    torch.testing.assert_close(compiled(both)(x, y), both(x, y))


def test_gradients_on_both_devices() -> None:
    x, y = torch.randn(6, 5, requires_grad=True), torch.randn(5, device="cpu", requires_grad=True)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * y.exp().cuda()).sum()

    found, expected = (torch.autograd.grad(fn(x, y), (x, y)) for fn in (compiled(loss), loss))
    torch.testing.assert_close(found, expected)


def test_backward_reuses_saved_tensors_unless_retain_graph() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 64))
    x = torch.randn(4096, 64, requires_grad=True)
    leaves, result = (x, *layers.parameters()), compiled(layers)(x)
    weights = torch.randn_like(result)
    expected = torch.autograd.grad((layers(x) * weights).sum(), leaves)
    most = []
    for is_kept in (True, True, False):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = torch.autograd.grad((result * weights).sum(), leaves, retain_graph=is_kept)
        most.append(torch.cuda.max_memory_allocated() - before)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        del found
    assert most[2] <= most[1] - 4 * 4096 * 1024  # GELU's input or its result


def test_calls_from_several_threads() -> None:
    torch.set_default_device(None)
    fn = compiled(lambda x: torch.softmax(x.sin() * 2, -1))
    inputs = [torch.randn(64, 128, device="cuda") for _ in range(8)]
    fn(inputs[0])
    with ThreadPoolExecutor(len(inputs)) as pool:
        found = list(pool.map(lambda x: [fn(x) for _ in range(20)][-1], inputs))
    torch.testing.assert_close(found, [torch.softmax(x.sin() * 2, -1) for x in inputs])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_gpu_that_is_not_the_current_one() -> None:
    fn = compiled(lambda x, w: ((x @ w).relu() * 2).sum(0))
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x, w = torch.randn(32, 16, device=device), torch.randn(16, 8, device=device)
        for _ in range(3):
            torch.testing.assert_close(fn(x, w), ((x @ w).relu() * 2).sum(0))
            assert torch.cuda.current_device() == 0


def test_call_on_a_user_stream() -> None:
    x, stream = torch.randn(1 << 20), torch.cuda.Stream()
    fn = compiled(lambda x: (x.sin() + x.roll(1)).softmax(0))
    expected = fn(x)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        mine = x * 2
        found = fn(mine)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(found, fn(x * 2))
    assert not torch.equal(found, expected)


@torch.no_grad()
def test_replayed_calls_match_launched_calls() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    for fn in (lambda x: x.sin() * 2, lambda x: layers(x).softmax(-1)):
        replayed = compiled(fn, mode="reduce-overhead")
        for _ in range(6):
            x = torch.randn(16, 32)
            torch.testing.assert_close(replayed(x).clone(), fn(x))


@pytest.mark.parametrize("count", [1, 6])
def test_training_with_and_without_graph_replay(count: int) -> None:
    layers = torch.nn.Sequential(
        *(layer for _ in range(count) for layer in (torch.nn.Linear(256, 256), torch.nn.ELU()))
    )
    weights, step = [*layers.parameters()], compiled(lambda x: layers(x).square().mean(), mode="reduce-overhead")
    for _ in range(6):
        x = torch.randn(64, 256)
        expected = torch.autograd.grad(layers(x).square().mean(), weights)
        loss = step(x)
        kept = [gradient.clone() for gradient in torch.autograd.grad(loss, weights, retain_graph=True)]
        torch.testing.assert_close(kept, [*expected], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(torch.autograd.grad(loss, weights), expected, rtol=1e-4, atol=1e-6)


def test_inputs_at_any_alignment() -> None:
    fn = compiled(lambda x, y: (x.sin() + y, (x * y).sum(-1)))
    memory = torch.randn(64 * 64 + 16)
    for start in (0, 1, 2, 3, 4, 0):
        x, y = memory[start : start + 4096].view(64, 64), memory[:4096].view(64, 64)
        torch.testing.assert_close(fn(x, y), (x.sin() + y, (x * y).sum(-1)))


def test_gpu_generator_is_unchanged_without_random_operations() -> None:
    numbers = torch.cuda.get_rng_state()
    compiled(lambda x: x.softmax(0))(torch.ones(64, 64))
    assert torch.equal(torch.cuda.get_rng_state(), numbers)


MANY = 2**31 + 72


def test_int64_indexing_pointwise() -> None:
    x = torch.ones(MANY, dtype=torch.int8)
    x[-3:] = 5
    found = compiled(lambda x: x * 2 + 1)(x)
    assert found[:3].tolist() == [3, 3, 3]
    assert found[-4:].tolist() == [3, 11, 11, 11]
    assert int(found.sum(dtype=torch.int64)) == 3 * (MANY - 3) + 33


def test_int64_indexing_reductions() -> None:
    x = torch.ones(MANY, dtype=torch.int8)
    x[-1] = 7
    total, best = compiled(lambda x: (x.sum(), x.argmax()))(x)
    assert (int(total), int(best)) == (MANY + 6, MANY - 1)


def test_int64_indexing_rows_and_columns() -> None:
    x = torch.zeros(2**16 + 8, 2**15 + 8, dtype=torch.bfloat16)
    x[-1], x[:, -1] = 1, 1
    rows, columns = compiled(lambda x: ((x + 1).sum(-1, dtype=torch.float32), x.amax(0)))(x)
    assert rows[0].item() == 2**15 + 9
    assert rows[-1].item() == 2 * (2**15 + 8)
    assert columns.tolist() == [1.0] * (2**15 + 8)


def test_int64_indexing_transpose_gather_and_cat() -> None:
    x = torch.zeros(2**16 + 8, 2**15 + 8, dtype=torch.int8)
    x[-1, -2], x[-2, -1] = 3, 4

    def corner(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        turned = x.t() + 1
        return turned.contiguous()[-2:, -2:], x[rows].sum(1), torch.cat([x, x[:2]])[-4:, -2:]

    rows = torch.tensor([-1, 0, 2**16 + 6])
    for found, expected in zip(compiled(corner)(x, rows), corner(x, rows), strict=True):
        assert torch.equal(found, expected)


def test_a_view_far_into_a_large_tensor() -> None:
    x = torch.zeros(MANY, dtype=torch.int8)
    x[2**31 :] = torch.arange(72) % 32

    def change(x: Tensor) -> Tensor:
        x[2**31 :].add_(1)
        return x[2**31 + 8 :] * 2

    found = compiled(change)(x)
    assert found.tolist() == [2 * (number % 32 + 1) for number in range(8, 72)]
    assert x[-1].item() == 71 % 32 + 1


def test_chain_of_divisions_matches_eager() -> None:
    """The backward of a relative shift that is changed in place reads its gradient at a chain of quotients by 30."""

    def shift(scores: Tensor, mask: Tensor) -> Tensor:
        shifted = scores.reshape(2, 4, 32, 8)[:, :, 2:].reshape(2, 4, 8, 30)[..., :16]
        shifted *= mask
        return shifted.clone()

    def grads(call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        product = call(torch.einsum("bind,jd->bnij", *inputs), mask)
        return torch.autograd.grad(product, inputs, upstream)

    torch.manual_seed(0)
    inputs = [
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for shape in ((2, 8, 4, 8), (32, 8))
    ]
    mask = torch.randn(8, 32, device="cuda")[:, :16]
    upstream = torch.randn(2, 4, 8, 16, device="cuda", dtype=torch.bfloat16)
    torch.testing.assert_close(grads(torch.compile(shift, backend=tcompile)), grads(shift))
