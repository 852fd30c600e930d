"""Two backends' code for one call as a stage to look at: kernels that do the same work, their facts and sources."""

from __future__ import annotations

from typing import Any

from compiler.record import Artifact, Binary, Kernel, Record
from explorer.findings import versus_table as versus
from explorer.findings.kernel_diff import Pair, matched
from explorer.reading.kernel_table import BINARY_COLUMNS, KERNEL_COLUMNS, LAST_COLUMNS, binaries_of
from explorer.render.finding import Finding

STAGE = "versus"
COLUMNS = (*KERNEL_COLUMNS[1:], *BINARY_COLUMNS, *LAST_COLUMNS)
"""What is compared of two kernels, besides their names."""


def versus_finding(record: Record) -> Finding | None:
    """The kernels of both sides in pairs, and the table of both as text; None where there is no other side."""
    if record.versus is None:
        return None
    first, second = versus.names_of(record)
    title, count = f"{first} and {second} side by side", {"count": len(versus.rows(record, record.versus))}
    artifact = Artifact(STAGE, STAGE, title, "text", versus.told(record) + "\n", attrs=count)
    return Finding(artifact, "view", STAGE, _data(record, record.versus))


def _data(record: Record, other: Record) -> dict[str, Any]:
    """Pairs of kernels for the front end. In a record of both sides, ids of the second begin with its backend."""
    names = versus.names_of(record)
    binaries = binaries_of(record), binaries_of(other)
    pairs = matched(record.with_fields(kernels=tuple(versus.own_kernels(record))), other)
    return {"names": names, "pairs": [_pair(pair, binaries, ("", f"{names[1]}: ")) for pair in pairs]}


def _pair(pair: Pair, binaries: tuple[dict[str, Binary], ...], prefixes: tuple[str, str]) -> dict[str, Any]:
    of_each = [found.get(kernel.id) if kernel else None for kernel, found in zip(pair, binaries, strict=True)]
    facts = [
        [column.title, column.about, column.unit,
         *(column.fact(kernel, binary) if kernel else None for kernel, binary in zip(pair, of_each, strict=True))]
        for column in COLUMNS
    ]  # fmt: skip
    return {
        "sides": [_side(kernel, prefix) for kernel, prefix in zip(pair, prefixes, strict=True)],
        "facts": [fact for fact in facts if fact[3:] != [None, None]],
    }


def _side(kernel: Kernel | None, prefix: str) -> dict[str, Any] | None:
    if kernel is None:
        return None
    return {"id": prefix + kernel.id, "name": kernel.name, "artifact": prefix + kernel.artifact, "lines": kernel.lines}
