"""Models that `benchmarks/backend_correctness.py` and the backend's tests train: each in two sizes, without dropout.

There is no dropout because our random numbers on a GPU differ from eager's. All models come from transformers or are
written here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.architectures import built
from benchmarks.suite_models import UNetBlock
from tests.compiler.models import MLP, Block, ResNet


@dataclass(frozen=True)
class Trial:
    """A model, its arguments, and the loss of its output."""

    model: nn.Module
    arguments: dict[str, Any]
    loss: Callable[[Any], Tensor]

    def to(self, device: str, dtype: torch.dtype = torch.float32) -> Trial:
        """The same on a device, its floating point numbers in a dtype."""
        moved = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in self.arguments.items()
        }
        return Trial(self.model.to(device, dtype), moved, self.loss)


def result(output: Any) -> Tensor:
    """The main tensor of a model's output."""
    if isinstance(output, tuple):
        output = output[0]
    found: Tensor = getattr(output, "logits", getattr(output, "sample", output))
    return found


def _own(output: Any) -> Tensor:
    loss: Tensor = output.loss
    return loss


def _waves(output: Any) -> Tensor:
    """The distance from a wave: a target to learn without labels."""
    found = result(output)
    wave = torch.linspace(0, 9, found.numel(), device=found.device).sin().view(found.shape)
    return (found.float() - wave).square().mean() if found.dtype != torch.float64 else (found - wave).square().mean()


def _mlp(small: bool) -> Trial:
    return Trial(MLP(), {"x": torch.randn(8 if small else 64, 64)}, _waves)


def _language(model: str, config: str, batch: int, length: int, **settings: Any) -> Trial:
    import transformers

    made = getattr(transformers, config)(**settings)
    ids = torch.randint(0, made.vocab_size, (batch, length))
    return Trial(getattr(transformers, model)(made), {"input_ids": ids, "labels": ids.clone()}, _own)


def _bert(small: bool) -> Trial:
    layers, width, words = (1, 32, 97) if small else (4, 256, 5000)
    return _language(
        "BertForMaskedLM", "BertConfig", *((2, 7) if small else (8, 128)), vocab_size=words, hidden_size=width,
        num_hidden_layers=layers, num_attention_heads=4, intermediate_size=2 * width, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def _gpt2(small: bool) -> Trial:
    layers, width, words = (1, 32, 97) if small else (4, 256, 5000)
    return _language(
        "GPT2LMHeadModel", "GPT2Config", *((2, 16) if small else (8, 128)), vocab_size=words, n_embd=width,
        n_layer=layers, n_head=2, n_positions=128, loss_type="ForCausalLM", use_cache=False, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip


def _llama(small: bool) -> Trial:
    layers, width, words = (1, 32, 97) if small else (3, 256, 5000)
    return _language(
        "LlamaForCausalLM", "LlamaConfig", *((2, 9) if small else (8, 128)), vocab_size=words, hidden_size=width,
        intermediate_size=3 * width, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        use_cache=False,
    )  # fmt: skip


def _t5(small: bool) -> Trial:
    """T5 version 1.1, because its activation is smooth: the first version's ReLU amplifies rounding errors."""
    layers, width, words = (1, 16, 97) if small else (3, 128, 5000)
    return _language(
        "T5ForConditionalGeneration", "T5Config", *((2, 6) if small else (8, 96)), vocab_size=words, d_model=width,
        d_kv=8, d_ff=2 * width, num_layers=layers, num_heads=2, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, feed_forward_proj="gated-gelu",
    )  # fmt: skip


def _pictures(model: str, config: str, batch: int, side: int, **settings: Any) -> Trial:
    import transformers

    made = getattr(transformers, config)(num_labels=10, **settings)
    arguments = {"pixel_values": torch.randn(batch, 3, side, side), "labels": torch.randint(0, 10, (batch,))}
    return Trial(getattr(transformers, model)(made), arguments, _own)


def _vit(small: bool) -> Trial:
    layers, width, side = (1, 16, 8) if small else (4, 192, 64)
    return _pictures(
        "ViTForImageClassification", "ViTConfig", 2 if small else 16, side, image_size=side, patch_size=side // 4 or 1,
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def _convnext(small: bool) -> Trial:
    widths, depths = ([8, 16], [1, 1]) if small else ([64, 128, 256], [2, 2, 2])
    return _pictures(
        "ConvNextForImageClassification", "ConvNextConfig", 2 if small else 16, 16 if small else 64,
        hidden_sizes=widths, depths=depths, num_stages=len(widths), patch_size=4, layer_scale_init_value=0.1,
    )  # fmt: skip


class Inverted(nn.Module):
    """MobileNetV2's block: expand, depthwise convolution, project (https://arxiv.org/abs/1801.04381)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 3 * width
        self.layers = nn.Sequential(
            nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(),
            nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _mobilenet(small: bool) -> Trial:
    """A MobileNet with a stable eager error in its large size.

    Weights preserve the variance: with transformers' weights, activations vanish layer by layer, and gradients are so
    large that a training step amplifies rounding errors into a different model. The activation is smooth: of the ten
    million values that ReLU6 gets, rounding moves a few across 0 or 6, and each changes a gradient by a thousandth.
    """
    if small:
        return Trial(nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Inverted(8)), {"input": torch.randn(2, 3, 12, 12)}, _waves)
    made = _pictures(
        "MobileNetV2ForImageClassification", "MobileNetV2Config", 16, 96, depth_multiplier=1.0, image_size=96,
        classifier_dropout_prob=0.0, hidden_act="silu",
    )  # fmt: skip
    for module in made.model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return made


class SmoothBlock(Block):
    """ResNet's block with a smooth activation."""

    def forward(self, x: Tensor) -> Tensor:
        y = functional.silu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.silu(y + self.shortcut(x))


def _resnet(small: bool) -> Trial:
    """A ResNet, smooth in its large size.

    Of the three million values that ReLU gets, rounding moves a few across 0, and each changes a gradient by a
    thousandth; and sometimes max pooling picks another element.
    """
    if small:
        return Trial(nn.Sequential(Block(3, 8, 1), Block(8, 8, 2)), {"input": torch.randn(4, 3, 8, 8)}, _waves)
    made = ResNet(2)
    made.stem[2], made.stem[3] = nn.SiLU(), nn.AvgPool2d(3, 2, 1)
    convolutions = [block.conv1 for block in made.blocks if isinstance(block, Block)]
    made.blocks = nn.Sequential(*(SmoothBlock(c.in_channels, c.out_channels, c.stride[0]) for c in convolutions))
    return Trial(made, {"x": torch.randn(16, 3, 64, 64)}, _waves)


def _unet(small: bool) -> Trial:
    width, side = (32, 6) if small else (128, 16)
    return Trial(UNetBlock(width, 2), {"x": torch.randn(2, width, side, side), "time": torch.randn(2, width)}, _waves)


class Cells(nn.Module):
    """An LSTM stepped by hand over a sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        assert state is not None
        found: Tensor = self.head(state[0])
        return found


def _cells(small: bool) -> Trial:
    return Trial(
        Cells(12 if small else 128), {"x": torch.randn(3, 3, 12) if small else torch.randn(32, 16, 128)}, _waves
    )


def _lstm(small: bool) -> Trial:
    """A model with nn.LSTM, which TorchDynamo leaves to eager mode; it compiles the code around it."""
    width, x = (12, torch.randn(3, 5, 12)) if small else (128, torch.randn(32, 16, 128))
    return Trial(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LSTM(width, width, 2)), {"input": x}, _waves)


class Messages(nn.Module):
    """A graph network: each node takes the mean of its neighbours' messages, twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.update = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        start, end = edges
        count = torch.zeros(len(x), 1, dtype=x.dtype, device=x.device)
        count = count.index_add(0, end, torch.ones_like(end, dtype=x.dtype)[:, None]).clamp(min=1)
        for message, update in zip(self.message, self.update, strict=True):
            sent = torch.tanh(message(x))[start]
            total = torch.zeros_like(x).scatter_add(0, end[:, None].expand_as(sent), sent.to(x.dtype))
            x = x + functional.gelu(update(torch.cat([x, total / count], -1)))
        return x


def _messages(small: bool) -> Trial:
    nodes, width, edges = (10, 8, 30) if small else (2000, 64, 20000)
    return Trial(
        Messages(width), {"x": torch.randn(nodes, width), "edges": torch.randint(0, nodes, (2, edges))}, _waves
    )


TRIALS: dict[str, Callable[[bool], Trial]] = {
    "MLP": _mlp,
    "BERT": _bert,
    "GPT-2": _gpt2,
    "Llama": _llama,
    "T5": _t5,
    "ViT": _vit,
    "ResNet": _resnet,
    "ConvNeXt": _convnext,
    "MobileNet": _mobilenet,
    "LSTM cells": _cells,
    "nn.LSTM": _lstm,
    "U-Net block": _unet,
    "GNN": _messages,
}


RATES = ("p", "drop_prob", "drop_rate")
"""Names of the attributes by which modules of PyTorch, timm, torchvision and transformers drop values or samples."""


def trial(name: str, small: bool) -> Trial:
    """A model of this file or of `benchmarks.architectures`, with the same weights and inputs each time, no dropout."""
    torch.manual_seed(0)
    made = TRIALS[name](small) if name in TRIALS else Trial(*built(name), _waves)
    for module in made.model.modules():
        vars(module).update({name: 0.0 for name in RATES if isinstance(vars(module).get(name), float)})
    return made
