"""Bindings of torch that do the same as public ones with less in between."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._dynamo.guards import _empty_strided_cpu, _reinterpret_tensor  # type: ignore[attr-defined]

empty_on_cpu = _empty_strided_cpu
"""(sizes, strides, dtype) -> a tensor in memory of its own, as torch.empty_strided."""

view_of_memory = _reinterpret_tensor
"""(tensor, sizes, strides, offset) -> a view of its memory; the offset is in elements from where the tensor starts."""

direct_functions: Any = torch._C._VariableFunctions
"""ATen operators by name, without OpOverload's frame in Python."""
