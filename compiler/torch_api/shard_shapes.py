"""Shapes of the local parts of DTensors on every rank of their mesh."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from compiler.torch_api.fake_tensors import unset_fake_temporarily


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor of a global shape is split. `dims` are the dimensions of the whole mesh that it is split over.

    `ranks` are those of the whole mesh, whose shape is `mesh`, in order; `names` are those of its dimensions.
    """

    shape: tuple[int, ...]
    placements: tuple[Any, ...]
    dims: tuple[int, ...]
    mesh: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...]

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """A rank's place in the whole mesh."""
        places = product(*map(range, self.mesh))
        return next(place for known, place in zip(self.ranks, places, strict=True) if known == rank)

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


def dimension_names(mesh: Any) -> tuple[str, ...]:
    """Names of the dimensions of a device mesh; `dim 0`, … if it has none."""
    return tuple(mesh.mesh_dim_names or (f"dim {index}" for index in range(mesh.ndim)))


def shardings(values: Iterable[Any]) -> tuple[Sharding, ...]:
    """The different shardings of the DTensors among the values."""
    module = sys.modules.get("torch.distributed.tensor")  # not imported: no DTensor exists
    if module is None:
        return ()
    found = (_read_sharding(value) for value in values if isinstance(value, module.DTensor))
    return tuple(dict.fromkeys(each for each in found if each is not None))


def _read_sharding(tensor: Any) -> Sharding | None:
    """The sharding of a DTensor; None if its mesh has dimensions that the whole mesh does not have by name."""
    mesh = tensor.device_mesh
    root = getattr(mesh, "_root_mesh", None) or mesh
    names = root.mesh_dim_names or ()
    if root is not mesh and not set(mesh.mesh_dim_names or ("",)) <= set(names):
        return None
    dims = range(mesh.ndim) if root is mesh else map(names.index, mesh.mesh_dim_names)
    with unset_fake_temporarily():
        whole = root.mesh.flatten().tolist(), tuple(root.mesh.shape)
    return Sharding(
        tuple(tensor.shape), tuple(tensor.placements), tuple(dims), whole[1], tuple(whole[0]), dimension_names(root)
    )
