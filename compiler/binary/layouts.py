"""The stage `layouts`: which thread, register or address holds which element of a kernel's tiles, as grids.

A layout is linear over bits: an index in the hardware (register 5 = 101₂ of lane 3 = 011₂ of warp 0) is at the
exclusive or of the coordinates of its bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from compiler.binary.jobs import LayoutFacts
from compiler.binary.results import artifact_id
from compiler.binary.sources import KernelSource
from compiler.record import Artifact, Entity
from compiler.record.plain_text import pluralize

STAGE = "layouts"
MOST_ELEMENTS = 1 << 20
ROWS, RUNS = 16, 8
"""Size of a grid as text: rows of elements, and runs of adjacent elements with one owner."""

LAYOUT_WORDS = {
    "ttg.blocked": "adjacent elements a thread, then threads, then warps, along the order",
    "ttg.slice": "the layout of a tensor with one more dimension, without that dimension",
    "ttg.dot_op": "an operand of a dot, as the matrix unit reads it from registers",
    "ttg.nvidia_mma": "the result of a matrix unit, as its instruction leaves it in registers",
    "ttg.amd_mfma": "the result of a matrix unit, as its instruction leaves it in registers",
    "ttg.amd_wmma": "the result of a matrix unit, as its instruction leaves it in registers",
    "ttg.linear": "a layout given by its bits",
    "ttg.nvmma_shared": "shared memory as wgmma, tcgen05 and TMA read it, swizzled against bank conflicts",
    "ttg.swizzled_shared": "shared memory, swizzled against bank conflicts if maxPhase is above 1",
    "ttg.padded_shared": "shared memory with padding against bank conflicts",
    "ttg.shared_linear": "shared memory with a layout given by its bits",
    "ttng.tensor_memory_encoding": "tensor memory: rows (lanes) and columns",
}
_WIDTHS = re.compile(r"x(?:[fiu]|bf)(\d+)\b|xf8")


@dataclass
class Group:
    """Tensors with one layout and shape: their types, the values among them, and the layout's bases."""

    layout: str
    shape: tuple[int, ...]
    bases: dict[str, list[list[int]]]
    problem: str
    types: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    count: int = 0
    bits: int = 0


def layouts_artifact(
    facts: Sequence[LayoutFacts], ttgir: str, source: KernelSource, config: int, attrs: dict[str, Any]
) -> Artifact:
    """The artifact of a kernel's layouts, drawn as text; the entities have the bases for other drawings."""
    kernel = source.kernel
    identity = artifact_id(STAGE, kernel, config)
    names = {text: name for name, text in re.findall(r"^(#(?!loc)\w+) = (.*)$", ttgir, re.MULTILINE)}
    text: list[str] = []
    entities, lines = [], dict[int, tuple[str, ...]]()
    for number, group in enumerate(groups(facts), 1):
        entity_id, first = f"{identity}.T{number}", len(text) + 1
        title = group_title(group, names)
        words = describe(group)
        text += [f"== {number}. {title}", *words, "", *grid_rows(group), ""]
        lines |= dict.fromkeys(range(first, len(text)), (entity_id, *_line_ids(identity, group)))
        shown = {
            "number": number, "layout": group.layout, "shape": list(group.shape), "bases": group.bases,
            "bits": group.bits, "types": group.types, "values": group.values, "tensors": group.count, "words": words,
            "problem": group.problem, "line": first,
        }  # fmt: skip
        entities.append(Entity(entity_id, "layout", title, shown, (), (kernel.id, *_origins(group, kernel.id))))
    body = "\n".join(text).rstrip() or "No tensor of this kernel has a layout."
    return Artifact(
        identity, STAGE, kernel.name, "text", body + "\n", kernel.graph,
        {line: (ids[0],) for line, ids in lines.items()}, tuple(entities), {"kernel": kernel.id, **attrs}, kernel.half,
    )  # fmt: skip


def _line_ids(identity: str, group: Group) -> list[str]:
    return [f"{identity}.L{line}" for line in _lines_of(group)]


def _origins(group: Group, kernel: str) -> list[str]:
    return [f"{kernel}.L{line}" for line in _lines_of(group)]


def _lines_of(group: Group) -> list[int]:
    return sorted({int(found) for value in group.values for found in re.findall(r"\(line (\d+)\)", value)})


def groups(facts: Sequence[LayoutFacts]) -> list[Group]:
    """Layouts with their tensors: those in registers first, then memory; the largest tiles first."""
    found: dict[tuple[str, tuple[int, ...]], Group] = {}
    for each in facts:
        layout = each.type[each.type.index("#") : -1] if "#" in each.type else ""
        layout = layout.partition(", #ttg.shared_memory")[0].partition(", #ttng.tensor_memory,")[0]
        group = found.setdefault((layout, each.shape), Group(layout, each.shape, each.bases, each.problem))
        group.types.append(each.type.partition(", #")[0] + ">")
        group.values += [value for value in each.values if value not in group.values]
        group.count += each.count
        width = _WIDTHS.search(each.type)
        group.bits = max(group.bits, (int(width[1]) if width and width[1] else 8) if width and "tt.ptr" not in each.type
                         else 0)  # fmt: skip
    return sorted(found.values(), key=lambda group: (_is_memory(group), -len(group.shape), -prod(group.shape)))


def _is_memory(group: Group) -> bool:
    return "register" not in group.bases


def group_title(group: Group, names: Mapping[str, str]) -> str:
    """`#blocked, 128 × 128: acc (line 9)`."""
    if not group.layout:
        return "a layout that Triton could not compute"
    name = names.get(group.layout, "")
    if not name and (
        inner := re.match(r"#ttg\.(slice|dot_op)<\{(.*), parent = (#.*?)(, kWidth = \d+)?\}>$", group.layout)
    ):
        name = f"{inner[1]} of {names.get(inner[3], inner[3])} ({inner[2]}{inner[4] or ''})"
    shape = " × ".join(map(str, group.shape))
    return f"{name or group.layout}, {shape}{': ' if group.values else ''}{', '.join(group.values)}"


def describe(group: Group) -> list[str]:
    """Sentences on a layout: its definition, who holds how much, and the tensors that have it."""
    kind = re.match(r"#(\w+\.\w+)", group.layout)
    meaning = LAYOUT_WORDS.get(kind[1], "") if kind else ""
    lines = [f"{group.layout}: {meaning}" if meaning else group.layout] if group.layout else []
    types = ", ".join(dict.fromkeys(group.types))
    lines += [f"{pluralize(group.count, 'tensor')}: {types}"] if group.count else []
    if group.problem:
        return [*lines, f"Not drawn: {group.problem}"]
    return [*lines, *(_register_words(group) if not _is_memory(group) else _memory_words(group))]


def _register_words(group: Group) -> Iterator[str]:
    bases = group.bases
    held = [basis for basis in bases["register"] if any(basis)]
    threads = 2 ** (len(bases["lane"]) + len(bases["warp"]))
    run, dimension = _run(bases["register"], group.shape)
    adjacent = f", in runs of {run} along dimension {dimension}" if run > 1 else ""
    warps = pluralize(2 ** len(bases["warp"]), "warp")
    each = f"each thread holds {pluralize(2 ** len(held), 'element')}{adjacent}"
    yield f"{warps} of {2 ** len(bases['lane'])} threads: {each}."
    copies = 2 ** sum(not any(basis) for name in ("lane", "warp", "block") for basis in bases.get(name, ()))
    if copies > 1:
        yield f"Each element is held by {copies} of the {threads} threads."
    if repeated := sum(not any(basis) for basis in bases["register"]):
        yield f"Each thread holds each of its elements in {2**repeated} registers."
    if bases.get("block"):
        yield f"It spans {2 ** len(bases['block'])} blocks of a cluster."


def _run(bases: Sequence[Sequence[int]], shape: Sequence[int]) -> tuple[int, int]:
    """The longest run of adjacent elements in one thread's registers, and its dimension."""
    best = (1, len(shape) - 1)
    for dimension in range(len(shape)):
        length = 1
        while any(_is_step(basis, dimension, length) for basis in bases):
            length *= 2
        best = max(best, (length, dimension), key=lambda found: found[0])
    return best


def _run_in_memory(bases: Sequence[Sequence[int]], rank: int) -> tuple[int, int]:
    """The longest run of adjacent elements at adjacent offsets, and its dimension."""
    dimension = next((axis for axis in range(rank) if bases and bases[0][axis]), rank - 1)
    length = 1
    for basis in bases:
        if not _is_step(basis, dimension, length):
            break
        length *= 2
    return length, dimension


def _is_step(basis: Sequence[int], dimension: int, length: int) -> bool:
    return all(value == (length if axis == dimension else 0) for axis, value in enumerate(basis))


def _memory_words(group: Group) -> Iterator[str]:
    if "offset" not in group.bases:
        yield "Rows and columns of tensor memory."
        return
    run, dimension = _run_in_memory(group.bases["offset"], len(group.shape))
    swizzled = any(sum(value != 0 for value in basis) > 1 for basis in group.bases["offset"])
    size = f" ({run * group.bits // 8} bytes)" if group.bits else ""
    where = "swizzled: a row's runs are at other offsets than the next row's" if swizzled else "not swizzled"
    yield f"Runs of {pluralize(run, 'adjacent element')}{size} along dimension {dimension}; {where}."


Place = dict[str, int]
"""Where an element is: its index by name ("register", "lane", "warp", "block"; "offset")."""


def locate(bases: Mapping[str, Sequence[Sequence[int]]], shape: Sequence[int]) -> dict[tuple[int, ...], list[Place]]:
    """For each element's coordinates, the places that hold it.

    Raises ValueError if there are more than `MOST_ELEMENTS` indices.
    """
    if (size := 2 ** sum(len(each) for each in bases.values())) > MOST_ELEMENTS:
        raise ValueError(f"{size:,} registers or addresses are more than are drawn here ({MOST_ELEMENTS:,})")
    places: list[tuple[tuple[int, ...], Place]] = [((0,) * len(shape), {})]
    for name, own in bases.items():
        steps = [_coordinates_of(own, index, len(shape)) for index in range(2 ** len(own))]
        places = [
            (tuple(a ^ b for a, b in zip(coordinates, step, strict=True)), {**place, name: index})
            for coordinates, place in places
            for index, step in enumerate(steps)
        ]
    found: dict[tuple[int, ...], list[Place]] = {}
    for coordinates, place in places:
        found.setdefault(coordinates, []).append(place)
    return found


def _coordinates_of(bases: Sequence[Sequence[int]], index: int, rank: int) -> tuple[int, ...]:
    """The coordinates of an index: the exclusive or of those of its bits."""
    coordinates = [0] * rank
    for bit, basis in enumerate(bases):
        if index >> bit & 1:
            coordinates = [a ^ b for a, b in zip(coordinates, basis, strict=True)]
    return tuple(coordinates)


def grid_rows(group: Group) -> list[str]:
    """The first rows of a layout's grid: runs of adjacent elements, with the thread and registers that hold them.

    In memory a run has its offset, in elements. Higher dimensions are at index 0.
    """
    if group.problem or not group.bases:
        return []
    try:
        where = locate(group.bases, group.shape)
    except ValueError as error:
        return [f"Not drawn: {error}"]
    rank, lanes = len(group.shape), 2 ** len(group.bases.get("lane", ()))
    rows, columns = (group.shape[-2] if rank > 1 else 1), group.shape[-1]
    lead = (0,) * (rank - 2)
    drawn, widest = [], 0
    for row in range(min(rows, ROWS)):
        owners = [where[(*lead, row, column)[-rank:]] for column in range(columns)]
        cells = [*_cells(owners, lanes)]
        drawn.append([*cells[:RUNS], *([f"… {len(cells) - RUNS} more"] if len(cells) > RUNS else [])])
        widest = max(widest, *map(len, drawn[-1]))
    shown = [
        f"{index:>4} | {'  '.join(cell.ljust(widest) for cell in cells)}".rstrip() for index, cells in enumerate(drawn)
    ]
    more = [f"   … {rows - ROWS} more rows"] if rows > ROWS else []
    return [_legend(group), *shown, *more]


def _legend(group: Group) -> str:
    if "register" in group.bases:
        return "row | columns: thread of the block, and its registers (t5 r0-3); +1: held by 1 more thread"
    return (
        "row | columns: offset in elements"
        if "offset" in group.bases
        else "row | columns: lane and column of tensor memory"
    )


def _cells(owners: Sequence[Sequence[Place]], lanes: int) -> Iterator[str]:
    """Yield the runs of adjacent elements: those in one thread's consecutive registers, or at consecutive offsets."""
    start = 0
    for column in range(1, len(owners) + 1):
        if column < len(owners) and _follows(owners[column - 1][0], owners[column][0]):
            continue
        yield f"{_span(start, column - 1)}: {_owner(owners[start], owners[column - 1][0], lanes)}"
        start = column


def _run_index(place: Place) -> str:
    """The index that counts along a run."""
    return next(name for name in ("register", "offset", "column") if name in place)


def _follows(before: Place, after: Place) -> bool:
    moving = _run_index(before)
    return {**before, moving: before[moving] + 1} == after


def _owner(first: Sequence[Place], last: Place, lanes: int) -> str:
    at, moving = first[0], _run_index(last)
    span = _span(at[moving], last[moving])
    if moving != "register":
        return f"lane {at['row']} column {span}" if "row" in at else f"@{span}"
    others = len({(place["lane"], place["warp"]) for place in first}) - 1
    return f"t{at['warp'] * lanes + at['lane']} r{span}{f' +{others}' if others else ''}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
