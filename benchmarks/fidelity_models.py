"""The models of `benchmarks/fidelity.py`: typical models with random weights and full widths.

A repeated layer occurs three times (two in the Llama block): the first, the last and one between have all the different
kernels. Batches are small multiples of 8, as is usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models import Step

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def _mean(output: Any) -> Tensor:
    return output.float().mean()


def _own(output: Any) -> Tensor:
    return output.loss


def mlp() -> Step:
    """The tutorials' MLP with dropout, batch 64."""
    from tests.compiler.models import MLP

    return Step(MLP(), {"x": torch.randn(64, 64)}, _mean)


class Chain(nn.Module):
    """Pointwise operations only, with a scale and a shift to learn."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(x * self.scale + self.shift)
        return torch.where(y > 0, torch.tanh(y), torch.expm1(y)) * torch.sigmoid(x) + 0.5 * x.abs().sqrt()


def pointwise() -> Step:
    """A chain of pointwise operations on 512×1024 numbers."""
    return Step(Chain(1024), {"x": torch.randn(512, 1024)}, _mean)


class FeedForward(nn.Module):
    """LayerNorm, Linear, GELU, Linear, with a residual connection: half a transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def feedforward() -> Step:
    """LayerNorm and GELU, width 768, 8×128 tokens."""
    return Step(FeedForward(768), {"x": torch.randn(8, 128, 768)}, _mean)


def _pictures(model: nn.Module) -> Step:
    return Step(model, {"x": torch.randn(8, 3, 224, 224)}, _mean)


def _of_torchvision(name: str) -> Callable[[], Step]:
    def build() -> Step:
        import torchvision

        return _pictures(torchvision.models.get_model(name, weights=None))

    return build


def vit() -> Step:
    """ViT base of timm, 3 layers, 8 pictures of 224×224."""
    import timm

    return _pictures(timm.create_model("vit_base_patch16_224", pretrained=False, depth=3))


def _of_transformers(model: str, config: PretrainedConfig, vocabulary: int, length: int = 128) -> Step:
    import transformers

    ids = torch.randint(0, vocabulary, (8, length))
    return Step(getattr(transformers, model)(config), {"input_ids": ids, "labels": ids.clone()}, _own)


def bert() -> Step:
    """BERT base with its masked-language head, 3 layers, 8×128 tokens."""
    from transformers import BertConfig

    return _of_transformers("BertForMaskedLM", BertConfig(num_hidden_layers=3), 30522)


def gpt2() -> Step:
    """GPT-2 small with its language head, 3 layers, 8×128 tokens."""
    from transformers import GPT2Config

    return _of_transformers("GPT2LMHeadModel", GPT2Config(n_layer=3, loss_type="ForCausalLM"), 50257)


def gpt2_with_checkpoints() -> Step:
    """The same GPT-2, whose layers are computed again in the backward."""
    step = gpt2()
    step.model.gradient_checkpointing_enable({"use_reentrant": False})
    return step


def llama() -> Step:
    """Two layers of Llama 3.2 1B: width 2048, 32 heads, 8 of keys; 8×128 tokens."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=8192, num_hidden_layers=2, num_attention_heads=32,
        num_key_value_heads=8, use_cache=False,
    )  # fmt: skip
    ids = torch.randint(0, 32000, (8, 128))
    return Step(LlamaModel(config), {"input_ids": ids}, lambda output: _mean(output.last_hidden_state))


class Recurrent(nn.Module):
    """An embedding, two recurrent layers, and a head over the vocabulary."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.layers = getattr(nn, kind)(256, 512, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(512)
        self.head = nn.Linear(512, 10_000)

    def forward(self, ids: Tensor) -> Tensor:
        found, _state = self.layers(self.embedding(ids))
        return self.head(functional.gelu(self.norm(found)))


class Stepped(nn.Module):
    """A recurrent layer stepped by hand, as for a decoder."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.cell = getattr(nn, kind)(256, 512)
        self.head = nn.Linear(512, 10_000)

    def forward(self, ids: Tensor) -> Tensor:
        state = None
        for word in self.embedding(ids).unbind(1):
            state = self.cell(word, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


def lstm() -> Step:
    """Plain nn.LSTM: TorchDynamo leaves it to eager, and compiles the code around it."""
    return Step(Recurrent("LSTM"), {"ids": torch.randint(0, 10_000, (8, 16))}, _mean)


def _captured(kind: str) -> Callable[[], Step]:
    """A recurrent module with torch._dynamo.config.allow_rnn, so that TorchDynamo captures it."""

    def build() -> Step:
        import torch._dynamo

        torch._dynamo.config.allow_rnn = True
        return Step(Recurrent(kind), {"ids": torch.randint(0, 10_000, (8, 16))}, _mean)

    return build


def _stepped(kind: str) -> Callable[[], Step]:
    return lambda: Step(Stepped(kind), {"ids": torch.randint(0, 10_000, (8, 8))}, _mean)


def encoder() -> Step:
    """nn.TransformerEncoder as in "Attention is all you need": 3 layers of width 512, 8×128 tokens."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    return Step(nn.TransformerEncoder(layer, 3), {"src": torch.randn(8, 128, 512)}, _mean)


class DistanceAttention(nn.Module):
    """Causal FlexAttention with a penalty for distance, another for each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        from torch.nn.attention.flex_attention import flex_attention

        query, key, value = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = flex_attention(query, key, value, score_mod=_causal_with_distance)
        return self.out(mixed.transpose(1, 2).flatten(2))


def _causal_with_distance(score: Tensor, _batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    near = score - (row - column) * torch.exp2(-(head + 1.0))
    return torch.where(row >= column, near, -float("inf"))


def distance_attention() -> Step:
    """FlexAttention of width 512, 8 heads, 4×256 tokens."""
    return Step(DistanceAttention(512, 8), {"x": torch.randn(4, 256, 512)}, _mean)


class UserKernel(nn.Module):
    """A Triton kernel of the user between two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        from benchmarks.fidelity_triton import square_relu

        return self.down(functional.gelu(square_relu(self.up(x)) + 1))


def user_kernel() -> Step:
    """A `torch.library.triton_op` with a backward, width 512, 1,024 rows."""
    return Step(UserKernel(512), {"x": torch.randn(1024, 512)}, _mean)


class Regions(nn.Module):
    """Three equal residual layers, each a region that is compiled once (`torch.compiler.nested_compile_region`)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FeedForward(width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = _region(layer, x)
        return x


@torch.compiler.nested_compile_region
def _region(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def regions() -> Step:
    """Regional compilation: width 512, 1,024 rows."""
    return Step(Regions(512), {"x": torch.randn(1024, 512)}, _mean)


def int8_weights() -> Step:
    """Weights in torchao's int8, which are not trained, and an input that is: width 512, 1,024 rows."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = FeedForward(512).requires_grad_(False)
    quantize_(model, Int8WeightOnlyConfig())
    return Step(model, {"x": torch.randn(1024, 512, requires_grad=True)}, _mean)


MODELS: dict[str, Callable[[], Step]] = {
    "MLP": mlp,
    "pointwise": pointwise,
    "LayerNorm+GELU": feedforward,
    "ResNet-18": _of_torchvision("resnet18"),
    "ResNet-50": _of_torchvision("resnet50"),
    "ViT": vit,
    "BERT": bert,
    "GPT-2": gpt2,
    "Llama": llama,
    "ConvNeXt": _of_torchvision("convnext_tiny"),
    "MobileNetV3": _of_torchvision("mobilenet_v3_large"),
    "LSTM": lstm,
    "LSTM-captured": _captured("LSTM"),
    "GRU-captured": _captured("GRU"),
    "LSTMCell": _stepped("LSTMCell"),
    "GRUCell": _stepped("GRUCell"),
    "encoder": encoder,
    "GPT-2-checkpointed": gpt2_with_checkpoints,
    "FlexAttention": distance_attention,
    "Triton-kernel": user_kernel,
    "regions": regions,
    "int8-weights": int8_weights,
}
