"""Number formats: TF32, autocast, and what rounding changes."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.matmul import matmuls
from compiler.advise.reading import KernelFacts, Reading
from compiler.advise.waiting import saved_seconds, whole_call
from compiler.record.plain_text import pluralize

CLAIMED = {"tf32": 0.65, "bfloat16": 0.7}
"""How much of what peak rates promise is expected: products reach less of a higher peak. On an H200, GPT-2 in training
gained 79 % of it by TF32, and models of benchmarks/suite.py that keep the GPU busy 70 to 125 % under autocast, where
the other kernels move less, too."""
WORTH = 0.05
"""A gain below this share of a call is not worth a word."""
AUTOCAST_ON_HOST = 1.3
"""So many times as long the CPU takes for a call under autocast: there are casts to launch. On an H200 it
was 1.1 to 1.5 for the models of benchmarks/suite.py."""
TF32 = 'torch.set_float32_matmul_precision("high")'


def tf32(reading: Reading) -> Iterator[Advice]:
    """Products in float32 that could run on tensor cores, where it is known that they may not."""
    environment = reading.record.environment
    if reading.gpu is None or "tf32" not in reading.gpu.peak or environment.matmul_precision != "highest":
        return
    products = [found for found in matmuls(reading) if found.dtype == "float32" and not _is_convolution(found)]
    gain = _expected_gain(reading, products, "tf32")
    if gain is None:
        return
    slow, fast = reading.gpu.peak["float32"] / 1e12, reading.gpu.peak["tf32"] / 1e12
    found = (
        f"Products of matrices in float32 ({len(products)} in a call) run without tensor cores, at up to "
        f"{slow:.0f} TFLOP/s; "
        f"in TF32 "
        f"{reading.gpu.title} has {fast:.0f}."
    )
    change = Change("Let products in float32 be rounded to TF32 on tensor cores.", settings=(TF32,))
    numbers = (
        "Factors are rounded to 10 bits of mantissa (float32 has 23): relative errors of about 1e-3, as "
        "usual in training."
    )
    yield Advice("tf32", "TF32 is off", found, _products(reading, products), gain, change, numbers)


def autocast(reading: Reading) -> Iterator[Advice]:
    """Work in float32 that mixed precision would make cheaper."""
    if reading.gpu is None or "bfloat16" not in reading.gpu.peak or _is_mixed(reading):
        return
    products = [found for found in matmuls(reading) if found.dtype == "float32"]
    gain = _expected_gain(reading, products, "bfloat16")
    if gain is None:
        return
    found = (
        f"Products of matrices are in float32 ({len(products)} in a call). In bfloat16, {reading.gpu.title} "
        f"computes them at "
        f"{reading.gpu.peak['bfloat16'] / 1e12:.0f} TFLOP/s and moves half the bytes."
    )
    change = Change(
        "Run the call under torch.autocast('cuda', dtype=torch.bfloat16), forward and loss inside of it, the backward "
        "outside.",
        autocast="bfloat16",
    )
    numbers = (
        "Products are computed in bfloat16 (8 bits of mantissa): relative errors of about 1e-2. Check that "
        "training still converges."
    )
    yield Advice("autocast", "Mixed precision is off", found, _products(reading, products), gain, change, numbers)


def _products(reading: Reading, products: list[KernelFacts]) -> tuple[Evidence, ...]:
    ids = tuple(found.kernel.id for found in products[:5])
    took = seconds(sum(found.time for found in products))
    told = f"They take {took}." if reading.kernel_basis == "measured" else f"They take at least {took} at peak rates."
    return (Evidence(told, reading.kernel_basis, (*ids, *reading.lines(ids))),)


def _is_convolution(found: KernelFacts) -> bool:
    """CuDNN's convolutions use TF32 by default (torch.backends.cudnn.allow_tf32)."""
    return any(name.startswith("convolution") for name in found.operators)


def _is_mixed(reading: Reading) -> bool:
    return any(found.dtype in ("bfloat16", "float16") for found in matmuls(reading))


def _expected_gain(reading: Reading, products: list[KernelFacts], dtype: str) -> Gain | None:
    """Expected gain of the narrower dtype; None if it is a small part of a call, or the GPU waits."""
    assert reading.gpu is not None
    saved = sum(found.time - _time_in(reading, found, dtype) for found in products)
    more_on_host = AUTOCAST_ON_HOST if dtype == "bfloat16" else 1.0
    whole, expected = whole_call(reading), CLAIMED[dtype] * saved_seconds(reading, saved, more_on_host)
    if not products or not whole or expected < WORTH * whole:
        return None
    how = f"{percent(CLAIMED[dtype])} of what the peak rates promise for these products"
    if reading.kernel_basis == "estimate":
        how += ", taking them to run at the peak now"
    return Gain(expected, "call", how, "estimate", expected / whole)


def _time_in(reading: Reading, found: KernelFacts, dtype: str) -> float:
    """Seconds in another format, as near its peak as it is to that of its own."""
    from compiler.binary import roofline  # it brings torch, which a record is read without

    assert reading.gpu is not None
    moved = found.bytes if dtype == "tf32" else found.bytes / 2
    floor, _ = roofline.least_seconds(reading.gpu, bytes=int(moved), flops=found.flops, dtype=dtype, matmul=True)
    return floor * (found.time / found.floor if found.floor else 1.0)


def precision_casts(reading: Reading) -> Iterator[Advice]:
    """bfloat16 results that differ from eager's because Inductor does not round between fused steps."""
    halves = ("bfloat16", "float16")
    differing = [
        check for check in reading.record.checks
        if check.verdict == "differs" and not check.stage and (not check.note or "shape" not in check.note)
    ]  # fmt: skip
    dtypes = {str(entity.attrs.get("dtype")) for entity in reading.entities.values() if "dtype" in entity.attrs}
    if not differing or not dtypes & set(halves) or reading.record.options.options.get("emulate_precision_casts"):
        return
    worst = max(differing, key=lambda check: check.max_relative or 0.0)
    found = (
        f"{pluralize(len(differing), 'result')} differ from eager's by more than the format's rounding, "
        f"{worst.subject} by "
        f"{worst.max_relative or 0.0:.2g} of its largest magnitude. Eager rounds to 16 bits after each step; a "
        f"fused kernel "
        "keeps 32 bits in between, which is nearer to the true result."
    )
    change = Change(
        "To have eager's rounding (for a comparison; it costs time): options={'emulate_precision_casts': True}.",
        {"options": {"emulate_precision_casts": True}},
    )
    yield Advice("precision-casts", "16-bit results differ from eager's", found, (), None, change)
