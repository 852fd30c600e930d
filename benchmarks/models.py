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


MODELS: dict[str, Callable[[], Step]] = {
    function.__name__: function for function in (mlp, resnet18, encoder, gpt2, bert, vit)
}
TITLES = {
    "mlp": "MLP",
    "resnet18": "ResNet-18",
    "encoder": "TransformerEncoder",
    "gpt2": "GPT-2",
    "bert": "BERT",
    "vit": "ViT",
}
