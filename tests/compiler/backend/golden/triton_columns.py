"""inference"""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel_mean(arg0_1_ptr, mean_ptr, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    x = (tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK))[:, None]
    mean_sum_sum = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)
    # test_emit_triton.py:LINE "columns": (lambda x: x.mean(0), (numbers(500, 64),)),
    for start in range(0, 500, RBLOCK):
        r = (start + tl.arange(0, RBLOCK))[None, :]
        mask_r = r < 500
        arg0_1 = tl.load(arg0_1_ptr + (64*r + x), mask_r)
        mean_sum_sum += tl.where(mask_r, arg0_1, 0.0)
    mean_sum = tl.sum(mean_sum_sum, 1, keep_dims=True)
    mean = tl.div_rn(mean_sum, 500.0)
    tl.store(mean_ptr + x, mean)
