"""Loops as text: deterministic, short, and complete."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from compiler.engine import explore
from compiler.record import Record
from compiler.record.options import Options


def record_of(fn: object, *args: Tensor) -> Record:
    record = explore(fn, args, options=Options(target="cpu")).record
    assert record.problems == ()
    return record


def test_loops_extern_calls_and_fused_nodes() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x @ w).sum(0) * 2

    record = record_of(f, torch.randn(32, 16), torch.randn(16, 8))
    assert (
        record["ir"].text
        == """\
op0: extern_kernels.mm
    buf0: float32[32, 8] stride [8, 1] on cpu, read by op1
    from arg0_1, arg1_1

op1: reduction sum
    buf1: float32[8] stride [1] on cpu, read by op2
    for p0 in 8:
        reduce p1 in 32:
            load = buf0[p0 + 8*p1]
            tanh = tanh(load)
            reduction = sum(tanh)
            buf1[p0] = reduction

op2: pointwise
    buf2: float32[8] stride [1] on cpu, read by the output
    for p0 in 8:
        load = buf1[p0]
        mul = load * 2.0
        buf2[p0] = mul
"""
    )
    assert (
        record["fused_ir"].text.split("\n\n")[1].startswith("op1_op2: 2 fused\n    op1: reduction sum\n        buf1: ")
    )


def test_indirect_indices_and_inplace_additions() -> None:
    def f(x: Tensor, rows: Tensor) -> Tensor:
        return torch.zeros(10, 32).index_add(0, rows, x.sin())

    text = record_of(f, torch.randn(64, 32), torch.randint(0, 10, (64,)))["ir"].text
    assert (
        text
        == """\
op0: pointwise
    buf0: float32[10, 32] stride [32, 1] on cpu, read by op1
    for p0 in 320:
        buf0[p0] = 0.0

op1: pointwise
    buf1: float32[10, 32] stride [32, 1] on cpu, writes into buf0, read by the output
    for p0 in 64, p1 in 32:
        load = arg1_1[p0]
        indirect0 = load
        load_1 = arg0_1[32*p0 + p1]
        sin = sin(load_1)
        buf1[32*indirect0 + p1] += sin
"""
    )


def test_masked_bodies_are_indented() -> None:
    def f(x: Tensor) -> Tensor:
        return functional.pad(x.exp(), (1, 2)) * 2

    lines = record_of(f, torch.randn(4, 8))["ir"].text.splitlines()
    mask = next(number for number, line in enumerate(lines) if "0.0 except where " in line)
    load, exp, result = lines[mask + 1 : mask + 4]
    assert load == "            load = arg0_1[8*p0 + p1 - 1]"
    assert (exp, result) == ("            exp = exp(load)", "            exp")
    assert lines[mask + 4].startswith("        mul = ")


def test_each_line_belongs_to_its_node() -> None:
    record = record_of(lambda x: torch.softmax(x, -1), torch.randn(64, 32))
    for artifact in (record["ir"], record["fused_ir"]):
        rows = artifact.text.split("\n")
        opening = {number: line for number, line in enumerate(rows, 1) if line and not line.startswith(" ")}
        for number, line in opening.items():
            assert artifact.lines[number] == (f"{artifact.id}.{line.partition(':')[0]}",)
        assert {number for number, line in enumerate(rows, 1) if line} == set(artifact.lines)
