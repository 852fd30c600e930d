"""Static occupancy, against NVIDIA's own calculator and AMD's known rules."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.binary.occupancy import Occupancy, OccupancyError, occupancy
from compiler.targets import TARGETS, target

NVIDIA = [gpu for gpu in TARGETS if gpu.vendor == "nvidia"]
THREADS = (32, 64, 96, 128, 160, 256, 384, 512, 768, 992, 1024)
REGISTERS = (16, 24, 32, 33, 40, 64, 65, 72, 128, 168, 169, 200, 255)
SHARED_MEMORY = (0, 8, 1024, 16 * 1024, 16888, 48 * 1024, 64 * 1024, 99 * 1024, 227 * 1024)

CALCULATOR = """
#include <cstddef>
#include <cstdio>
#include <climits>
#include "cuda_occupancy.h"

// Lines of: major minor threads_per_sm shared_per_block shared_per_sm optin reserved threads registers shared
int main() {
    cudaOccDeviceProp gpu;
    size_t block, total, optin, reserved, shared;
    int major, minor, most, threads, registers;
    while (scanf("%d %d %d %zu %zu %zu %zu %d %d %zu", &major, &minor, &most, &block, &total, &optin, &reserved,
                 &threads, &registers, &shared) == 10) {
        gpu.computeMajor = major, gpu.computeMinor = minor;
        gpu.maxThreadsPerBlock = 1024, gpu.maxThreadsPerMultiprocessor = most;
        gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536, gpu.warpSize = 32, gpu.numSms = 1;
        gpu.sharedMemPerBlock = block, gpu.sharedMemPerMultiprocessor = total, gpu.sharedMemPerBlockOptin = optin;
        gpu.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes kernel;
        kernel.maxThreadsPerBlock = INT_MAX, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
        kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN, kernel.maxDynamicSharedSizeBytes = shared;
        cudaOccDeviceState state;
        cudaOccResult result;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, threads, shared);
        printf("%d\\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0);
    }
}
"""


def blocks(name: str, threads: int, registers: int, shared_memory: int) -> int:
    """The number of blocks that fit on a multiprocessor; 0 if none does."""
    try:
        found = occupancy(target(name), threads=threads, registers=registers, shared_memory=shared_memory)
    except OccupancyError:
        return 0
    return found.blocks


@pytest.mark.needs("g++")
def test_occupancy_matches_the_nvidia_calculator(tmp_path: Path) -> None:
    """cuda_occupancy.h comes with Triton; cudaOccupancyMaxActiveBlocksPerMultiprocessor follows it."""
    triton = pytest.importorskip("triton")
    header = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    (tmp_path / "calculator.cpp").write_text(CALCULATOR)
    program = tmp_path / "calculator"
    subprocess.run(["g++", "-w", "-I", header, tmp_path / "calculator.cpp", "-o", program], check=True)
    cases = list(itertools.product(NVIDIA, THREADS, REGISTERS, SHARED_MEMORY))
    lines = [
        f"{gpu.capability[0]} {gpu.capability[1]} {gpu.max_threads_per_multiprocessor} {gpu.shared_memory_per_block} "
        f"{gpu.shared_memory_per_multiprocessor} {gpu.shared_memory_per_block_optin} "
        f"{1024 if gpu.capability >= (8, 0) else 0} {threads} {registers} {shared}"
        for gpu, threads, registers, shared in cases
    ]
    printed = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    expected = [int(line) for line in printed.split()]
    assert len(expected) == len(cases) > 9000
    found = [blocks(gpu.name, threads, registers, shared) for gpu, threads, registers, shared in cases]
    differing = [(case[0].name, *case[1:], a, b) for case, a, b in zip(cases, found, expected, strict=True) if a != b]
    assert not differing


@pytest.mark.parametrize(
    ("name", "threads", "registers", "shared_memory", "expected"),
    [
        ("h100", 256, 32, 0, Occupancy(64, 1.0, "warps", 8)),
        ("h100", 128, 168, 0, Occupancy(12, 12 / 64, "registers", 3)),
        ("h100", 128, 170, 0, Occupancy(8, 8 / 64, "registers", 2)),  # 170 × 32 is rounded up to 5632
        ("h100", 32, 16, 0, Occupancy(32, 0.5, "blocks", 32)),
        ("h100", 128, 32, 64 * 1024, Occupancy(12, 12 / 64, "shared memory", 3)),  # each block needs 1 KiB more
        ("a100", 1024, 64, 0, Occupancy(32, 0.5, "registers", 1)),
        ("l4", 768, 40, 0, Occupancy(48, 1.0, "warps", 2)),
        ("l4", 64, 168, 16888, Occupancy(10, 10 / 48, "shared memory", 5)),
        ("l4", 64, 200, 16888, Occupancy(8, 8 / 48, "registers", 4)),
        ("t4", 128, 60, 16 * 1024, Occupancy(16, 0.5, "shared memory", 4)),  # a T4 needs no extra memory
        ("mi300x", 64, 14, 0, Occupancy(32, 1.0, "warps", 32)),
        ("mi300x", 128, 14, 0, Occupancy(32, 1.0, "warps", 16)),
        ("mi300x", 256, 140, 0, Occupancy(12, 12 / 32, "registers", 3)),  # LLVM prints "Occupancy: 3"
        ("mi300x", 256, 64, 40 * 1024, Occupancy(4, 4 / 32, "shared memory", 1)),
        ("mi300x", 512, 65, 0, Occupancy(24, 24 / 32, "registers", 3)),
    ],
)
def test_occupancy_of_known_configurations(
    name: str, threads: int, registers: int, shared_memory: int, expected: Occupancy
) -> None:
    assert occupancy(target(name), threads=threads, registers=registers, shared_memory=shared_memory) == expected


@given(
    gpu=st.sampled_from(TARGETS),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 254),
    shared_memory=st.integers(0, 240 * 1024),
)
def test_occupancy_is_monotonic_in_resources(gpu, threads: int, registers: int, shared_memory: int) -> None:
    found = blocks(gpu.name, threads, registers, shared_memory)
    assert blocks(gpu.name, threads, registers + 1, shared_memory) <= found
    assert blocks(gpu.name, threads, registers, shared_memory + 1) <= found
    assert found * -(-threads // gpu.warp_size) <= gpu.max_warps_per_multiprocessor
    assert found <= gpu.max_blocks_per_multiprocessor


@pytest.mark.parametrize(
    ("threads", "registers", "shared_memory", "message"),
    [
        (2048, 32, 0, "a block of 2048 threads does not run on NVIDIA T4 16 GB: 1024 are the most"),
        (1024, 255, 0, "a block of 1024 threads with 255 registers each does not fit on NVIDIA T4 16 GB"),
        (128, 300, 0, "300 registers for a thread are too many for NVIDIA T4 16 GB: 255 are the most"),
        (128, 32, 80000, "a block with 80000 bytes of shared memory does not fit on NVIDIA T4 16 GB: 65536"),
        (0, 32, 0, "a block has threads"),
        (32, -1, 0, "no negative amounts"),
    ],
)
def test_oversized_block_is_refused_with_reason(threads: int, registers: int, shared_memory: int, message: str) -> None:
    with pytest.raises(OccupancyError, match=message):
        occupancy(target("t4"), threads=threads, registers=registers, shared_memory=shared_memory)
