"""The block masks of FlexAttention as facts: the kind of every block, by batch and head.

A mask is kept as grids of "0" (empty: not computed), "1" (partial: the mask function is called) and "2" (full) blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from compiler.calls.kept_graphs import KeptFrame
from compiler.record.builder import Builder
from compiler.torch_api.flex_attention import MaskTensors, attention_calls, given_mask

EMPTY, PARTIAL, FULL = "012"
SIDE = 64
"""Largest side of a grid; of a larger mask, each cell stands for several blocks."""
MOST_GRIDS = 8
MOST_HEADS = 256
MOST_BLOCKS = 2**24


def add_block_masks(builder: Builder, kept: Mapping[str, KeptFrame]) -> None:
    """Add the block mask of each call of FlexAttention to its node in the captured graph."""
    for frame, known in kept.items():
        artifact = builder.artifacts.get(f"captured[{frame}]")
        if artifact is None or not known.attends:
            continue
        found = {f"{artifact.id}.{name}": mask_facts(mask) for name, mask in _masks(known)}
        entities = tuple(
            replace(entity, attrs=entity.attrs | {"block_mask": found[entity.id]}) if entity.id in found else entity
            for entity in artifact.entities
        )
        builder.add(replace(artifact, entities=entities))


def _masks(known: KeptFrame) -> Iterator[tuple[str, MaskTensors]]:
    """The qualified names of a graph's calls of FlexAttention, each with its block mask."""
    calls = attention_calls(known.captured) if known.captured is not None else []
    noted: list[MaskTensors | None] = list(known.block_masks)
    if len(noted) != len(calls):  # the call ran compiled, or a branch of it did not run
        noted = [given_mask(node, known.arguments or ()) if "." not in name else None for name, node in calls]
    for (name, _), mask in zip(calls, noted, strict=True):
        if mask is not None:
            yield name, mask


def mask_facts(mask: MaskTensors) -> dict[str, Any]:
    """A block mask as plain data. Equal grids are told once, with the batches and heads that have them."""
    counts = mask.partial[0]
    rows, columns = counts.shape[-1], -(-mask.keys // mask.block[1])
    pairs = counts.reshape(-1, rows).shape[0]
    shown = min(pairs, MOST_HEADS, max(1, MOST_BLOCKS // max(1, rows * columns)))
    state = torch.zeros(shown, rows, columns, dtype=torch.int8)
    _mark(state, mask.partial, 1)
    if mask.full is not None:
        _mark(state, mask.full, 2)
    same: dict[bytes, list[int]] = {}
    for pair in range(shown):
        same.setdefault(state[pair].numpy().tobytes(), []).append(pair)
    heads = counts.shape[1] if counts.dim() > 2 else 1
    groups = list(same.values())
    cell = [-(-rows // SIDE), -(-columns // SIDE)]
    return {
        "queries": mask.queries, "keys": mask.keys, "block": list(mask.block), "cell": cell,
        "batches": pairs // heads, "heads": heads, "shown": shown,
        "grids": [_grid(state[group[0]], group, cell) for group in groups[:MOST_GRIDS]],
        "other_grids": max(0, len(groups) - MOST_GRIDS),
    }  # fmt: skip


def _mark(state: Tensor, blocks: tuple[Tensor, Tensor], value: int) -> None:
    """Set the blocks that the tensors of numbers and indices name."""
    shown, rows, columns = state.shape
    counts, indices = (each.detach().cpu() for each in blocks)
    counts = counts.reshape(-1, rows)[:shown]
    indices = indices.reshape(-1, rows, indices.shape[-1])[:shown, :, :columns].long()
    used = torch.arange(indices.shape[-1]) < counts[..., None]
    pair, row, place = used.nonzero(as_tuple=True)
    state[pair, row, indices[pair, row, place].clamp(max=columns - 1)] = value


def _grid(state: Tensor, pairs: list[int], cell: list[int]) -> dict[str, Any]:
    computed = (state > 0).sum(1)
    cells = [_cells(band, cell[1]) for band in state.split(cell[0])]
    return {
        "pairs": pairs, "rows": cells, "full": int((state == 2).sum()), "partial": int((state == 1).sum()),
        "empty": int((state == 0).sum()), "longest_row": int(computed.max()),
    }  # fmt: skip


def _cells(band: Tensor, width: int) -> str:
    """One row of a grid. A cell is full or empty if all its blocks are, else partial."""
    parts = band.split(width, dim=1)
    return "".join(FULL if (part == 2).all() else EMPTY if (part == 0).all() else PARTIAL for part in parts)
