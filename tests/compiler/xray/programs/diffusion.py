"""A sampler of a diffusion model: a schedule in NumPy, a callback, progress on stderr, classifier-free guidance."""

import sys

import numpy as np
import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 2, 3, padding=1)
        self.time = nn.Linear(1, 4)

    def forward(self, x, t):
        hidden = self.conv(x) + self.time(t.float().reshape(1, 1))[..., None, None]
        return self.out(torch.nn.functional.silu(hidden))


class Scheduler:
    def __init__(self, steps):
        betas = np.linspace(1e-4, 0.02, 100)
        self.alphas = torch.tensor(np.cumprod(1 - betas), dtype=torch.float32)
        self.timesteps = torch.linspace(99, 0, steps).long()
        self.seen = []

    def step(self, noise, t, x):
        index = t.item()  # breaks: t.item()
        self.seen.append(index)
        alpha = self.alphas[index]
        if alpha < 0.5:  # breaks: alpha < 0.5
            noise = noise.clamp(-1, 1)
        variance = np.float32(np.random.standard_normal())  # breaks: np.random.standard_normal()
        return (x - (1 - alpha).sqrt() * noise) / alpha.sqrt() + 1e-3 * float(variance)


class Pipeline(nn.Module):
    def __init__(self, steps=3):
        super().__init__()
        self.unet = Denoiser()
        self.scheduler = Scheduler(steps)
        self.guidance = 2.0

    def progress(self, n):
        sys.stderr.write(f"step {n}\n")  # breaks: sys.stderr.write

    def forward(self, x, callback=None):
        generator = torch.Generator().manual_seed(0)  # breaks: torch.Generator() | torch.Generator().manual_seed(0)
        x = x + torch.randn(x.shape, generator=generator)  # breaks: torch.randn
        for n, t in enumerate(self.scheduler.timesteps):
            both = self.unet(torch.cat([x, x * 0]), t)
            conditional, unconditional = both.chunk(2)
            noise = unconditional + self.guidance * (conditional - unconditional)
            x = self.scheduler.step(noise, t, x)
            self.progress(n)
            if callback is not None:
                callback(n, x)
        image = (x / 2 + 0.5).clamp(0, 1)
        pixels = image.detach().numpy().tobytes()  # breaks: image.detach().numpy().tobytes()
        return image, len(pixels)


def watch(n, x):
    if not torch.isfinite(x).all():  # breaks: torch.isfinite(x).all()
        raise FloatingPointError(f"step {n} is not finite")


def program():
    torch.manual_seed(0)
    return Pipeline(), [(torch.randn(1, 2, 8, 8), watch), (torch.randn(2, 2, 8, 8), watch)]


CAUSES = (
    ("requires_grad", "x = self.scheduler.step(", "x = self.scheduler.step("),
    ("number", "index = t.item()", "t.item()"),
    ("length", "self.seen.append(", "self.seen.append("),
    ("number", "variance = ", "np.random.standard_normal()"),
    ("number", "for n, t in enumerate(", "for n, t in enumerate("),
    ("shape", "def forward(self, x, callback=None)", "x"),
)
