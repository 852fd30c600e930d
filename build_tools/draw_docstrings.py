"""Print randomly drawn docstrings, so that fresh readers can judge whether they read naturally.

    .venv/bin/python -m build_tools.draw_docstrings [COUNT]

The seed is the hash of the last commit: a draw is reproducible but cannot be chosen.
"""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "explorer")
COUNT = 60
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """Location (`file:line name`) and text of each docstring in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            name = getattr(node, "name", "(module)")
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {name}", text


def draw(count: int, seed: str) -> list[tuple[str, str]]:
    files = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    found = [docstring for path in files for docstring in docstrings(path)]
    return random.Random(seed).sample(found, count)


if __name__ == "__main__":
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    print(f"seed: {commit.stdout.strip()}\n")
    for number, (place, text) in enumerate(draw(int(sys.argv[1]) if sys.argv[1:] else COUNT, commit.stdout), 1):
        print(f"{number}. {place}\n{text}\n")
