"""Code for GPUs that are not here: every stage exists, Triton for the target, eager's values, an unchanged process."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from compiler.engine import Event, Exploration, explore
from compiler.record import Record
from compiler.record.options import Options
from compiler.targets import TARGETS, Target, target
from compiler.virtual_gpu import attention, gpu
from compiler.virtual_gpu.gpu import virtual_gpu
from tests.compiler.broken import TORCH
from tests.compiler.models import MLP, Block
from tests.compiler.test_engine import TRAINING, stages

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

INFERENCE = [
    stage if stage != "joint" else "inference" for stage in TRAINING if stage not in ("autograd", "forward", "backward")
]


class FeedForward(nn.Module):
    """LayerNorm, Linear, GELU, Linear, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Counts(nn.Module):
    """Embeddings of words, added to the bucket of each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)

    def forward(self, words: Tensor) -> Tensor:
        rows = (words % 10)[:, None].expand(-1, 32)
        return torch.zeros(10, 32).scatter_add(0, rows, self.embedding(words))


class Attention(nn.Module):
    """Self-attention with 4 heads, by torch's fused function or written out."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v
        return y.transpose(1, 2).reshape(batch, length, width)


class Autocast(nn.Module):
    """A model under bfloat16 autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)


def softmax_of_matmul(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1)


def ordered(x: Tensor) -> Tensor:
    return x.cumsum(-1) + x.sort(-1).values


def with_constants(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.arange(4) + torch.tensor(0.5)


def causal(x: Tensor) -> Tensor:
    length = x.shape[-1]
    return torch.softmax(x + torch.triu(torch.full((length, length), float("-inf")), 1), -1)


def either(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def explored(fn: Callable[..., Any], *args: Any, **options: Any) -> tuple[Record, Tensor]:
    """The record for a target, h100 unless told, of one call and, where there are gradients, its backward."""
    with Exploration(Options(**({"target": "h100"} | options))) as exploration:
        value = exploration.compile(fn)(*args)
        if value.requires_grad:
            value.float().sum().backward()
    return exploration.record, value


def assert_written_for_the_gpu(record: Record, expected: list[str]) -> None:
    """Check that every stage exists, all is on the GPU from the joint graph on, and kernels link to Python."""
    assert record.problems == ()
    assert stages(record) == expected
    kernels = [kernel for kernel in record.kernels if kernel.language == "triton"]
    assert kernels
    assert {kernel.language for kernel in record.kernels} <= {"triton", "aten"}
    lines = {entity.id for artifact in record.of_stage("source") for entity in artifact.entities}
    assert all(lines & record.linked_ids(kernel.id) for kernel in kernels)
    for artifact in record.of_stage("kernels"):
        assert "@triton.jit" in artifact.text or not any(k.artifact == artifact.id for k in kernels)
        assert "empty_strided_cpu(" not in artifact.text


def devices(record: Record, stage: str) -> set[str]:
    return {e.attrs["device"] for a in record.of_stage(stage) for e in a.entities if "device" in e.attrs}


CASES: dict[str, tuple[Callable[[], Any], Callable[[], tuple[Tensor, ...]], list[str]]] = {
    "convolutions and batch norm": (
        lambda: nn.Sequential(Block(4, 8, 2), nn.MaxPool2d(2)).train(),
        lambda: (torch.randn(2, 4, 16, 16),),
        TRAINING,
    ),
    "feed-forward": (FeedForward, lambda: (torch.randn(4, 16, 64),), TRAINING),
    "embedding and scatter": (Counts, lambda: (torch.randint(0, 100, (40,)),), TRAINING),
    "attention, fused": (lambda: Attention(fused=True), lambda: (torch.randn(2, 32, 64),), TRAINING),
    "attention, written out": (lambda: Attention(fused=False), lambda: (torch.randn(2, 32, 64),), TRAINING),
    "autocast": (Autocast, lambda: (torch.randn(4, 16, 64),), TRAINING),
    "cumsum and sort": (lambda: ordered, lambda: (torch.randn(8, 100),), INFERENCE),
    "constants": (lambda: with_constants, lambda: (torch.randn(8, 4),), INFERENCE),
    "a mask of infinities": (lambda: causal, lambda: (torch.randn(2, 16, 16),), INFERENCE),
}


@pytest.mark.parametrize("case", CASES)
def test_every_stage_exists_and_value_matches_eager(case: str) -> None:
    make, inputs, expected_stages = CASES[case]
    torch.manual_seed(0)
    fn, args = make(), inputs()
    torch.manual_seed(1)
    expected = fn(*args)
    torch.manual_seed(1)
    record, value = explored(fn, *args)
    assert torch.equal(value, expected)
    assert_written_for_the_gpu(record, expected_stages)
    assert record.options.target == "h100"


@pytest.fixture(scope="module")
def mlp() -> Record:
    return explored(MLP().train(), torch.randn(8, 64))[0]


def test_graph_moves_to_gpu_between_autograd_and_inductor(mlp: Record) -> None:
    assert_written_for_the_gpu(mlp, TRAINING)
    assert devices(mlp, "captured") == devices(mlp, "pre_grad") == {"cpu"}
    for stage in ("joint", "forward", "backward", "post_grad", "ir", "fused_ir"):
        assert devices(mlp, stage) == {"cuda:0"}, stage


def test_passes_run_as_they_would_on_the_gpu(mlp: Record) -> None:
    """On a GPU a bias before pointwise operations is added by the Triton kernel; on the CPU addmm adds it."""
    kernel = next(kernel for kernel in mlp.kernels if "dropout_relu" in kernel.name)
    text = mlp[kernel.artifact].text.split("\n")[kernel.lines[0] - 1 : kernel.lines[1]]
    assert "addmm" in kernel.name
    assert sum("tl.load" in line for line in text) == 3  # the matmul, the bias, the seed


@pytest.mark.parametrize("gpu", TARGETS, ids=lambda gpu: gpu.name)
def test_kernels_name_their_gpu(gpu: Target) -> None:
    record, _ = explored(softmax_of_matmul, torch.randn(64, 128), torch.randn(128, 256), target=gpu.name)
    assert_written_for_the_gpu(record, INFERENCE)
    text = record["kernels"].text
    assert f"DeviceProperties(type='{gpu.backend}', index=0, multi_processor_count={gpu.multiprocessors}" in text
    assert f"cc={gpu.triton_arch!r}" in text
    assert f"warp_size={gpu.warp_size}" in text


def test_amd_kernels_use_amd_settings() -> None:
    """A wavefront has 64 threads, and Inductor uses the settings of a torch built for ROCm."""
    record, _ = explored(FeedForward(), torch.randn(4, 16, 64), target="mi300x")
    assert_written_for_the_gpu(record, TRAINING)
    assert all("'spill_threshold': 32" in artifact.text for artifact in record.of_stage("kernels"))


def test_dynamic_shapes() -> None:
    record, _ = explored(FeedForward(), torch.randn(4, 16, 64), dynamic=True)
    assert_written_for_the_gpu(record, TRAINING)
    assert "xnumel, " in record["kernels"].text
    assert any(isinstance(size, str) for e in record["joint"].entities for size in e.attrs.get("shape", ()))


def test_branches_move_to_the_gpu() -> None:
    record, _ = explored(either, torch.randn(8, 8))
    assert record.problems == ()
    assert {kernel.language for kernel in record.kernels} == {"triton"}
    assert {"sin", "cos"} <= {word for kernel in record.kernels for word in kernel.name.split("_")}


def test_constants_are_created_on_cpu_and_copied() -> None:
    record, _ = explored(with_constants, torch.randn(8, 4))
    copies = [entity for entity in record["inference"].entities if entity.attrs["target"] == "prims.device_put.default"]
    assert {entity.attrs["device"] for entity in copies} == {"cuda:0"}


def test_max_autotune_shows_a_template_and_its_choice() -> None:
    x = torch.randn(4, 16, 64, dtype=torch.bfloat16)
    record, _ = explored(FeedForward().bfloat16(), x, mode="max-autotune")
    assert_written_for_the_gpu(record, TRAINING)
    assert {kernel.category for kernel in record.kernels} >= {"template"}
    chosen = [decision for decision in record.decisions if decision.pass_name == "autotuning"]
    assert "the first Triton template is shown" in chosen[0].why
    assert "BLOCK_M" in chosen[0].verdict


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("dtype", "verdict"), [(torch.bfloat16, "padded"), (torch.float32, "left as it is")])
def test_padding_rule_is_reported(dtype: torch.dtype, verdict: str, dynamic: bool) -> None:
    linear = nn.Linear(1021, 2048, bias=False, dtype=dtype)
    record, _ = explored(linear, torch.randn(1024, 1021, dtype=dtype), dynamic=dynamic, grad=False)
    (decision,) = [decision for decision in record.decisions if decision.pass_name == "padding"]
    assert decision.verdict == verdict
    assert "1024×1021 by 1021×2048" in decision.why
    assert ("constant_pad_nd" in record["post_grad"].text) == (verdict == "padded")


def test_text_is_deterministic_across_explorations() -> None:
    def once(name: str) -> list[tuple[str, str]]:
        torch.manual_seed(0)
        record, _ = explored(MLP().train(), torch.randn(8, 64), target=name)
        return [(artifact.id, artifact.text) for artifact in record.artifacts]

    first, other, again = once("h100"), once("t4"), once("h100")
    assert first == again
    assert first != other


# Attention


@pytest.mark.parametrize(
    ("name", "dtype", "kernel"),
    [
        ("h100", torch.float32, "efficient"),
        ("h100", torch.bfloat16, "cudnn"),
        ("b200", torch.float16, "cudnn"),
        ("a100", torch.bfloat16, "flash"),
        ("rtx4090", torch.float16, "flash"),
        ("t4", torch.float16, "efficient"),
        ("t4", torch.bfloat16, "math"),
        ("mi300x", torch.bfloat16, "flash"),
    ],
)
def test_attention_kernel_depends_on_the_target(name: str, dtype: torch.dtype, kernel: str) -> None:
    x = torch.randn(2, 32, 64, dtype=dtype)
    record, _ = explored(Attention(fused=True).to(dtype), x, target=name, stages=("joint",))
    (decision,) = [decision for decision in record.decisions if decision.pass_name == "attention"]
    assert decision.verdict == kernel
    called = {entity.attrs["target"] for entity in record["joint"].entities}
    operator = f"aten._scaled_dot_product_{kernel}_attention.default"
    assert (operator in called) == (kernel != "math")
    assert not any("for_cpu" in name for name in called)


@pytest.mark.parametrize(
    ("shape", "options", "kernel"),
    [
        ((2, 4, 32, 64), {"is_causal": True}, "cudnn"),
        ((2, 4, 32, 64), {"attn_mask": torch.ones(32, 32, dtype=torch.bool).tril()}, "cudnn"),
        ((2, 4, 32, 64), {"dropout_p": 0.1}, "flash" if attention._IN_SIXTEENTHS else "cudnn"),
        ((2, 4, 32, 64), {"dropout_p": 0.25}, "cudnn"),
        ((2, 4, 32, 256), {}, "flash"),
        ((2, 4, 32, 60), {}, "flash"),
        ((2, 4, 30, 60), {"attn_mask": torch.ones(30, 30, dtype=torch.bool).tril()}, "math"),
        ((4, 32, 64), {}, "math"),
    ],
    ids=str,
)
def test_attention_follows_the_rules_of_the_h100(shape: tuple[int, ...], options: dict[str, Any], kernel: str) -> None:
    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, **options)

    x = torch.randn(*shape, dtype=torch.bfloat16)
    record, value = explored(attend, x, stages=("inference",))
    assert record.problems == ()
    assert value.shape == x.shape
    assert [decision.verdict for decision in record.decisions if decision.pass_name == "attention"] == [kernel]


def test_unsupported_dtype_is_a_clear_problem() -> None:
    record, _ = explored(softmax_of_matmul, *2 * [torch.randn(8, 8, dtype=torch.bfloat16)], target="t4")
    (problem,) = record.problems
    assert problem.reason.startswith("NVIDIA T4 16 GB has no bfloat16 instructions")
    assert stages(record)[-2:] == ["inference", "post_grad"]


def test_a_mask_is_padded_for_efficient_attention() -> None:
    mask = torch.ones(30, 30, dtype=torch.bool).tril()

    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    record, _ = explored(attend, torch.randn(2, 4, 30, 16), stages=("inference",))
    assert "constant_pad_nd" in record["inference"].text


def test_disabled_attention_kernel_is_respected() -> None:
    x = torch.randn(2, 32, 64, dtype=torch.bfloat16)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        record, _ = explored(Attention(fused=True).bfloat16(), x, stages=("joint",))
    (decision,) = [decision for decision in record.decisions if decision.pass_name == "attention"]
    assert decision.verdict == "math"
    assert "not flash: turned off" in decision.why


# Autocast


def dtypes(record: Record, operator: str) -> set[str]:
    return {e.attrs["dtype"] for e in record["joint"].entities if e.attrs["target"] == operator and "dtype" in e.attrs}


class Normalised(nn.Module):
    """LayerNorm, Linear, softmax and a sum, under autocast for the named device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 32)
        self.device = device

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, torch.bfloat16):
            return torch.softmax(self.linear(self.norm(x)), -1).pow(2).sum()


without_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU, a region for CUDA is torch's own, and leaves CPU tensors alone"
)


@pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=without_gpu)])
def test_autocast_casts_as_on_cuda(device: str) -> None:
    """CUDA's autocast runs the matmul in bfloat16, and powers, sums and normalisation in float32."""
    record, _ = explored(Normalised(device), torch.randn(8, 64))
    assert_written_for_the_gpu(record, TRAINING)
    assert dtypes(record, "aten.addmm.default") == {"bfloat16"}
    assert dtypes(record, "aten.pow.Tensor_Scalar") == {"float32"}


def test_cpu_autocast_stays_on_cpu() -> None:
    record, _ = explored(Normalised("cpu"), torch.randn(8, 64), target="cpu", stages=("joint",))
    assert dtypes(record, "aten.pow.Tensor_Scalar") == {"bfloat16"}


def test_autocast_attention_is_chosen_by_low_precision() -> None:
    class Rotated(Attention):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                q = self.qkv(x).view(2, 32, 4, 48).transpose(1, 2)[..., :16] * torch.ones(16)
                return functional.scaled_dot_product_attention(q, q, q)

    record, _ = explored(Rotated(fused=True), torch.randn(2, 32, 64), stages=("joint",))
    (decision,) = [decision for decision in record.decisions if decision.pass_name == "attention"]
    assert decision.verdict == "cudnn"


# The process as it was


def guard_slots() -> list[int | None]:
    return list(gpu._registry())


def process_state() -> dict[str, Any]:
    import torch._inductor.config as inductor_config
    import torch.utils._triton as probes
    from torch._dynamo import device_interface
    from torch._inductor import compile_fx
    from torch._inductor.fx_passes import joint_graph, pad_mm
    from torch._inductor.runtime import hints
    from triton.runtime import driver

    return {
        "torch.cuda": dict(vars(torch.cuda)),
        "interface": dict(vars(device_interface.CudaInterface)),
        "worker": dict(vars(device_interface.CudaInterface.Worker)),
        "workers": (device_interface.caching_worker_device_properties, device_interface.caching_worker_current_devices),
        "interfaces": dict(device_interface.device_interfaces),
        "version": dict(vars(torch.version)),
        "driver": (driver._active, driver._default),
        "has triton": (probes.has_triton(), probes.has_triton_tma_device()),
        "block": dict(hints.TRITON_MAX_BLOCK),
        "settings": inductor_config.get_config_copy(),
        "guards": guard_slots(),
        "passes": [compile_fx.partition_fn, compile_fx.compile_fx_forward, compile_fx.compile_fx_backward,
                   joint_graph.constant_fold_uniform_value, pad_mm._should_pad],
        "modes": torch.overrides._len_torch_function_stack() if hasattr(torch.overrides, "_len_torch_function_stack")
                 else torch._C._len_torch_function_stack(),
    }  # fmt: skip


@contextmanager
def untouched() -> Iterator[None]:
    _cpu_record()  # torch sets some state once, on first use
    before = process_state()
    yield
    after = process_state()
    for name, value in before.items():
        assert after[name] == value, name
    assert "cpp" in {kernel.language for kernel in _cpu_record().kernels}


def _cpu_record() -> Record:
    return explore(softmax_of_matmul, (torch.ones(4, 4), torch.ones(4, 4)), options=Options(target="cpu")).record


@pytest.mark.parametrize("name", ["h100", "mi300x"])
def test_process_is_untouched(name: str) -> None:
    with untouched():
        explored(MLP().train(), torch.randn(8, 64), target=name)


@pytest.mark.parametrize("stage", ["joint", "forward", "fused_ir", "kernels", "backward"])
def test_process_is_untouched_by_an_interrupt(stage: str) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "artifact" and event.stage == stage:
            signal.raise_signal(signal.SIGINT)

    def interrupted() -> None:
        with Exploration(Options(target="h100"), listener=interrupt) as exploration:
            exploration.compile(FeedForward())(torch.randn(4, 16, 64))

    with untouched(), pytest.raises(KeyboardInterrupt):
        interrupted()


def test_process_is_untouched_when_a_stage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.scheduler import Scheduler

    def fails(*args: object) -> None:
        raise RuntimeError("broken")

    x = torch.ones(4, 4)
    with untouched(), monkeypatch.context() as patch:
        patch.setattr(Scheduler, "codegen", fails)
        found = explore(softmax_of_matmul, (x, x), options=Options(target="h100"))
    assert torch.equal(found.value, softmax_of_matmul(x, x))
    assert "broken" in found.record.problems[0].reason


def test_torch_cuda_reports_the_target_only_inside() -> None:
    before = torch.cuda.is_available()
    with virtual_gpu(target("a100")):
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
    assert torch.cuda.is_available() == before


# The device guard


def test_device_guard_is_installed_and_removed() -> None:
    before = guard_slots()
    with gpu.no_op_cuda_guard():
        assert guard_slots()[1]
    assert guard_slots() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine with a GPU has a guard of its own")
def test_missing_guard_registry_is_a_clear_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "REGISTRY", "_ZN3c104impl7no_suchE")
    x = torch.ones(4, 4)
    found = explore(softmax_of_matmul, (x, x), options=Options(target="h100"))
    assert torch.equal(found.value, softmax_of_matmul(x, x))
    assert "needs a CUDA device guard" in found.record.problems[0].reason
    assert "captured" in stages(found.record)


def test_guard_registry_is_read_as_pointers() -> None:
    slots = gpu._registry()
    assert isinstance(slots, ctypes.Array)
    assert slots[0]  # the CPU's


def test_present_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = guard_slots()
    with gpu.no_op_cuda_guard(), nullcontext():
        assert guard_slots() == before


@pytest.mark.parametrize("gradients", [True, False])
def test_multiplication_by_zero_is_folded_without_a_gpu(gradients: bool) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + (x * 2) * 0 + y * 1

    x, y = torch.ones(2, 8, requires_grad=gradients), torch.ones(2, 8)
    if TORCH >= "2.14":  # folds them for whole numbers alone
        if gradients:
            pytest.skip("torch 2.14 keeps products of floats with 0, which may be NaN")
        x, y = x.int(), y.int()
    found = explore(f, (x, y), options=Options(target="h100"))
    assert not found.record.problems
    assert ", 0)" not in found.record["post_grad"].text
    assert torch.equal(found.value, f(x, y))
