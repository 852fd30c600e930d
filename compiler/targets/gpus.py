"""The table of GPUs, each with the sources of its numbers.

Limits of NVIDIA multiprocessors (registers, threads, blocks, shared memory) are from the table "Technical
Specifications per Compute Capability" of the CUDA C++ Programming Guide. Peak rates are dense: if a data sheet gives
the rate with 2:4 sparsity, it is halved here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from compiler.targets.target import Target

_KIB = 1024
_MIB = 1024**2
_GIB = 1024**3
_MHZ = 1e6
_GB = 1e9
_TERA = 1e12
_PROGRAMMING_GUIDE = "CUDA C++ Programming Guide 13.0, Technical Specifications per Compute Capability"


def _tera(**rates: float) -> Mapping[str, float]:
    return MappingProxyType({dtype: rate * _TERA for dtype, rate in rates.items()})


class _Limits(NamedTuple):
    """Limits of a multiprocessor of one compute capability; shared memory is in KiB."""

    family: str
    shared_memory: int
    shared_memory_of_a_block: int
    threads: int
    blocks: int


_LIMITS = {
    (7, 5): _Limits("Turing", 64, 64, 1024, 16),
    (8, 0): _Limits("Ampere", 164, 163, 2048, 32),
    (8, 9): _Limits("Ada Lovelace", 100, 99, 1536, 24),
    (9, 0): _Limits("Hopper", 228, 227, 2048, 32),
    (10, 0): _Limits("Blackwell", 228, 227, 2048, 32),
}


def _nvidia(name: str, capability: tuple[int, int], sources: tuple[str, ...], **facts: Any) -> Target:
    """An NVIDIA GPU with the limits of its compute capability."""
    limits = _LIMITS[capability]
    return Target(
        name=name,
        vendor="nvidia",
        family=limits.family,
        architecture=f"sm_{capability[0]}{capability[1]}",
        capability=capability,
        warp_size=32,
        shared_memory_per_multiprocessor=limits.shared_memory * _KIB,
        shared_memory_per_block=48 * _KIB,
        shared_memory_per_block_optin=limits.shared_memory_of_a_block * _KIB,
        registers_per_multiprocessor=65536,
        max_threads_per_multiprocessor=limits.threads,
        max_blocks_per_multiprocessor=limits.blocks,
        sources=(*sources, _PROGRAMMING_GUIDE),
        **facts,
    )


A100 = _nvidia(
    name="a100",
    title="NVIDIA A100 SXM4 80 GB",
    device_name="NVIDIA A100-SXM4-80GB",
    capability=(8, 0),
    multiprocessors=108,
    clock=1410 * _MHZ,
    memory_clock=1593 * _MHZ,
    memory_bus_width=5120,
    memory=80 * _GIB,
    memory_bandwidth=2039 * _GB,
    l2_cache=40 * _MIB,
    peak=_tera(float64=19.5, float32=19.5, tf32=156, float16=312, bfloat16=312, int8=624),
    sources=(
        "NVIDIA A100 Tensor Core GPU Data Sheet (80 GB)",
        "NVIDIA A100 Tensor Core GPU Architecture whitepaper, V1.0",
    ),
)

H100 = _nvidia(
    name="h100",
    title="NVIDIA H100 SXM5 80 GB",
    device_name="NVIDIA H100 80GB HBM3",
    capability=(9, 0),
    multiprocessors=132,
    clock=1980 * _MHZ,
    memory_clock=2619 * _MHZ,
    memory_bus_width=5120,
    memory=80 * _GIB,
    memory_bandwidth=3350 * _GB,
    l2_cache=50 * _MIB,
    peak=_tera(float64=66.9, float32=66.9, tf32=494.7, float16=989.4, bfloat16=989.4, float8=1978.9, int8=1978.9),
    sources=("NVIDIA H100 Tensor Core GPU Architecture whitepaper, V1.04", "NVIDIA H100 Tensor Core GPU Data Sheet"),
)

H200 = replace(
    H100,
    name="h200",
    title="NVIDIA H200 SXM 141 GB",
    device_name="NVIDIA H200",
    memory_clock=3201 * _MHZ,
    memory_bus_width=6144,
    memory=141 * _GIB,
    memory_bandwidth=4800 * _GB,
    l2_cache=60 * _MIB,
    sources=(
        "NVIDIA H200 Tensor Core GPU Data Sheet",
        "NVIDIA H100 Tensor Core GPU Architecture whitepaper, V1.04 (same GH100 chip)",
        "L2: as torch.cuda.get_device_properties() reports it on an H200",
        _PROGRAMMING_GUIDE,
    ),
)

B200 = _nvidia(
    name="b200",
    title="NVIDIA B200 SXM 180 GB",
    device_name="NVIDIA B200",
    capability=(10, 0),
    multiprocessors=148,
    clock=1965 * _MHZ,
    memory_clock=3996 * _MHZ,
    memory_bus_width=8192,
    memory=180 * _GIB,
    memory_bandwidth=8000 * _GB,
    l2_cache=126 * _MIB,
    # The brief's first edition gave 40 and 80 for float64 and float32: too much for 148 multiprocessors at this clock.
    peak=_tera(float64=37, float32=75, tf32=1100, float16=2250, bfloat16=2250, float8=4500, int8=4500),
    sources=(
        "NVIDIA Blackwell Architecture Technical Brief, table 3 (HGX B200, for each GPU; half of the sparse rates)",
        "NVIDIA DGX B200 Data Sheet (64 TB/s for 8 GPUs)",
        "Multiprocessors and L2: as torch.cuda.get_device_properties() reports them on a B200",
        "NVIDIA Blackwell Tuning Guide",
    ),
)

L4 = _nvidia(
    name="l4",
    title="NVIDIA L4 24 GB",
    device_name="NVIDIA L4",
    capability=(8, 9),
    multiprocessors=58,
    clock=2040 * _MHZ,
    memory_clock=6251 * _MHZ,
    memory_bus_width=192,
    memory=24 * _GIB,
    memory_bandwidth=300 * _GB,
    l2_cache=48 * _MIB,
    peak=_tera(float64=0.473, float32=30.3, tf32=60, float16=121, bfloat16=121, float8=242.5, int8=242.5),
    sources=("NVIDIA L4 Tensor Core GPU Data Sheet", "NVIDIA Ada GPU Architecture whitepaper"),
)

T4 = _nvidia(
    name="t4",
    title="NVIDIA T4 16 GB",
    device_name="Tesla T4",
    capability=(7, 5),
    multiprocessors=40,
    clock=1590 * _MHZ,
    memory_clock=5001 * _MHZ,
    memory_bus_width=256,
    memory=16 * _GIB,
    memory_bandwidth=320 * _GB,
    l2_cache=4 * _MIB,
    peak=_tera(float64=0.254, float32=8.1, float16=65, int8=130),
    sources=("NVIDIA T4 Data Sheet", "NVIDIA Turing GPU Architecture whitepaper"),
)

RTX4090 = _nvidia(
    name="rtx4090",
    title="NVIDIA GeForce RTX 4090 24 GB",
    device_name="NVIDIA GeForce RTX 4090",
    capability=(8, 9),
    multiprocessors=128,
    clock=2520 * _MHZ,
    memory_clock=10501 * _MHZ,
    memory_bus_width=384,
    memory=24 * _GIB,
    memory_bandwidth=1008 * _GB,
    l2_cache=72 * _MIB,
    # With float32 accumulation, which torch uses: GeForce tensor cores run it at half the rate.
    peak=_tera(float64=1.29, float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, float8=330.3, int8=660.6),
    sources=("NVIDIA Ada GPU Architecture whitepaper, V2.02 (appendix A)",),
)

MI300X = Target(
    name="mi300x",
    title="AMD Instinct MI300X 192 GB",
    device_name="AMD Instinct MI300X",
    vendor="amd",
    family="CDNA 3",
    architecture="gfx942",
    capability=(9, 4),
    multiprocessors=304,
    warp_size=64,
    clock=2100 * _MHZ,
    memory_clock=2600 * _MHZ,
    memory_bus_width=8192,
    memory=192 * _GIB,
    memory_bandwidth=5300 * _GB,
    l2_cache=32 * _MIB,  # 4 MiB on each of 8 dies; the 256 MiB Infinity Cache behind it is not counted
    shared_memory_per_multiprocessor=64 * _KIB,
    shared_memory_per_block=64 * _KIB,
    shared_memory_per_block_optin=64 * _KIB,
    registers_per_multiprocessor=131072,
    max_threads_per_multiprocessor=2048,
    max_blocks_per_multiprocessor=32,  # 16 if a block has more than one wave: compiler.binary.occupancy
    peak=_tera(float64=163.4, float32=163.4, tf32=653.7, float16=1307.4, bfloat16=1307.4, float8=2614.9, int8=2614.9),
    sources=(
        "AMD Instinct MI300X Accelerator Data Sheet",
        "AMD CDNA 3 Architecture whitepaper",
        "AMD ROCm documentation, AMD GPU specifications (VGPR file 512 KiB, LDS 64 KiB, L2 4 MiB per XCD)",
    ),
)

TARGETS: tuple[Target, ...] = (A100, H100, H200, B200, L4, T4, RTX4090, MI300X)
"""All GPUs of the table."""
