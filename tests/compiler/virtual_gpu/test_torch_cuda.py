"""torch.cuda stays exactly as it was.

This holds with a CPU build of torch, with a CUDA build on a machine without a GPU, and with a GPU, which may differ
from the target.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler.engine import Event, Exploration
from compiler.option_checks import parse_options
from compiler.record import Record
from compiler.targets import TARGETS, target

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class Words(nn.Module):
    """Embedding, attention, LayerNorm, dropout, Linear, softmax: some need a device guard, some a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 64)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words).view(2, 8, 4, 16).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 8, 64)
        return torch.softmax(self.out(nn.functional.dropout(self.norm(y), 0.1, self.training)), -1)


def explored(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Record, Tensor]:
    with Exploration(parse_options(**options)) as exploration:
        value = exploration.compile(fn)(*args)
        if value.requires_grad:
            value.float().sum().backward()
    assert exploration.record.problems == ()
    return exploration.record, value


def cuda_state() -> dict[str, Any]:
    """The complete state of torch.cuda, with generators' states if there are any.

    Dynamo initialises a GPU whenever it compiles (torch._dynamo.utils.preserve_rng_state), so this is done here first.
    """
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.cuda.device_count()  # cached by torch.cuda from its first call on
    return {
        "names": {name: id(value) for name, value in vars(torch.cuda).items()},
        "available": torch.cuda.is_available(),
        "initialized": torch.cuda.is_initialized(),
        "count": torch.cuda.device_count(),
        "queued": len(torch.cuda._queued_calls),
        "generators": [generator.get_state().tolist() for generator in torch.cuda.default_generators],
        "device": torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        "version": (torch.version.cuda, torch.version.hip),
        "guard": hasattr(torch._C, "_cuda_getDeviceCount"),
    }


@contextmanager
def as_it_was() -> Iterator[None]:
    before = cuda_state()
    yield
    assert cuda_state() == before


FIRST = """
import torch
from tests.compiler.virtual_gpu.test_torch_cuda import Words, cuda_state, explored

before = cuda_state()
explored(Words().train(), torch.randint(0, 32, (2, 8)), target="h100", mode="max-autotune")
assert cuda_state() == before
print("as it was")
"""


def test_first_exploration_leaves_torch_cuda_unchanged() -> None:
    found = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300, check=False)
    assert found.stdout == "as it was\n", found.stderr


@pytest.mark.parametrize("name", ["a100", "mi300x"])
def test_every_target_leaves_torch_cuda_alone(name: str) -> None:
    with as_it_was():
        explored(Words().train(), torch.randint(0, 32, (2, 8)), target=name)


@pytest.mark.parametrize(
    ("stage", "mode"),
    [
        ("post_grad", "default"),
        ("ir", "default"),
        ("ir", "max-autotune"),
        ("kernels", "max-autotune"),
        ("backward", "reduce-overhead"),
    ],
)
def test_interrupt_keeps_finished_stages_and_torch_cuda(stage: str, mode: str) -> None:
    finished: list[str] = []

    def interrupt(event: Event) -> None:
        if event.artifact is not None:
            finished.append(event.artifact.id)
            if event.stage == stage:
                signal.raise_signal(signal.SIGINT)

    exploration = Exploration(parse_options(target="h100", mode=mode), listener=interrupt)
    with as_it_was(), pytest.raises(KeyboardInterrupt), exploration:
        exploration.compile(Words().train())(torch.randint(0, 32, (2, 8)))
    record = exploration.record
    assert {artifact.id for artifact in record.artifacts} == set(finished)
    assert record.of_stage(stage)
    assert Record.from_json(record.to_json()) == record
    again, _ = explored(nn.Linear(16, 16), torch.randn(16, 16), target="h100", mode=mode)
    assert again.of_stage("kernels")


def test_a_failing_stage_leaves_torch_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.scheduler import Scheduler

    def fails(*args: object) -> None:
        raise RuntimeError("broken")

    with as_it_was(), monkeypatch.context() as patch:
        patch.setattr(Scheduler, "codegen", fails)
        with Exploration(parse_options(target="h100", mode="max-autotune")) as exploration:
            exploration.compile(Words())(torch.randint(0, 32, (2, 8)))
    assert "broken" in exploration.record.problems[0].reason


@without_gpu
def test_torch_still_reports_no_gpu() -> None:
    explored(Words(), torch.randint(0, 32, (2, 8)), target="h100")
    assert not torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
        torch.zeros(2, device="cuda")


# Where there is a GPU


@with_gpu
@pytest.mark.parametrize("name", ["b200", "t4", "mi300x"])
def test_tensors_on_a_gpu_and_code_for_another(name: str) -> None:
    torch.manual_seed(0)
    model, words = Words().eval().cuda(), torch.randint(0, 32, (2, 8)).cuda()
    expected = model(words)
    with as_it_was():
        record, value = explored(model, words, target=name)
    assert torch.equal(value, expected)
    assert value.device == words.device
    assert record.target == name
    found = target(name)
    for artifact in record.of_stage("kernels"):
        assert f"multi_processor_count={found.multiprocessors}, cc={found.triton_arch!r}" in artifact.text
    assert {k.language for k in record.kernels} <= {"triton", "aten"}
    assert torch.equal(model(words), expected)


@with_gpu
def test_cpu_tensors_beside_a_gpu_stay_there() -> None:
    def scaled(x: Tensor, factor: Tensor) -> Tensor:
        return (x * factor).relu()

    x, factor = torch.randn(8, 8, device="cuda"), torch.tensor(2.0)
    record, value = explored(scaled, x, factor, target="b200")
    assert torch.equal(value, scaled(x, factor))
    devices = {entity.attrs["device"] for entity in record["inference"].entities if "device" in entity.attrs}
    assert devices == {"cuda:0", "cpu"}


@with_gpu
def test_cuda_graph_decisions_of_running_code_are_recorded() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU()).cuda(), torch.randn(8, 64, device="cuda")
    record, _ = explored(model, x, mode="reduce-overhead")
    found = [decision.verdict for decision in record.decisions if decision.pass_name == "cudagraphs"]
    assert found == ["captured", "captured"]


@with_gpu
def test_candidates_match_those_inductor_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    name = torch.cuda.get_device_name()
    if name not in {known.device_name for known in TARGETS}:
        pytest.skip(f"{name} is not in the table")
    timed: list[str] = []

    def heard(_cache: Any, _name: str, _nodes: Any, _layout: Any, _generators: Any, _key: str, choices: Any,
              *_args: Any, **_kwargs: Any) -> dict[Any, float]:  # fmt: skip
        timed.extend(choice.description for choice in choices)
        return {choice: float(place) for place, choice in enumerate(choices)}

    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).bfloat16()
    x = torch.randn(128, 256).bfloat16()
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(AlgorithmSelectorCache, "do_autotuning", heard)
        patch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda *_args, **_kwargs: dict)
        torch.compile(model.cuda(), mode="max-autotune-no-cudagraphs")(x.cuda())
    record, _ = explored(model.cpu(), x, target=target(name).name, mode="max-autotune", grad=False)
    configs = [entity.attrs["config"] for entity in record["kernels[0/0 inference candidates]"].entities]
    assert [", ".join(f"{key}={value}" for key, value in config.items()) for config in configs] == timed
    assert len(timed) > 20
