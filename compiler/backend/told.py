"""Calls of PyTorch give what their fake kernels told when the graph was compiled: kernels read it by told strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.backend.ir import BackendError


def as_told(
    operator: str, tensor: torch.Tensor | None, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor | None:
    """What an operator gave, with the strides that were told when the graph was compiled: a view where they differ only
    along dimensions of one element, else a copy. Raises BackendError for another shape or dtype, and for strides by
    which elements share memory that do not. Nothing where it gave none: attention's kernels leave out results that only
    some of them have.
    """
    if tensor is None:
        return None
    if (tensor.shape, tensor.stride(), tensor.dtype) == (shape, strides, dtype):
        return tensor
    if tensor.shape != shape or tensor.dtype != dtype:
        gave, told = (f"{kind}{list(sizes)}" for kind, sizes in ((tensor.dtype, tensor.shape), (dtype, shape)))
        raise BackendError(f"{operator} gave {gave}; by its fake kernel it gives {told}".replace("torch.", ""))
    pairs = list(zip(shape, tensor.stride(), strides, strict=True))
    if all(size == 1 or have == wanted for size, have, wanted in pairs):
        return tensor.as_strided(tensor.shape, strides)
    if tensor.numel() and any(size > 1 and wanted == 0 for size, _, wanted in pairs):
        told = f"by its fake kernel it gives {list(strides)}: elements that share memory"
        raise BackendError(f"{operator} gave strides {list(tensor.stride())}; {told}")
    made = torch.empty_strided(tensor.shape, strides, dtype=dtype, device=tensor.device)
    return made.copy_(tensor)
