"""Whole models, in inference and in training: losses follow eager's step by step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from compiler.backend import tcompile
from tests.compiler.models import MLP, Block

STEPS = 5


def small_gpt2() -> tuple[nn.Module, dict[str, Any]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=97, n_positions=32)
    ids = torch.randint(0, 97, (2, 16))
    return GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def scatter_model() -> tuple[nn.Module, dict[str, Any]]:
    return Graph(), {"x": torch.randn(10, 8), "edges": torch.randint(0, 10, (2, 30))}


class Graph(nn.Module):
    """Each node takes the mean of what its neighbours send."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(8, 8), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = torch.tanh(self.message(x))[edges[0]]
        total = torch.zeros_like(x).index_add(0, edges[1], sent)
        count = torch.zeros(len(x), 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1))
        found: torch.Tensor = self.update(torch.cat([x, total / count.clamp(min=1)], -1))
        return found


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "MLP with dropout": lambda: (MLP(), {"x": torch.randn(8, 64)}),
    "an encoder layer": lambda: (
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        {"src": torch.randn(2, 5, 16)},
    ),
    "residual blocks": lambda: (nn.Sequential(Block(3, 8, 1), Block(8, 8, 2)), {"input": torch.randn(4, 3, 8, 8)}),
    "GPT-2": small_gpt2,
    "messages on a graph": scatter_model,
    "an LSTM": lambda: (nn.LSTM(8, 12, 2), {"input": torch.randn(5, 3, 8)}),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[nn.Module, dict[str, Any]]:
    torch.compiler.reset()
    torch.manual_seed(0)
    return MODELS[request.param]()


def result(output: Any) -> torch.Tensor:
    if isinstance(output, tuple):
        output = output[0]
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output
    return found


def loss_of(output: Any) -> torch.Tensor:
    loss: torch.Tensor | None = getattr(output, "loss", None)
    return result(output).square().mean() if loss is None else loss


def test_inference_gives_what_eager_mode_gives(model: tuple[nn.Module, dict[str, Any]]) -> None:
    module, arguments = model[0].eval(), model[1]
    with torch.no_grad():
        found = result(torch.compile(module, backend=tcompile)(**arguments))
        torch.testing.assert_close(found, result(module(**arguments)), rtol=1e-4, atol=1e-5)


def losses(module: nn.Module, call: Callable[..., Any], arguments: dict[str, Any]) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(call(**arguments))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_losses_in_training_follow_eagers(model: tuple[nn.Module, dict[str, Any]]) -> None:
    module, arguments = model[0].train(), model[1]
    twin = copy.deepcopy(module)
    expected = losses(module, module, arguments)
    found = losses(twin, torch.compile(twin, backend=tcompile, options={"random": "eager"}), arguments)
    assert found == pytest.approx(expected, rel=1e-4)
    for ours, theirs in zip(twin.buffers(), module.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_training_in_mixed_precision_follows_eagers() -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    module, arguments = small_gpt2()
    module.eval()
    twin = copy.deepcopy(module)

    def autocast(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(**arguments: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return call(**arguments)

        return run

    expected = losses(module, autocast(module), arguments)
    found = losses(twin, autocast(torch.compile(twin, backend=tcompile)), arguments)
    assert found == pytest.approx(expected, rel=2e-2)
