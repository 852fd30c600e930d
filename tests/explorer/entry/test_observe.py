"""`observe` and `status`: what torch.compile did in this process, without a trace left behind."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from explorer.entry.observe import observe
from explorer.entry.status import status

TRACE = logging.getLogger("torch.__trace")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="eager", **options)


def state() -> tuple[object, ...]:
    """What a block must leave as it was: logging, environment, torch's settings, open files."""
    return (
        list(TRACE.handlers), TRACE.level, list(logging._handlers), dict(os.environ),  # type: ignore[attr-defined]
        torch._dynamo.config.get_config_copy(), len([*Path("/dev/fd").iterdir()]),
    )  # fmt: skip


def test_observed_blocks_nest_and_leave_nothing() -> None:
    compiled(lambda x: x - 1)(torch.ones(2))  # torch's own handler removes itself at the first event
    before = state()
    thread = threading.Thread(target=lambda: compiled(lambda x: x.cos())(torch.ones(2)))
    with suppress(ZeroDivisionError), observe() as outer:
        with observe("inside") as inner:
            thread.start()
            thread.join()
        compiled(lambda x: x * 3)(torch.ones(2))
        _ = 1 / 0
    with observe() as nothing:
        pass
    assert (len(outer.compilations), len(inner.compilations), len(nothing.compilations)) == (2, 1, 0)
    assert outer.compilations[0].file == __file__
    assert "cos" in inner["0/0" if inner.compilations[0].id == "0/0" else inner.compilations[0].id]["captured"].text
    assert state() == before


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y + 1


def resized(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def given_up(x: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        x = x + 1
        torch._dynamo.graph_break()
    return x


@torch.compiler.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def forwarding(x: torch.Tensor) -> torch.Tensor:
    return disabled(x)


class Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_status_of_each_function() -> None:
    compiled(broken)(torch.ones(2))
    compiled(given_up)(torch.ones(2))
    compiled(forwarding)(torch.ones(2))
    assert "breaks before its first tensor operation" in status(forwarding)[0].words
    with torch._dynamo.config.patch(recompile_limit=2):
        again = compiled(resized, dynamic=False)
        for size in range(2, 6):
            again(torch.ones(size))
    called, uncalled = compiled(torch.nn.Linear(2, 2)), compiled(torch.nn.Linear(2, 2))
    called(torch.ones(2))
    own, other = compiled(Own()), compiled(Own())
    own(torch.ones(2))
    found = status(broken, again, given_up, called, uncalled, own, other, test_status_of_each_function)
    assert [each.state for each in found] == [
        "partly", "partly", "eager", "compiled", "never called", "compiled", "eager", "never called",
    ]  # fmt: skip
    assert "compiled with 1 graph break" in found[0].words
    assert "recompile limit, after 2 versions" in found[1].words
    assert "given up" in found[2].words
    assert {each.function for each in status()} >= {"broken", "resized", "given_up"}
    assert "recompile limit" in repr(status())
    with pytest.raises(TypeError, match="no Python code"):
        status(len)


def test_status_of_nothing() -> None:
    assert repr(status()) == "torch.compile has compiled nothing in this process"
