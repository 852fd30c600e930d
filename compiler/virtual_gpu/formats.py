"""Messages about dtypes that a GPU has no instructions for, or computes slowly."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule

from compiler.targets import Target
from compiler.torch_api.fx import value_of

SLOW = 8
"""A dtype gets a note if it is more than this many times slower than float32."""

_FLOAT8 = {torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
_FLOAT8_PRODUCTS = ("aten._scaled_mm", "aten._scaled_mm_v2", "aten._scaled_grouped_mm")


def refusal(target: Target, module: GraphModule) -> str:
    """Why the target can't run this graph (float8 matmuls); "" if it can."""
    targets = {str(node.target).rpartition(".")[0] for node in module.graph.nodes}
    if "float8" in target.peak or not targets & set(_FLOAT8_PRODUCTS):
        return ""
    return (
        f"{target.title} has no float8 tensor cores: torch._scaled_mm raises an error there. It takes compute "
        f"capability 8.9 or later (L4, RTX 4090, H100), and {target.title} has "
        f"{'.'.join(map(str, target.capability))}. float16 products have tensor cores there."
    )


NO_BFLOAT16 = (
    "{} has no bfloat16 instructions: torch.compile leaves a graph with bfloat16 inputs or outputs to eager there. "
    "float16 and float32 are compiled."
)


def no_bfloat16(target: Target, module: GraphModule) -> str:
    """Why the target can't compile a graph with bfloat16; "" if it can."""
    has_it = target.vendor == "amd" or target.capability >= (8, 0)
    return "" if has_it or torch.bfloat16 not in set(_dtypes(module)) else NO_BFLOAT16.format(target.title)


def notes(target: Target, module: GraphModule) -> Iterator[tuple[str, str]]:
    """A graph's dtypes that the target computes slowly or only stores, each with an explanation."""
    used = set(_dtypes(module))
    slower = round(target.peak["float32"] / target.peak["float64"])
    if torch.float64 in used and slower > SLOW:
        yield (
            "float64",
            f"{target.title} computes float64 at 1/{slower} of the rate of float32: it is made for narrower formats",
        )
    if used & _FLOAT8 and "float8" not in target.peak:
        yield (
            "float8",
            f"{target.title} has no float8 instructions: float8 is only stored there, and what is computed is computed "
            "in a wider format. Triton converts float8_e5m2 there and not float8_e4m3fn, which is left to ATen",
        )


def tf32_note(target: Target) -> tuple[str, str] | None:
    """A note if the matmul precision keeps float32 matmuls off the tensor cores, as torch warns; else None."""
    if "tf32" not in target.peak or torch.get_float32_matmul_precision() != "highest":
        return None
    with_tensor_cores, without = target.peak["tf32"] / 1e12, target.peak["float32"] / 1e12
    return (
        "float32",
        f"products in float32 run without tensor cores, at up to {without:g} TFLOP/s. With "
        "torch.set_float32_matmul_precision('high') they are rounded to TF32 (10 bits of mantissa) and run at up to "
        f"{with_tensor_cores:g}",
    )


def _dtypes(module: GraphModule) -> Iterator[torch.dtype]:
    values = map(value_of, module.graph.nodes)
    return (value.dtype for value in values if isinstance(value, torch.Tensor))
