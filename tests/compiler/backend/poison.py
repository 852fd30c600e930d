"""Poisoned memory: a kernel that reads an element before it is written gets NaN, or -1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from compiler.backend.ir.reference_interpreter import State
from compiler.backend.runtime import launch
from compiler.torch_api import cuda_launch
from compiler.torch_api.patching import replace_attribute


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill all memory that programs of our backend allocate with values that would show in a result.

    Gaps between rows are filled too. A buffer that a kernel overwrites keeps its contents. Programs built before the
    block are not affected.
    """
    with ExitStack() as changed:
        changed.enter_context(replace_attribute(launch, "empty_on_cpu", _filled))
        changed.enter_context(replace_attribute(cuda_launch, "empty_on_cuda", lambda found: lambda: _filled(found())))
        changed.enter_context(replace_attribute(State, "target", _target))
        yield


def _filled(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*given: Any) -> Tensor:
        return _fill(empty(*given))

    return made


def _target(original: Callable[[State, str], Tensor]) -> Callable[[State, str], Tensor]:
    """The allocation for the interpreter: it allocates memory at a kernel's first write."""

    def target(state: State, name: str) -> Tensor:
        held = len(state.memory)
        found = original(state, name)
        is_new = len(state.memory) > held  # an overwritten buffer is no longer in memory
        return _fill(found) if is_new and not state.is_fake and found.device.type != "meta" else found

    return target


def _fill(memory: Tensor) -> Tensor:
    """Set all bytes to 255."""
    memory.untyped_storage().fill_(255)
    return memory
