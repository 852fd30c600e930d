"""Frames a second of `run.morph()` while a graph of at least 500 nodes morphs, in headless Chromium.

python -m benchmarks.morph
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import torch
from torch import nn

import tcompile
from benchmarks.figures import Figure
from benchmarks.frontend import chromium

NODES, BAR, SECONDS, ROUNDS = 500, 30, 3, 3
MORPH = """async ([first, seconds]) => {
    const slider = document.querySelector("input[type=range]");
    const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
    const show = (at) => { slider.value = at; slider.dispatchEvent(new Event("input")); };
    show(first);
    await frame();
    const start = performance.now();
    let frames = 0;
    for (let share = 0; share < 1; frames++) {
        share = (performance.now() - start) / (1000 * seconds);
        show(Math.min(first + share, first + 1));
        await frame();
    }
    return (1000 * frames) / (performance.now() - start);
}"""


class Block(nn.Module):
    """A transformer block with attention written out, which has many small operations."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        weights = torch.softmax(query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5, -1)
        x = x + self.projection((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norms[1](x))


def figures() -> list[Figure]:
    """Frames a second from each state to the next, the median of some rounds."""
    run = tcompile.explore(nn.Sequential(*(Block(64, 4) for _ in range(4))), torch.randn(2, 16, 64))
    morph = run.morph()
    most = max(len(state.nodes) for state in morph.states)
    assert most >= NODES, f"the graph has {most} nodes"
    found = []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = morph.save(Path(folder) / "morph.html")
        size = path.stat().st_size / 1000
        page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("canvas")
        for number, (before, after) in enumerate(zip(morph.states, morph.states[1:], strict=False)):
            rounds = tuple(page.evaluate(MORPH, [number, SECONDS]) for _ in range(ROUNDS))
            name = f"{before.title} ({len(before.nodes)} nodes) to {after.title} ({len(after.nodes)} nodes)"
            found.append(Figure(name, statistics.median(rounds), "fps", BAR, at_least=True, runs=rounds))
    return [*found, Figure("the page", size, "kB", 300)]


if __name__ == "__main__":
    for each in figures():
        print(each.line())
