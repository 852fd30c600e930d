"""Decompose operators as on a GPU, while the graph is traced with CPU tensors.

Some of torch's decompositions depend on their arguments' device: on the CPU, Inductor's leave dropout's random numbers
and the gradient of a convolution's bias to ATen, and expand small matmuls (torch/_inductor/decomposition.py,
torch/_decomp/decompositions_for_rng.py). While a decomposition runs, fake CPU tensors report the GPU as their device.
Operators that it calls see the true device, and create tensors on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from compiler.torch_api.fake_tensors import FakeTensor
from compiler.torch_api.moving import CPU, device_swap
from compiler.torch_api.patching import Function
from compiler.torch_api.pytrees import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
_to_cpu = device_swap(GPU, CPU)
_pretending: ContextVar[bool] = ContextVar("fake CPU tensors say that they are on a GPU", default=False)


def decompose_as_on_gpu(run: Function, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Replace torch's `maybe_handle_decomp`: while it runs, the operator's CPU tensors report the GPU as device."""
    with _pretend(_is_on_cpu((args, kwargs))):
        return run(mode, func, args, kwargs)


def dispatch_on_cpu(dispatch: Function, mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Replace `ProxyTorchDispatchMode.__torch_dispatch__`: operators in a decomposition see the true device."""
    if not _pretending.get():
        return dispatch(mode, func, types, args, kwargs)
    with _pretend(False):
        return dispatch(mode, func, types, tree_map(_to_cpu, args), tree_map(_to_cpu, kwargs or {}))


def wrap_device(device: property) -> property:
    """Wrap `FakeTensor.device`: while a decomposition runs, CPU tensors report the GPU."""
    get: Any = device.fget

    def pretend_device(tensor: FakeTensor) -> torch.device:
        found: torch.device = get(tensor)
        return GPU if found.type == "cpu" and _pretending.get() else found

    return property(pretend_device, device.fset)


def _is_on_cpu(arguments: Any) -> bool:
    """Whether the arguments contain tensors, and all of them are on the CPU (false in a moved graph)."""
    devices = {value.device.type for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)}
    return devices == {"cpu"}


@contextmanager
def _pretend(value: bool) -> Iterator[None]:
    token = _pretending.set(value)
    try:
        yield
    finally:
        _pretending.reset(token)
