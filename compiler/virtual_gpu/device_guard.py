"""A CUDA device guard for machines without a GPU.

Some composite operators (the backward of an embedding, `uniform_`) ask for a guard of their tensors' device, also when
the tensors are fake. A CPU-only build has no guard for CUDA and raises "not linked with support for cuda devices"; that
of a CUDA build asks the driver, which a machine without a GPU lacks (torch itself has a guard that does nothing for
that, torch._C._ensureCUDADeviceGuardSet, and no way back). Here CUDA is lent the Meta device's guard, which does
nothing, and gets its own back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""`std::atomic<const DeviceGuardImplInterface*> c10::impl::device_guard_impl_registry[]`, as the linker spells it."""

_CUDA, _META, _SLOTS = 1, 14, 22  # c10::DeviceType
_LIBRARIES = ("libc10.so", "libc10.dylib")


class GuardUnavailableError(RuntimeError):
    """The installed build of torch gives no way to lend CUDA a device guard."""


@contextmanager
def no_op_cuda_guard() -> Iterator[None]:
    """Give fake CUDA tensors a device guard in the block that works without a GPU.

    With a GPU nothing changes. Raises GuardUnavailableError.
    """
    if torch.cuda.is_available():
        yield
        return
    slots = _registry()
    before = slots[_CUDA]
    slots[_CUDA] = slots[_META]
    try:
        yield
    finally:
        slots[_CUDA] = before


def _registry() -> ctypes.Array[ctypes.c_void_p]:
    folder = Path(torch.__file__).parent / "lib"
    path = next((folder / name for name in _LIBRARIES if (folder / name).exists()), None)
    try:
        slots = (ctypes.c_void_p * _SLOTS).in_dll(ctypes.CDLL(str(path)), REGISTRY) if path else None
    except (OSError, ValueError):
        slots = None
    if slots is None or not slots[_META]:
        raise GuardUnavailableError(
            "code for a GPU that is not here needs a CUDA device guard that works without one, and this build of torch "
            f"({torch.__version__}) does not show where to put it (no {REGISTRY} in its c10 library)"
        )
    return slots
