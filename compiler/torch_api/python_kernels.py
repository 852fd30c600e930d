"""Kernels in Python for torch's operators, for the length of a `with` block.

Where an operator has a kernel of its own for the dispatch key, the Python one is put before it for the Python
dispatcher (torch._dispatch.python.enable_python_dispatcher), which is on while AOTAutograd and Inductor's pattern
matcher trace. Where it has none, the dispatcher passes the key over, and the Python kernel is registered with it.
Either way it is found for calls from C++, too: in operators made of others, and in the formulas of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import OpOverload
from torch.library import Library

Kernels = Mapping[tuple[OpOverload, DispatchKey], Callable[..., Any]]


@contextmanager
def python_kernels(kernels: Kernels) -> Iterator[None]:
    """Put these kernels in the place of the operators' own for the block."""
    known = {entry: entry[0].py_kernels.get(entry[1]) for entry in kernels if _has_kernel(*entry)}
    library = Library("aten", "IMPL")
    try:
        for (operator, key), kernel in kernels.items():
            if (operator, key) in known:
                _set(operator, key, kernel)
            else:
                library.impl(operator, kernel, key.name)
        yield
    finally:
        library._destroy()
        for (operator, key), before in known.items():
            _set(operator, key, before)


def _has_kernel(operator: OpOverload, key: DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key.name)


def _set(operator: OpOverload, key: DispatchKey, kernel: Callable[..., Any] | None) -> None:
    if kernel is None:
        operator.py_kernels.pop(key, None)
    else:
        operator.py_kernels[key] = kernel
    operator._dispatch_cache.clear()
