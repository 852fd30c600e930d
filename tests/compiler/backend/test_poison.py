"""Poisoned memory reveals results that a program did not write: these programs write nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from compiler.backend import tcompile
from compiler.backend.ir import Kernel
from compiler.backend.ir.reference_interpreter import State
from compiler.backend.runtime.launch import Launcher


def made(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x + 1, (x + 2).double(), (x + 3).bfloat16(), x.long()


def allocate_alone(launcher: Launcher, kernel: Kernel) -> int:
    """The lines of a kernel, but for the one that runs it."""
    for name in kernel.writes:
        launcher.allocate(name)
    return launcher.line("pass")


@pytest.mark.parametrize("options", [None, {"interpret": True}], ids=["machine code", "interpreted"])
def test_unwritten_memory_is_detected(options: dict[str, bool] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "kernel", allocate_alone)
    monkeypatch.setattr(State, "loop", lambda self, loop: self.target(loop.target))
    *floats, whole = torch.compile(made, backend=tcompile, options=options)(torch.ones(2, 3))
    assert all(bool(value.isnan().all()) for value in floats)
    assert bool((whole == -1).all())
