"""Kernels and lines profiled on a GPU: the matched share of the time. Needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.engine import Exploration, explore, explore_again
from compiler.option_checks import parse_options
from compiler.record import Record
from compiler.timing.profile import Profile, kernel_and_line_times
from compiler.timing.profile_again import profile_again
from tests.compiler.models import MLP, ResNet, gpt2

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="it needs a GPU")

MATCHED = 0.95


def mlp() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    return MLP().cuda(), (torch.randn(64, 64, device="cuda"),), {}


def resnet() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    return ResNet(1).cuda(), (torch.randn(8, 3, 64, 64, device="cuda"),), {}


def gpt() -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    model, inputs = gpt2()
    return (
        model.cuda(),
        (),
        {name: value.cuda() if isinstance(value, Tensor) else value for name, value in inputs.items()},
    )


@pytest.mark.parametrize(
    ("case", "backend"),
    [(mlp, "inductor"), (resnet, "inductor"), (gpt, "inductor"), (mlp, "tcompile"), (gpt, "tcompile")],
)
def test_gpu_time_is_matched_to_kernels_and_lines(case: Any, backend: str) -> None:
    model, args, kwargs = case()
    record, profile = explored(model, args, kwargs, backend)
    assert not [problem for problem in profile.problems if "varied" not in problem.reason]  # depends on the machine
    for side in ("eager", "compiled"):
        times = [time for time in profile.kernel_times if time.side == side]
        whole = sum(time.seconds for time in times)
        assert {time.device for time in times} == {"cuda"}
        assert {time.half for time in times} == {"forward", "backward"}
        on_lines = sum(time.seconds for time in profile.line_times if time.side == side and time.line)
        assert on_lines >= MATCHED * whole
    assert sum(time.seconds for time in times if time.kernel) >= MATCHED * whole
    called = {entity.id for item in record.of_stage("kernels") for entity in item.entities}
    assert {time.call for time in times if time.call} <= called


def explored(
    model: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Any], backend: str = "inductor"
) -> tuple[Record, Profile]:
    with Exploration(parse_options(backend=backend)) as exploration:
        exploration.compile(model)(*args, **kwargs)
        assert exploration.call is not None
        record = exploration.record
        return record, kernel_and_line_times(exploration.call, record, exploration.files())


def test_peak_shares_are_known_for_a_listed_gpu() -> None:
    def wide(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w + 1) * 2

    x = torch.randn(4096, 4096, device="cuda")
    _, profile = explored(wide, (x, x), {})  # type: ignore[arg-type]
    (product,) = [time for time in profile.kernel_times if "extern" in time.name]
    (pointwise,) = [time for time in profile.kernel_times if time.name.startswith("triton_poi")]
    assert product.functions
    assert product.flops == 2 * 4096**3
    assert 0 < (product.compute_share or 0) < 1
    assert 0 < (pointwise.memory_share or 0) < 1.2


def test_cuda_graph_kernels_are_profiled_without_graphs() -> None:
    model, args, kwargs = mlp()
    explored = explore(model, args, kwargs, parse_options(mode="reduce-overhead"))
    assert explored.call is not None
    profile = profile_again(explored.call, explored.record, explore_again)
    times = [time for time in profile.kernel_times if time.side == "compiled"]
    assert sum(time.seconds for time in times if time.kernel) >= MATCHED * sum(time.seconds for time in times)


def test_time_option_records_kernel_and_line_times() -> None:
    model, args, kwargs = mlp()
    record = explore(model, args, kwargs, parse_options(time="default")).record
    assert record.kernel_times
    assert record.line_times
