"""Load and launch machine code on the GPU with little overhead.

torch's launcher for Triton binaries (torch/csrc/inductor/static_cuda_launcher.cpp) needs no C++ stub per signature;
Triton's launcher does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._C._dynamo.guards as native

_LETTERS = {"i1": "i", "i8": "b", "i16": "h", "i32": "i", "i64": "l", "fp32": "f", "fp64": "d"}


class NoLauncherError(RuntimeError):
    """The installed PyTorch has no kernel launcher; the message says why."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel loaded on a GPU.

    `function` is the driver's handle. `warps` is the number of warps per program. `shared` is shared memory in bytes.
    `letters` encode the argument types for `launch`, including `spare` trailing null pointers. `starts` are the byte
    offsets of the pointer arguments into their buffers; empty if there are none.
    """

    function: int
    warps: int
    shared: int
    letters: str
    spare: int
    registers: int = 0
    spills: int = 0
    starts: tuple[int, ...] = ()


def launcher() -> Any:
    """The static CUDA launcher of torch. Raises NoLauncherError."""
    found = getattr(torch._C, "_StaticCudaLauncher", None)
    if found is None or torch.version.hip:
        raise NoLauncherError("kernels are launched by a CUDA build of PyTorch, and this is none")
    return found


def launch() -> Callable[..., None]:
    """The launch function: (function, x, y, z, warps, shared, letters, arguments, stream).

    A pointer argument may be an integer address.
    """
    return launcher()._launch_kernel


def letters(types: Sequence[str]) -> str:
    """One-letter type codes of the launcher, for Triton types ("*fp32", "i32")."""
    return "".join("O" if name.startswith("*") else _LETTERS[name] for name in types)


def load(cubin: Path, name: str, warps: int, shared: int, types: Sequence[str], spare: int, device: int) -> Loaded:
    """Load a binary onto a GPU.

    Raises CUDA errors, and torch.OutOfMemoryError for too much shared memory.
    """
    torch.cuda.init()
    *_module, function, registers, spills = launcher()._load_kernel(str(cubin), name, shared, device)
    return Loaded(function, warps, shared, letters(types) + "O" * spare, spare, registers, spills)


def raw_stream() -> Callable[[int], int]:
    """A function that returns the current stream of a GPU, by the GPU's index."""
    return torch._C._cuda_getCurrentRawStream


def current_device() -> Callable[[], int]:
    """A function that returns the index of the current GPU."""
    return torch._C._cuda_getDevice


def empty_on_cuda() -> Callable[..., torch.Tensor]:
    """(sizes, strides, dtype) -> a new tensor on the current GPU, faster than torch.empty_strided."""
    return native._empty_strided_cuda  # type: ignore[attr-defined]


def driver_version() -> int:
    """The CUDA version that the GPU driver supports (13000 for 13.0); 0 without a driver."""
    found = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(found))
    except (OSError, AttributeError):
        return 0
    return found.value
