"""Inline PTX of one instruction, on numpy arrays: what Inductor writes into kernels, and what users do most often.

Instructions: https://docs.nvidia.com/cuda/parallel-thread-execution/. The `.approx` forms are computed exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.triton_interpreter.libdevice import NoEquivalentError

Array = NDArray[Any]

_INSTRUCTION = re.compile(r"\s*(?P<name>[\w.]+)\s+(?P<operands>\$\d+(?:\s*,\s*\$\d+)*)\s*;?\s*")
_MODIFIERS = {"approx", "ftz", "rn", "sat", "lo", "full", "b16", "b32", "b64"}

OPERATIONS: dict[str, Callable[..., Array]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "cos": np.cos,
    "div": np.divide,
    "ex2": np.exp2,
    "fma": lambda x, y, z: x * y + z,
    "lg2": np.log2,
    "mad": lambda x, y, z: x * y + z,
    "max": np.fmax,
    "min": np.fmin,
    "mov": np.positive,
    "mul": np.multiply,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
}


def call(
    assembly: str, constraints: str, arguments: Sequence[Array], dtypes: Sequence[np.dtype[Any]], pack: int
) -> list[Array]:
    """What one instruction gives, as a list of one array. Raises NoEquivalentError naming what it can't run."""
    found = _INSTRUCTION.fullmatch(assembly)
    operation, known = _operation(found["name"]) if found else (None, False)
    if found is None or operation is None or not known or pack != 1 or len(dtypes) != 1:
        raise NoEquivalentError(
            f"the inline assembly {assembly.strip()!r} ({constraints}) has no equivalent in the interpreter: this "
            "kernel can only be run on a GPU"
        )
    places = [int(place[1:]) for place in re.findall(r"\$\d+", found["operands"])]
    chosen = [arguments[place - 1] for place in places[1:]]
    if dtypes[0].kind == "f":
        return [np.asarray(operation(*(x.astype(np.float64) for x in chosen))).astype(dtypes[0])]
    return [np.asarray(operation(*chosen)).astype(dtypes[0])]


def _operation(name: str) -> tuple[Callable[..., Array] | None, bool]:
    """The function for `fma.rn.f32`, and whether all its modifiers are known."""
    base, *modifiers = name.split(".")
    known = all(modifier in _MODIFIERS or re.fullmatch(r"[fus]\d+", modifier) for modifier in modifiers)
    return OPERATIONS.get(base), known
