"""Fake tensors: shapes, strides and devices without memory (torch._subclasses.fake_tensor)."""

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "FakeTensor",
    "FakeTensorMode",
    "detect_fake_mode",
    "in_kernel_invocation_manager",
    "no_python_dispatcher",
    "unset_fake_temporarily",
]

without_modes = _disable_current_modes
"""A context without dispatch modes, so that new tensors are real: AOTAutograd compiles under a fake tensor mode."""

has_storage = torch._C._has_storage
