"""Mark tensor sizes as dynamic for torch.compile, and restore earlier marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch._dynamo import decorators


def mark_size(tensor: torch.Tensor, dimension: int, *, unbacked: bool) -> None:
    """Mark a dimension of a tensor as dynamic; with `unbacked`, sizes 0 and 1 are not specialized either."""
    mark = decorators.mark_unbacked if unbacked else decorators.mark_dynamic
    mark(tensor, dimension)


@contextmanager
def preserve_marks(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """After the block, restore the attributes of tensors, where torch keeps the marks."""
    saved = [(tensor, dict(vars(tensor))) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, attributes in saved:
            vars(tensor).clear()
            vars(tensor).update(attributes)
