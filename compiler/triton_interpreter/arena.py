"""Share tensors between two processes in one memory-mapped file: each storage once, with gaps between storages.

Because of the gaps, a pointer just out of its tensor's bounds does not point into another tensor. The gaps are holes
of a sparse file and take no space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

ALIGNMENT = 256
"""Bytes. CUDA's allocator aligns to at least 256; Triton kernels assume 16."""

GAP = 1 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """One storage in the file. `start` and `size` are in bytes; `name` is the first argument with this storage."""

    name: str
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor argument: the region of its storage, storage offset in elements, dtype name, shape and stride."""

    region: Region
    offset: int
    format: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.format)
        return found

    def tensor_in(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor as a view of the mapped file (a uint8 tensor)."""
        mine = memory[self.region.start : self.region.start + self.region.size]
        start = (memory.storage_offset() + self.region.start) // self.dtype.itemsize + self.offset
        return mine.view(self.dtype).as_strided(self.shape, self.stride, start)


def place_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, Placed]:
    """Assign a place in the file to each tensor; tensors with the same storage share a region."""
    found: dict[str, Placed] = {}
    regions: dict[int | str, Region] = {}
    end = GAP
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or name
        if key not in regions:
            regions[key] = Region(name, end, storage.nbytes())
            end += storage.nbytes() + GAP + storage.nbytes() // 8
            end = -(-end // ALIGNMENT) * ALIGNMENT
        dtype = str(tensor.dtype).removeprefix("torch.")
        layout = tuple(tensor.shape), tensor.stride()
        found[name] = Placed(regions[key], int(tensor.storage_offset()), dtype, *layout)
    return found


def map_tensors(path: Path, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> torch.Tensor:
    """Create the file, copy the tensors to their places, and return the mapped file as a uint8 tensor."""
    size = GAP + max((place.region.start + place.region.size for place in places.values()), default=0)
    with path.open("wb") as file:
        file.truncate(size)  # gaps are holes
    memory = map_file(path, size)
    for inside, own in _storages(memory, tensors, places):
        inside.copy_(own)
    return memory


def map_file(path: Path, size: int) -> torch.Tensor:
    """Map a file as a uint8 tensor, shared with every process that maps it."""
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def copy_back(memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> None:
    """Copy the regions back to the tensors' storages."""
    for inside, own in _storages(memory, tensors, places):
        own.copy_(inside)


def _storages(
    memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the bytes of each region and of the tensor's whole storage: a kernel may read outside of a view."""
    for name, place in places.items():
        if (region := place.region).name == name:
            own = torch.empty(0, dtype=torch.uint8).set_(tensors[name].untyped_storage())
            yield memory[region.start : region.start + region.size], own
