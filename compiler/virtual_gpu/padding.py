"""Decide whether Inductor would pad a matmul to aligned sizes on a virtual GPU.

On a GPU Inductor times the matmul with and without padding (torch/_inductor/fx_passes/pad_mm.py). Here times are
estimated. The slowdowns were derived from Inductor's choices on an H200: an odd row stride doubles a matmul's time,
other unaligned row strides add a fifth, and an unaligned number of rows alone adds nothing.
compiler/targets/FIDELITY.md says how often the choice agrees with the GPU's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from compiler.targets import Target
from compiler.torch_api.fx import dtype_name
from compiler.torch_api.gpu_compilation import always_pads, excludes_padding_time, hints_of, is_compute_bound

HALF = (torch.float16, torch.bfloat16)
ALIGNED = 8  # elements of 16 bits
LAUNCH = 2e-6  # seconds of a small kernel
REACHED = 0.7  # fraction of the peak rate that a large matmul reaches
LOST_AT_ODD, LOST_ELSEWHERE = 2.0, 1.2  # time of an unaligned matmul ÷ time of an aligned one
WORTHWHILE = 1.1  # pad_mm.is_padded_faster


@dataclass(frozen=True, slots=True)
class Product:
    """A matmul, (rows × inner) by (inner × columns).

    sizes    rows, inner, columns
    pitches  row (or column) strides of both operands and the result, in elements
    copied   number of operand elements that padding copies
    filled   number of operands that Inductor allocates with padding: only their padding is filled, nothing is copied
    """

    sizes: tuple[int, int, int]
    pitches: tuple[int, ...]
    dtype: torch.dtype
    copied: int = 0
    filled: int = 0

    def arithmetic(self, target: Target) -> float:
        """Estimated time of the matmul with aligned rows, in seconds."""
        rows, inner, columns = self.sizes
        peak = target.peak.get(dtype_name(self.dtype), target.peak["float32"])
        return 2 * rows * inner * columns / (REACHED * peak)

    def slowdown(self) -> float:
        """The matmul's time without padding ÷ its time with aligned rows."""
        if any(pitch % 2 for pitch in self.pitches):
            return LOST_AT_ODD
        return LOST_ELSEWHERE if any(pitch % ALIGNED for pitch in self.pitches) else 1.0

    def seconds(self, target: Target) -> float:
        return LAUNCH + self.slowdown() * self.arithmetic(target)

    def seconds_padded(self, target: Target) -> float:
        copying = 2 * self.dtype.itemsize * self.copied / target.memory_bandwidth
        return LAUNCH + self.arithmetic(target) + copying + LAUNCH * self.filled

    def reason_not_padded(self, target: Target) -> str:
        """Why padding is not worthwhile; "" if it is."""
        if self.dtype not in HALF:
            return f"{dtype_name(self.dtype)} gains nothing by it"
        if self.slowdown() == 1.0:
            return "its rows are aligned"
        pays = self.seconds(target) > WORTHWHILE * self.seconds_padded(target)
        return "" if pays else f"on {target.title} it costs more than it gains"


class Padding:
    """Replaces `pad_mm._should_pad` by an estimate, and reports each decision to `on_choice`."""

    def __init__(self, target: Target, on_choice: Callable[[str, str, str], None]) -> None:
        self.target = target
        self.on_choice = on_choice

    def decide_padding(self, _should_pad: Any, match: Any, left: Any, right: Any, *_of_op: Any, **_bias: Any) -> bool:
        if always_pads():
            return True
        product = _product(match, left, right)
        if not is_compute_bound(*product.sizes, product.dtype):
            return False
        why_not = product.reason_not_padded(self.target)
        self.on_choice("padding", "left as it is" if why_not else "padded", _reason(product, why_not))
        return not why_not


def _product(match: Any, left: Any, right: Any) -> Product:
    rows, inner, columns = hints_of((left.shape[-2], left.shape[-1], right.shape[-1]))
    padded = {"mat1": rows % ALIGNED or inner % ALIGNED, "mat2": inner % ALIGNED or columns % ALIGNED}
    planned = {name: bool(padded[name]) and excludes_padding_time(match, name) for name in padded}
    elements = {"mat1": rows * inner, "mat2": inner * columns}
    copied = sum(elements[name] for name in padded if padded[name] and not planned[name])
    pitches = (_pitch(left), _pitch(right), columns)
    return Product((rows, inner, columns), pitches, left.dtype, copied, sum(planned.values()))


def _pitch(factor: Any) -> int:
    return max(hints_of(factor.stride()[-2:]))


def _reason(product: Product, why_not: str) -> str:
    rows, inner, columns = product.sizes
    return (
        f"the sizes of the {rows}×{inner} by {inner}×{columns} product in {dtype_name(product.dtype)} are not aligned: "
        f"on the GPU Inductor times it padded and not padded; here the times are estimated: {why_not or 'padding pays'}"
    )
