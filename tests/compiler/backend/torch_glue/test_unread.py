"""Work of TorchDynamo that nobody reads is skipped while tcompile compiles, and done if somebody reads it."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch._dynamo.funcname_cache as funcname_cache
import torch._dynamo.guards as guards
import torch._dynamo.output_graph as output_graph
from torch import Tensor
from torch._C._dynamo.guards import profile_guard_manager
from torch._dynamo.utils import get_compilation_metrics

from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.torch_api.unread import skip_unread_work


def scaled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as it is when it has compiled nothing, with its own measurement of guards."""
    monkeypatch.setattr(guards, "profile_guard_manager", profile_guard_manager)
    torch.compiler.reset()
    funcname_cache.clearcache()


def compiled(block: AbstractContextManager[None]) -> tuple[float, bool]:
    """torch's measured time of guards, in microseconds, and whether function names were looked up."""
    with block:
        found = torch.compile(scaled, backend="eager")(torch.arange(-2.0, 2.0))
    assert found.tolist() == [0, 0, 0, 2]
    return get_compilation_metrics()[-1].guard_latency_us, bool(funcname_cache.cache)


def test_torch_creates_unread_data_by_default() -> None:
    """Otherwise there would be nothing left to skip."""
    latency, has_names = compiled(nullcontext())
    assert latency > 0
    assert has_names


def test_unread_data_is_skipped() -> None:
    assert compiled(skip_unread_work()) == (0, False)


def test_logging_enables_names(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, output_graph.trace_call_log.name)
    assert compiled(skip_unread_work()) == (0, True)


def test_logging_enables_guard_timing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, guards.guards_log.name)
    assert compiled(skip_unread_work())[0] > 0


def test_an_exploration_measures_guards() -> None:
    record = explore(scaled, (torch.arange(-2.0, 2.0),), options=parse_options(backend="tcompile")).record
    assert not record.problems
    assert all(frame.guard_seconds for frame in record.frames)
    assert any(guard.seconds for guard in record.guards)
