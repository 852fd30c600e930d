"""Shapes of the local parts of DTensors on every rank of their mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor of a global shape is split. `dims` are the dimensions of the whole mesh that it is split over.

    `ranks` are those of the whole mesh, whose shape is `mesh`, in order.
    """

    shape: tuple[int, ...]
    placements: tuple[Any, ...]
    dims: tuple[int, ...]
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]

    def local_shapes(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each rank of the mesh with the shape of its part."""
        from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

        sizes = tuple(self.mesh[dim] for dim in self.dims)
        known = {
            place: tuple(_compute_local_shape_and_global_offset(self.shape, sizes, list(place), self.placements)[0])
            for place in product(*map(range, sizes))
        }
        for rank, coordinates in zip(self.ranks, product(*map(range, self.mesh)), strict=True):
            yield rank, known[tuple(coordinates[dim] for dim in self.dims)]


def shardings(values: Iterable[Any]) -> tuple[Sharding, ...]:
    """The different shardings of the DTensors among the values."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: no DTensor exists
    if module is None:
        return ()
    found = (_sharding(value) for value in values if isinstance(value, module.DTensor))
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _sharding(tensor: Any) -> Sharding | None:
    """The sharding of a DTensor; None if its mesh has dimensions that the whole mesh does not have by name."""
    mesh = tensor.device_mesh
    root = getattr(mesh, "_root_mesh", None) or mesh
    names = root.mesh_dim_names or ()
    if root is not mesh and not set(mesh.mesh_dim_names or ("",)) <= set(names):
        return None
    dims = range(mesh.ndim) if root is mesh else map(names.index, mesh.mesh_dim_names)
    whole = root.mesh
    return Sharding(tuple(tensor.shape), tuple(tensor.placements), tuple(dims), tuple(whole.shape),
                    tuple(whole.flatten().tolist()))  # fmt: skip
