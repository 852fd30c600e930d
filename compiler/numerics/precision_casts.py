"""Explain why compiled code of 16-bit formats is not bit-equal to eager, and try the setting that makes it so.

Eager rounds to bfloat16 or float16 after each operation. A fused kernel loads these, computes in float32 and rounds
where it stores. `torch._inductor.config.emulate_precision_casts` puts the rounding in between back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch

from compiler.calls.call import Call
from compiler.calls.kept_graphs import KeptFrame
from compiler.numerics.call_results import CallResults, results
from compiler.numerics.stage_runs import stages_of
from compiler.record import Check
from compiler.torch_api.settings import emulating_precision_casts

SETTING = "torch._inductor.config.emulate_precision_casts = True"
NARROW = (torch.bfloat16, torch.float16)
MOST_SECONDS = 30.0
"""The setting is tried where compiling took fewer seconds than this."""


def narrowest(kept: Sequence[KeptFrame]) -> torch.dtype | None:
    """The narrowest 16-bit dtype that the graphs compute in; None if there is none."""
    graphs = (graph for frame in kept for stage in stages_of(frame) for graph in stage.graphs.values())
    found = {node.meta.get("dtype") for graph in graphs for node in graph.graph.nodes}
    return next((dtype for dtype in NARROW if dtype in found), None)


def explain(dtype: torch.dtype) -> str:
    """One sentence that says why numbers differ."""
    name = str(dtype).removeprefix("torch.")
    return f"a fused kernel keeps float32 between operations where eager rounds each result to {name}"


def results_with_casts(
    call: Call, compiled: Callable[[], Callable[..., object]], unheard: Callable[[], AbstractContextManager[object]]
) -> CallResults:
    """Results of the call compiled again with the setting. Raises what that raises."""
    with unheard(), emulating_precision_casts():
        return results(call, compiled())


def effect(before: Sequence[Check], after: Sequence[Check]) -> str:
    """One sentence that says how the setting changed the largest error."""
    first, second = (_largest(checks) for checks in (before, after))
    if first is None or second is None:
        return f"{SETTING} rounds as eager does"
    if second == 0:
        return f"with {SETTING}, tried here, all results are eager's, bit for bit"
    if second > first / 2:
        return f"{SETTING} does not help here: tried, the largest error is {second:.1e}, and {first:.1e} without"
    return f"with {SETTING}, tried here, the largest error goes from {first:.1e} to {second:.1e}"


def _largest(checks: Sequence[Check]) -> float | None:
    known = [check.max_relative for check in checks]
    return None if None in known else max((error for error in known if error is not None), default=0.0)
