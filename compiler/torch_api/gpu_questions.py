"""Functions with which torch and Triton query the GPU, and their caches.

`compiler.virtual_gpu` replaces their answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch._dynamo.device_interface as device_interface
import torch._inductor.comm_analysis as comm_analysis
import torch._inductor.utils as inductor_utils
import torch._prims_common as prims_common
import torch._subclasses.fake_tensor as fake_tensor
import torch._utils_internal as utils_internal
import torch.utils._triton as triton_probes
from torch._dynamo.device_interface import CudaInterface, get_interface_for_device
from torch._subclasses.fake_tensor import FakeTensorMode

from compiler.torch_api.fx import attribute_at


class Place(NamedTuple):
    """An attribute of torch that can be replaced."""

    owner: Any
    name: str


CONVOLUTION_FORMAT = Place(torch._C, "_conv_determine_backend_memory_format")
suggest_memory_format = prims_common.suggest_memory_format

CACHED: tuple[str, ...] = (
    "torch._inductor.codecache:CacheBase.get_local_cache_path",
    "torch._inductor.codecache:CacheBase.get_system",
    "torch._inductor.codegen.cuda.cuda_env:get_cuda_arch",
    "torch._inductor.codegen.cuda.cuda_env:get_cuda_version",
    "torch._inductor.codegen.cuda.cuda_env:is_datacenter_blackwell_arch",
    "torch._inductor.comm_analysis:get_gpu_type",
    "torch._inductor.kernel.mm:_is_sm7x_or_older_gpu",
    "torch._inductor.runtime.hints:DeviceProperties.create",
    "torch._inductor.utils:_get_device_dram_gbps",
    "torch._inductor.utils:_get_device_tflops",
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
"""Functions of Inductor that cache a property of the GPU; those that an older torch lacks are skipped."""


def count_real_devices() -> None:
    """Fill torch's registry of device interfaces, which counts devices on first use."""
    get_interface_for_device("cpu")


def answers(
    functions: Mapping[str, Callable[..., Any]], properties: Any, max_clock_rate: float
) -> Iterator[tuple[Place, Any]]:
    """Each place that queries the GPU, and its replacement. `functions` replace functions of torch.cuda."""
    for name, function in functions.items():
        if hasattr(torch.cuda, name):
            yield Place(torch.cuda, name), function
        if name in vars(CudaInterface):
            yield Place(CudaInterface, name), function
    # Otherwise torch.tensor() and the first fake tensor would create a real tensor on the GPU.
    yield Place(FakeTensorMode, "avoid_device_init"), property(lambda _mode: True)
    yield Place(fake_tensor, "init_gpu_context"), lambda _device: None
    yield Place(utils_internal, "max_clock_rate"), lambda *_device: max_clock_rate
    yield Place(device_interface, "caching_worker_device_properties"), {"cuda": [properties]}
    yield Place(device_interface, "caching_worker_current_devices"), {"cuda": 0}
    if hasattr(inductor_utils, "_current_accelerator_device"):  # since torch 2.15
        yield Place(inductor_utils, "_current_accelerator_device"), lambda: torch.device("cuda", 0)
    if hasattr(comm_analysis, "_has_nvlink"):  # as in `collective_time`; else it would ask this machine
        yield Place(comm_analysis, "_has_nvlink"), lambda: True


def generator_functions() -> Iterator[Place]:
    """Yield the place of the function that returns the GPU's random generator; nothing before torch 2.14."""
    if hasattr(torch._C, "_accelerator_getDefaultGenerator"):
        yield Place(torch._C, "_accelerator_getDefaultGenerator")


def forget_answers() -> None:
    """Clear the GPU properties that torch and Inductor cached."""
    for value in vars(triton_probes).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    for entry in CACHED:
        module, _, path = entry.partition(":")  # a module that was not imported has cached nothing
        if hasattr(function := attribute_at(sys.modules.get(module), path), "cache_clear"):
            function.cache_clear()


@contextmanager
def triton_driver(make: Callable[[], Any]) -> Iterator[None]:
    """Make the new driver `make()` Triton's active driver in the block."""
    from triton.runtime import driver

    before = driver._active
    driver.set_active(make())
    try:
        yield
    finally:
        driver._active = before
