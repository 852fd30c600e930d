"""Time that the GPU waits for the CPU in a call: measured, or estimated from launches and kernels."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.advise.facts import Evidence, seconds
from compiler.advise.reading import Reading
from compiler.record.plain_text import pluralize

LAUNCH_SECONDS = 10e-6
"""CPU time of one launch from Inductor's Python wrapper: 10 to 35 µs on an H200's host, torch 2.11, for the models of
benchmarks/suite.py.
"""
CALL_SECONDS = 50e-6
"""CPU time of a call of compiled code without launches and guards: 50 to 100 µs on the same machine."""
MUCH = 0.25
"""If the GPU waits for at least this share of a call, launches, not kernels, are the bottleneck."""
REAL = 2.0
"""An unmeasured kernel is assumed to take this many times its floor."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Seconds of a call in which the GPU is idle, seconds of the whole call, and the evidence."""

    seconds: float
    whole: float
    evidence: Evidence

    @property
    def share(self) -> float:
        return self.seconds / self.whole if self.whole else 0.0


def find_waiting(reading: Reading) -> Waiting | None:
    """Time that the GPU waits in a call; None without a GPU, or if unknown."""
    own = reading.own
    if own is not None and own.seconds and own.host is not None and own.host.gpu is not None:
        told = f"A call takes {seconds(own.seconds)}, and the GPU is busy in {seconds(own.host.gpu)} of it."
        return Waiting(max(own.seconds - own.host.gpu, 0.0), own.seconds, Evidence(told, "measured"))
    if reading.gpu is None or not reading.launches or own is not None or reading.kernel_basis == "measured":
        return None
    host, busy = host_seconds(reading), REAL * reading.floor
    told = (
        f"{pluralize(reading.launches, 'launch', 'launches')} at {seconds(LAUNCH_SECONDS)} each, guards, and "
        f"{seconds(CALL_SECONDS)} around them make {seconds(host)} on the CPU; the kernels need at least "
        f"{seconds(reading.floor)} at {reading.gpu.title}'s peak rates, and twice that is taken for granted."
    )
    largest = sorted(reading.kernels, key=lambda found: -found.floor)[:3]
    evidence = Evidence(told, "estimate", tuple(found.kernel.id for found in largest))
    return Waiting(max(host - busy, 0.0), max(host, busy), evidence)


def host_seconds(reading: Reading) -> float:
    """Estimated CPU seconds of a call of compiled code, from the constants above."""
    return reading.launches * LAUNCH_SECONDS + reading.guard_seconds + CALL_SECONDS


def saved_seconds(reading: Reading, on_gpu: float, more_on_host: float = 1.0) -> float:
    """Seconds saved in a call if the GPU needs `on_gpu` seconds less and the CPU `more_on_host` times its time.

    A call takes as long as the slower of the two, and a rest that is the same afterwards: a GPU that waits for the CPU
    saves nothing. T5's training on an H200 took 27 ms, 22 on the CPU and 21 on the GPU, and gained nothing with TF32.
    """
    busy = _busy(reading)
    if busy is None:
        return on_gpu
    host, gpu = busy
    return max(max(host, gpu) - max(more_on_host * host, gpu - on_gpu), 0.0)


def _busy(reading: Reading) -> tuple[float, float] | None:
    """Seconds of a call in which the CPU and the GPU are busy; None if unknown."""
    own = reading.own
    if own is not None and own.host is not None and own.host.gpu is not None:
        return sum(part or 0.0 for part in (own.host.guards, own.host.wrapper, own.host.launches)), own.host.gpu
    if own is not None or reading.gpu is None:
        return None
    busy = reading.kernel_seconds if reading.kernel_basis == "measured" else REAL * reading.floor
    return host_seconds(reading), busy


def whole_call(reading: Reading) -> float:
    """Seconds of one call: measured, or else estimated."""
    busy = _busy(reading)
    return reading.seconds or (max(busy) if busy is not None else reading.kernel_seconds)
