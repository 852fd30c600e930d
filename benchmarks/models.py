"""The benchmarks' models: one training step of real models, with random weights and typical sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Step:
    """A training step: `model` in train mode, its arguments, and the loss of its output."""

    model: nn.Module
    arguments: dict[str, Any]
    loss: Callable[[Any], Tensor]

    def run(self, call: Callable[..., Any]) -> None:
        """Run forward and backward, with `call` instead of the model."""
        self.loss(call(**self.arguments)).backward()

    def to(self, device: str) -> Step:
        return Step(
            self.model.to(device), {name: value.to(device) for name, value in self.arguments.items()}, self.loss
        )


def _own(output: Any) -> Tensor:
    """The loss that a transformers model computes itself from labels."""
    return output.loss


def mlp() -> Step:
    """The tutorials' MLP: Linear-Dropout-ReLU twice, Linear; batch 8."""
    import torch

    from tests.compiler.models import MLP

    return Step(MLP().train(), {"x": torch.randn(8, 64)}, lambda output: output.sum())


def resnet18() -> Step:
    """ResNet-18, batch 4 of 224×224 pictures."""
    import torch

    from tests.compiler.models import ResNet

    return Step(ResNet(2).train(), {"x": torch.randn(4, 3, 224, 224)}, lambda output: output.sum())


def encoder() -> Step:
    """nn.TransformerEncoder as in "Attention is all you need": 6 layers of width 512, sequence 128, batch 4."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.1, batch_first=True)
    return Step(nn.TransformerEncoder(layer, 6).train(), {"src": torch.randn(4, 128, 512)}, lambda output: output.sum())


def gpt2() -> Step:
    """GPT-2 small: 12 layers, sequence 128."""
    from tests.compiler import models

    model, arguments = models.gpt2(layers=12)
    return Step(model, arguments, _own)


def bert() -> Step:
    """BERT base with its masked-language head: 12 layers, sequence 128."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    ids = torch.randint(0, 30522, (1, 128))
    return Step(BertForMaskedLM(BertConfig()).train(), {"input_ids": ids, "labels": ids}, _own)


def vit() -> Step:
    """ViT base for 1,000 classes: 12 layers, batch 2 of 224×224 pictures."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    arguments = {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.randint(0, 1000, (2,))}
    return Step(ViTForImageClassification(ViTConfig(num_labels=1000)).train(), arguments, _own)


def resnet101() -> Step:
    """ResNet-101 for 1,000 classes, batch 2 of 224×224 pictures."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    arguments = {"pixel_values": torch.randn(2, 3, 224, 224), "labels": torch.randint(0, 1000, (2,))}
    return Step(
        ResNetForImageClassification(ResNetConfig(depths=[3, 4, 23, 3], num_labels=1000)).train(), arguments, _own
    )


def densenet201() -> Step:
    """DenseNet-201 (Huang et al., 2017, https://arxiv.org/abs/1608.06993), batch 2 of 224×224 pictures."""
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.narrow = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 128, 1, bias=False))
            self.grow = nn.Sequential(nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False))

        def forward(self, features: list[Tensor]) -> Tensor:
            return self.grow(self.narrow(torch.cat(features, 1)))

    class DenseBlock(nn.Module):
        def __init__(self, width: int, count: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(width + 32 * number) for number in range(count))

        def forward(self, x: Tensor) -> Tensor:
            features = [x]
            for layer in self.layers:
                features.append(layer(features))
            return torch.cat(features, 1)

    parts: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    width = 64
    for count in (6, 12, 48):
        parts.append(DenseBlock(width, count))
        width += 32 * count
        parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
        width //= 2
    parts += [DenseBlock(width, 32), nn.BatchNorm2d(width + 1024), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*parts, nn.Linear(width + 1024, 1000))
    return Step(model.train(), {"input": torch.randn(2, 3, 224, 224)}, lambda output: output.sum())


def llama32() -> Step:
    """A Llama with 32 layers of width 256, sequence 128."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = LlamaConfig(num_hidden_layers=32, vocab_size=1024, use_cache=False, **sizes)
    ids = torch.randint(0, 1024, (1, 128))
    return Step(LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}, _own)


def vit_large() -> Step:
    """ViT large for 1,000 classes: 24 layers, batch 1 of 224×224 pictures."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    arguments = {"pixel_values": torch.randn(1, 3, 224, 224), "labels": torch.randint(0, 1000, (1,))}
    return Step(ViTForImageClassification(ViTConfig(num_labels=1000, **sizes)).train(), arguments, _own)


MODELS: dict[str, Callable[[], Step]] = {
    function.__name__: function
    for function in (mlp, resnet18, encoder, gpt2, bert, vit, resnet101, densenet201, llama32, vit_large)
}
TITLES = {
    "mlp": "MLP",
    "resnet18": "ResNet-18",
    "encoder": "TransformerEncoder",
    "gpt2": "GPT-2",
    "bert": "BERT",
    "vit": "ViT",
    "resnet101": "ResNet-101",
    "densenet201": "DenseNet-201",
    "llama32": "Llama, 32 layers",
    "vit_large": "ViT-L",
}
