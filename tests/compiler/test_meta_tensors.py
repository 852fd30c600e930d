"""Calls on meta tensors: code for the target, and nothing runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compiler import recorder
from compiler.calls.copies import NO_VALUES, CannotCopyError, copy_call
from compiler.engine import Explored, explore
from compiler.record import Record
from compiler.record.builder import Event
from compiler.record.options import Options

STAGES = ("captured", "kernels")


def scaled_sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def explored(fn: Callable[..., Any], *args: torch.Tensor, **options: Any) -> Explored:
    return explore(fn, args, options=Options(stages=STAGES, **options))


def code(record: Record) -> str:
    return "\n".join(artifact.text for artifact in record.artifacts if artifact.stage == "kernels")


@pytest.mark.parametrize(
    ("backend", "target", "offset"),
    [
        ("inductor", "", "tl.program_id(0).to(tl.int64)"),
        ("tcompile", "", "tl.program_id(0).to(tl.int64)"),
        ("inductor", "cpu", "int64_t x0"),
        ("tcompile", "cpu", "long i0"),
    ],
)
def test_meta_tensors_have_code_for_the_target(backend: str, target: str, offset: str) -> None:
    found = explored(scaled_sine, torch.empty(2**31, device="meta"), backend=backend, target=target)
    assert not found.record.problems
    assert len(found.record.kernels) == 1
    assert offset in code(found.record)
    assert found.value.device.type == "meta"


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
def test_offsets_beyond_32_bits_are_64_bits_wide(backend: str) -> None:
    """The kernel of a short slice has few elements, but reads beyond offset 2³¹."""

    def end(x: torch.Tensor) -> torch.Tensor:
        return x[2**31 :] * 2

    found = explored(end, torch.empty(2**31 + 72, device="meta"), backend=backend)
    assert ".to(tl.int64)" in code(found.record)


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = self.norm(self.conv(x)).relu().mean((2, 3))
        placed = pooled + torch.arange(8, device=x.device) + torch.zeros(8, device=str(x.device))
        return self.linear(nn.functional.dropout(placed, 0.1))


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
def test_meta_model_compiles_to_the_real_code(backend: str) -> None:
    codes = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model, x = Trained(), torch.empty(2, 3, 32, 32)
        codes.append(code(explored(model, x, backend=backend).record))
    assert codes[0] == codes[1]


def test_meta_tensors_are_not_measured() -> None:
    found = explored(scaled_sine, torch.empty(8, device="meta"), time=True, check=True)
    assert [problem.reason for problem in found.record.problems] == [NO_VALUES]
    assert len(found.record.kernels) == 1
    assert found.call is not None
    with pytest.raises(CannotCopyError, match="no values"):
        copy_call(found.call)


def test_large_call_warns_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MANY_ELEMENTS", 8)
    monkeypatch.setattr(recorder, "LONG_SECONDS", 0.0)
    events: list[Event] = []
    found = explore(scaled_sine, (torch.ones(8),), options=Options(stages=STAGES), listener=events.append)
    kinds = [event.kind for event in events if event.kind == "progress" or event.stage == "kernels"]
    assert kinds[-1] == "progress"
    [problem] = found.record.problems
    assert "the call itself ran for" in problem.reason
    assert 'device="meta"' in problem.hint
