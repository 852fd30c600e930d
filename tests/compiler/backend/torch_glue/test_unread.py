"""Work of TorchDynamo that nobody reads is skipped while tcompile compiles, and done if somebody reads it."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

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

_COLD = """
import sys
import torch
import torch._dynamo.funcname_cache as funcname_cache
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
torch.compile(model, backend=sys.argv[1], options=eval(sys.argv[2]))(torch.ones(2, 4))
print("torch.distributed.tensor.experimental._func_map" in sys.modules, bool(funcname_cache.cache))
"""


def scaled(x: Tensor) -> Tensor:
    return torch.relu(x) * 2


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as it is when it has compiled nothing, with its own measurement of guards."""
    monkeypatch.setattr(guards, "profile_guard_manager", profile_guard_manager)
    torch.compiler.reset()
    funcname_cache.clearcache()


def cold(backend: str, options: dict[str, Any] | None = None) -> str:
    """Whether a process's first compilation imports sharded tensors, and reads files for function names."""
    command = [sys.executable, "-c", _COLD, backend, repr(options)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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
    assert cold("eager") == "True True"


def test_unread_data_is_skipped() -> None:
    assert compiled(skip_unread_work()) == (0, False)
    assert cold("tcompile", {"interpret": True}) == "False False"


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
