"""The result of each pass for small programs: golden texts, kernel counts, and equal results at every stage."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import compiler
from compiler.backend.cpp.emit import emit
from compiler.backend.inspect.inspection import Inspection
from compiler.backend.ir import BackendError, Extern, Program
from compiler.backend.ir.expr import Load, with_loads
from compiler.backend.ir.reference_interpreter import interpret
from compiler.backend.passes.context import Context
from compiler.backend.passes.simplify import simplify
from compiler.backend.pipeline import PASSES
from tests import golden

GOLDEN = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    golden.assert_golden(GOLDEN / name, text)


def numbers(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(x, -1)


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.layer_norm(x @ weight, weight.shape[1:]))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return functional.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def rotated(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1) * 2 + x


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def embedded(ids: torch.Tensor, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(table[ids] + places, (places.shape[-1],))


def cross_entropy(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(x, y)


def running_mean(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return x - mean


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], int, int]] = {
    "a chain of pointwise operations": (lambda x: ((x.sin() + 1) * x).relu(), lambda: (numbers(8, 16),), 1, 0),
    "a broadcast": (lambda x, b: x * (b + 1), lambda: (numbers(8, 16), numbers(16)), 1, 0),
    "softmax": (softmax, lambda: (numbers(8, 16),), 1, 0),
    "log-softmax over rows that are not last": (lambda x: x.log_softmax(0), lambda: (numbers(8, 16),), 1, 0),
    "layer norm and GELU after a product": (block, lambda: (numbers(8, 16), numbers(16, 32)), 1, 1),
    "RMS norm": (rms_norm, lambda: (numbers(4, 8, 16), numbers(16)), 1, 0),
    "attention written out": (attention, lambda: tuple(numbers(2, 8, 4) for _ in "qkv"), 1, 2),
    "halves swapped and joined": (rotated, lambda: (numbers(4, 8),), 1, 0),
    "a view between two operations": (
        lambda x: (x.sin().view(-1) + 1).view(4, 8).abs(), lambda: (numbers(8, 4),), 1, 0,
    ),
    "a transpose between two operations": (lambda x: x.sin().t() + 1, lambda: (numbers(8, 4),), 1, 0),
    "siblings that read the same": (lambda x: (x + 1, x * 2, x.sum(-1)), lambda: (numbers(8, 16),), 1, 0),
    "sums over both dimensions": (lambda x: (x.sum(0), x.sum(1)), lambda: (numbers(8, 16),), 2, 0),
    "embeddings and layer norm": (
        embedded, lambda: (torch.arange(6).view(2, 3) % 5, numbers(5, 8), numbers(3, 8)), 1, 0,
    ),
    "cross entropy": (cross_entropy, lambda: (numbers(4, 10), torch.tensor([1, 0, 9, 3])), 2, 0),
    "a buffer changed in place": (running_mean, lambda: (numbers(8, 16), numbers(16)), 1, 0),
    "padding": (lambda x: functional.pad(x * 2, (1, 2, 0, 1)), lambda: (numbers(4, 5),), 1, 0),
}  # fmt: skip


@cache
def open_case(name: str) -> tuple[tuple[Any, ...], Inspection]:
    fn, arguments, *_ = CASES[name]
    args = arguments()
    return args, compiler.open(fn, *args)


@pytest.mark.parametrize("name", CASES)
def test_program_has_the_expected_kernels_and_extern_calls(name: str) -> None:
    fused = open_case(name)[1].fused
    assert (len(fused.kernels), len(fused.steps) - len(fused.kernels)) == CASES[name][2:], str(fused)


@pytest.mark.parametrize("name", CASES)
def test_every_stage_matches_eager(name: str) -> None:
    args, call = open_case(name)
    eager = CASES[name][0](*[x.clone() for x in args])
    expected = [*eager] if isinstance(eager, tuple) else [eager]
    programs = call.graph.stages.programs
    assert [*programs] == ["lowered", *PASSES]
    for stage, program in programs.items():
        found = interpret(program, [x.clone() for x in call.graph.captured.inputs])
        torch.testing.assert_close(found, expected, msg=lambda why, stage=stage: f"{stage}: {why}")


def test_passes_without_changes_return_the_same_object() -> None:
    programs = compiler.open(lambda x: x @ x, numbers(4, 4)).graph.stages.programs
    assert programs["lowered"] is programs["simplify"] is programs["inline"] is programs["fuse"] is programs["order"]


def test_equal_loops_are_one_unless_what_they_read_changes() -> None:
    """An extern call between the two may write to the buffer that they read."""
    lowered = compiler.open(lambda x: (x + 1).exp() - (x.view(8) + 1).sin(), numbers(8)).lowered
    changing = replace(lowered, mutated=frozenset(lowered.inputs))
    count = len(lowered.kernels)
    assert [len(simplify(program, Context()).kernels) for program in (lowered, changing)] == [count - 1, count]


def test_program_text_is_deterministic() -> None:
    first, second = (compiler.open(block, numbers(8, 16), numbers(16, 32)) for _ in range(2))
    assert [str(program) for program in first.graph.stages.programs.values()] == [
        str(program) for program in second.graph.stages.programs.values()
    ]


@pytest.mark.parametrize("stage", ["lowered", "fused", "scheduled"])
def test_golden_softmax(stage: str) -> None:
    assert_golden(f"softmax_{stage}.txt", str(getattr(compiler.open(softmax, numbers(8, 16)), stage)))


def test_golden_block_backward() -> None:
    opened = compiler.open(lambda x, w: block(x, w).sum(), numbers(8, 16, grad=True), numbers(16, 32, grad=True))
    assert_golden("block_forward.txt", str(opened.fused))


def test_golden_dynamic_sizes() -> None:
    assert_golden("dynamic_softmax.txt", str(compiler.open(softmax, numbers(8, 16), dynamic=True).scheduled))


def test_golden_code_names_what_it_computes() -> None:
    opened = compiler.open(softmax, numbers(8, 16))
    text = emit(opened.scheduled, Context(), vector_math=True).text
    assert_golden("softmax.cpp", re.sub(r"(test_stages\.py):\d+", r"\1:LINE", text))


def test_operator_without_a_lowering_is_extern_with_reason() -> None:
    opened = compiler.open(lambda x: x.sort().values + 1, numbers(8))
    assert [step.name for step in opened.lowered.steps if isinstance(step, Extern)] == ["aten.sort.default"]
    (decision,) = [found for found in opened.graph.decisions if found.verdict == "extern"]
    assert decision.pass_name == "lower"
    assert "PyTorch's own kernel" in decision.why


@torch.library.custom_op("tcompile_stages::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@scale.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_custom_operator_is_not_called_a_kernel_of_pytorch() -> None:
    opened = compiler.open(lambda x: scale(x.sin()), numbers(8))
    (decision,) = [found for found in opened.graph.decisions if found.verdict == "extern"]
    assert decision.why == "tcompile_stages.scale.default: a custom operator's own code"


def test_fusion_refusal_has_a_reason_and_saved_bytes() -> None:
    opened = compiler.open(lambda x: (x.sum(0), x.sum(1)), numbers(8, 16))
    (refusal,) = [found for found in opened.graph.decisions if found.verdict == "refused"]
    assert refusal.numbers["bytes"] == 8 * 16 * 4
    assert "different elements" in refusal.why or "numbers of points" in refusal.why
    assert opened.why("sum_1", "sum_2").endswith(refusal.why)
    assert compiler.open(softmax, numbers(8, 16)).why("exp", "div").startswith("exp and div are computed by one kernel")


@pytest.mark.parametrize("step", [-1, 1])
def test_interpreter_rejects_out_of_bounds_reads(step: int) -> None:
    """torch's own indexing would count a negative index from the end; memory does not."""
    lowered = compiler.open(lambda x: x + 1, numbers(8)).lowered
    (kernel,) = lowered.kernels
    (loop,) = kernel.loops
    shifted = with_loads(loop.value, lambda load: Load(load.buffer, (load.index[0] + step,), load.dtype))
    program = lowered.with_steps((replace(kernel, loops=(replace(loop, value=shifted),)),))
    with pytest.raises(IndexError, match=f"index {-1 if step < 0 else 8} is out of bounds"):
        interpret(program, [numbers(8)])


def unfused(program: Program, _ctx: object) -> Program:
    return program


def test_replacing_a_pass_reruns_the_rest() -> None:
    opened = compiler.open(softmax, numbers(8, 16))
    slow = opened.replace("fuse", unfused)
    assert len(slow.scheduled.kernels) > len(opened.scheduled.kernels) == 1
    torch.testing.assert_close(interpret(slow.scheduled, [numbers(8, 16)])[0], softmax(numbers(8, 16)))
    with pytest.raises(BackendError, match="did you mean fuse"):
        opened.replace("fusee", unfused)


def test_threshold_changes_fusion() -> None:
    opened = compiler.open(softmax, numbers(8, 16))
    assert len(opened.with_thresholds(fused_loops=2).fused.kernels) > 1


def test_backward_has_stages() -> None:
    opened = compiler.open(lambda x: softmax(x).sum(), numbers(8, 16, grad=True))
    assert isinstance(opened, Inspection)
    assert opened.backward.fused.name == "backward"
