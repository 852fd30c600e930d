"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):  # NaN if one is
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def kernel_add_relu_mul_sin(arg0_1_ptr, arg1_1_ptr, sin_ptr, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    mask_x = x < 2310
    # test_emit_triton.py:LINE "pointwise": (lambda x, b: ((x + b).relu() * x).sin(), (numbers(30, 77), numbers(77))),
    arg0_1 = tl.load(arg0_1_ptr + x, mask_x)
    i1 = x % 77
    arg1_1 = tl.load(arg1_1_ptr + i1, mask_x)
    add = arg0_1 + arg1_1
    relu = maximum(add, 0.0)
    mul = relu * arg0_1
    sin = libdevice.sin(mul)
    tl.store(sin_ptr + x, sin, mask_x)
