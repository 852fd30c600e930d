"""torch's device-dependent choices during tracing are the target's, although tensors are on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode

from compiler.engine import Exploration
from compiler.record import Entity, Record
from compiler.record.options import Options
from compiler.targets import target
from compiler.torch_api.python_kernels import operators_with_kernel, python_kernels
from compiler.virtual_gpu import padding
from compiler.virtual_gpu.autocast import autocast_kernels
from compiler.virtual_gpu.padding import Product
from compiler.virtual_gpu.recurrent import cell_kernels
from tests.compiler.broken import TORCH

pytest.importorskip("triton", reason="Triton has no wheel for this platform")


def explored(fn: Callable[..., Any], *args: Any, **options: Any) -> Record:
    with Exploration(Options(**({"target": "h200"} | options))) as exploration:
        exploration.compile(fn)(*args)
    assert exploration.record.problems == ()
    return exploration.record


def nodes(record: Record, stage: str, target: str) -> list[Entity]:
    return [e for a in record.of_stage(stage) for e in a.entities if e.attrs.get("target") == target]


def attention(record: Record) -> list[str]:
    return [decision.verdict for decision in record.decisions if decision.pass_name == "attention"]


# Attention


def test_attention_inside_a_torch_module_uses_the_target() -> None:
    """nn.MultiheadAttention is one call in the captured graph, and calls scaled_dot_product_attention itself."""
    record = explored(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).train(), torch.randn(2, 16, 64))
    assert attention(record) == ["efficient"]
    assert nodes(record, "forward", "aten._scaled_dot_product_efficient_attention.default")


def test_row_expanded_mask_falls_back_to_math_attention() -> None:
    mask = torch.ones(16, 1, dtype=torch.bool)

    def attend(x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask.expand(2, 1, 16, 16))

    record = explored(attend, torch.randn(2, 4, 16, 64))
    assert attention(record) == ["math"]
    (decision,) = [decision for decision in record.decisions if decision.pass_name == "attention"]
    assert "the last dimension of the mask is not contiguous" in decision.why


# Autocast


def test_autocast_applies_to_gradient_sums() -> None:
    """The gradient of a bias is a sum, and CUDA's autocast sums in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        record = explored(nn.Linear(64, 32), torch.randn(8, 64))
    (bias,) = nodes(record, "joint", "aten.sum.dim_IntList")
    assert bias.attrs["dtype"] == "float32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, the region is torch's own")
def test_a_region_that_the_program_begins_for_a_gpu_counts_without_one() -> None:
    with Exploration(Options(target="h100", stages=("captured", "inference"))) as exploration, torch.no_grad():
        compiled = exploration.compile(nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32)))
        with torch.autocast("cuda", torch.bfloat16):
            compiled(torch.randn(8, 64))
    (product,) = nodes(exploration.record, "inference", "aten.addmm.default")
    (root,) = nodes(exploration.record, "inference", "aten.rsqrt.default")
    assert (product.attrs["dtype"], root.attrs["dtype"]) == ("bfloat16", "float32")
    assert exploration.record.title == "Sequential"
    with pytest.warns(UserWarning, match="Disabling autocast"):
        torch.autocast("cuda")


def test_autocast_casts_the_last_argument_first() -> None:
    """Like compiled C++; kernels are numbered in this order."""
    norm = nn.LayerNorm(64, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        record = explored(norm, torch.randn(8, 64, dtype=torch.bfloat16), grad=False)
    casts = nodes(record, "inference", "prims.convert_element_type.default")
    assert [cast.attrs["shape"] for cast in casts][:3] == [[64], [64], [8, 64]]


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda x: x.exp(), torch.float32),
        (lambda x: x.sum(0), torch.float32),
        (lambda x: torch.cumsum(x, 0, dtype=torch.bfloat16), torch.bfloat16),
        (lambda x: x.softmax(-1), torch.float32),
        (torch.linalg.vector_norm, torch.float32),
        (lambda x: x.norm(dim=0), torch.float32),
        (lambda x: torch.addcmul(x, x, x.float()), torch.float32),
        (lambda x: torch.mv(x.float(), x[0].float()), torch.bfloat16),
        (lambda x: functional.pad(x, (1, 1), mode="replicate"), torch.bfloat16),  # float32 by the CPU's autocast
    ],
)
def test_autocast_dtypes_match_cuda(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = torch.randn(16, 16, dtype=torch.bfloat16)
    with python_kernels(autocast_kernels()), enable_python_dispatcher(), torch.autocast("cpu", torch.bfloat16):
        assert call(x).dtype == dtype


def test_interpolation_is_traced_in_the_cuda_dtype() -> None:
    """AOTAutograd's trace decomposes it before autocast sees it, so it stays in bfloat16.

    Eager mode on CUDA uses float32: all of torch's own backends except TorchDynamo's "eager" differ from it here.
    """

    def enlarged(device: str) -> torch.dtype:
        x = torch.empty(2, 3, 8, 8, dtype=torch.bfloat16, device=device)
        return functional.interpolate(x, (16, 16), mode="bilinear").dtype

    with FakeTensorMode(), cuda_autocast():
        assert enlarged("cuda") == torch.float32
        with enable_python_dispatcher():
            assert enlarged("cuda") == torch.bfloat16
    with python_kernels(autocast_kernels()), enable_python_dispatcher(), torch.autocast("cpu", torch.bfloat16):
        assert enlarged("cpu") == torch.bfloat16


@contextmanager
def cuda_autocast() -> Iterator[None]:
    """torch.autocast("cuda", torch.bfloat16), which does nothing without a GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def test_every_cuda_float32_autocast_operator_is_known() -> None:
    """Operators of CUDA's own list without a rule here are cast to the low precision, as by the CPU's autocast."""
    from compiler.virtual_gpu import autocast

    treated = {operator.name() for operator, _ in autocast._kernels()}
    left = operators_with_kernel("AutocastCUDA") - treated
    products = ("conv", "mm", "matmul", "linear", "cudnn", "vecdot", "attention", "binary_cross_entropy")
    assert [name for name in left if not any(product in name for product in products)] == []


def test_autocast_casts_inside_cpu_composite_operators() -> None:
    """The CPU's autocast casts cross_entropy; CUDA's casts the log_softmax inside."""
    x, words = torch.randn(8, 16, dtype=torch.bfloat16), torch.randint(0, 16, (8,))
    with python_kernels(autocast_kernels()), enable_python_dispatcher(), torch.autocast("cpu", torch.bfloat16):
        assert functional.cross_entropy(x, words).dtype == torch.float32


# Decompositions


def test_convolution_bias_gradient_is_a_sum() -> None:
    record = explored(nn.Conv2d(3, 8, 3), torch.randn(2, 3, 8, 8))
    assert nodes(record, "joint", "aten.sum.dim_IntList")


def test_random_masks_are_drawn_by_the_kernel() -> None:
    """As in stochastic depth; on the CPU, ATen draws them."""

    def drop(x: Tensor) -> Tensor:
        return x * torch.empty(8, 1).bernoulli_(0.8)

    record = explored(drop, torch.randn(8, 64))
    assert "prims.inductor_random.default" in record["post_grad"].text
    assert not [kernel for kernel in record.kernels if kernel.language == "aten" and "bernoulli" in kernel.name]


def test_small_matmuls_are_not_decomposed() -> None:
    """On the CPU a matmul of two vectors becomes a sum of products."""
    record = explored(lambda a, b: a @ b, torch.randn(1, 64), torch.randn(64, 1))
    assert nodes(record, "inference", "aten.mm.default")


def test_cpu_decompositions_are_unchanged_for_cpu() -> None:
    record = explored(lambda a, b: a @ b, torch.randn(1, 64), torch.randn(64, 1), target="cpu")
    assert not nodes(record, "inference", "aten.mm.default")


# Recurrent layers


class Cells(nn.Module):
    """Two steps of a recurrent cell."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        state = self.cell(x[1], self.cell(x[0]))
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.parametrize(
    ("kind", "operator", "backward"),
    [
        ("LSTMCell", "aten._thnn_fused_lstm_cell.default", "aten._thnn_fused_lstm_cell_backward_impl.default"),
        ("GRUCell", "aten._thnn_fused_gru_cell.default", "aten._thnn_fused_gru_cell_backward.default"),
    ],
)
def test_rnn_cells_are_one_fused_operator(kind: str, operator: str, backward: str) -> None:
    record = explored(Cells(kind), torch.randn(2, 4, 8))
    assert len(nodes(record, "forward", operator)) == 2
    assert len(nodes(record, "backward", backward)) == 2


@pytest.fixture
def rnns_allowed() -> Iterator[None]:
    import torch._dynamo

    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.usefixtures("rnns_allowed")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_captured_rnn_layers_are_unrolled(kind: str) -> None:
    layer = getattr(nn, kind)(8, 16)
    record = explored(lambda x: layer(x)[0], torch.randn(3, 4, 8), grad=False)
    assert not nodes(record, "inference", "aten.mkldnn_rnn_layer.default")
    assert len(nodes(record, "inference", "aten.tanh.default")) >= 3


def test_recurrent_layer_is_reported_as_left_to_eager() -> None:
    layer = nn.LSTM(8, 16)
    with Exploration(Options(target="h200")) as exploration:
        exploration.compile(lambda x: layer(x)[0])(torch.randn(3, 4, 8))
    [problem] = exploration.record.problems
    assert "`layer(x)` calls a recurrent module, which torch.compile leaves to eager" in problem.reason


# Kernels in Python


def test_python_kernels_are_unregistered() -> None:
    x = torch.randn(4, 4, dtype=torch.bfloat16)
    kernels = {**autocast_kernels(), **cell_kernels()}
    before = [dict(operator.py_kernels) for operator, _ in kernels]
    gru = "aten::_thnn_fused_gru_cell"
    has_meta = torch._C._dispatch_has_kernel_for_dispatch_key(gru, DispatchKey.Meta.name)
    assert has_meta == (TORCH >= "2.15")
    with torch.autocast("cpu", torch.bfloat16):
        with python_kernels(kernels):
            assert x.exp().dtype == torch.float32
        with pytest.raises(ZeroDivisionError), python_kernels(kernels):
            raise ZeroDivisionError
        assert x.exp().dtype == torch.bfloat16
    assert [dict(operator.py_kernels) for operator, _ in kernels] == before
    assert torch._C._dispatch_has_kernel_for_dispatch_key(gru, DispatchKey.Meta.name) == has_meta


# Layouts and padding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_have_the_cudnn_layout(dtype: torch.dtype) -> None:
    """Inductor uses channels last, and cuDNN keeps it."""
    record = explored(
        nn.Sequential(nn.Conv2d(64, 128, 3), nn.ReLU()).to(dtype), torch.randn(8, 64, 16, 16, dtype=dtype)
    )
    assert "(25088, 1, 1792, 128)" in record["kernels[0/0 forward]"].text


H200 = target("h200")


@pytest.mark.parametrize(
    ("product", "padded"),
    [
        (Product((256, 50257, 768), (50257, 768, 768), torch.bfloat16, 0, 2), True),  # GPT-2's head, backward
        (Product((50257, 256, 768), (50257, 768, 768), torch.bfloat16, 256 * 50257), True),
        (Product((256, 768, 50257), (768, 768, 50257), torch.bfloat16, 768 * 50257), False),  # forward, 256 words
        (Product((1024, 768, 50257), (768, 768, 50257), torch.bfloat16, 768 * 50257), True),  # forward, 1,024
        (Product((256, 30522, 768), (30522, 768, 768), torch.bfloat16, 0, 2), False),  # BERT's head, backward
        (Product((1024, 30522, 768), (30522, 768, 768), torch.bfloat16, 0, 2), True),
        (Product((30522, 1024, 768), (30522, 768, 768), torch.bfloat16, 1024 * 30522), False),
        (Product((1024, 768, 30522), (768, 768, 30522), torch.bfloat16, 768 * 30522), False),  # forward
        (Product((4, 2048, 1000), (2048, 2048, 1000), torch.bfloat16, 4 * 2048), False),  # only the batch is unaligned
        (Product((64, 10, 1), (10, 10, 1), torch.bfloat16, 650), False),  # the tutorials' MLP
        (Product((1024, 768, 50257), (768, 768, 50257), torch.float32, 768 * 50257), False),
    ],
)
def test_padding_choice_matches_inductor_timing_on_h200(product: Product, padded: bool) -> None:
    assert (product.reason_not_padded(H200) == "") == padded


def test_padding_copies_only_what_cannot_be_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "excludes_padding_time", lambda _match, name: name == "mat1")
    left, right = (torch.empty(sizes, dtype=torch.bfloat16, device="meta") for sizes in ((512, 50257), (50257, 768)))
    found = padding._product(None, left, right)
    assert found == Product((512, 50257, 768), (50257, 768, 768), torch.bfloat16, copied=50257 * 768, filled=1)
