"""Code that runs as it is written, whatever in it was compiled."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def eagerly() -> Iterator[None]:
    """Functions compiled by torch.compile run as plain Python; there are none where TorchDynamo is not loaded."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        yield
