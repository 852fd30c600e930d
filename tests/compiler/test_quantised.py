"""Quantised models: float8 on targets with and without it, and torchao's subclasses unwrapped in the graphs."""

from __future__ import annotations

import pytest
import torch

from benchmarks.breadth_quantised import quantised_model, row, rowwise, unwrapped_tensors
from compiler.engine import explore
from compiler.option_checks import parse_options


def test_float8_matmul_needs_a_gpu_that_has_it() -> None:
    args = torch.randn(32, 128, dtype=torch.bfloat16), torch.randn(256, 128, dtype=torch.bfloat16)
    assert row("rowwise", rowwise, args, "h100", "inductor").is_right
    refused = explore(rowwise, args, options=parse_options(target="a100")).record
    [problem] = [problem for problem in refused.problems if problem.stage == "ir"]
    assert "no float8 tensor cores" in problem.reason


def test_subclasses_of_torchao_are_unwrapped_visibly() -> None:
    pytest.importorskip("torchao", reason="torchao is no dependency")
    found = explore(
        quantised_model("int8 weights"),
        (torch.randn(32, 128, dtype=torch.bfloat16),),
        options=parse_options(grad=False),
    )
    assert "Int8Tensor(bf16[256, 128]" in found.record["captured"].text
    parts = " ".join(unwrapped_tensors(found.record))
    assert "arg0_1 is qdata of l_fn_modules_0_parameters_weight_" in parts
    assert "arg1_1 is scale of" in parts
