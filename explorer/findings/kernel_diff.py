"""Match the kernels of two records by computation, and compare their binaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from compiler.record import MACHINE_STAGES, Binary, Kernel, Record
from explorer.reading.columns import columns
from explorer.reading.kernel_table import binaries_of, bound_microseconds, config_text, half, occupancy_percent
from explorer.reading.provenance import ancestors

if TYPE_CHECKING:
    import pandas as pd

Pair = tuple[Kernel | None, Kernel | None]

ALIKE = 0.5
"""Minimum share of common nodes (intersection over union) for kernels with different names to match."""

FACTS = columns(
    ("Int64", "registers spill_bytes shared_memory"),
    ("Float64", "occupancy_percent"),
    ("string", "limiter"),
    ("Int64", "load_bits store_bits instructions bytes flops"),
    ("Float64", "bound_us"),
    ("string", "config"),
)


def match_kernels(before: Record, after: Record) -> list[Pair]:
    """Match the generated kernels of both sides: by name in the same graph, else by the nodes they compute.

    An extern call is included only if it matches a generated kernel.
    """
    named = {_name(kernel): kernel for kernel in after.kernels if _is_generated(kernel)}
    pairs: list[Pair] = [(kernel, named.get(_name(kernel))) for kernel in before.kernels if _is_generated(kernel)]
    taken = {kernel.id for _, kernel in pairs if kernel}
    rest = [kernel for kernel in after.kernels if kernel.id not in taken]
    nodes = _nodes(before, after)
    for place, (first, second) in enumerate(pairs):
        found = None if second or first is None else _find_most_alike(nodes[0][first.id], half(first), rest, nodes[1])
        if found is not None:
            rest.remove(found)
            pairs[place] = (first, found)
    libraries = [kernel for kernel in before.kernels if not _is_generated(kernel)]
    new = [kernel for kernel in rest if _is_generated(kernel)]
    return pairs + [(_find_most_alike(nodes[1][one.id], half(one), libraries, nodes[0]), one) for one in new]


def _is_generated(kernel: Kernel) -> bool:
    return kernel.category != "extern"


def _name(kernel: Kernel) -> tuple[str, str]:
    return half(kernel), kernel.name


def _nodes(*sides: Record) -> list[dict[str, frozenset[str]]]:
    """For each side: kernel id -> ids of the ancestors that both sides have. Two backends share only graph nodes."""
    origins = [{entity.id: entity.origins for entity in record.entities()} for record in sides]
    shared = origins[0].keys() & origins[1].keys()
    return [
        {kernel.id: frozenset(shared & set(ancestors([kernel.id], known))) for kernel in record.kernels}
        for record, known in zip(sides, origins, strict=True)
    ]


def _find_most_alike(
    wanted: frozenset[str], where: str, kernels: list[Kernel], nodes: dict[str, frozenset[str]]
) -> Kernel | None:
    """Kernel of the graph half `where` that shares most nodes with `wanted`; None if the share is below `ALIKE`."""

    def share(kernel: Kernel) -> float:
        union = wanted | nodes[kernel.id]
        return len(wanted & nodes[kernel.id]) / len(union) if union else 0.0

    best = max((kernel for kernel in kernels if half(kernel) == where), key=share, default=None)
    return best if best is not None and share(best) >= ALIKE else None


def matching_ids(before: Record, after: Record) -> dict[str, str]:
    """Artifact id of the second side -> id of the first, for machine code of matched kernels with different ids."""
    first_code, second_code = _machine_code(before), _machine_code(after)
    pairs = [
        (first.id, second.id) for first, second in match_kernels(before, after) if first and second and first != second
    ]
    return {
        theirs: own
        for first, second in pairs
        for stage in MACHINE_STAGES
        for own, theirs in zip(first_code.get((first, stage), ()), second_code.get((second, stage), ()), strict=False)
    }


def _machine_code(record: Record) -> dict[tuple[str, str], list[str]]:
    """Kernel and stage -> ids of the kernel's artifacts in this stage, one for each configuration."""
    found: dict[tuple[str, str], list[str]] = {}
    for artifact in record.artifacts:
        if kernel := artifact.attrs.get("kernel"):
            found.setdefault((str(kernel), artifact.stage), []).append(artifact.id)
    return found


def kernel_facts(before: Record, after: Record, labels: tuple[str, str]) -> pd.DataFrame:
    """One row per pair of kernels, with each fact of both sides in adjacent columns: `registers h100`."""
    import pandas as pd

    pairs = match_kernels(before, after)
    sides = [binaries_of(before), binaries_of(after)]
    table: dict[str, Any] = {
        **{f"kernel {label}": pd.array([_own(pair[side], "name") for pair in pairs], dtype="string")
           for side, label in enumerate(labels)},
        "graph": pd.array([_graph_half(pair) for pair in pairs], dtype="string"),
    }  # fmt: skip
    for name, dtype in FACTS.items():
        for side, label in enumerate(labels):
            values = [_fact(pair[side], sides[side], name) for pair in pairs]
            table[f"{name} {label}"] = pd.array(values, dtype=dtype)
    return pd.DataFrame(table)


def _graph_half(pair: Pair) -> str | None:
    return next((half(kernel) for kernel in pair if kernel), None)


def _own(kernel: Kernel | None, name: str) -> Any:
    return None if kernel is None else getattr(kernel, name)


def _fact(kernel: Kernel | None, binaries: dict[str, Binary], name: str) -> Any:
    binary = binaries.get(kernel.id) if kernel else None
    return None if binary is None else fact(binary, name)


def fact(binary: Binary, name: str) -> Any:
    """A fact of a binary, by its name in `FACTS`; None if unknown."""
    computed = {
        "occupancy_percent": occupancy_percent,
        "bound_us": bound_microseconds,
        "config": lambda known: config_text(known.config),
        "instructions": lambda known: sum(known.mix.values()),
        "limiter": lambda known: known.limiter or None,
    }
    return computed[name](binary) if name in computed else getattr(binary, name)


def kernel_changes(before: Record, after: Record, labels: tuple[str, str]) -> list[str]:
    """Differences in words, a line each: kernels of only one side, renamed kernels, and changed facts."""
    sides = (binaries_of(before), binaries_of(after))
    return [line for pair in match_kernels(before, after) for line in _changes(pair, sides, labels)]


def _changes(pair: Pair, sides: tuple[dict[str, Binary], dict[str, Binary]], labels: tuple[str, str]) -> Iterator[str]:
    first, second = pair
    if first is None or second is None:
        alone = first or second
        if alone is not None:
            yield f"{alone.name}: only in {labels[0 if first else 1]}"
        return
    if first.name != second.name:
        yield f"{first.name} is {second.name} in {labels[1]}"
    binaries = sides[0].get(first.id), sides[1].get(second.id)
    if binaries[0] and binaries[1]:
        changed = list(_changed_facts(binaries[0], binaries[1]))
        if changed:
            yield f"{first.name}: {', '.join(changed)}"


def _changed_facts(before: Binary, after: Binary) -> Iterator[str]:
    for name in FACTS:
        values = [fact(binary, name) for binary in (before, after)]
        if values[0] != values[1]:
            yield f"{name.replace('_', ' ')} {' → '.join('-' if value is None else f'{value}' for value in values)}"
