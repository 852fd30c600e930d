"""The decomposition of max pooling that keeps, for the backward, one byte a window: which of its places is the largest.

The operators are Inductor's (`torch._inductor.inductor_prims`): the partitioner knows that places in the plane are
cheaper computed again than kept, as 8 bytes a window. Inductor's own decomposition asks its lowerings, which take long
to import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch._inductor import inductor_prims

_aten = torch.ops.aten
LARGEST = 25
"""The most places of a window that are written out."""


def _most(
    rank: int, x: torch.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    """Largest values and their places in the plane; NotImplemented for what is left to ATen's operator."""

    def each(value: Any) -> list[int]:
        values = [*value] if isinstance(value, Sequence) else [value]
        return values * rank if len(values) == 1 else values

    kernel, *geometry = each(kernel), each(stride or kernel), each(padding), each(dilation)
    if not all(isinstance(one, int) for values in (kernel, *geometry) for one in values) or prod(kernel) > LARGEST:
        return NotImplemented
    values, taps = inductor_prims._low_memory_max_pool_with_offsets(x, kernel, *geometry, ceil)
    return values, inductor_prims._low_memory_max_pool_offsets_to_indices(taps, kernel, x.shape[-rank:], *geometry)


POOLING: Mapping[Any, Callable[..., Any]] = {
    _aten.max_pool2d_with_indices.default: partial(_most, 2),
    _aten.max_pool3d_with_indices.default: partial(_most, 3),
}
