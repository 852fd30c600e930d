"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):  # NaN if one is
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def running_exp_sum(largest, total, a, IS_ROUNDED: tl.constexpr):  # the largest yet, the sum of exp(a - largest)
    largest_yet = tl.maximum(largest, a, propagate_nan=tl.PropagateNan.ALL)
    gap = tl.minimum(largest, a) - tl.where(largest_yet == float("-inf"), 0.0, largest_yet)
    if IS_ROUNDED:
        scale = tl.exp(gap)
    else:
        scale = libdevice.exp(gap)
    return largest_yet, tl.where(a > largest, total * scale + 1.0, total + scale)  # exp(0) is 1


@triton.jit
def kernel_softmax(arg2_1_ptr, div_ptr, s27, s77, RBLOCK: tl.constexpr):
    x = tl.program_id(0).to(tl.int64)
    amax_max = tl.full([RBLOCK], float("-inf"), tl.float32)
    sum_1_sum = tl.full([RBLOCK], 0.0, tl.float32)
    # test_emit_triton.py:LINE softmax = text(lambda x: functional.softmax(x, -1), numbers(8, 16), dynamic=True)
    for start in range(0, s27, RBLOCK):
        r = start + tl.arange(0, RBLOCK).to(tl.int64)
        mask_r = r < s27
        arg2_1 = tl.load(arg2_1_ptr + (r + s27*x), mask_r)
        amax_max, sum_1_sum = running_exp_sum(amax_max, sum_1_sum, tl.where(mask_r, arg2_1, float("-inf")), False)
    amax = tl.reduce(amax_max, 0, maximum)
    sum_1 = tl.sum(sum_1_sum * libdevice.exp(amax_max - amax), 0)
    for start in range(0, s27, RBLOCK):
        r = start + tl.arange(0, RBLOCK).to(tl.int64)
        mask_r = r < s27
        arg2_1 = tl.load(arg2_1_ptr + (r + s27*x), mask_r)
        sub = arg2_1 - amax
        exp = libdevice.exp(sub)
        div = tl.div_rn(exp, sum_1)
        tl.store(div_ptr + (r + s27*x), div, mask_r)
