"""Programs for GPUs on a machine without one: what they put on a GPU stays on the CPU.

Outside of compiled functions, a torch function mode sees every call with a device. TorchDynamo would trace the mode, so
it is off while an explored function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.multiprocessing
from torch.overrides import TorchFunctionMode, _len_torch_function_stack, _pop_mode, _push_mode

from compiler.record.options import OptionError
from compiler.torch_api.patching import Function, replace_attribute

_CPU = torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    """Replaces the device "cuda" in calls by the CPU."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        given = {name: _here(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.to:
            args = tuple(_here(value) for value in args)
        return func(*args, **given)


def _here(device: Any) -> Any:
    """The CPU for a GPU; any other value as it is."""
    is_gpu = isinstance(device, torch.device) and device.type == "cuda"
    return _CPU if is_gpu or (isinstance(device, str) and device.partition(":")[0] == "cuda") else device


@contextmanager
def keep_on_cpu() -> Iterator[None]:
    """In the block, keep on the CPU what a program puts on GPUs, if this machine has none.

    `torch.cuda.set_device(LOCAL_RANK)` is ignored for GPUs that are not here.
    """
    count = torch.cuda.device_count()

    def ignore_missing(original: Function) -> Function:
        def set_device(device: Any) -> None:
            index = device if isinstance(device, int) else torch.device(device).index
            if index is not None and index < count:
                original(device)

        return set_device

    with ExitStack() as stack:
        stack.enter_context(replace_attribute(torch.cuda, "set_device", ignore_missing))
        if not count:
            stack.enter_context(_OnCpu())
        yield


def has_gpu() -> bool:
    return torch.cuda.device_count() > 0


@contextmanager
def run_spawned_function(rank: int, world: int, local_size: int) -> Iterator[None]:
    """In the block, `torch.multiprocessing.spawn(fn, args, nprocs)` calls `fn` here, as the rank that is simulated."""

    def spawn(fn: Function, args: Sequence[Any] = (), nprocs: int = 1, **_: Any) -> None:
        if nprocs not in (world, local_size):
            raise OptionError(f"spawn(nprocs={nprocs}) in a simulated job of {world} ranks: make it nprocs={world}")
        fn(rank if nprocs == world else rank % local_size, *args)

    with replace_attribute(torch.multiprocessing, "spawn", lambda _: spawn):
        yield


@contextmanager
def without_cpu_mode() -> Iterator[None]:
    """Turn the mode off in the block, so that TorchDynamo does not trace it."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    if not any(isinstance(mode, _OnCpu) for mode in modes):
        _push_all(modes)
        yield
        return
    others = [mode for mode in modes if not isinstance(mode, _OnCpu)]
    _push_all(others)
    try:
        yield
    finally:
        for _ in others:
            _pop_mode()
        _push_all(modes)


def _push_all(modes: list[Any]) -> None:
    for mode in reversed(modes):
        _push_mode(mode)
