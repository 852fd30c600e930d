"""Random programs of views, broadcasts, reductions, gathers and mutations: compiled, interpreted and eager agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.backend import tcompile

ROWS, COLUMNS = 4, 6
Step = tuple[str, int, int]

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: torch.softmax(x, -1),
    "center": lambda x: x - x.mean(-1, keepdim=True),
    "columns": lambda x: x - x.amax(0),
    "turn": lambda x: x.t().contiguous().view(ROWS, COLUMNS),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 1),
    "view": lambda x: x.reshape(-1).view(COLUMNS, ROWS).t(),
    "halves": lambda x: torch.cat([x[:, COLUMNS // 2 :], -x[:, : COLUMNS // 2]], 1),
    "pad": lambda x: torch.nn.functional.pad(x[1:, 1:], (1, 0, 0, 1)),
    "low": lambda x: x.bfloat16().float(),
    "pick": lambda x: x[torch.tensor([3, 0, 1, 1])],
    "spread": lambda x: x[:, :1].expand(ROWS, COLUMNS),
    "count": lambda x: (x > 0).sum(0).float() * x,
    "best": lambda x: x + x.argmax(1, keepdim=True),
    "product": lambda x: (x @ x.t())[:, :1] * x * 0.1,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": lambda x, y: (x * y).clamp(-10, 10),
    "where": lambda x, y: torch.where(x > y, x, y * 0.5),
    "outer": lambda x, y: x[:, :1] + y[:1],
    "sums": lambda x, y: x.sum(1, keepdim=True).tanh() + y,
}


def program(steps: list[Step]) -> Callable[[torch.Tensor, torch.Tensor], list[torch.Tensor]]:
    """Each step takes earlier values by number. The last but one step's name says whether an input is changed."""

    def run(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values = [x.sin(), y.cos()]
        for name, first, second in steps:
            one, two = values[first % len(values)], values[second % len(values)]
            if name == "store":
                x.copy_(one)
            elif name == "accumulate":
                y[1:] += one[1:].clamp(-1, 1)
            else:
                values.append(UNARY[name](one) if name in UNARY else BINARY[name](one, two))
        return values[-3:]

    return run


steps = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY, "store", "accumulate"]), st.integers(0, 29), st.integers(0, 29)),
    min_size=3,
    max_size=30,
)


@pytest.mark.parametrize("interpret", [False, True], ids=["compiled", "interpreted"])
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=steps)
def test_a_random_program_computes_what_eager_mode_does(interpret: bool, steps: list[Step]) -> None:
    run = program(steps)
    ours, theirs = inputs(), inputs()
    torch.compiler.reset()
    found = torch.compile(run, backend=tcompile, options={"interpret": interpret})(*ours)
    torch.testing.assert_close([*found, *ours], [*run(*theirs), *theirs], rtol=1e-3, atol=1e-3)


def inputs() -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(ROWS, COLUMNS, generator=generator) for _ in "xy"]
