"""Kernel names: short, after the user's operators, and equal for equal kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler.backend.passes.names import unique
from compiler.backend.runtime.build_triton import specify_kernel
from compiler.backend.runtime.launch import Assumed
from compiler.backend.triton.emit import emit

pytest.importorskip("triton")


class Block(nn.Module):
    """A layer with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(32, 32), nn.LayerNorm(32), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.drop(functional.gelu(self.up(x))))


def names(function: Callable[..., Any], *args: Tensor, graph: str = "inference") -> list[str]:
    return [kernel.name for kernel in compiler.open(function, *args).on("h100").of(graph).scheduled.kernels]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


X = numbers(600, 32)
LABELS = torch.zeros(600, dtype=torch.int64)

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]] = {
    "decomposed": (lambda x: functional.softmax(functional.silu(x), -1), (X,), ["silu_softmax"]),
    "of two ATen operations": (functional.cross_entropy, (X, LABELS), ["cross_entropy", "cross_entropy_1"]),
    "a module": (nn.Sequential(nn.LayerNorm(32), nn.GELU()), (X,), ["layer_norm_gelu"]),
    "as it is written": (lambda x: (x + 1).sin() * x, (X,), ["add_sin_mul"]),
    "with copies": (lambda x: (x.t().contiguous() * 2).to(torch.bfloat16), (X,), ["mul"]),
    "copies alone": (lambda x: x.to(torch.bfloat16), (X,), ["cast"]),
    "many": (lambda x: ((x * 2 + 1).sin() - 1).cos().exp().tanh() / 3, (X,), ["sin_cos_exp_tanh"]),
    "in place": (lambda x: x.add_(1).relu_(), (X,), ["add_relu"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_is_named_after_the_users_operators(name: str) -> None:
    function, args, expected = CASES[name]
    with torch.no_grad():
        assert names(function, *(arg.clone() for arg in args)) == expected


def test_only_backward_kernel_names_say_backward_once() -> None:
    """A value saved for the backward belongs to its operator."""
    model = Block().train()
    forward, backward = (names(model, X.clone().requires_grad_(), graph=graph) for graph in ("forward", "backward"))
    assert "gelu_dropout_add_layer_norm" in forward
    assert not any("backward" in name for name in forward)
    assert all(name.count("backward") <= 1 for name in backward)
    assert "layer_norm_linear_backward_sum" in backward, "gradients of weights and of the bias"
    assert len({*forward}) == len(forward)
    assert len({*backward}) == len(backward)


def test_identical_layers_share_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names differ at most in a number, also in combo kernels."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    call = compiler.open(nn.Sequential(*(Block() for _ in range(4))).train(), X.clone().requires_grad_()).on("h100")
    for graph in ("forward", "backward"):
        opened = call.of(graph)
        program, ctx = opened.graph.stages.last, opened.graph.context(opened.thresholds)
        code = emit(program, ctx)
        jobs: dict[str, set[str]] = {}
        for function in code.functions:
            job = specify_kernel(program, function, function.configs[0], Assumed(), 0).job
            jobs.setdefault(f"{job.source} {job.arguments}".replace(job.name, "kernel"), set()).add(job.key())
        assert len(jobs) < len(code.functions)
        assert all(len(keys) == 1 for keys in jobs.values())


def test_a_name_that_is_taken_has_a_number() -> None:
    taken = {"add", "add_1"}
    assert [unique("add", taken), unique("add_1", taken), unique("mul", taken)] == ["add_2", "add_3", "mul"]
    assert taken == {"add", "add_1", "add_2", "add_3", "mul"}
