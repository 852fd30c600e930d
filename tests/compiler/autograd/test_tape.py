"""A call's tape, run again: its numbers are torch's to the last bit, and its variables have the user's names."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from compiler.autograd.eager_graph import eager_graph
from compiler.autograd.tape import Tape, TapeRecorder, evaluate
from explorer.findings.chain.program import program_of


def tape_of(call: Callable[[], Tensor]) -> tuple[Tape, Tensor]:
    with TapeRecorder() as recorder:
        result = call()
    return recorder.tape([result]), result


def gated(x: Tensor, w: Tensor) -> Tensor:
    hidden = x @ w.t()
    hidden *= 2
    kept = F.dropout(hidden, 0.5)
    return (kept.view(-1).softmax(0) * F.layer_norm(hidden, (3,)).reshape(-1)).sum()


def test_changed_sources_give_the_numbers_of_autograd() -> None:
    x, w = torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    torch.manual_seed(1)
    tape, result = tape_of(lambda: gated(x, w))
    again = evaluate(tape, torch.clone)
    assert torch.equal(again.values[tape.outputs[0]], result)
    changed = torch.randn(2, 4, requires_grad=True)
    torch.manual_seed(1)  # what was random keeps its values
    expected = torch.autograd.grad(gated(changed, w), [changed, w])
    at = {id(x): 0, id(w): 1}
    place = next(number for number, source in enumerate(tape.sources) if source.identity == id(x))
    found = evaluate(tape, torch.clone, changed={place: changed})
    gradients = {
        at[tape.sources[ref.output].identity]: gradient for ref, gradient in found.gradients.items() if ref.call < 0
    }
    assert all(torch.equal(gradients[number], expected[number]) for number in (0, 1))


def product(x: Tensor) -> Tensor:
    return (x.tanh() * x.exp()).sum()


def test_canvas_gets_the_gradients_bits() -> None:
    x = torch.randn(5, requires_grad=True)
    tape, result = tape_of(lambda: product(x))
    program = program_of(tape, eager_graph([result]), {}, (), [torch.ones_like(result)])
    assert program is not None
    data, numbers = program.evaluate({"sources": {"0": {"scale": 2.0, "cells": {"1": 0.25}}}})
    doubled = (x.detach() * 2).index_fill(0, torch.tensor([1]), 0.25).requires_grad_()
    (expected,) = torch.autograd.grad(product(doubled), doubled)
    first, size = data["gradients"]["0 0"]
    assert list(struct.unpack("5f", numbers[first : first + size])) == expected.tolist()


def test_batch_norm_changes_no_source_of_the_tape() -> None:
    norm, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    tape, _ = tape_of(lambda: norm(x).square().sum())
    before = [source.value.clone() for source in tape.sources]
    evaluate(tape, torch.clone)
    assert all(map(torch.equal, before, [source.value for source in tape.sources]))


def test_view_read_after_a_write_has_no_tape() -> None:
    x = torch.randn(4, requires_grad=True)

    def written() -> Tensor:
        y = x.exp()
        first = y[:2]
        y += 1
        return first.sum()

    tape, _ = tape_of(written)
    assert "written in place" in tape.problem


def test_write_into_one_part_keeps_the_others() -> None:
    cell, x = nn.LSTMCell(3, 4), torch.randn(2, 3)  # writes in place into a quarter of its gates
    tape, result = tape_of(lambda: cell(x)[0])
    assert tape.problem == ""
    assert torch.equal(evaluate(tape, torch.clone).values[tape.outputs[0]], result)


def inner(x: Tensor) -> Tensor:
    return x.sin() * 2


def named(x: Tensor) -> Tensor:
    y = inner(x)
    if (z := y.exp()).numel():
        y += z
    total: Tensor = y.sum()
    return total + 1


@pytest.mark.parametrize(("op", "name"), [("sin", ""), ("mul", "y"), ("exp", "z"), ("sum", "total")])
def test_results_have_the_names_of_variables(op: str, name: str) -> None:
    tape, _ = tape_of(lambda: named(torch.randn(3, requires_grad=True)))
    assert next(call.variable for call in tape.calls if call.name.startswith(op)) == name


def test_names_of_nodes_are_their_own() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)

    def penalty() -> Tensor:
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return (slope**2).sum()

    tape, result = tape_of(penalty)
    program = program_of(tape, eager_graph([result]), {}, (), [torch.ones_like(result)])
    assert program is not None
    names = [node["id"] for node in program.data["nodes"]]
    assert len(names) == len(set(names))
