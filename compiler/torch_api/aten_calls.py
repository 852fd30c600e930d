"""The ATen calls of a block of code, below autograd, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from compiler.torch_api.autograd_nodes import next_number

Listener = Callable[[Any, Sequence[Any], Mapping[str, Any], int | None], Callable[[Any], None]]
"""Takes an operator, its arguments and keywords before it runs, and the sequence number of the node that autograd made
for it (None for no node). Returns what takes the result."""


_pauses: ContextVar[bool] = ContextVar("_pauses", default=False)


@contextmanager
def unheard() -> Iterator[None]:
    """Calls in this block are not told to the listeners of `AtenCalls`."""
    before = _pauses.set(True)
    try:
        yield
    finally:
        _pauses.reset(before)


class AtenCalls(TorchDispatchMode):
    """Tells a listener each ATen call of a block. The block runs as without it."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._seen = next_number()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _pauses.get():
            return func(*args, **(kwargs or {}))
        number = next_number()
        made = number - 1 if number > self._seen else None
        finish = self._listener(func, args, kwargs or {}, made)
        result = func(*args, **(kwargs or {}))
        self._seen = next_number()
        finish(result)
        return result


def draws_random_numbers(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call draws random numbers: attention does so for dropout alone."""
    given = dict(zip(argument_names(func), args, strict=False)) | dict(kwargs)
    return torch.Tag.nondeterministic_seeded in func.tags and not (
        "dropout_p" in argument_names(func) and given.get("dropout_p", 0.0) == 0
    )


def written_arguments(func: Any) -> tuple[int, ...]:
    """Indices of the arguments that an operator changes in place."""
    arguments = func._schema.arguments
    return tuple(index for index, each in enumerate(arguments) if each.alias_info and each.alias_info.is_write)


def argument_names(func: Any) -> tuple[str, ...]:
    """The names of an operator's arguments."""
    return tuple(each.name for each in func._schema.arguments)


def without_mutation(func: Any) -> Any:
    """The operator that returns what `func` writes into its first argument: `aten.add` for `aten.add_`; else None."""
    namespace, _, name = func._schema.name.partition("::")
    if not name.endswith("_") or written_arguments(func) != (0,):
        return None
    packet = getattr(getattr(torch.ops, namespace), name.rstrip("_"), None)
    return getattr(packet, func._overloadname, None) if packet is not None else None


def operator_name(func: Any) -> str:
    """An operator's name without namespace: `add.Tensor`."""
    return str(func).partition(".")[2]
