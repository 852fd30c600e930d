"""Lines that ran as plain Python, and their callers: only certain facts are reported."""

from __future__ import annotations

import functools
import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch

from compiler.capture.plain_lines import lines_run
from compiler.engine import Exploration
from compiler.record import Frame, Record
from compiler.record.options import Options


def branches(x: int) -> int:
    a = 1
    for k in range(x):
        a += k
        if a > 3:
            a = 0
        str(a)
    try:
        first = 1
        second = int("2")
    except ValueError:
        second = 3
    if x:
        return a + first + second
    return 0


def texts(lines: tuple[int, ...], file: str = __file__) -> list[str]:
    return [linecache.getline(file, line).strip() for line in lines]


def line_of(function: Callable[..., Any], text: str) -> int:
    source, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(source) if text in line)


def test_lines_on_every_path_certainly_ran() -> None:
    certain = ["a = 1", "for k in range(x):", "try:", "first = 1", "if x:"]
    assert texts(lines_run(branches.__code__)) == certain


def test_executed_line_makes_its_dominating_lines_certain() -> None:
    known = line_of(branches, "str(a)")
    assert set(texts(lines_run(branches.__code__, [known]))) >= {"a += k", "if a > 3:", "str(a)"}
    assert "a = 0" not in texts(lines_run(branches.__code__, [known]))


def test_partly_plain_function_omits_lines_before_the_rest() -> None:
    known = line_of(branches, "str(a)")
    found = texts(lines_run(branches.__code__, [known], whole=False))
    assert "a = 1" not in found
    assert {"for k in range(x):", "if x:"} <= set(found)


def inner(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * scale
    torch._dynamo.graph_break()
    return y + 1


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        torch._dynamo.graph_break()
        x = inner(x, 2.0)
    if x.dim() > 5:
        x = x + 5
    return x.cos()


def outer(x: torch.Tensor) -> torch.Tensor:
    factor = 3.0

    def closes_over(y: torch.Tensor) -> torch.Tensor:
        y = y.sin()
        torch._dynamo.graph_break()
        return y * factor

    return in_a_loop(x) + closes_over(x)


@functools.cache
def record() -> Record:
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(outer)(torch.randn(4))
    return exploration.record


def frames(function: str) -> list[Frame]:
    return [frame for frame in record().frames if frame.function == function]


def test_frame_knows_its_calling_frame_and_line() -> None:
    (loop,) = frames("in_a_loop")
    called = frames("inner")[0]
    assert called.caller == loop.id
    assert called.called_at is not None
    assert (called.called_at.file, called.called_at.line) == (loop.file, line_of(in_a_loop, "x = inner(x, 2.0)"))
    assert record().frames[0].caller == ""


def test_plain_lines_of_a_skipped_function_certainly_ran() -> None:
    (loop,) = frames("in_a_loop")
    assert loop.outcome != "compiled"
    assert texts(loop.plain) == [
        "for _ in range(2):", "torch._dynamo.graph_break()", "x = inner(x, 2.0)", "if x.dim() > 5:", "return x.cos()",
    ]  # fmt: skip


def test_compiled_function_has_only_its_breaking_line_plain() -> None:
    assert texts(frames("inner")[0].plain) == ["torch._dynamo.graph_break()"]


def test_resume_function_of_a_closure_is_recognized() -> None:
    (closure,) = frames("closes_over")
    (broken,) = [found for found in record().breaks if found.frame == closure.id]
    (resumed,) = [frame for frame in record().frames if frame.resumes == broken.id]
    assert broken.resumed_by == (resumed.id,)
    assert resumed.graphs


def test_line_links_to_lines_of_inlined_functions() -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    def twice(x: torch.Tensor) -> torch.Tensor:
        return helper(helper(x) + 1)

    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(twice)(torch.randn(4))
    (source,) = exploration.record.of_stage("source")
    call, body = line_of(twice, "return helper"), line_of(helper, "x.relu()")
    assert source.attrs["calls"] == {f"{source.id}.L{call}": [f"{source.id}.L{body}"]}
