"""Tensors in one file that two processes map: each storage once, far from the next.

Between storages lie gaps that hold nothing, so a pointer that leaves its tensor does not land in another one. The gaps
are holes of a sparse file: they take no space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ALIGNMENT = 256
"""Bytes. What CUDA's allocator gives at least is 256; Triton's kernels count on 16."""

GAP = 1 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """One storage in the file, `start` and `size` in bytes; `name` is its argument's."""

    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor argument: its storage's region, and its own place in there, in elements."""

    region: Region
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def described(self) -> dict[str, Any]:
        """As JSON holds it."""
        region = self.region
        return {
            "region": [region.name, region.start, region.size],
            "offset": self.offset,
            "dtype": str(self.dtype).removeprefix("torch."),
            "shape": self.shape,
            "stride": self.stride,
        }

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Placed:
        dtype = getattr(torch, described["dtype"])
        return cls(
            Region(*described["region"]), described["offset"], dtype,
            tuple(described["shape"]), tuple(described["stride"]),
        )  # fmt: skip

    def within(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor itself, in the mapped file (a tensor of bytes)."""
        mine = memory[self.region.start : self.region.start + self.region.size]
        return mine.view(self.dtype).as_strided(self.shape, self.stride, self._offset_within(memory))

    def _offset_within(self, memory: torch.Tensor) -> int:
        return (memory.storage_offset() + self.region.start) // self.dtype.itemsize + self.offset


def place_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, Placed]:
    """A place for each tensor; those of one storage share a region, named after the first."""
    found: dict[str, Placed] = {}
    regions: dict[int | str, Region] = {}
    end = GAP
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or name
        if key not in regions:
            regions[key] = Region(name, end, storage.nbytes())
            end = _round_up(end + storage.nbytes() + GAP + storage.nbytes() // 8)
        found[name] = Placed(
            regions[key], int(tensor.storage_offset()), tensor.dtype, tuple(tensor.shape), tensor.stride()
        )
    return found


def size_of(places: Mapping[str, Placed]) -> int:
    """Bytes of the file that holds these."""
    return GAP + max((place.region.start + place.region.size for place in places.values()), default=0)


def map_file(path: Path, size: int) -> torch.Tensor:
    """The file as a tensor of bytes, shared with every process that maps it."""
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def copy_in(memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> None:
    """Copy whole storages to their regions: a kernel may read around a view."""
    for name in _first_of_each(places):
        region = places[name].region
        memory[region.start : region.start + region.size].copy_(_bytes(tensors[name]))


def copy_back(memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> None:
    """Copy the regions back to the tensors' storages."""
    for name in _first_of_each(places):
        region = places[name].region
        _bytes(tensors[name]).copy_(memory[region.start : region.start + region.size])


def _first_of_each(places: Mapping[str, Placed]) -> list[str]:
    return [name for name, place in places.items() if place.region.name == name]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def _round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
