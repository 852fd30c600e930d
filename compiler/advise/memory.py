"""Rules about memory: a buffer between kernels that is much larger than what goes in and out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from compiler.advise.facts import Advice, Change, Evidence
from compiler.advise.reading import Reading
from compiler.record import Entity
from compiler.record.plain_text import size_text

LEAST_BYTES: Final = 1 << 20
"""Size of a buffer below which it is not reported."""
TIMES_LARGER: Final = 4
_REMEDIES: Final = (
    (("softmax", "exp"), "Attention scores need no memory in F.scaled_dot_product_attention(q, k, v), which keeps a "
     "tile of them at a time."),
    (("one_hot", "scatter", "eq"), "A product with one-hot rows is a lookup: F.embedding(index, weight), or "
     "weight[index]; a count is torch.bincount."),
    (("repeat", "clone", "expand"), "A copy that repeats is not needed where x.expand(…) or broadcasting does: "
     "operations read the same element again."),
    (("cat", "stack", "copy", "slice_scatter"), "Collect parts in a list and join them once, or write them into one "
     "tensor that is made at the start."),
)  # fmt: skip
_ELSE: Final = (
    "Compute it in parts (a loop over a dimension that is not reduced, torch.func.vmap with chunk_size), or reduce it "
    "in the line that makes it, so that one kernel does both."
)


def large_intermediate(reading: Reading) -> Iterator[Advice]:
    """Report the largest buffer that a graph allocates for itself, if it is much larger than its inputs and outputs."""
    events = [event for event in reading.record.memory if event.side == "compiled"]
    outside = [event.bytes for event in events if event.what in ("input", "output")]
    kept = {(event.graph, event.half, event.buffer) for event in events if event.what == "output"}
    own = [
        event
        for event in events
        if event.what == "allocate" and event.entity and (event.graph, event.half, event.buffer) not in kept
    ]
    largest = max(own, key=lambda event: event.bytes, default=None)
    if largest is None or largest.bytes < max(LEAST_BYTES, TIMES_LARGER * max(outside, default=0)):
        return
    entity = reading.entities.get(largest.entity)
    shape = entity.attrs.get("shape") if entity is not None else None
    nodes = [*reading.fx_nodes((largest.entity,)), *_captured_of_size(reading, shape)]
    names = " ".join(str(each.attrs.get("target", "")) for each in nodes)
    remedy = next((words for parts, words in _REMEDIES if any(part in names for part in parts)), _ELSE)
    of_shape = f" of shape {tuple(shape)}" if isinstance(shape, list | tuple) else ""
    found = f"{size_text(largest.bytes)}{of_shape} are written and read again within the call."
    evidence = (
        Evidence(
            f"The largest input or output has {size_text(max(outside, default=0))}.", "recorded",
            (largest.entity, *reading.lines((largest.entity,))),
        ),
    )  # fmt: skip
    yield Advice("large-intermediate", "A large intermediate result", found, evidence, None, Change(remedy))


def _captured_of_size(reading: Reading, shape: object) -> list[Entity]:
    """Captured operations whose results have as many elements as this shape: what the values become."""
    captured = (each for artifact in reading.record.of_stage("captured") for each in artifact.entities)
    size = _elements(shape)
    return [each for each in captured if size is not None and _elements(each.attrs.get("shape")) == size]


def _elements(shape: object) -> int | None:
    """The number of elements; None without a shape, or with a symbolic one."""
    if not isinstance(shape, list | tuple) or not all(isinstance(length, int) for length in shape):
        return None
    return math.prod(shape)
