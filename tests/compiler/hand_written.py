"""Hand-written kernels in Inductor's style, records with them, and the processes that compile them."""

from __future__ import annotations

import re

import psutil

from compiler.record import Artifact, Kernel, Record
from compiler.record.options import Options

FIRST_LINE = 3  # of the first kernel: code above it does not matter

HEADER = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

"""
DEVICE = (
    "DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536, "
    "max_threads_per_multi_processor=2048, warp_size=32)"
)
POINTWISE = f"""{HEADER}@triton_heuristics.pointwise(
    size_hints={{'x': 4096}},
    filename=__file__,
    triton_meta={{'signature': {{'in_ptr0': '*fp32', 'out_ptr0': '*fp32', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}}, 'device': {DEVICE}, 'constants': {{}}, 'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'Grid1D', 'kernel_name': 'NAME', 'mutated_arg_names': [], 'autotune_pointwise': True}},
    min_elem_per_thread=0
)
@triton.jit
def NAME(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4096
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + xindex, xmask)
    BODY
    tl.store(out_ptr0 + xindex, tmp1, xmask)
"""  # noqa: E501 - as Inductor writes it
DOT = f"""{HEADER}@triton_heuristics.template(
    num_stages=STAGES,
    num_warps=8,
    triton_meta={{'signature': {{'arg_A': '*fp16', 'arg_B': '*fp16', 'out_ptr0': '*fp16'}}, 'device': {DEVICE}, 'constants': {{}}, 'configs': [{{(0,): [['tt.divisibility', 16]], (1,): [['tt.divisibility', 16]], (2,): [['tt.divisibility', 16]]}}]}},
    inductor_meta={{'grid_type': 'FixedGrid', 'fixed_grid': ['_grid_0', '_grid_1', '_grid_2'], 'extra_launcher_args': ['_grid_0', '_grid_1', '_grid_2'], 'kernel_name': 'NAME'}},
)
@triton.jit
def NAME(arg_A, arg_B, out_ptr0):
    BLOCK : tl.constexpr = 128
    rows = tl.arange(0, BLOCK)
    a = arg_A + rows[:, None] * 4096 + rows[None, :]
    b = arg_B + rows[:, None] * 128 + rows[None, :]
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, 32):
        acc += tl.dot(tl.load(a), tl.load(b), out_dtype=tl.float32)
        a += BLOCK
        b += BLOCK * 128
    tl.store(out_ptr0 + rows[:, None] * 128 + rows[None, :], acc.to(tl.float16))
"""  # noqa: E501
USERS = f"""{HEADER}
@triton_heuristics.user_autotune(
    configs=[{{'num_warps': 2, 'num_stages': 3, 'BLOCK': 128}}, {{'num_warps': 4, 'num_stages': 3, 'BLOCK': 256}}],
    inductor_meta={{'grid_type': 'PrecomputedGrid', 'precomputed_grids': [{{'config': {{'BLOCK': 128}}, 'python': ['8', '2', '1'], 'cpp': ['8', '2', '1']}}, {{'config': {{'BLOCK': 256}}, 'python': ['4', '2', '1'], 'cpp': ['4', '2', '1']}}], 'kernel_name': 'users_own_0'}},
    triton_meta={{'signature': {{'x_ptr': '*fp32', 'DTYPE': 'constexpr', 'BLOCK': 'constexpr'}}, 'device': {DEVICE}, 'constants': {{'DTYPE': tl.float16}}, 'configs': [{{(0,): [['tt.divisibility', 16]]}}]}},
    filename=__file__,
    custom_kernel=True,
)
@triton.jit
def users_own(x_ptr, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    place = x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(place, scaled(tl.load(place).to(DTYPE)).to(tl.float32))

@triton.jit
def scaled(x):
    return x * FACTOR

FACTOR: tl.constexpr = tl.constexpr(3.0)
"""  # noqa: E501


def pointwise(name: str = "triton_poi_0", body: str = "tmp1 = tmp0 * 2.0") -> tuple[str, str]:
    return name, POINTWISE.replace("NAME", name).replace("BODY", body)


def dot(stages: int, name: str = "triton_tem_0") -> tuple[str, str]:
    return name, DOT.replace("NAME", name).replace("STAGES", str(stages))


def transpose(name: str = "triton_tem_0") -> tuple[str, str]:
    """Transpose 256×256 numbers in one block of 256 threads, which needs 128 KiB of shared memory."""
    _, source = dot(1, name)
    body = """    wide = tl.arange(0, 256)
    place = wide[:, None] * 256 + wide[None, :]
    tl.store(out_ptr0 + place, tl.trans(tl.load(arg_A + place)))
"""
    return name, source.partition("    BLOCK : tl.constexpr")[0] + body


def record_of(*kernels: tuple[str, str], gpu: str = "h100", call: str = "") -> Record:
    """A record with these kernels (name, source), defined like Inductor's."""
    text, facts = "\n" * (FIRST_LINE - 1), []
    for name, source in kernels:
        first = text.count("\n") + 1
        function = re.search(r"def (\w+)", source)
        assert function
        text += f"{name} = async_compile.triton('{function[1]}', '''{source}''', device_str='cuda')\n"
        span = (first, text.count("\n"))
        identity = f"kernels[0/0 inference].{name}"
        facts.append(
            Kernel(identity, name, "0/0", "kernels[0/0 inference]", "triton", "pointwise", span, half="inference")
        )
    artifact = Artifact("kernels[0/0 inference]", "kernels", "inference", "python", text + call, "0/0")
    return Record("f", Options(), target=gpu, artifacts=(artifact,), kernels=tuple(facts))


def many(count: int) -> Record:
    return record_of(*(pointwise(f"triton_poi_{number}", f"tmp1 = tmp0 * {number}.0") for number in range(count)))


def workers() -> list[psutil.Process]:
    """The compiling processes and their commands; PyTorch has child processes of its own."""
    found = [child for child in psutil.Process().children() if "compiler.binary.worker" in _command(child)]
    return [*found, *(grandchild for child in found for grandchild in child.children())]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
