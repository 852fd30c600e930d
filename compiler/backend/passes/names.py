"""Name kernels after the operators of the user's code that they compute: `dropout_add_layer_norm`."""

from __future__ import annotations

import re
from itertools import count

from compiler.backend.ir import Kernel

MOST = 4
"""Largest number of operators in a name."""

COPIES = frozenset({"cast", "copy"})
ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "neg", "pow", "where", "full", "eq", "ne", "ge", "gt", "le", "lt", "bitwise_and")
)
_NUMBER = re.compile(r"_\d+$")


def without_number(name: str) -> str:
    """Strip a numeric suffix: `add` for `add_3`."""
    return _NUMBER.sub("", name)


def unique(name: str, taken: set[str]) -> str:
    """Make a name unique by a numeric suffix, and add it to `taken`: `add_2`."""
    base, numbers = without_number(name), count(1)
    while name in taken:
        name = f"{base}_{next(numbers)}"
    taken.add(name)
    return name


def name_of(kernel: Kernel) -> str:
    """Name of a kernel: its last operators in order, such as `layer_norm_backward_sum`. Copies are left out if there
    are other operators, arithmetic if there are too many. `backward` comes once, then the kernel's final reduction.
    """
    operators = [loop.operator for loop in kernel.loops if loop.operator]
    names = [*dict.fromkeys(name.removesuffix("_backward") for name in operators)]
    names = [name for name in names if name not in COPIES] or names
    if len(names) > MOST:
        names = [name for name in names if name not in ARITHMETIC] or names
    names = names[-MOST:]
    if any(name.endswith("_backward") for name in operators):
        names.append("backward")
    last = next((loop for loop in reversed(kernel.loops) if loop.operator not in COPIES), None)
    if last and last.reduction and last.operator and last.operator != without_number(last.origins[-1]):
        names.append(last.reduction)
    return "_".join(names) or kernel.name
