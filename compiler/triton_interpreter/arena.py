"""Tensors in one file that two processes map: each storage once, far from the next.

Between storages lie gaps that hold nothing, so a pointer that leaves its tensor does not land in another one. The gaps
are holes of a sparse file: they take no space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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
    """A tensor argument: its storage's region, its offset in there in elements, the name of its dtype, its layout."""

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
        """The tensor itself, in the mapped file (a tensor of bytes)."""
        mine = memory[self.region.start : self.region.start + self.region.size]
        start = (memory.storage_offset() + self.region.start) // self.dtype.itemsize + self.offset
        return mine.view(self.dtype).as_strided(self.shape, self.stride, start)


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
            end += storage.nbytes() + GAP + storage.nbytes() // 8
            end = -(-end // ALIGNMENT) * ALIGNMENT
        dtype = str(tensor.dtype).removeprefix("torch.")
        layout = tuple(tensor.shape), tensor.stride()
        found[name] = Placed(regions[key], int(tensor.storage_offset()), dtype, *layout)
    return found


def map_tensors(path: Path, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> torch.Tensor:
    """Make the file, with the tensors copied to their places: a tensor of bytes that shares its memory."""
    size = GAP + max((place.region.start + place.region.size for place in places.values()), default=0)
    with path.open("wb") as file:
        file.truncate(size)  # gaps are holes
    memory = map_file(path, size)
    for inside, own in _storages(memory, tensors, places):
        inside.copy_(own)
    return memory


def map_file(path: Path, size: int) -> torch.Tensor:
    """The file as a tensor of bytes, shared with every process that maps it."""
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def copy_back(memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]) -> None:
    """Copy the regions back to the tensors' storages."""
    for inside, own in _storages(memory, tensors, places):
        own.copy_(inside)


def _storages(
    memory: torch.Tensor, tensors: Mapping[str, torch.Tensor], places: Mapping[str, Placed]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The bytes of each region and of its storage: whole ones, as a kernel may read around a view."""
    for name, place in places.items():
        if (region := place.region).name == name:
            own = torch.empty(0, dtype=torch.uint8).set_(tensors[name].untyped_storage())
            yield memory[region.start : region.start + region.size], own
