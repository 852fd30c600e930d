"""Estimate a lower bound for the time of a call on a GPU that is not present; never a measurement.

A kernel takes at least as long as its bytes and operations take at the GPU's peak rates (`compiler.binary.roofline`).
The host takes some microseconds for each launch. A real call takes longer: caches, occupancy, Python and dependencies
between kernels are not included.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.binary import roofline
from compiler.inductor.kernels import WAIT
from compiler.record import Binary, Kernel, Record
from compiler.targets import Target, is_virtual, known_target

LAUNCH_SECONDS = 5e-6
LAUNCH_SOURCE = (
    "5 µs for each launch from Inductor's wrapper: 4 to 8 µs were measured on an H200's host with torch 2.11"
)


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """Estimate for all launches of one kernel in one call of its graph.

    `bytes` and `flops` come from formulas. `seconds` is their minimum time at peak rates, and `bound` is the slower of
    the two ("memory", "compute"). `is_compiled` says whether the machine code is known.
    """

    kernel: str
    name: str
    launches: int
    bytes: int
    flops: int
    seconds: float
    bound: str
    is_compiled: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate for one call on `target`, a GPU of `compiler.targets`.

    `kernel_seconds` is the sum of the kernels' minimum times. `launch_seconds` is the host's time for launches, and
    `launch_source` the source of that number. `unknown` names kernels without bytes: their sizes are symbolic, or torch
    has no numbers for the routine.
    """

    target: str
    title: str
    kernels: tuple[KernelEstimate, ...]
    bytes: int
    flops: int
    kernel_seconds: float
    launches: int
    launch_seconds: float
    launch_source: str
    unknown: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Minimum time of one call: the longer of GPU and host time."""
        return max(self.kernel_seconds, self.launch_seconds)

    @property
    def bound(self) -> str:
        """The limiting part: "launches" or "kernels"."""
        return "launches" if self.launch_seconds > self.kernel_seconds else "kernels"


def estimate(record: Record) -> Estimate | None:
    """Estimate the record's code on its target GPU: graphs of the first call, forward and backward, no collectives.

    None if the target device is present, or if the record has no kernels.
    """
    gpu = known_target(record.target) if is_virtual(record.target) else None
    later = {frame.id for frame in record.frames if frame.call_number > 1}
    sent = {call for found in record.collectives for call in found.entities}
    kernels = [
        kernel
        for kernel in record.kernels
        if kernel.graph not in later and kernel.id not in sent and not kernel.name.startswith(WAIT)
    ]
    if gpu is None or not kernels:
        return None
    compiled = {binary.kernel: binary for binary in record.binaries if binary.target == gpu.name}
    found = tuple(_estimate_kernel(record, kernel, gpu, compiled.get(kernel.id)) for kernel in kernels)
    launches = sum(each.launches for each in found)
    return Estimate(
        target=gpu.name,
        title=gpu.title,
        kernels=found,
        bytes=sum(each.bytes for each in found),
        flops=sum(each.flops for each in found),
        kernel_seconds=sum(each.seconds for each in found),
        launches=launches,
        launch_seconds=launches * LAUNCH_SECONDS,
        launch_source=LAUNCH_SOURCE,
        unknown=tuple(each.name for each in found if not each.bytes),
    )


def _estimate_kernel(record: Record, kernel: Kernel, gpu: Target, binary: Binary | None) -> KernelEstimate:
    launches = max(kernel.calls, 1)
    if binary is not None and binary.bound_seconds is not None:
        return KernelEstimate(
            kernel.id, kernel.name, launches, binary.bytes * launches, binary.flops * launches,
            binary.bound_seconds * launches, binary.bound, True,
        )  # fmt: skip
    work = roofline.work(kernel, record)
    moved, flops = kernel.bytes * launches, work.flops * launches
    seconds, bound = roofline.least_seconds(gpu, bytes=moved, flops=flops, dtype=work.dtype, matmul=work.matmul)
    return KernelEstimate(kernel.id, kernel.name, launches, moved, flops, seconds, bound if seconds else "")
