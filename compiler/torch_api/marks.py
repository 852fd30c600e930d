"""Mark sizes of tensors for torch.compile, and put tensors back without the marks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch._dynamo import decorators


def mark_size(tensor: torch.Tensor, dimension: int, *, unbacked: bool) -> None:
    """Declare that a size of a tensor changes; with `unbacked`, sizes 0 and 1 share the code too."""
    mark = decorators.mark_unbacked if unbacked else decorators.mark_dynamic
    mark(tensor, dimension)


@contextmanager
def preserve_marks(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the attributes of tensors, in which torch keeps marks, after the block."""
    saved = [(tensor, dict(vars(tensor))) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, attributes in saved:
            vars(tensor).clear()
            vars(tensor).update(attributes)
