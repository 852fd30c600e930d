"""183 small programs from papers and model zoos, by `backend="tcompile"`: results and gradients against float64.

Each is a function of tensors and what its arguments are: a shape for numbers of the normal distribution, `p:` before it
for positive ones, `b:` for booleans, `i9:` for integers below 9. Gradients are those of all arguments that are numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks import small_layers, small_losses
from benchmarks.breadth_row import Row
from compiler.numerics.policy.by_dtype import numbers

PROGRAMS = small_layers.PROGRAMS | small_losses.PROGRAMS


def argument(spec: str, dtype: torch.dtype) -> Tensor:
    kind, _, sizes = spec.rpartition(":")
    shape = [int(size) for size in sizes.split(",")]
    if kind.startswith("i"):
        return torch.randint(int(kind[1:]), shape)
    if kind == "b":
        return torch.rand(shape) > 0.5
    value = torch.randn(shape) if not kind else torch.rand(shape) + 0.1
    return value.to(dtype).requires_grad_()


def outcome(run: Callable[..., Any], spec: str, dtype: torch.dtype) -> list[tuple[str, Any]]:
    """The results and gradients of a call, by name: of the same numbers each time."""
    torch.manual_seed(7)
    given = [argument(each, dtype) for each in spec.split()]
    results = run(*given)
    results = results if isinstance(results, tuple) else (results,)
    wanted = [value for value in results if value.requires_grad]
    weights = [torch.randn(value.shape).to(dtype) for value in wanted]
    inputs = [value for value in given if value.requires_grad]
    gradients = torch.autograd.grad(wanted, inputs, weights, allow_unused=True)
    named = [(f"result {at}", value.detach()) for at, value in enumerate(results)]
    return named + [(f"gradient {at}", value) for at, value in enumerate(gradients)]


def row(name: str, spec: str, program: Callable[..., Any], dynamic: bool) -> Row:
    torch.compiler.reset()
    began = time.perf_counter()
    eager = outcome(program, spec, torch.float32)
    exact = outcome(program, spec, torch.float64)
    setting = "sizes as symbols" if dynamic else "fixed sizes"
    compiled = torch.compile(program, backend="tcompile", dynamic=dynamic)
    try:
        mine = outcome(compiled, spec, torch.float32)
    except Exception as error:  # noqa: BLE001 - a program that fails is a row
        problem = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"
        return Row(name, setting, (), {}, (problem,), time.perf_counter() - began)
    verdicts = {found.dtype: found.verdict for found in numbers(mine, eager, exact)}
    return Row(name, setting, (), verdicts, (), time.perf_counter() - began)


def rows(only: str) -> Iterator[Row]:
    for name, (spec, program) in PROGRAMS.items():
        if only in name:
            yield from (row(name, spec, program, dynamic) for dynamic in (False, True))
