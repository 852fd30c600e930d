"""Enforce fake-kernel metadata on results of extern calls, as kernels read them by the strides of fake tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from compiler.backend.ir import BackendError


def match_fake_layout(
    operator: str, tensor: torch.Tensor | None, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor | None:
    """Restride a result to match its fake tensor.

    It is a view where strides differ only along dimensions of one element, else a copy. None stays None: attention's
    kernels leave out results that only some of them have. Raises BackendError for another shape or dtype, and where the
    fake strides overlap in memory and the real ones do not.
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
