"""Static occupancy: how many warps fit on a multiprocessor, and what limits it.

NVIDIA, as in the CUDA toolkit's occupancy calculator (cuda_occupancy.h): registers are allocated to warps in units of
256, in each of four partitions of the multiprocessor; shared memory is allocated to blocks in units of 128 bytes, with
1 KiB reserved by the system from compute capability 8.0 on.

AMD CDNA 3, as in "CDNA3 ISA" (VGPRs, LDS allocation) and LLVM's AMDGPUBaseInfo.cpp: each of four SIMDs has 512 vector
registers for a lane, allocated to waves in units of 8 (accumulation registers share them), and holds 8 waves; LDS is
allocated in units of 512 bytes; 16 blocks can wait at barriers, which a block of one wave does not need. Scalar
registers are ignored: they cost at most one wave in eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.targets import Target

Limiter = Literal["warps", "blocks", "registers", "shared memory"]

_PARTITIONS = 4  # of a multiprocessor, each with its own registers and scheduler; on AMD, the SIMDs
_MOST_REGISTERS = {"nvidia": 255, "amd": 512}
_REGISTER_UNIT = {"nvidia": 256, "amd": 8 * 64}  # allocation unit for the registers of one warp
_SHARED_MEMORY_UNIT = {"nvidia": 128, "amd": 512}
_AMD_BARRIERS = 16


class OccupancyError(ValueError):
    """A block does not fit on the GPU; the message names the scarce resource."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks and warps that fit on one multiprocessor, and the `fraction` of its maximum number of warps.

    `limiter` is the resource that prevents another block: "registers", "shared memory", "blocks" (the multiprocessor's
    maximum number of blocks) or "warps" (its maximum number of warps, for blocks of this size).
    """

    warps: int
    fraction: float
    limiter: Limiter
    blocks: int


def occupancy(target: Target, *, threads: int, registers: int, shared_memory: int) -> Occupancy:
    """The occupancy with blocks of `threads`, from registers per thread and bytes of shared memory per block.

    On AMD, `registers` are vector and accumulation registers together. Raises OccupancyError if no block fits.
    """
    _check(target, threads, registers, shared_memory)
    warps = -(-threads // target.warp_size)
    limits: dict[Limiter, int] = {
        "warps": target.max_warps_per_multiprocessor // warps,
        "blocks": _block_slots(target, warps),
        "registers": _warps_by_registers(target, registers) // warps,
        "shared memory": _blocks_by_shared_memory(target, shared_memory),
    }
    limiter = min(limits, key=lambda name: limits[name])
    blocks = limits[limiter]
    if not blocks:
        raise OccupancyError(_does_not_fit(target, limiter, threads, registers, shared_memory))
    resident = blocks * warps
    return Occupancy(resident, resident / target.max_warps_per_multiprocessor, limiter, blocks)


def _check(target: Target, threads: int, registers: int, shared_memory: int) -> None:
    if threads < 1 or registers < 0 or shared_memory < 0:
        raise OccupancyError(
            f"a block has threads, and no negative amounts: threads={threads}, registers={registers}, "
            f"shared_memory={shared_memory}"
        )
    if threads > target.max_threads_per_block:
        raise OccupancyError(
            f"a block of {threads} threads does not run on {target.title}: {target.max_threads_per_block} are the most"
        )
    if registers > _MOST_REGISTERS[target.vendor]:
        most = _MOST_REGISTERS[target.vendor]
        raise OccupancyError(f"{registers} registers for a thread are too many for {target.title}: {most} are the most")


def _block_slots(target: Target, warps: int) -> int:
    slots = target.max_blocks_per_multiprocessor
    return min(slots, _AMD_BARRIERS) if target.vendor == "amd" and warps > 1 else slots


def _warps_by_registers(target: Target, registers: int) -> int:
    """Number of warps that the registers suffice for; all registers of a warp are in one partition."""
    if not registers:
        return target.max_warps_per_multiprocessor
    of_a_warp = _round_up(registers * target.warp_size, _REGISTER_UNIT[target.vendor])
    return target.registers_per_multiprocessor // _PARTITIONS // of_a_warp * _PARTITIONS


def _blocks_by_shared_memory(target: Target, shared_memory: int) -> int:
    if shared_memory > target.shared_memory_per_block_optin:
        return 0
    of_a_block = _round_up(shared_memory + _reserved_shared_memory(target), _SHARED_MEMORY_UNIT[target.vendor])
    return target.shared_memory_per_multiprocessor // of_a_block if of_a_block else target.max_blocks_per_multiprocessor


def _reserved_shared_memory(target: Target) -> int:
    return 1024 if target.vendor == "nvidia" and target.capability >= (8, 0) else 0


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _does_not_fit(target: Target, limiter: Limiter, threads: int, registers: int, shared_memory: int) -> str:
    if limiter == "shared memory":
        most = target.shared_memory_per_block_optin
        return (
            f"a block with {shared_memory} bytes of shared memory does not fit on {target.title}: {most} are the most"
        )
    return (
        f"a block of {threads} threads with {registers} registers each does not fit on {target.title}, whose "
        f"multiprocessors have {target.registers_per_multiprocessor} registers"
    )
