"""A matmul in Triton, for tensor-core instructions, which no elementwise kernel has."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SIGNATURE = dict.fromkeys("abc", "*fp16") | {"size": "i32", "BLOCK": "constexpr"}
ALIGNED = {(argument,): [["tt.divisibility", 16]] for argument in range(4)}
LANGUAGES = {"ttir": "mlir", "ttgir": "mlir", "llir": "llvm", "ptx": "ptx", "amdgcn": "amdgcn"}


@triton.jit
def product(a, b, c, size, BLOCK: tl.constexpr):  # noqa: N803 - Triton's manners
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    steps = tl.arange(0, 32)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, size, 32):
        left = tl.load(a + rows[:, None] * size + (steps[None, :] + start))
        right = tl.load(b + (steps[:, None] + start) * size + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * size + columns[None, :], total.to(tl.float16))


def texts(backend: str, architecture: int | str, warp_size: int) -> tuple[dict[str, str], bytes | None]:
    """The kernel for a GPU that is not here: its texts by language, and its cubin if there is one."""
    source = ASTSource(product, SIGNATURE, {"BLOCK": 128}, ALIGNED)
    options = {"num_warps": 4, "num_stages": 3}
    found = triton.compile(source, target=GPUTarget(backend, architecture, warp_size), options=options).asm
    return {stage: found[stage] for stage in LANGUAGES if stage in found}, found.get("cubin")
