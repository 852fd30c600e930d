"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):  # NaN if one is
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def kernel_softmax(arg0_1_ptr, div_ptr, RBLOCK: tl.constexpr):
    x = tl.program_id(0)
    r = tl.arange(0, RBLOCK)
    mask_r = r < 1000
    # test_emit_triton.py:LINE "persistent": (lambda x: functional.softmax(x, -1), (numbers(8, 1000),)),
    arg0_1 = tl.load(arg0_1_ptr + (1000*x + r), mask_r)
    amax = tl.reduce(tl.where(mask_r, arg0_1, float("-inf")), 0, maximum)
    sub = arg0_1 - amax
    exp = libdevice.exp(sub)
    sum_1 = tl.sum(tl.where(mask_r, exp, 0.0), 0)
    div = tl.div_rn(exp, sum_1)
    tl.store(div_ptr + (1000*x + r), div, mask_r)
