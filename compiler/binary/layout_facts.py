"""Layouts of the tensors in a kernel's TTGIR, computed by Triton itself as linear layouts.

Linear layouts are defined in Triton's `include/triton/Tools/LinearLayout.h`. Triton ends the process on a shape that it
does not expect, so this runs in a process of its own:

    python -m compiler.binary.layout_facts TTGIR FILE BACKEND ARCHITECTURE WARP_SIZE START

prints the layouts from index START on, one to a line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from compiler.binary.alone import import_alone
from compiler.binary.jobs import Job, LayoutFacts

if TYPE_CHECKING:
    from compiler.torch_api.triton_passes import LayoutReader

_SHAPE = re.compile(r"[\w.!]*<((?:\d+x)+)")
_NAMES = {
    "register": "reg_bases", "lane": "lane_bases", "warp": "warp_bases", "block": "block_bases",
    "offset": "offset_bases", "row": "rows", "column": "cols",
}  # fmt: skip
_NAME = re.compile(r'loc\("([^"]*)"\(')
MOST_VALUES = 4


def read_layouts(ttgir: Path, job: Job) -> tuple[LayoutFacts, ...]:
    """The layout of each type of tensor in a TTGIR file, in order of first occurrence."""
    found: list[LayoutFacts] = []
    command = [sys.executable, "-P", "-m", __name__, str(ttgir), job.file, job.backend, str(job.architecture)]
    while True:
        start = len(found)
        ended = subprocess.run([*command, str(job.warp_size), str(start)], capture_output=True, text=True, check=False)
        found += [msgspec.json.decode(line, type=LayoutFacts) for line in ended.stdout.splitlines()]
        if ended.returncode == 0:
            return tuple(found)
        said = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "it said nothing")
        found.append(LayoutFacts("", (), {}, 0, (), f"Triton ended while it computed the layout: {said}"))
        if ended.returncode > 0:  # not a crash on one layout: the rest would fail, too
            return tuple(found)


def main() -> None:
    """Print the layouts of a TTGIR file, one to a line."""
    path, file, backend, architecture, warp_size, start = sys.argv[1:]
    job = (backend, int(architecture) if architecture.isdecimal() else architecture, int(warp_size))
    for facts in _each_layout(Path(path), file, job, int(start)):
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")
        sys.stdout.flush()


def _each_layout(ttgir: Path, file: str, target: tuple[str, int | str, int], start: int) -> Iterator[LayoutFacts]:
    from triton.backends.compiler import GPUTarget

    reader = import_alone("triton_passes").LayoutReader(GPUTarget(*target))
    for kind, values in [*reader.values(ttgir).items()][start:]:
        yield _facts(kind, values, reader, _value_names(values, file))


def _facts(kind: str, values: list[Any], reader: LayoutReader, names: tuple[str, ...]) -> LayoutFacts:
    whole = _SHAPE.match(kind)
    shape = tuple(map(int, whole[1][:-1].split("x"))) if whole else ()
    try:
        layout = reader.layout(values[0])
        covered = shape[len(shape) - _rank(layout) :]
        if prod(covered) == 1:
            return LayoutFacts(kind, covered, {}, len(values), names, "it is a single element")
        if any(size & (size - 1) for size in covered):
            raise ValueError(f"a linear layout covers powers of two, not {' × '.join(map(str, covered))}")
        bases = bases_of(reader.linear(layout, list(covered)))
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError, AssertionError) as error:
        return LayoutFacts(kind, shape, {}, len(values), names, f"{type(error).__name__}: {error}")
    return LayoutFacts(kind, covered, bases, len(values), names)


def _rank(layout: Any) -> int:
    """Number of a layout's dimensions: a buffer of several tiles has one more."""
    if (rank := getattr(layout, "rank", None)) is not None:
        return int(rank)
    return len(layout.order) if hasattr(layout, "order") else len(layout.block)


def bases_of(linear: Any) -> dict[str, list[list[int]]]:
    """The bases of a linear layout of Gluon's, by name. Raises ValueError if there are none."""
    found = {name: getattr(linear, attribute) for name, attribute in _NAMES.items() if hasattr(linear, attribute)}
    if not found:
        raise ValueError(f"Triton gives {type(linear).__name__} for it")
    return {name: [list(basis) for basis in bases] for name, bases in found.items()}


def _value_names(values: list[Any], file: str) -> tuple[str, ...]:
    """The Python variables of values, with their kernel lines: `acc (line 12)`."""
    names = (_value_name(str(value.get_loc()), file) for value in values)
    return tuple(dict.fromkeys(name for name in names if name))[:MOST_VALUES]


def _value_name(location: str, file: str) -> str:
    name = _NAME.match(location)
    lines = re.findall(rf'"(?:[^"]*[/\\])?{re.escape(file)}":(\d+):', location)
    return f"{name[1]} (line {lines[-1]})" if name and lines else ""


if __name__ == "__main__":
    main()
