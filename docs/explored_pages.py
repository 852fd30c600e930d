"""The explorable pages that the documentation embeds: the examples, explored and saved when the docs are built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from examples import attention, branches

import tcompile

EXAMPLES: dict[str, Callable[[], tcompile.Run]] = {
    "attention": lambda: tcompile.explore(attention.loss_of, *attention.inputs(), stages="all", target="h100"),
    "branches": lambda: tcompile.explore(branches.model, calls=branches.CALLS, stages="captured", step=True),
    "backend": lambda: tcompile.explore(attention.loss_of, *attention.inputs(), backend="tcompile"),
}


def write_pages(folder: Path) -> None:
    """Explore each example and save its page, unless the page is newer than all of our code."""
    folder.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in _sources())
    for name, explore in EXAMPLES.items():
        path = folder / f"{name}.html"
        if not path.exists() or path.stat().st_mtime < newest:
            torch.manual_seed(0)
            torch.compiler.reset()
            explore().save(path)


def _sources() -> list[Path]:
    root = Path(__file__).parents[1]
    folders = (root / name for name in ("compiler", "explorer", "docs/examples"))
    return [Path(__file__), *(path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc")]
