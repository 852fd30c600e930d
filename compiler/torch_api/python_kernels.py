"""Query the dispatcher's kernels, and override kernels in Python during a `with` block.

If an operator has its own kernel for the dispatch key, the Python kernel overrides it in the Python dispatcher
(torch._dispatch.python.enable_python_dispatcher), which is on while AOTAutograd and Inductor's pattern matcher trace.
If it has none, the Python kernel is registered with the C++ dispatcher. Either way, calls from C++ (composite
operators and derivative formulas) use the Python kernel too.
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
    """Override operators' kernels in the block: (operator, dispatch key) -> Python kernel."""
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
    """Names of the ATen operators that have their own kernel for a dispatch key: `aten::add.Tensor`."""
    names = (name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::"))
    return {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)}


def operator_named(name: str) -> OpOverload | None:
    """The operator with a qualified name (`aten::add.Tensor`); None if Python has none."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, base, None), overload or "default", None)


def without_key(key: DispatchKey) -> AbstractContextManager[None]:
    """Exclude a dispatch key in the block."""
    return torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(key))


def dispatch_state() -> tuple[int, int]:
    """The dispatch keys that this thread includes and excludes, as bit masks."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch keys of a tensor, as a bit mask."""
    return torch._C._dispatch_keys(tensor).raw_repr()


def _has_kernel(operator: OpOverload, key: DispatchKey) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key.name)


def _set(operator: OpOverload, key: DispatchKey, kernel: Callable[..., Any] | None) -> None:
    if kernel is None:
        operator.py_kernels.pop(key, None)
    else:
        operator.py_kernels[key] = kernel
    operator._dispatch_cache.clear()
