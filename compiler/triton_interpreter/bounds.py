"""Check that a kernel's addresses are inside its tensors, before any read or write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class OutOfBoundsError(RuntimeError):
    """A kernel reads or writes outside of its tensors."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one tensor argument: byte addresses from `start` to `end` (exclusive)."""

    name: str
    start: int
    end: int


class Bounds:
    """The memory that a launch may access."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._memories = sorted(memories, key=lambda memory: memory.start)
        self._starts = np.array([memory.start for memory in self._memories], dtype=np.uint64)
        self._ends = np.array([memory.end for memory in self._memories], dtype=np.uint64)

    def check(self, what: str, addresses: NDArray[np.uint64], mask: NDArray[np.bool_], width: int) -> None:
        """Raise OutOfBoundsError unless every active access of `width` bytes is inside a tensor.

        `mask` selects the active addresses; `what` names the access in the message ("tl.load reads").
        """
        active = addresses[np.broadcast_to(mask, addresses.shape)] if mask.size else addresses.reshape(-1)[:0]
        if not active.size:
            return
        index = np.searchsorted(self._starts, active, side="right").astype(np.int64) - 1
        inside = (index >= 0) & (active + np.uint64(width) <= self._ends[np.maximum(index, 0)])
        if not inside.all():
            outside = active[~inside]
            raise OutOfBoundsError(self._message(what, int(outside[0]), outside.size, active.size, width))

    def _message(self, what: str, address: int, count: int, lanes: int, width: int) -> str:
        nearest = min(self._memories, key=lambda memory: _distance(memory, address), default=None)
        if nearest is None:
            return f"{what} out of bounds: this kernel has no tensors"
        element = (address - nearest.start) // width
        has = (nearest.end - nearest.start) // width
        others = f", and {count - 1} more of {lanes} lanes" if count > 1 else ""
        return f"{what} out of bounds: element {element} of {nearest.name}, whose memory has {has}{others}"


def _distance(memory: Memory, address: int) -> int:
    if address < memory.start:
        return memory.start - address
    return max(0, address - memory.end)
