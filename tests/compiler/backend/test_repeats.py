"""Common subexpression elimination: equal nodes of a graph become one if that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import compiler
from compiler.backend.torch_glue.partition import merge_equal_nodes
from compiler.torch_api import fx


def _left(function: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    module = make_fx(function, tracing_mode="fake")(*args)
    expected = module(*args)
    merge_equal_nodes(module)
    module.recompile()
    torch.testing.assert_close(module(*args), expected)
    return _targets(module)


def _targets(module: GraphModule) -> list[str]:
    return [str(node.target).removeprefix("aten.") for node in fx.calls(module)]


def test_users_of_a_repeated_node_read_the_first() -> None:
    x = torch.randn(3)
    left = _left(lambda x: (x.sin() + 1) * (x.sin() + 1) + (x.sin() + 1.0), x)
    assert left == ["sin.default", "add.Tensor", "mul.Tensor", "add.Tensor", "add.Tensor"], "1 and 1.0 are two"


def test_repeated_outputs_stay_separate() -> None:
    x = torch.randn(3)
    assert _left(lambda x: (x.sin(), x.sin()), x) == ["sin.default"] * 2


def test_reads_before_and_after_a_mutation_stay_separate() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        before = y.sin() * 2
        y.add_(1)
        return before + y.sin() + y.sin()

    left = _left(changed, torch.randn(3))
    assert left.count("sin.default") == 2
    assert left.count("add_.Tensor") == 1


def test_random_and_uninitialized_tensors_are_not_merged() -> None:
    x = torch.randn(3)
    module = make_fx(lambda x: torch.rand_like(x) + torch.rand_like(x) + x.new_empty(3) * x.new_empty(3))(x)
    before = _targets(module)
    merge_equal_nodes(module)
    assert _targets(module) == before


def test_inference_casts_a_shared_matmul_operand_once() -> None:
    def two(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return x @ a + x @ b

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        program = compiler.open(two, torch.randn(4, 8), torch.randn(8, 4), torch.randn(8, 4)).simplified
    casts = [kernel for kernel in program.kernels if "convert_element_type" in kernel.targets[0]]
    assert len(casts) == 3, program
