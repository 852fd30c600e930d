"""Tables of fusion: nodes and bytes of each kernel, and the unfused pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from compiler.record import Record
from explorer.findings.fusion.fusion import Fusion, Kernel, Refusal, fusions
from explorer.reading.columns import columns

KERNELS = columns(
    ("string", "kernel graph"),
    ("category", "half"),
    ("Int64", "nodes rounds bytes_before bytes least_bytes read_again saved_by_score not_joined at_stake"),
    ("boolean", "library"),
    ("string", "id"),
)
PAIRS = columns(
    ("Int64", "bytes"),
    ("string", "first second why torch"),
    ("Int64", "round"),
    ("string", "graph"),
    ("category", "half"),
)


def fusion(record: Record) -> pd.DataFrame:
    """One row per kernel, in execution order, with its number of fused nodes and rounds, and its bytes.

    `bytes` are the bytes that the kernel moves, `bytes_before` the bytes that its nodes would move as separate kernels,
    and `least_bytes` the bytes of its inputs and outputs.

    `read_again` are the bytes of repeated reads, `saved_by_score` is the sum of Inductor's scores of the merges.
    `not_joined` counts the unfused neighbours; `at_stake` is the most that fusing them could save, in bytes.
    """
    rows = [row for half in fusions(record) for row in _kernel_rows(half)]
    return pd.DataFrame(rows, columns=list(KERNELS)).astype(KERNELS)


def unfused_pairs(record: Record) -> pd.DataFrame:
    """One row per unfused pair of kernels: potential saving, reason, torch's own text and round; most bytes first."""
    pairs = [(half, item) for half in fusions(record) for item in half.refusals]
    rows = [
        {
            "bytes": item.bytes, "first": item.first.name, "second": item.second.name, "why": item.words,
            "torch": item.told or None, "round": item.round or None, "graph": half.artifact.graph, "half": half.kind,
        }
        for half, item in sorted(pairs, key=lambda pair: -pair[1].bytes)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=list(PAIRS)).astype(PAIRS)


def _kernel_rows(half: Fusion) -> Iterator[dict[str, Any]]:
    near: dict[str, list[Refusal]] = {}
    for item in half.refusals:
        for kernel in (item.first, item.second):
            near.setdefault(kernel.node.id, []).append(item)
    for kernel in half.kernels:
        yield _kernel_row(half, kernel, near.get(kernel.node.id, []))


def _kernel_row(half: Fusion, kernel: Kernel, near: Sequence[Refusal]) -> dict[str, Any]:
    steps = half.steps(kernel)
    return {
        "kernel": kernel.name, "graph": half.artifact.graph, "half": half.kind, "nodes": kernel.nodes,
        "rounds": max((step.round for step in steps), default=0), "bytes_before": kernel.before,
        "bytes": kernel.after, "least_bytes": kernel.least, "read_again": kernel.again,
        "saved_by_score": sum(step.saved for step in steps), "not_joined": len(near),
        "at_stake": sum(item.bytes for item in near), "library": kernel.is_call, "id": kernel.node.id,
    }  # fmt: skip
