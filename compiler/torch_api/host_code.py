"""Imports and aliases of Inductor's host code that functions which launch kernels need."""

from __future__ import annotations

import torch._C._dynamo.guards as guards

ALIASES = {
    "aten": "torch.ops.aten",
    "inductor_ops": "torch.ops.inductor",
    "_quantized": "torch.ops._quantized",
    "assert_size_stride": "torch._C._dynamo.guards.assert_size_stride",
    "empty_strided_cpu": "torch._C._dynamo.guards._empty_strided_cpu",
    "reinterpret_tensor": "torch._C._dynamo.guards._reinterpret_tensor",
    "alloc_from_pool": "torch.ops.inductor._alloc_from_pool",
}
IMPORTS = """\
import math
import torch
from math import inf, nan
from torch import empty_strided
from torch._inductor.select_algorithm import extern_kernels
"""
if hasattr(guards, "assert_size_stride_grouped"):  # since torch 2.15
    ALIASES["assert_size_stride_grouped"] = "torch._C._dynamo.guards.assert_size_stride_grouped"
for name in ("copy_if_misaligned", "copy_misaligned"):  # the first since torch 2.13, the second in torch 2.12
    if hasattr(guards, name):
        IMPORTS += f"from torch._C._dynamo.guards import {name}\n"
