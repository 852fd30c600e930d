"""Compiled numbers against eager's, on the user's own call."""

from __future__ import annotations

import math

import torch

from compiler.measure.calls import Call, unnoticed
from compiler.record import Check
from compiler.torch_api.pytrees import tree_leaves

# Relative to the largest magnitude of the eager tensor: what torch.testing.assert_close allows, by dtype.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}


def checks(call: Call) -> tuple[Check, ...]:
    """One `Check` for each output and each gradient of the sum of the outputs.

    A call that draws random numbers is not comparable: Inductor draws others than eager does, by design
    (`torch._inductor.config.fallback_random`).
    """
    with unnoticed(call):
        before = torch.random.get_rng_state()
        expected = _results(call, compiled=False)
        if not torch.equal(before, torch.random.get_rng_state()):
            return (Check("outputs", None, None, "not comparable", "the call draws random numbers"),)
        return tuple(
            compared(name, mine, theirs)
            for (name, theirs), (_, mine) in zip(expected, _results(call, compiled=True), strict=True)
        )


def _results(call: Call, *, compiled: bool) -> list[tuple[str, torch.Tensor]]:
    args, kwargs = call.copied_arguments()
    value = (call.compiled if compiled else call.fn)(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    named = [(f"output {index}", output.detach()) for index, output in enumerate(outputs)]
    return named + _gradients(call, outputs)


def _gradients(call: Call, outputs: list[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    roots = [output.sum() for output in outputs if output.requires_grad]
    inputs = call.tensors()
    if not roots or not inputs:
        return []
    gradients = torch.autograd.grad(roots, inputs, allow_unused=True)
    return [(f"gradient {index}", found) for index, found in enumerate(gradients) if found is not None]


def compared(
    name: str,
    mine: torch.Tensor,
    theirs: torch.Tensor,
    *,
    relative: bool = False,
    computed_in: torch.dtype | None = None,
) -> Check:
    """Mine against eager's. Errors are measured against the largest magnitude of eager's, or 1 where that is less;
    with `relative`, against that magnitude however small. `computed_in` is a narrower format that was used on the way.
    """
    if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
        note = f"eager gives {theirs.dtype} {tuple(theirs.shape)}, compiled {mine.dtype} {tuple(mine.shape)}"
        return Check(name, 0.0, 0.0, "differs", note)
    allowed = max(TOLERANCE.get(dtype, 0.0) for dtype in (mine.dtype, computed_in or mine.dtype))
    note = f"allowed {allowed:g} of the largest magnitude"
    if not mine.numel() or torch.equal(mine, theirs):
        return Check(name, 0.0, 0.0, "equal", note)
    difference, scale = _largest(mine.double() - theirs.double()), max(_largest(theirs.double()), 1e-30)
    if not (math.isfinite(difference) and math.isfinite(scale)):
        return Check(name, None, None, "differs", "not a number or infinite, in one and not the same in the other")
    verdict = "close" if difference <= allowed * (scale if relative else max(scale, 1.0)) else "differs"
    return Check(name, difference, difference / scale, verdict, note)


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max())
