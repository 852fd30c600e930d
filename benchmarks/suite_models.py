"""The models of `benchmarks/suite.py`: typical models on a GPU, random weights, batches that fill it or don't.

Transformers have six layers instead of the published twelve and more. Layers are alike, so ratios do not change;
compile seconds are for six layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fidelity_models import Chain, FeedForward, Recurrent
from benchmarks.models import Step


@dataclass(frozen=True)
class Workload:
    """A model of the suite; `about` describes its size and its batch in a few words."""

    about: str
    build: Callable[[], Step]


class WithLoss(nn.Module):
    """A model and its loss in one call."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, **arguments: Tensor) -> Tensor:
        return self.loss(self.model(**arguments))


def _mean(output: Any) -> Tensor:
    return output.float().mean()


def _own(output: Any) -> Tensor:
    return output.loss


def _mlp() -> Step:
    layers = (nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return Step(nn.Sequential(*layers), {"input": torch.randn(64, 784)}, _mean)


def _pointwise() -> Step:
    return Step(Chain(4096), {"x": torch.randn(8192, 4096)}, _mean)


def _feedforward() -> Step:
    return Step(FeedForward(1024), {"x": torch.randn(16, 512, 1024)}, _mean)


def _encoder() -> Step:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    return Step(nn.TransformerEncoder(layer, 6), {"src": torch.randn(16, 256, 512)}, _mean)


def _pictures(name: str, batch: int) -> Callable[[], Step]:
    def build() -> Step:
        import torchvision

        model = torchvision.models.get_model(name, weights=None)
        return Step(model, {"x": torch.randn(batch, 3, 224, 224)}, _mean)

    return build


def _vit() -> Step:
    import timm

    model = timm.create_model("vit_base_patch16_224", pretrained=False, depth=6)
    return Step(model, {"x": torch.randn(32, 3, 224, 224)}, _mean)


def _language(model: str, config: str, batch: int, length: int, **settings: Any) -> Callable[[], Step]:
    """A transformers model with its own loss.

    If transformers finds no loss by the class's name, as for GPT-2, it warns in each forward, which is a graph break;
    it ignores `loss_type` in a configuration.
    """

    def build() -> Step:
        import transformers

        made = getattr(transformers, config)(**settings)
        ids = torch.randint(0, made.vocab_size, (batch, length))
        built = getattr(transformers, model)(made)
        built.loss_type = settings.get("loss_type", getattr(built, "loss_type", None))
        return Step(built, {"input_ids": ids, "labels": ids.clone()}, _own)

    return build


class UNetBlock(nn.Module):
    """A block of a diffusion model: two residual convolutions with the time, then attention over the pixels."""

    def __init__(self, width: int = 256, heads: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(width, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        first, second = self.convolutions
        h = first(functional.silu(self.norms[0](x))) + self.time(functional.silu(time))[:, :, None, None]
        x = x + second(functional.silu(self.norms[1](h)))
        pixels = self.norms[2](x).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


def _unet() -> Step:
    return Step(UNetBlock(), {"x": torch.randn(16, 256, 32, 32), "time": torch.randn(16, 256)}, _mean)


def _lstm() -> Step:
    return Step(Recurrent("LSTM"), {"ids": torch.randint(0, 10_000, (32, 64))}, _mean)


WORKLOADS: dict[str, Workload] = {
    "MLP": Workload("the tutorials' three layers, 784 to 512 to 512 to 10, batch 64", _mlp),
    "pointwise": Workload("a chain of pointwise operations, 8192×4096", _pointwise),
    "LayerNorm+GELU": Workload("half a transformer's layer, width 1024, 16×512 tokens", _feedforward),
    "encoder": Workload("nn.TransformerEncoder, 6 layers of width 512, 16×256 tokens", _encoder),
    "ResNet-18": Workload("32 pictures of 224×224", _pictures("resnet18", 32)),
    "ResNet-50": Workload("32 pictures of 224×224", _pictures("resnet50", 32)),
    "MobileNetV3": Workload("large, 64 pictures of 224×224", _pictures("mobilenet_v3_large", 64)),
    "ConvNeXt": Workload("tiny, 32 pictures of 224×224", _pictures("convnext_tiny", 32)),
    "ViT": Workload("base with 6 layers, 32 pictures of 224×224", _vit),
    "BERT": Workload(
        "base with 6 layers, masked-language head, 16×256 tokens",
        _language("BertForMaskedLM", "BertConfig", 16, 256, num_hidden_layers=6),
    ),
    "GPT-2": Workload(
        "small with 6 layers, language head, 8×512 tokens",
        _language("GPT2LMHeadModel", "GPT2Config", 8, 512, n_layer=6, loss_type="ForCausalLM", use_cache=False),
    ),
    "Llama": Workload(
        "width 2048, 2 layers, 32 heads, 8 of keys, language head, 4×512 tokens",
        _language(
            "LlamaForCausalLM", "LlamaConfig", 4, 512, vocab_size=32000, hidden_size=2048, intermediate_size=8192,
            num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8, use_cache=False,
        ),
    ),
    "T5": Workload(
        "small, 16×128 tokens",
        _language("T5ForConditionalGeneration", "T5Config", 16, 128, use_cache=False, decoder_start_token_id=0),
    ),
    "U-Net block": Workload("two convolutions and attention of a diffusion model, 16×256×32×32", _unet),
    "LSTM": Workload("two layers of width 512, 32×64 words: TorchDynamo leaves nn.LSTM to eager", _lstm),
}  # fmt: skip
