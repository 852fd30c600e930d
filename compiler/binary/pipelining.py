"""What Triton did with a kernel's loops: software pipelining, asynchronous copies, warp specialization, and why not.

The reasons follow Triton's own conditions: `AssignLatencies.cpp` and `ScheduleLoops.cpp` under
`lib/Dialect/TritonGPU/Transforms/Pipeliner`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.binary.lines import source_lines
from compiler.record.plain_text import pluralize

_FOR = re.compile(r"\bscf\.for\b")
_STAGE = re.compile(r"\bloop\.stage = (\d+)")
_LOAD = re.compile(r"\btt\.(?:load|descriptor_load|descriptor_gather)\b")
_DOT = re.compile(r"\b(?:tt\.dot|tt\.dot_scaled|ttng\.warp_group_dot|ttng\.tc_gen5_mma)\w*\b")
_BARRIER = re.compile(r"\b(?:gpu|ttg)\.barrier\b")
_ASKS_STAGES = re.compile(r"tt\.num_stages = (\d+)")
_BUFFERS = re.compile(r"ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x(?:\d+x)+(?!i64)\w")
_PARTITION = re.compile(r"^\s*(default|partition\d+)\b.*?num_warps\((\d+)\)", re.MULTILINE)
_ASKS_WARPS = "tt.warp_specialize"

_COPIES = {
    "ttg.async_copy_global_to_local": "cp.async",
    "ttng.async_tma_copy_global_to_local": "TMA",
    "amdg.buffer_load_to_local": "direct-to-LDS loads",
}
_UNITS = {
    "ttng.warp_group_dot ": "wgmma, of a warp group of 4 warps",
    "ttng.tc_gen5_mma": "tcgen05.mma, with its result in tensor memory",
    "#ttg.nvidia_mma<{versionMajor = 2": "mma.sync, of one warp",
    "#ttg.amd_mfma": "MFMA, of one wave",
    "#ttg.amd_wmma": "WMMA, of one wave",
}


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop's lines in the TTGIR, the kernel line of its head (0: unknown), and whether it has an inner loop."""

    head: str
    body: str
    line: int
    is_outer: bool


def loop_words(scheduled: str, ttgir: str, file: str, options: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    """Yield for each loop its kernel line, 0 if unknown, and what pipelining made of it, or why nothing.

    `scheduled` is the TTGIR before the pass that pipelines.
    """
    stages = int(options.get("num_stages", 0) or 0)
    for loop in _loops(scheduled, file):
        yield loop.line, _pipeline_words(loop, ttgir) if _STAGE.search(loop.body) else _reason(loop, stages)


def unit_words(ttgir: str) -> list[str]:
    """The matrix units that a kernel uses, and how it copies to shared memory."""
    units = [f"matmul by {words}" for sign, words in _UNITS.items() if sign in ttgir]
    copies = [f"copies to shared memory by {words}" for sign, words in _COPIES.items() if sign in ttgir]
    return [*units, *copies]


def warp_words(scheduled: str, ttgir: str, architecture: int | str) -> str:
    """What warp specialization made of a kernel, or why nothing."""
    if "ttg.warp_specialize" in ttgir:
        found = _PARTITION.findall(ttgir)
        parts = ", ".join(f"{name} {pluralize(int(warps), 'warp')}" for name, warps in found)
        return f"warp-specialized: warps have different jobs ({parts})"
    if not isinstance(architecture, int):
        return "not warp-specialized: Triton does it for NVIDIA's Hopper and Blackwell only"
    if _ASKS_WARPS not in scheduled:
        asks = "no loop asks for it: `tl.range(..., warp_specialize=True)`"
        return f"not warp-specialized: {asks}" if _FOR.search(scheduled) else "not warp-specialized: it has no loop"
    if architecture < 90:
        return f"not warp-specialized: a loop asks for it, and sm_{architecture} has no support: Hopper is the first"
    return "not warp-specialized: a loop asks for it, and Triton's pass found nothing to divide among warps"


def _loops(text: str, file: str) -> Iterator[_Loop]:
    """Yield the loops of a TTGIR in order of their heads."""
    rows = text.split("\n")
    places = source_lines("mlir", text, file)
    for index, row in enumerate(rows):
        if _FOR.search(row):
            end = _end(rows, index)
            body = "\n".join(rows[index + 1 : end])
            close = rows[end] if end < len(rows) else ""
            yield _Loop(f"{row}\n{close}", body, places.get(index + 1, 0), bool(_FOR.search(body)))


def _end(rows: Sequence[str], start: int) -> int:
    """Index of the row that closes the region which `start` opens, by its indentation."""
    indent = len(rows[start]) - len(rows[start].lstrip())
    closing = " " * indent + "}"
    return next((at for at in range(start + 1, len(rows)) if rows[at].startswith(closing)), len(rows))


def _pipeline_words(loop: _Loop, ttgir: str) -> str:
    stages = 1 + max(map(int, _STAGE.findall(loop.body)))
    loads = [row for row in loop.body.split("\n") if _LOAD.search(row)]
    early = [row for row in loads if (found := _STAGE.search(row)) and int(found[1]) < stages - 1]
    copies = [words for sign, words in _COPIES.items() if sign in ttgir]
    buffers = sorted({int(number) for number in _BUFFERS.findall(ttgir)})
    by = f" by {' and '.join(copies)}" if copies else ""
    where = f", into {' or '.join(map(str, buffers))} buffers" if buffers and copies else ""
    ahead = (
        f"{len(early)} of {pluralize(len(loads), 'load')} up to {pluralize(stages - 1, 'iteration')} ahead{by}{where}"
    )
    return f"pipelined in {pluralize(stages, 'stage')}: {ahead}"


def _reason(loop: _Loop, stages: int) -> str:
    asked = _ASKS_STAGES.search(loop.head)
    stages = int(asked[1]) if asked else stages
    if loop.is_outer:
        return "not pipelined: it has an inner loop, and Triton pipelines innermost loops"
    if stages <= 1:
        return f"not pipelined: num_stages is {stages}, and pipelining needs 2"
    if _BARRIER.search(loop.body):
        return "not pipelined: it has a barrier"
    if not _LOAD.search(loop.body):
        return "not pipelined: it loads nothing from global memory"
    if not _DOT.search(loop.body) and not asked:
        return (
            "not pipelined: no `tl.dot` is in it. Without one Triton pipelines only a loop that asks for it: "
            "`tl.range(..., num_stages=3)`"
        )
    return (
        f"not pipelined with num_stages={stages}: no load in it qualifies. It has to feed a or b of `tl.dot` (in a "
        "`tl.range` with num_stages, any operation) with 4 adjacent bytes or more a thread; if another load gives its "
        "address, that takes one more stage"
    )
