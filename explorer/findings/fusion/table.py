"""Tables of fusion: what each kernel is made of and moves, and the pairs that were not fused."""

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
    """One row per kernel, in execution order: the nodes fused in it and in how many rounds.

    `bytes` are those that it moves, `bytes_before` those that its nodes would move on their own, `least_bytes` the
    minimum for any implementation.

    `read_again` are bytes that it reads more than once, `saved_by_score` the sum of Inductor's own scores of its steps.
    `not_joined` counts neighbours that it was not fused with; one kernel for each such pair would save `at_stake` in
    all, at most.
    """
    rows = [row for half in fusions(record) for row in _kernel_rows(half)]
    return pd.DataFrame(rows, columns=list(KERNELS)).astype(KERNELS)


def unfused_pairs(record: Record) -> pd.DataFrame:
    """One row per pair of kernels that was not fused: what one kernel would save at most, why in plain words, torch's
    own text, and in which round it said so. The most bytes first.
    """
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
