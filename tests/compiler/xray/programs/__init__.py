"""Realistic programs with graph breaks, to be x-rayed; `answers` reads the list of sites that is written in them.

Each module has `program()`, which returns a function and the arguments of its calls. A comment `# breaks: a | b` names
the expressions of its line that break a graph, in the order in which they run; `# breaks before torch 2.15: a`, those
that a later torch follows. `CAUSES` are the causes of recompilation, as (kind, beginning of the line, beginning of the
code that owns the change).
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

from tests.compiler.broken import TORCH

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"))
_MARK = re.compile(r"# breaks(?: before torch (\S+))?: (.*)$")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def answers(name: str) -> list[tuple[int, str]]:
    """The sites of a program as (line, expression), in the order of the file."""
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    found = ((number, _MARK.search(line)) for number, line in enumerate(lines, 1))
    marks = [(number, mark[2]) for number, mark in found if mark and not (mark[1] and TORCH >= mark[1])]
    return [(number, code.strip()) for number, codes in marks for code in codes.split(" | ")]
