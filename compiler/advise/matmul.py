"""Rules about matmuls and convolutions: autotuning, TF32, autocast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.launches import measured_gain
from compiler.advise.reading import KernelFacts, Reading
from compiler.advise.waiting import MUCH, find_waiting, saved_seconds, whole_call

DOMINANT = 0.4
"""Minimum share of the kernels' time for which matmuls are the bottleneck."""
NEAR_PEAK = 0.75
"""Share of peak that library kernels reach at best; there is little to gain above it."""
CLAIMED = {"tf32": 0.65, "bfloat16": 0.7}
"""Expected share of the gain promised by peak rates, as kernels reach less of a higher peak. On an H200, GPT-2 training
gained 79 % of it with TF32, and GPU-bound models of benchmarks/suite.py gained 70 to 125 % under autocast, which also
reduces the traffic of other kernels."""
WORTH = 0.05
"""A gain below this share of a call is not reported."""
AUTOCAST_ON_HOST = 1.3
"""Factor on the CPU time of a call under autocast, which launches casts. On an H200 it was 1.1 to 1.5 for the models
of benchmarks/suite.py."""
TF32 = 'torch.set_float32_matmul_precision("high")'


def max_autotune(reading: Reading) -> Iterator[Advice]:
    """If the call is matmul-bound, suggest that Inductor autotunes Triton templates against the libraries."""
    if not reading.on_gpu or reading.record.options.mode.startswith("max-autotune") or not reading.kernel_seconds:
        return
    kernels = matmuls(reading)
    share = sum(found.time for found in kernels) / reading.kernel_seconds
    reached = share_of_peak(kernels)
    waits = find_waiting(reading)
    if waits is not None and waits.share > MUCH:
        return
    if share < DOMINANT or (reached or 0.0) > NEAR_PEAK:
        return
    name = "max-autotune-no-cudagraphs"
    timed = reading.in_mode(name)
    gain = measured_gain(reading, timed.name) if timed is not None else None
    if timed is not None and gain is None:
        return
    found = f"{percent(share)} of the kernels' time is in matmuls or convolutions, computed by libraries."
    change = Change(
        f"Compile with mode='{name}': Triton kernels are measured against the library's for each matmul, and can fuse "
        "what follows into them. It takes longer to compile; whether it gains anything is known once it was tried.",
        {"mode": name},
    )
    yield Advice("max-autotune", "Matmul-bound", found, matmul_evidence(reading, kernels), gain, change)


def matmuls(reading: Reading) -> list[KernelFacts]:
    """Matmul kernels and library calls, slowest first."""
    return sorted((found for found in reading.kernels if found.is_matmul), key=lambda found: -found.time)


def share_of_peak(kernels: Sequence[KernelFacts]) -> float | None:
    """Mean share of the GPU's peak rate, weighted by time; None if nothing was measured."""
    timed = [found for found in kernels if found.seconds and found.floor]
    took = sum(found.seconds or 0.0 for found in timed)
    return sum(found.floor for found in timed) / took if took else None


def matmul_evidence(reading: Reading, kernels: Sequence[KernelFacts]) -> tuple[Evidence]:
    """Evidence of the time in matmul kernels, and of their share of the peak rate."""
    took, reached = seconds(sum(found.time for found in kernels)), share_of_peak(kernels)
    share = f", at {percent(reached)} of the peak on average" if reached is not None else ""
    words = f"take {took}{share}" if reading.kernel_basis == "measured" else f"take at least {took} at peak rates"
    return reading.evidence(f"The matmuls ({len(kernels)} in a call) {words}.", kernels, reading.kernel_basis)


def tf32(reading: Reading) -> Iterator[Advice]:
    """Report float32 matmuls that could run on tensor cores with TF32."""
    environment = reading.record.environment
    if reading.gpu is None or "tf32" not in reading.gpu.peak or environment.matmul_precision != "highest":
        return
    # cuDNN's convolutions use TF32 by default (torch.backends.cudnn.allow_tf32).
    convolutions = [each for each in matmuls(reading) if any(op.startswith("convolution") for op in each.operators)]
    kernels = [found for found in matmuls(reading) if found.dtype == "float32" and found not in convolutions]
    gain = _expected_gain(reading, kernels, "tf32")
    if gain is None:
        return
    slow, fast = reading.gpu.peak["float32"] / 1e12, reading.gpu.peak["tf32"] / 1e12
    found = (
        f"Matmuls in float32 ({len(kernels)} in a call) run without tensor cores, at up to {slow:.0f} "
        f"TFLOP/s; in TF32 {reading.gpu.title} has {fast:.0f}."
    )
    change = Change("Let matmuls in float32 be rounded to TF32 on tensor cores.", settings=(TF32,))
    numbers = (
        "Factors are rounded to 10 bits of mantissa (float32 has 23): relative errors of about 1e-3, as "
        "usual in training."
    )
    yield Advice("tf32", "TF32 is off", found, matmul_evidence(reading, kernels), gain, change, numbers)


def autocast(reading: Reading) -> Iterator[Advice]:
    """Report float32 matmuls that would be faster in mixed precision."""
    is_mixed = any(found.dtype in ("bfloat16", "float16") for found in matmuls(reading))
    if reading.gpu is None or "bfloat16" not in reading.gpu.peak or is_mixed:
        return
    kernels = [found for found in matmuls(reading) if found.dtype == "float32"]
    gain = _expected_gain(reading, kernels, "bfloat16")
    if gain is None:
        return
    found = (
        f"Matmuls are in float32 ({len(kernels)} in a call). In bfloat16, {reading.gpu.title} computes "
        f"them at {reading.gpu.peak['bfloat16'] / 1e12:.0f} TFLOP/s and moves half the bytes."
    )
    change = Change(
        "Run the call under torch.autocast('cuda', dtype=torch.bfloat16), forward and loss inside of it, the backward "
        "outside.",
        autocast="bfloat16",
    )
    numbers = (
        "Matmuls are computed in bfloat16 (8 bits of mantissa): relative errors of about 1e-2. Check that "
        "training still converges."
    )
    yield Advice("autocast", "Mixed precision is off", found, matmul_evidence(reading, kernels), gain, change, numbers)


def _expected_gain(reading: Reading, kernels: list[KernelFacts], dtype: str) -> Gain | None:
    """Expected gain of a narrower dtype; None if it is a small share of a call, as when the GPU waits for the CPU."""
    assert reading.gpu is not None
    saved = sum(found.time - _time_in(reading, found, dtype) for found in kernels)
    more_on_host = AUTOCAST_ON_HOST if dtype == "bfloat16" else 1.0
    whole, expected = whole_call(reading), CLAIMED[dtype] * saved_seconds(reading, saved, more_on_host)
    if not kernels or not whole or expected < WORTH * whole:
        return None
    how = f"{percent(CLAIMED[dtype])} of what the peak rates promise for these matmuls"
    if reading.kernel_basis == "estimate":
        how += ", taking them to run at the peak now"
    return Gain(expected, "call", how, "estimate", expected / whole)


def _time_in(reading: Reading, found: KernelFacts, dtype: str) -> float:
    """Seconds of a kernel in another dtype, at its present share of the peak."""
    from compiler.binary import roofline  # imports torch, which is not needed to read a record

    assert reading.gpu is not None
    moved = found.bytes if dtype == "tf32" else found.bytes / 2
    floor, _ = roofline.least_seconds(reading.gpu, bytes=int(moved), flops=found.flops, dtype=dtype, matmul=True)
    return floor * (found.time / found.floor if found.floor else 1.0)
