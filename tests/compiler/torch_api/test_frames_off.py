"""Frames that Dynamo was told not to look at, before an exploration began."""

from __future__ import annotations

import threading
from typing import Any

import torch

from compiler.engine import explore
from tests.compiler.broken import TORCH


def breaks_in_the_middle(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y.sum() + x.mean()


def test_called_frames_are_captured_after_threads_with_fullgraph() -> None:
    """In torch 2.11 overlapping calls leave Dynamo with all frames off that compiled code calls."""
    first_inside, second_inside, first_left = (threading.Event() for _ in range(3))
    turns = iter([(first_inside, second_inside), (second_inside, first_left)])

    def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if threading.current_thread() is not threading.main_thread():
            here, there = next(turns)
            here.set()
            there.wait(10)
        return args

    x = torch.ones(4, 4)
    whole = torch.compile(torch.sin, backend=lambda _module, _inputs: run, fullgraph=True)
    whole(x)
    first, second = (threading.Thread(target=whole, args=(x,)) for _ in range(2))
    first.start()
    first_inside.wait(10)
    second.start()
    first.join()
    first_left.set()
    second.join()
    try:
        assert len(explore(breaks_in_the_middle, (x,)).record.of_stage("captured")) == 2
    finally:
        if TORCH < "2.12":  # for the tests after this one
            c_eval_frame: Any = torch._C._dynamo.eval_frame
            c_eval_frame.set_eval_frame_override(c_eval_frame._EvalFrameOverride.NONE)
