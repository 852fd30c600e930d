"""Memory in which there is nothing yet: a kernel that reads an element before any writes it gets NaN, or -1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from compiler.backend.ir.reference_interpreter import State
from compiler.backend.runtime import launch
from compiler.torch_api import cuda_launch
from compiler.torch_api.patching import replaced


@contextmanager
def poisoned() -> Iterator[None]:
    """In a block of it, all memory that programs of our backend ask for is full of what would be seen in a result.

    So are gaps between rows. What a kernel writes over keeps what it held. Programs built before ask as they did.
    """
    with ExitStack() as changed:
        changed.enter_context(replaced(launch, "empty_on_cpu", _filled))
        changed.enter_context(replaced(cuda_launch, "empty_on_cuda", lambda found: lambda: _filled(found())))
        changed.enter_context(replaced(State, "target", _target))
        yield


def _filled(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*given: Any) -> Tensor:
        return _fill(empty(*given))

    return made


def _target(original: Callable[[State, str], Tensor]) -> Callable[[State, str], Tensor]:
    """The interpreter's: it asks for memory where a kernel first writes."""

    def target(state: State, name: str) -> Tensor:
        held = len(state.memory)
        found = original(state, name)
        is_new = len(state.memory) > held  # what is written over is held no longer
        return _fill(found) if is_new and not state.is_fake and found.device.type != "meta" else found

    return target


def _fill(memory: Tensor) -> Tensor:
    """All bytes are 255."""
    memory.untyped_storage().fill_(255)
    return memory
