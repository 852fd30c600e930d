"""Profiled times of kernels and Python lines: tests check what is measured, not how long it takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.engine import Exploration, explore, explore_again
from compiler.option_checks import parse_options
from compiler.record import KernelTime, LineTime, Record
from compiler.timing.line_chains import line_chains, works
from compiler.timing.profile import Profile, _noise, kernel_and_line_times
from compiler.timing.profile_again import _Matched, profile_again, profile_in_place
from compiler.timing.spent import Spent, Trace
from tests.compiler.broken import TORCH

needs_compiler = pytest.mark.skipif(sys.platform == "win32", reason="C++ is built")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.norm, self.head = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)

    def last(self, h: Tensor) -> Tensor:
        return self.head(h).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wide(x)
        h = nn.functional.gelu(self.norm(h))
        return self.last(h)


def line_of(code: str) -> str:
    """The line number of this code in this file, as in the ids of lines."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(f".L{number}" for number, line in enumerate(lines, 1) if line.strip() == code)


def explored(fn: Any, *args: Tensor, **options: Any) -> tuple[Record, Profile, Exploration]:
    """An exploration with code built for the CPU, and profiled."""
    with Exploration(parse_options(target="cpu", **options), build=True) as exploration:
        exploration.compile(fn)(*args)
        assert exploration.call is not None
        record = exploration.record
        profile = kernel_and_line_times(exploration.call, record, exploration.files())
    return record, profile, exploration


@pytest.fixture(scope="module", params=["inductor", "tcompile"])
def net(request: pytest.FixtureRequest) -> tuple[Record, Profile]:
    record, profile, _ = explored(Net(), torch.randn(16, 32), backend=request.param)
    return record, profile


def of(times: Sequence[Any], side: str, half: str) -> list[Any]:
    return [time for time in times if (time.side, time.half) == (side, half)]


def lines(profile: Profile, side: str, half: str) -> dict[str, LineTime]:
    found = of(profile.line_times, side, half)
    return {time.line.rpartition("]")[2]: time for time in found}


@needs_compiler
@pytest.mark.parametrize("half", ["forward", "backward"])
def test_every_call_in_generated_code_has_its_time(net: tuple[Record, Profile], half: str) -> None:
    record, profile = net
    artifacts = [item for item in record.of_stage("kernels") if half in item.id]
    calls = {entity.id for item in artifacts for entity in item.entities if entity.kind in ("call", "extern")}
    timed = [time for time in of(profile.kernel_times, "compiled", half) if time.kernel]
    assert {time.call for time in timed} == calls
    assert len(timed) == len(calls)
    known = {kernel.id: kernel for kernel in record.kernels}
    assert all(time.name == known[time.kernel].name and time.launches == 1 and time.seconds > 0 for time in timed)
    assert not [problem for problem in profile.problems if "varied" not in problem.reason]  # depends on the machine


@needs_compiler
def test_library_calls_have_their_matmul_flops(net: tuple[Record, Profile]) -> None:
    _, profile = net
    forward = of(profile.kernel_times, "compiled", "forward")
    products = [time.flops for time in forward if time.name in ("extern_kernels.addmm", "aten.addmm.default")]
    assert products == [2 * 16 * 32 * 64, 2 * 16 * 64 * 8]
    assert all(time.bytes for time in forward if time.kernel)
    assert {time.memory_share for time in forward} == {None}, "peaks are of GPUs"


@needs_compiler
@pytest.mark.parametrize("side", ["eager", "compiled"])
@pytest.mark.parametrize("half", ["forward", "backward"])
def test_computing_lines_have_forward_and_backward_times(net: tuple[Record, Profile], side: str, half: str) -> None:
    found = lines(net[1], side, half)
    computing = ["h = self.wide(x)", "h = nn.functional.gelu(self.norm(h))", "return self.head(h).softmax(-1)"]
    assert all(found[line_of(code)].seconds > 0 for code in computing)
    calling = found[line_of("return self.last(h)")]
    assert calling.seconds == 0
    assert calling.total == pytest.approx(found[line_of(computing[2])].total)


@needs_compiler
@pytest.mark.parametrize("side", ["eager", "compiled"])
def test_line_times_add_up_to_kernel_times(net: tuple[Record, Profile], side: str) -> None:
    _, profile = net
    kernels = sum(time.seconds for time in profile.kernel_times if time.side == side)
    own = sum(time.seconds for time in profile.line_times if time.side == side)
    assert own == pytest.approx(kernels)


@needs_compiler
def test_eager_operators_are_attributed_to_their_lines(net: tuple[Record, Profile]) -> None:
    eager = [time for time in net[1].kernel_times if time.side == "eager"]
    places = {(time.op, line.rpartition("]")[2]) for time in eager for line in time.lines}
    gelu = line_of("h = nn.functional.gelu(self.norm(h))")
    wanted = {"aten::gelu", "aten::layer_norm", "GeluBackward0", "NativeLayerNormBackward0"}
    assert {op for op, line in places if line == gelu} == wanted
    assert ("SoftmaxBackward0", line_of("return self.head(h).softmax(-1)")) in places


@needs_compiler
def test_calling_line_has_the_whole_time(net: tuple[Record, Profile]) -> None:
    call = line_of("exploration.compile(fn)(*args)")
    for side in ("eager", "compiled"):
        found = lines(net[1], side, "forward")
        assert found[call].total == pytest.approx(sum(time.seconds for time in found.values()))


def broken(x: Tensor) -> Tensor:
    y = torch.relu(x)
    torch._dynamo.graph_break()
    return y.exp()


@needs_compiler
def test_model_without_user_lines_charges_the_calling_line() -> None:
    """All code of nn.Sequential is torch's. A later profile on a copy still has the user's line as the call site."""
    model, x = nn.Sequential(nn.Linear(16, 16), nn.ReLU()), torch.randn(4, 16)
    with Exploration(parse_options(backend="inductor")) as exploration:
        exploration.compile(model)(x)  # the call
    assert exploration.call is not None
    profile = profile_again(exploration.call, exploration.record, explore_again)
    called = line_of("exploration.compile(model)(x)  # the call")
    for side in ("eager", "compiled"):
        lines = {time.line for time in profile.line_times if time.side == side and time.half == "forward"}
        assert {line for line in lines if line} == {line for line in lines if line.endswith(called)} != set()


def test_kernels_of_several_graphs_are_distinct() -> None:
    record, profile, _ = explored(broken, torch.randn(64))
    timed = [time for time in profile.kernel_times if time.kernel]
    assert {time.call.partition("[")[2][:3] for time in timed} == {"0/0", "1/0"}
    assert [lines(profile, "compiled", "forward")[line_of(code)].seconds > 0
            for code in ("y = torch.relu(x)", "return y.exp()")] == [True, True]  # fmt: skip
    assert len(record.of_stage("kernels")) == 2


def reads_a_value(x: Tensor) -> Tensor:
    y = torch.relu(x)
    return y.nonzero() + int(y.sum().item() * 0)


@needs_compiler
def test_unattributed_operators_keep_their_own_name() -> None:
    _, profile, _ = explored(reads_a_value, torch.randn(64))
    other = [time for time in of(profile.kernel_times, "compiled", "forward") if not time.kernel]
    assert "aten::item" in {time.op for time in other}
    assert all(time.name and not time.lines for time in other)
    assert lines(profile, "compiled", "forward")[""].seconds == pytest.approx(sum(time.seconds for time in other))


@needs_compiler
def test_model_gradients_and_generator_are_unchanged() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    x = torch.randn(16, 8)
    with Exploration(parse_options(target="cpu"), build=True) as exploration:
        exploration.compile(model)(x)
        assert exploration.call is not None
        code = {name: parameter.clone() for name, parameter in model.state_dict().items()}
        random, record = torch.get_rng_state(), exploration.record
        kernel_and_line_times(exploration.call, record, exploration.files())
        assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, code[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert exploration.record.recompiles == ()


@needs_compiler
def test_run_for_absent_gpu_is_profiled_on_cpu() -> None:
    model, x = Net(), torch.randn(16, 32)
    with Exploration() as exploration:
        exploration.compile(model)(x)
    record = exploration.record
    assert (record.target, exploration.call is not None) == ("h100", True)
    assert exploration.call is not None
    profile = profile_again(exploration.call, record, explore_again, torch.optim.SGD)
    assert {time.device for time in profile.kernel_times} == {time.device for time in profile.line_times} == {"cpu"}
    compiled = [time for time in profile.kernel_times if time.side == "compiled"]
    assert any(time.name.startswith("cpp_fused") for time in compiled)
    assert {time.kernel for time in compiled} == {""}, "the record has Triton kernels, and these are C++"
    known = {entity.id for entity in record.entities()}
    assert {time.line for time in profile.line_times} - {""} <= known
    assert any(time.half == "optimizer" for time in compiled)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_cuda_graph_partitions_have_the_same_kernels() -> None:
    records = {}
    for mode in ("default", "reduce-overhead"):
        torch.manual_seed(0)
        records[mode] = explore(Net(), (torch.randn(16, 32),), {}, parse_options(target="h100", mode=mode)).record
    whole, cut = records["default"], records["reduce-overhead"]
    assert [a.text for a in whole.of_stage("kernels")] != [a.text for a in cut.of_stage("kernels")]
    matched = _Matched(cut, whole)
    known = {kernel.id: kernel for kernel in cut.kernels}
    for kernel in whole.kernels:
        found = matched._kernel_time(KernelTime(kernel.name, "compiled", "forward", 1.0, 1.0, kernel=kernel.id))
        assert (known[found.kernel].name, known[found.kernel].artifact) == (kernel.name, kernel.artifact)


def test_fused_kernel_counts_for_all_its_operations() -> None:
    with Exploration() as exploration:
        exploration.compile(Net())(torch.randn(16, 32))
    record = exploration.record
    ends = {chain[-1].rpartition("]")[2] for work in works(record).values() for chain in work.chains}
    codes = ["h = self.wide(x)", "h = nn.functional.gelu(self.norm(h))", "return self.head(h).softmax(-1)"]
    assert ends == set(map(line_of, codes))
    calls = {entity.id: entity for item in record.of_stage("kernels") for entity in item.entities}
    nodes = {entity.id: entity for item in record.of_stage("post_grad") for entity in item.entities}
    for call, work in works(record).items():
        targets = {nodes[node].attrs["target"] for node in work.nodes}
        if calls[call].kind == "extern":
            assert targets <= {"aten.mm.default", "aten.addmm.default"}
        assert not targets & {"aten.view.default", "aten.permute.default", "aten.full.default"}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 128, 3, bias=False), nn.Conv2d(128, 128, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return self.second(y).sin()


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
def test_layout_copy_counts_for_the_operation_needing_it(backend: str) -> None:
    with Exploration(parse_options(backend=backend, target="h200")) as exploration:
        exploration.compile(Convolutions())(torch.randn(2, 3, 16, 16))
    record = exploration.record
    nodes = {entity.id: entity for artifact in record.last_graphs() for entity in artifact.entities}
    copies = [
        (call.partition("]")[0], line.rpartition("]")[2])
        for call, work in works(record).items()
        if {nodes[node].kind for node in work.nodes} <= {"placeholder"}
        for line in {chain[-1] for chain in work.chains} or {"]none"}
    ]
    lines = {line_of("y = self.first(x).relu()"), line_of("return self.second(y).sin()")}
    assert {line for call, line in copies if "forward" in call} == lines
    assert {line for _, line in copies} == lines


def drops_twice(x: Tensor) -> Tensor:
    y = nn.functional.dropout(x, 0.5).sin()
    return nn.functional.dropout(y, 0.25) @ y


@pytest.mark.parametrize("backend", ["inductor", "tcompile"])
def test_shared_seed_call_counts_for_all_random_lines(backend: str) -> None:
    with Exploration(parse_options(backend=backend, target="h200")) as exploration:
        exploration.compile(drops_twice)(torch.randn(16, 16))
    record = exploration.record
    calls = {entity.id: entity for item in record.of_stage("kernels") for entity in item.entities}
    (seeds,) = [work for call, work in works(record).items() if "randint" in calls[call].label]
    codes = ["y = nn.functional.dropout(x, 0.5).sin()", "return nn.functional.dropout(y, 0.25) @ y"]
    if backend == "inductor" and TORCH >= "2.14":
        codes = codes[:1]  # torch says that the seeds come from the first line
    assert {chain[-1].rpartition("]")[2] for chain in seeds.chains} == set(map(line_of, codes))


def test_chains_are_stack_lines_from_the_outermost() -> None:
    with Exploration(parse_options(stages="captured")) as exploration:
        exploration.compile(Net())(torch.randn(16, 32))
    record = exploration.record
    softmax = next(entity for entity in record["captured"].entities if entity.label == "softmax")
    (chain,) = line_chains(record)[softmax.id]
    assert [line.rpartition("]")[2] for line in chain[1:]] == [
        line_of("return self.last(h)"),
        line_of("return self.head(h).softmax(-1)"),
    ]


def only_when_compiled(x: Tensor) -> Tensor:
    raise ValueError("only once")


def test_failing_repeated_call_is_a_recorded_problem() -> None:
    with Exploration(parse_options(target="cpu"), build=True) as exploration:
        exploration.compile(torch.relu)(torch.randn(4))
        assert exploration.call is not None
        profile_in_place(exploration._builder, replace(exploration.call, fn=only_when_compiled), exploration.files())
    problem = exploration.record.problems[-1]
    assert problem.stage == "timing"
    assert "only once" in problem.reason
    assert exploration.record.kernel_times == ()


@pytest.mark.parametrize(("seconds", "told"), [([1.0] * 8, []), ([1.0, 3.0] * 4, ["varied by"])])
def test_varying_calls_are_reported(seconds: list[float], told: list[str]) -> None:
    class Calls(Trace):
        def spent_times(self) -> list[Spent]:
            return [Spent("forward", call, each, "gemm") for call, each in enumerate(seconds)]

    found = [problem.reason for problem in _noise(Calls([], "eager", "mark", len(seconds), gpu=True))]
    assert len(found) == len(told)
    assert all(word in reason for word, reason in zip(told, found, strict=True))
