"""Regional compilation: modules that are compiled on their own, and share what was compiled."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from compiler.engine import Exploration
from compiler.record.options import Options
from explorer.run.text import summary


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(x).relu()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        for block in self.blocks:
            block.compile()

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_compilations_name_the_modules_that_run_them() -> None:
    model, x = Blocks(), torch.randn(2, 4)
    with Exploration(Options(stages=("captured",))) as exploration:
        model(x)
        model(x)
    first, second = exploration.record.frames
    assert (first.calls, first.modules) == (2, ("blocks.0",))
    assert (second.calls, second.modules) == (6, ("blocks.1", "blocks.2", "blocks.3"))
    text = summary(exploration.record)
    assert "2 compilations of modules compiled on their own" in text
    assert "graph 0/1, 6 calls: blocks.1, blocks.2, blocks.3" in text


def test_whole_model_tells_which_modules_it_takes_in() -> None:
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(Blocks())(torch.randn(2, 4))
    [frame] = exploration.record.frames
    assert (frame.calls, frame.modules) == (1, ())
    [problem] = exploration.record.problems
    assert "the code of 4 modules that your program compiles on their own (blocks.0 … blocks.3)" in problem.reason
