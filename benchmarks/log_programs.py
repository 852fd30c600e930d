"""Programs whose logs `benchmarks/logs.py` reads: `python -m benchmarks.log_programs NAME [ARGUMENT]`.

They run on the GPU if there is one, and otherwise need a C++ compiler.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, -1)
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """A language model."""

    def __init__(self, width: int = 64, layers: int = 2, words: int = 100) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Convolution(nn.Module):
    """A block of a network for images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


def _transformer(layers: int = 2, width: int = 64) -> Callable[[int], None]:
    model = Transformer(width, layers).to(DEVICE)
    compiled = torch.compile(model)

    def step(length: int) -> None:
        tokens = torch.randint(0, 100, (4, length), device=DEVICE)
        F.cross_entropy(compiled(tokens).flatten(0, 1), tokens.flatten()).backward()

    return step


def transformer() -> None:
    """Training at three lengths."""
    step = _transformer()
    for length in (16, 24, 32):
        step(length)


def small_transformer() -> None:
    """Training of one small layer: a log with every stage that is read in a third of a second."""
    _transformer(layers=1, width=32)(16)


def images() -> None:
    """Training and evaluation."""
    model = torch.compile(Convolution().to(DEVICE))
    model(torch.randn(2, 3, 32, 32, device=DEVICE)).sum().backward()
    model.eval()
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32, device=DEVICE))


def pieces() -> None:
    """Graph breaks, recompilations, and a branch on data."""

    def breaks(x: Tensor, factor: float) -> Tensor:
        y = x.cos() * factor
        print("between")
        return y * y.sum().item() + torch.softmax(x, -1)

    compiled = torch.compile(breaks)
    for rows, factor in ((8, 1.0), (9, 1.0), (9, 2.0), (12, 3.0)):
        compiled(torch.randn(rows, 16, device=DEVICE), factor)


def steps(count: str) -> None:
    """Make a number of training steps of a compiled model, with the same work each time."""
    torch.manual_seed(0)
    step = _transformer(layers=4, width=128)
    for _ in range(int(count)):
        step(64)


def timed_steps(seconds: str) -> None:
    """Training steps for these seconds; prints how many."""
    step = _transformer(layers=4, width=128)
    step(64)
    end, count = time.perf_counter() + float(seconds), 0
    while time.perf_counter() < end:
        step(64)
        count += 1
    print(count)


def profiled(path: str) -> None:
    """Training steps with a break and a recompilation, profiled; the trace is written to the path."""

    class WithBreak(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.scale = Transformer(256, 4), nn.Linear(100, 100)

        def forward(self, tokens: Tensor) -> Tensor:
            found = self.model(tokens)
            torch._dynamo.graph_break()
            return self.scale(torch.softmax(found, -1)).relu()

    model = torch.compile(WithBreak().to(DEVICE))
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if DEVICE == "cuda" else []
    model(torch.randint(0, 100, (4, 64), device=DEVICE)).sum().backward()
    with torch.profiler.profile(activities=kinds) as profile:
        for length in _lengths():
            with torch.profiler.record_function(f"step of {length}"):
                model(torch.randint(0, 100, (4, length), device=DEVICE)).sum().backward()
    profile.export_chrome_trace(path)


def _lengths() -> Iterator[int]:
    yield from (64,) * 4
    yield from (96,) * 4


PROGRAMS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (transformer, small_transformer, images, pieces, steps, timed_steps, profiled)
}
if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
