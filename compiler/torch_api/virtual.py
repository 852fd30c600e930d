"""A GPU that is not here, for the length of a `with` block.

Inside, what Inductor asks (torch.cuda, torch._dynamo.device_interface.CudaInterface, Triton's active driver) is
answered from a `Target`; answers that torch or Inductor cached are dropped on the way in and on the way out. Nothing
can run on such a GPU: the block is for graphs of fake tensors.
"""

from __future__ import annotations

import importlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo.device_interface as device_interface
import torch._prims_common as prims_common
import torch._subclasses.fake_tensor as fake_tensor
import torch._utils_internal as utils_internal
import torch.utils._triton as triton_probes
from torch._dynamo.device_interface import CudaInterface, get_interface_for_device
from torch._subclasses.fake_tensor import FakeTensorMode

from compiler.targets import Target
from compiler.torch_api.device_guard import no_op_cuda_guard
from compiler.torch_api.patching import replaced

DEVICE = torch.device("cuda", 0)
"""Where a virtual GPU's tensors are; torch calls AMD's GPUs "cuda" too."""


class VirtualGenerator(torch.Generator):
    """The random generator of a GPU that is not here: graphs carry it as an input, and nothing draws from it."""

    device = property(lambda _generator: DEVICE)

    def clone_state(self) -> VirtualGenerator:
        return VirtualGenerator()

    def graphsafe_get_state(self) -> VirtualGenerator:
        return VirtualGenerator()


CACHED: tuple[str, ...] = (
    "torch._inductor.codecache:CacheBase.get_local_cache_path",
    "torch._inductor.codecache:CacheBase.get_system",
    "torch._inductor.codegen.cuda.cuda_env:get_cuda_arch",
    "torch._inductor.codegen.cuda.cuda_env:get_cuda_version",
    "torch._inductor.codegen.cuda.cuda_env:is_datacenter_blackwell_arch",
    "torch._inductor.kernel.mm:_is_sm7x_or_older_gpu",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.utils:_rocm_native_device_arch_name",
    "torch._inductor.utils:get_backend_num_stages",
    "torch._inductor.utils:get_device_tflops",
    "torch._inductor.utils:get_gpu_dram_gbps",
    "torch._inductor.utils:get_gpu_type",
    "torch._inductor.utils:get_max_num_sms",
    "torch._inductor.utils:is_big_gpu",
    "torch._inductor.utils:use_contiguous",
    "torch._inductor.utils:using_b200",
)
"""Functions of Inductor that remember an answer about the GPU; those that an older torch lacks are passed over."""

_ONE_THREAD = threading.RLock()  # two that overlap would put back each other's answers
_CUDA_VERSION = "13.0"  # what a CPU-only build says it was built with, while it writes code for NVIDIA
HIP_VERSION = "7.0"


@contextmanager
def virtual_gpu(target: Target) -> Iterator[None]:
    """Make torch and Triton answer as on a machine with this GPU. Raises GuardUnavailableError.

    Everything is put back, also after an error or an interrupt. One thread at a time has one: another waits.
    """
    get_interface_for_device("cpu")  # the registry of interfaces counts devices on first use: let it count real ones
    with _ONE_THREAD, ExitStack() as stack:
        stack.callback(_forget_answers)
        stack.enter_context(no_op_cuda_guard())
        for owner, name, value in _answers(target):
            stack.enter_context(replaced(owner, name, _constantly(value)))
        stack.enter_context(active_driver(target))
        _forget_answers()
        yield


def _constantly(value: Any) -> Callable[[Any], Any]:
    return lambda _original: value


def _answers(target: Target) -> Iterator[tuple[Any, str, Any]]:
    """What is asked, and the answer: owner, attribute, value."""
    of_module = _functions(target)
    for name, function in of_module.items():
        if hasattr(torch.cuda, name):
            yield torch.cuda, name, function
        if name in vars(CudaInterface):
            yield CudaInterface, name, staticmethod(function)
    yield FakeTensorMode, "avoid_device_init", property(lambda _mode: True)  # else torch.tensor() makes a real one
    yield fake_tensor, "init_gpu_context", lambda _device: None  # else the first fake tensor makes a real one
    yield utils_internal, "max_clock_rate", lambda: target.clock / 1e6
    yield device_interface, "caching_worker_device_properties", {"cuda": [properties(target)]}
    yield device_interface, "caching_worker_current_devices", {"cuda": 0}
    yield torch.version, "hip", HIP_VERSION if target.vendor == "amd" else None
    yield torch.version, "cuda", None if target.vendor == "amd" else torch.version.cuda or _CUDA_VERSION
    if target.vendor == "nvidia":
        yield torch._C, "_conv_determine_backend_memory_format", _convolutions_format
    yield from _import_time_choices(target)


_FORMAT_ON_CPU = torch._C._conv_determine_backend_memory_format


def _convolutions_format(image: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    """The layout of a convolution's result by cuDNN, which a build or a machine without CUDA does not ask
    (aten/src/ATen/native/ConvUtils.h, cudnn_conv_suggest_memory_format).
    """
    if image.device.type != DEVICE.type:
        return _FORMAT_ON_CPU(image, weight, backend)
    if torch.float64 in (image.dtype, weight.dtype) or weight.dim() not in (4, 5):
        return torch.contiguous_format
    found = {prims_common.suggest_memory_format(tensor) for tensor in (image, weight)}
    last = torch.channels_last if weight.dim() == 4 else torch.channels_last_3d
    return last if last in found else torch.contiguous_format


def _functions(target: Target) -> dict[str, Callable[..., Any]]:
    found = properties(target)
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "_exchange_device": -1,
        "_maybe_exchange_device": -1,
        "exchange_device": -1,
        "maybe_exchange_device": -1,
        "get_raw_stream": 0,
        "get_device_name": target.device_name,
        "get_device_properties": found,
        "get_device_capability": target.capability,
        "get_compute_capability": target.triton_arch,
        "is_bf16_supported": target.vendor == "amd" or target.capability >= (8, 0),
        "is_tf32_supported": "tf32" in target.peak,
        "mem_get_info": (target.memory, target.memory),
        "memory_allocated": 0,
    }
    functions = {name: _answering(answer) for name, answer in answers.items()}
    return functions | {"get_rng_state": _no_rng_state, "set_rng_state": _answering(None)}


def _no_rng_state(*_args: Any, **_kwargs: Any) -> torch.Tensor:
    return torch.zeros(16, dtype=torch.uint8)


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: answer


def properties(target: Target) -> SimpleNamespace:
    """The target as torch.cuda.get_device_properties() gives it."""
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


def _import_time_choices(target: Target) -> Iterator[tuple[Any, str, Any]]:
    """What torch decided when it was imported, by the vendor it was built for."""
    if (torch.version.hip is not None) == (target.vendor == "amd"):
        return
    hints: Any = importlib.import_module("torch._inductor.runtime.hints")
    amd = target.vendor == "amd"
    yield hints, "TRITON_MAX_BLOCK", {**hints.TRITON_MAX_BLOCK, "X": 8192 if amd else 4096}


def inductor_settings(target: Target) -> dict[str, Any]:
    """Inductor's settings on a machine with the target, where they differ from those of this machine: nothing can be
    timed, and defaults follow the vendor that torch was built for.
    """
    settings: dict[str, Any] = {"benchmark_epilogue_fusion": False, "benchmark_fusion": False}
    amd = target.vendor == "amd"
    if (torch.version.hip is not None) != amd:
        settings |= {"layout_optimization": not amd, "triton.spill_threshold": 32 if amd else 16}
    return settings


@contextmanager
def active_driver(target: Target) -> Iterator[None]:
    """Triton compiles for the target inside the block."""
    from triton.runtime import driver

    before = driver._active
    driver.set_active(_driver(target))
    try:
        yield
    finally:
        driver._active = before


def _driver(target: Target) -> Any:
    """Triton's driver for the target: what it is asked when code is generated and compiled, and nothing else."""
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
    """A kernel for a GPU that is not here can't be timed: every candidate takes forever, so none is preferred."""
    return [math.inf]


def _forget_answers() -> None:
    """Drop what torch and Inductor remember of the GPU they asked last."""
    for value in vars(triton_probes).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    for entry in CACHED:
        function = _resolved(entry)
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _resolved(entry: str) -> Any:
    module, _, path = entry.partition(":")
    found: Any = sys.modules.get(module)  # what was not imported remembers nothing
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
