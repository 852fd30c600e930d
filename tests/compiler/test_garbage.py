"""Python's garbage collector: full collections wait while something is compiled, and only then."""

from __future__ import annotations

import gc

import pytest
import torch

from compiler.engine import Event, Exploration


def test_full_collections_wait_while_compiling_and_not_in_the_users_own_code() -> None:
    before = gc.get_threshold()
    while_compiling = []

    def hear(event: Event) -> None:
        if event.kind == "artifact" and event.stage == "ir":
            while_compiling.append(gc.get_threshold())

    with Exploration(listener=hear) as exploration:
        exploration.compile(torch.nn.Linear(4, 4))(torch.randn(2, 4))
        in_the_block = gc.get_threshold()
    assert while_compiling[0][:2] == before[:2]
    assert while_compiling[0][2] > 1000 * before[2]
    assert in_the_block == gc.get_threshold() == before


def test_full_collections_go_on_after_an_interrupt() -> None:
    before = gc.get_threshold()

    def interrupt(event: Event) -> None:
        if event.kind == "artifact" and event.stage == "ir":
            raise KeyboardInterrupt

    exploration = Exploration(listener=interrupt)
    with pytest.raises(KeyboardInterrupt), exploration:
        exploration.compile(torch.nn.Linear(4, 4))(torch.randn(2, 4))
    assert gc.get_threshold() == before
