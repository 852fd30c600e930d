"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel_index_mul(arg0_1_ptr, arg1_1_ptr, mul_ptr, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask_x = x < 480
    # test_emit_triton.py:LINE "gathered": (lambda t, i: t[i] * 2, (numbers(50, 16), whole(50, 30))),
    i0 = x // 16
    arg1_1 = tl.load(arg1_1_ptr + i0, mask_x)
    at = tl.where(arg1_1 < 0, arg1_1 + 50, arg1_1)
    tl.device_assert(((0 <= at) & (at < 50)) | ~mask_x, "index out of range")
    i1 = x % 16
    arg0_1 = tl.load(arg0_1_ptr + (16*at + i1), mask_x)
    mul = arg0_1 * 2.0
    tl.store(mul_ptr + x, mul, mask_x)
