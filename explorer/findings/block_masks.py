"""FlexAttention's block masks as a document: which blocks are full, partial or empty, and the share of work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from compiler.record import Entity, Record
from compiler.record.plain_text import pluralize
from explorer.reading.source_lines import SourceLines
from explorer.render.document import Code, Items, Link, Only, Parts, Picture, Row, Section, Table, Text
from explorer.render.finding import Finding
from explorer.render.places import line_link
from explorer.render.text import document_finding

SIGNS = {"2": "██", "1": "▒▒", "0": " ·"}
LEGEND = "██ full: every score is computed; ▒▒ partial: the mask function says which; · empty: skipped."
COLOURS = {"2": "#0072b2", "1": "#56b4e9", "0": "none"}
SIDE = 12


def block_masks_finding(record: Record) -> Finding | None:
    """Finding with the block mask of each call of FlexAttention; None for a record without any."""
    lines = SourceLines(record)
    every = [entity for artifact in record.of_stage("captured") for entity in artifact.entities]
    calls = [entity for entity in every if "block_mask" in entity.attrs]
    if not calls:
        return None
    document: list[Parts] = [Text(LEGEND, "lead")]
    own = _own_lines(record)
    document += [_section(call, own, lines) for call in calls]
    entities = {f"block_mask.{call.id}": _entity(call) for call in calls}
    count = pluralize(len(calls), "mask")
    return document_finding("block_mask", "Block masks", document, entities, count)


def _entity(call: Entity) -> Entity:
    return Entity(f"block_mask.{call.id}", "block_mask", call.label, {}, (), (call.id,))


def _own_lines(record: Record) -> dict[str, Entity]:
    """The lines of the user's files, by id."""
    files = (artifact for artifact in record.of_stage("source") if not artifact.attrs.get("installed"))
    return {entity.id: entity for artifact in files for entity in artifact.entities}


def _section(call: Entity, own: Mapping[str, Entity], lines: SourceLines) -> Section:
    mask = call.attrs["block_mask"]
    attrs = next((own[origin].attrs for origin in reversed(call.origins) if origin in own), call.attrs)
    where = line_link(attrs["file"], attrs["line"], lines) if "line" in attrs else Link("an unknown line")
    size = " × ".join(map(str, mask["block"]))
    words = (
        f": {pluralize(mask['queries'], 'query', 'queries')} × {pluralize(mask['keys'], 'key')}, in blocks of {size}, "
    )
    words += f"for {pluralize(mask['batches'], 'batch', 'batches')} and {pluralize(mask['heads'], 'head')} of the mask"
    parts: list[Parts] = [Text((f"`{call.label}` at ", where, words)), _table(call, mask)]
    for grid in mask["grids"]:
        parts.extend(_draw_grid(grid, mask))
    if mask["other_grids"]:
        parts.append(Text(f"… and {pluralize(mask['other_grids'], 'other grid')}, which are not kept."))
    if mask["shown"] < mask["batches"] * mask["heads"]:
        parts.append(
            Text(f"Of {mask['batches'] * mask['heads']:,} pairs of batch and head, the first {mask['shown']:,}.")
        )
    return Section(tuple(parts), f"Block mask of {call.label}")


def _table(call: Entity, mask: Mapping[str, Any]) -> Table:
    head = ("batch and head", "full", "partial", "empty", "computed", "sparsity", "longest row", "mean row")
    rows = tuple(
        Row(_cells(grid, mask), ids=(f"block_mask.{call.id}",), title="The longest row of blocks ends last")
        for grid in mask["grids"]
    )
    caption = "Blocks of one batch and head; computed: the share of all scores' work that is left."
    return Table(head, rows, caption, (1, 2, 3, 4, 5, 6, 7), label="Blocks")


def _cells(grid: Mapping[str, Any], mask: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [grid[kind] for kind in ("full", "partial", "empty")]
    blocks = sum(counts) or 1
    computed = counts[0] + counts[1]
    bands = -(-mask["queries"] // mask["block"][0]) or 1
    share, longest = computed / blocks, grid["longest_row"]
    numbers = (*(f"{count:,}" for count in counts), f"{share:.1%}", f"{1 - share:.1%}", f"{longest:,}")
    return (pairs_words(grid["pairs"], mask), *numbers, f"{computed / bands:.1f}")


def pairs_words(pairs: list[int], mask: Mapping[str, Any]) -> str:
    """The batches and heads of a grid: `all`, or `0, 1 and 0, 3`."""
    if len(pairs) == mask["shown"]:
        return "all"
    named = [f"{pair // mask['heads']}, {pair % mask['heads']}" for pair in pairs[:4]]
    more = f" and {len(pairs) - 4:,} more" if len(pairs) > 4 else ""
    return "; ".join(named) + more


def _draw_grid(grid: Mapping[str, Any], mask: Mapping[str, Any]) -> Iterator[Parts]:
    """A grid as characters, and in HTML as a picture: a row for each block of queries, a column for each of keys."""
    cell = mask["cell"]
    note = "" if cell == [1, 1] else f"; a cell is {cell[0]} × {cell[1]} blocks, partial unless all are alike"
    label = f"{pairs_words(grid['pairs'], mask)}: queries downwards, keys to the right{note}"
    rows = tuple("".join(SIGNS[sign] for sign in row) for row in grid["rows"])
    yield Text(label, "why")
    yield Only(("text",), (Items(rows),))
    yield Only(("view",), (Code(rows, language="text"),))
    yield Only(("html",), (Picture(f"Block mask, {label}", draw_grid, grid["rows"]),))


def draw_grid(rows: list[str]) -> str:
    """A grid as SVG."""
    width, height = SIDE * max(map(len, rows), default=0), SIDE * len(rows)
    cells = (
        f'<rect x="{SIDE * x}" y="{SIDE * y}" width="{SIDE}" height="{SIDE}" fill="{COLOURS[sign]}" stroke="#808080" '
        f'stroke-width="0.5"/>'
        for y, row in enumerate(rows)
        for x, sign in enumerate(row)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 -1 {width + 2} {height + 2}" width="{width + 2}" '
        f'height="{height + 2}" role="img">{"".join(cells)}</svg>'
    )
