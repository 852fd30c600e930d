"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel_mul(arg0_1_ptr, mul_ptr, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    y = (tl.program_id(0) * YBLOCK + tl.arange(0, YBLOCK))[:, None]
    mask_y = y < 100
    x = (tl.program_id(1) * XBLOCK + tl.arange(0, XBLOCK))[None, :]
    mask_x = x < 200
    # test_emit_triton.py:LINE "two_axes": (lambda x: x.t().contiguous() * 2, (numbers(100, 200),)),
    arg0_1 = tl.load(arg0_1_ptr + (200*y + x), mask_y & mask_x)
    mul = arg0_1 * 2.0
    tl.store(mul_ptr + (100*x + y), mul, mask_y & mask_x)
