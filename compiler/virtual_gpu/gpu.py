"""Provide a virtual GPU in a `with` block.

Inside the block, Inductor's queries (torch.cuda, torch._dynamo.device_interface.CudaInterface, Triton's active driver)
are answered from a `Target`. Answers cached by torch or Inductor are dropped on entry and on exit. Nothing can run on
a virtual GPU: the block is for graphs of fake tensors.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from compiler.targets import Target
from compiler.torch_api import gpu_questions
from compiler.torch_api.collectives import gpus_of_node
from compiler.torch_api.gpu_questions import CONVOLUTION_FORMAT, Place, suggest_memory_format, triton_driver
from compiler.torch_api.patching import replace_attributes

DEVICE = torch.device("cuda", 0)
"""The device of a virtual GPU's tensors; torch calls AMD GPUs "cuda" too."""


REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""The symbol of `std::atomic<const DeviceGuardImplInterface*> c10::impl::device_guard_impl_registry[]`."""

_CUDA, _META, _SLOTS = 1, 14, 22  # c10::DeviceType
_LIBRARIES = ("libc10.so", "libc10.dylib")


class VirtualGenerator(torch.Generator):
    """A virtual GPU's random generator: graphs have it as an input, but nothing draws from it."""

    device = property(lambda _generator: DEVICE)

    def clone_state(self) -> VirtualGenerator:
        return VirtualGenerator()

    def graphsafe_get_state(self) -> VirtualGenerator:
        return VirtualGenerator()


_ONE_THREAD = threading.RLock()  # overlapping blocks would restore each other's answers
_CUDA_VERSION = "13.0"  # torch.version.cuda of a CPU-only build while it generates code for NVIDIA
HIP_VERSION = "7.0"


@contextmanager
def virtual_gpu(target: Target) -> Iterator[None]:
    """Make torch and Triton report this GPU in the block. Raises GuardUnavailableError.

    Everything is restored, also after an error or an interrupt. Only one thread at a time has a virtual GPU; others
    wait.
    """
    gpu_questions.count_real_devices()
    answers = ((*place, partial(_answer, value)) for place, value in _answers(target))
    with _ONE_THREAD:
        try:
            with no_op_cuda_guard(), replace_attributes(answers), active_driver(target):
                gpu_questions.forget_answers()
                yield
        finally:
            gpu_questions.forget_answers()


def _answer(answer: Any, *_: Any, **__: Any) -> Any:
    return answer


def _answers(target: Target) -> Iterator[tuple[Place, Any]]:
    """Each place that queries the GPU, with the target's answer."""
    yield from gpu_questions.answers(functions_of(target), properties(target), target.clock / 1e6)
    yield from ((place, lambda _index: VirtualGenerator()) for place in gpu_questions.generator_functions())
    yield Place(torch.version, "hip"), HIP_VERSION if target.vendor == "amd" else None
    yield Place(torch.version, "cuda"), None if target.vendor == "amd" else torch.version.cuda or _CUDA_VERSION
    if target.vendor == "nvidia":
        yield CONVOLUTION_FORMAT, _convolutions_format


_FORMAT_ON_CPU = getattr(*CONVOLUTION_FORMAT)


def _convolutions_format(image: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    """The memory format of a convolution's result by cuDNN's rule, which only CUDA builds contain.

    aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format.
    """
    if image.device.type != DEVICE.type:
        return _FORMAT_ON_CPU(image, weight, backend)
    if torch.float64 in (image.dtype, weight.dtype) or weight.dim() not in (4, 5):
        return torch.contiguous_format
    found = {suggest_memory_format(tensor) for tensor in (image, weight)}
    last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
    return last if last in found else torch.contiguous_format


def functions_of(target: Target) -> dict[str, Callable[..., Any]]:
    """Functions of torch.cuda, by name, as they answer where this GPU is."""
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": gpus_of_node(),
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "_exchange_device": -1,
        "_maybe_exchange_device": -1,
        "exchange_device": -1,
        "maybe_exchange_device": -1,
        "get_raw_stream": 0,
        "get_device_name": target.device_name,
        "get_device_properties": properties(target),
        "get_device_capability": target.capability,
        "get_compute_capability": target.triton_arch,
        "is_bf16_supported": target.vendor == "amd" or target.capability >= (8, 0),
        "is_tf32_supported": "tf32" in target.peak,
        "mem_get_info": (target.memory, target.memory),
        "memory_allocated": 0,
        "set_rng_state": None,
    }
    functions = {name: partial(_answer, answer) for name, answer in answers.items()}
    return functions | {"get_rng_state": lambda *_args, **_kwargs: torch.zeros(16, dtype=torch.uint8)}


def properties(target: Target) -> SimpleNamespace:
    """The target's properties, as returned by torch.cuda.get_device_properties()."""
    return SimpleNamespace(
        name=target.device_name,
        major=target.capability[0],
        minor=target.capability[1],
        gcnArchName=f"{target.architecture}:sramecc+:xnack-" if target.vendor == "amd" else target.device_name,
        total_memory=target.memory,
        multi_processor_count=target.multiprocessors,
        warp_size=target.warp_size,
        max_threads_per_block=target.max_threads_per_block,
        max_threads_per_multi_processor=target.max_threads_per_multiprocessor,
        regs_per_multiprocessor=target.registers_per_multiprocessor,
        shared_memory_per_block=target.shared_memory_per_block,
        shared_memory_per_block_optin=target.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=target.shared_memory_per_multiprocessor,
        L2_cache_size=target.l2_cache,
        clock_rate=round(target.clock / 1e3),
        memory_clock_rate=round(target.memory_clock / 1e3),
        memory_bus_width=target.memory_bus_width,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


def active_driver(target: Target) -> AbstractContextManager[None]:
    """Make Triton compile for the target inside the block."""
    return triton_driver(partial(_driver, target))


def _driver(target: Target) -> Any:
    """A Triton driver for the target, with only the methods that code generation and compilation call."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    facts = {
        "max_shared_mem": target.shared_memory_per_block_optin,
        "max_num_regs": target.registers_per_multiprocessor,
        "multiprocessor_count": target.multiprocessors,
        "warpSize": target.warp_size,
        "sm_clock_rate": round(target.clock / 1e3),
        "mem_clock_rate": round(target.memory_clock / 1e3),
        "mem_bus_width": target.memory_bus_width,
        "arch": target.architecture,
    }

    class VirtualDriver(DriverBase):  # type: ignore[misc]
        utils = SimpleNamespace(get_device_properties=lambda _device: facts)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def map_python_to_cpp_type(self, ty: str) -> str:
            raise NotImplementedError(f"{target.title} is not here: nothing is launched on it")

        def get_current_target(self) -> Any:
            return GPUTarget(target.backend, target.triton_arch, target.warp_size)

        def get_current_device(self) -> int:
            return 0

        def get_active_torch_device(self) -> torch.device:
            return DEVICE

        def get_device_interface(self) -> Any:
            return torch.cuda

        def get_benchmarker(self) -> Any:
            return _no_benchmark

    return VirtualDriver()


def _no_benchmark(*_args: Any, **_kwargs: Any) -> list[float]:
    """Report an infinite time: kernels for a virtual GPU can't be timed, so no kernel is preferred."""
    return [math.inf]


class GuardUnavailableError(RuntimeError):
    """The installed torch build does not let us replace CUDA's device guard."""


@contextmanager
def no_op_cuda_guard() -> Iterator[None]:
    """Use a no-op device guard for fake CUDA tensors in the block, without a GPU. Raises GuardUnavailableError.

    Some composite operators (the backward of an embedding, `uniform_`) use a guard of their tensors' device, even for
    fake tensors. A CPU-only build has no CUDA guard and raises "not linked with support for cuda devices". The guard of
    a CUDA build needs the driver, which a machine without a GPU lacks. (torch._C._ensureCUDADeviceGuardSet installs a
    no-op guard, but can't be undone.) Here the no-op guard of the Meta device replaces CUDA's during the block. With a
    GPU nothing changes.
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
