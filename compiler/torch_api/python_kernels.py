"""The dispatcher: which operators have kernels, and kernels in Python for the length of a `with` block.

Where an operator has a kernel of its own for the dispatch key, the Python one is put before it for the Python
dispatcher (torch._dispatch.python.enable_python_dispatcher), which is on while AOTAutograd and Inductor's pattern
matcher trace. Where it has none, the dispatcher passes the key over, and the Python kernel is registered with it.
Either way it is found for calls from C++, too: in operators made of others, and in the formulas of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.library import Library

ENTER_AUTOCAST = torch.amp.autocast_mode._enter_autocast

__all__ = ["DispatchKey", "OpOverload"]

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


def operators_with_kernel(key: str) -> set[str]:
    """ATen operators with a kernel of their own for a dispatch key: `aten::add.Tensor`."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}


def operator_named(name: str) -> OpOverload | None:
    """The operator `aten::add.Tensor`, None where Python has none of that name."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def without_key(key: DispatchKey) -> AbstractContextManager[None]:
    """Make the dispatcher pass over kernels of a key in the block."""
    return torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(key))


def dispatch_state() -> tuple[int, int]:
    """The dispatch keys that this thread includes and excludes, as bits."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch keys of a tensor, as bits."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def _has_kernel(operator: OpOverload, key: DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key.name)


def _set(operator: OpOverload, key: DispatchKey, kernel: Callable[..., Any] | None) -> None:
    if kernel is None:
        operator.py_kernels.pop(key, None)
    else:
        operator.py_kernels[key] = kernel
    operator._dispatch_cache.clear()
