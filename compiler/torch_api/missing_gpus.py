"""Programs for GPUs on a machine without one: what they put on a GPU stays on the CPU.

Outside of compiled functions, a torch function mode sees every call with a device. TorchDynamo would trace the mode, so
it is off while a compiled function runs; there, devices are replaced in what TorchDynamo traces.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from typing import Any, ClassVar

import torch
import torch.multiprocessing
from torch._C import _len_torch_function_stack
from torch._dynamo import trace_rules
from torch._dynamo.eval_frame import _TorchDynamoContext
from torch._dynamo.variables import ConstantVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from compiler.record.options import OptionError
from compiler.torch_api.gpu_stand_ins import stand_ins
from compiler.torch_api.patching import (
    Function,
    Wrapper,
    call_hidden_after,
    call_instead,
    replace_attribute,
    replace_attributes,
)

_CPU = torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    """Replaces the device "cuda" in calls by the CPU, and tells of the operators of collectives that are called."""

    observers: ClassVar[list[Callable[..., None]]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(map(_cpu_for_gpu, args))
        if kwargs:
            kwargs = _with_device(kwargs, _cpu_for_gpu) | ({"pin_memory": False} if "pin_memory" in kwargs else {})
        result = func(*args, **(kwargs or {}))
        if self.observers and isinstance(func, OpOverload | OpOverloadPacket) and "c10d" in str(func):
            self.observers[-1](func, args, kwargs or {}, result)
        return result


@contextmanager
def observe_operators(observe: Callable[..., None]) -> Iterator[None]:
    """In the block, call `observe(operator, args, kwargs, result)` for each collective that eager code calls.

    Only operators on a simulated rank, on a machine without a GPU, where the mode is.
    """
    _OnCpu.observers.append(observe)
    try:
        yield
    finally:
        _OnCpu.observers.remove(observe)


def _cpu_for_gpu(device: Any) -> Any:
    """The CPU for a GPU, which may be given by its number; any other value as it is."""
    is_gpu = type(device) is int or (isinstance(device, torch.device) and device.type == "cuda")
    return _CPU if is_gpu or (isinstance(device, str) and device.partition(":")[0] == "cuda") else device


def _with_device(kwargs: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Arguments by name, with `convert` applied to the device if there is one."""
    return kwargs | {"device": convert(kwargs["device"])} if "device" in kwargs else kwargs


@contextmanager
def keep_on_cpu(local_rank: int, local_size: int, functions: Mapping[str, Function]) -> Iterator[None]:
    """In the block, keep on the CPU what a program puts on GPUs, if this machine has none.

    `torch.cuda.set_device(LOCAL_RANK)` is ignored for GPUs that are not here. Without any, the program counts
    `local_size` GPUs, `functions` answer what it asks of torch.cuda, and wrappers of models ignore which GPU they are
    told to use.
    """
    count = torch.cuda.device_count()

    def set_device(original: Function, device: Any) -> None:
        index = device if isinstance(device, int) else torch.device(device).index
        if index is not None and index < count:
            original(device)

    with ExitStack() as stack:
        stack.enter_context(replace_attribute(torch.cuda, "set_device", call_instead(set_device)))
        if not count:
            stack.enter_context(_keep_rules())
            stack.enter_context(replace_attributes(stand_ins(local_rank, local_size, functions)))
            stack.enter_context(replace_attributes(_wrappers()))
            stack.enter_context(_leave_mode_for_older())
            stack.enter_context(_OnCpu())
        yield


def _keep_rules() -> AbstractContextManager[None]:
    """In the block, TorchDynamo's rules are for the functions that torch has now: it would keep rules for stand-ins."""
    rules = trace_rules.get_torch_obj_rule_map()
    return replace_attribute(trace_rules, "get_torch_obj_rule_map", lambda _: cache(lambda: rules))


def _wrappers() -> Iterator[Wrapper]:
    """Functions of torch that are told a GPU, and take the CPU."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    for wrapper, unused in ((DistributedDataParallel, ("device_ids", "output_device")),
                            (FullyShardedDataParallel, ("device_id",))):  # fmt: skip
        yield wrapper, "__init__", call_instead(partial(_initialize_on_cpu, unused))
    yield torch.nn.Module, "to", call_instead(_move_module)
    yield torch, "set_default_device", call_instead(lambda original, device: original(_cpu_for_gpu(device)))
    yield torch, "load", call_instead(_load)
    yield torch.random, "fork_rng", call_instead(_fork_rng)
    yield TorchInGraphFunctionVariable, "call_function", call_instead(_trace_function)
    yield TensorVariable, "call_method", call_instead(_trace_method)
    yield _TorchDynamoContext, "__init__", call_hidden_after(_leave_mode_for_calls)


def _trace_function(original: Function, function: Any, tx: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """In place of TorchDynamo's trace of a call of a function of torch, which may get a device."""
    return original(function, tx, args, _with_device(kwargs, _constant_without_gpu))


def _trace_method(original: Function, tensor: Any, tx: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The same for a call of a method of a tensor."""
    if name == "cuda":
        return tensor
    given = [*map(_constant_without_gpu, args)] if name == "to" else args
    return original(tensor, tx, name, given, _with_device(kwargs, _constant_without_gpu))


def _constant_without_gpu(value: Any) -> Any:
    """A value in TorchDynamo's trace: the CPU for a GPU."""
    if not value.is_python_constant():
        return value
    constant = value.as_python_constant()
    here = _cpu_for_gpu(constant)
    return value if here is constant else ConstantVariable.create(here)


def _initialize_on_cpu(unused: Sequence[str], original: Function, self: Any, *args: Any, **kwargs: Any) -> None:
    """Make a wrapper of a model without the arguments that name a GPU."""
    given = inspect.signature(original).bind(self, *args, **kwargs).arguments
    own = {"device_id": _CPU} if "device_id" in unused else {}
    original(**{name: value for name, value in given.items() if name not in unused} | own)


def _move_module(original: Function, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return original(module, *map(_cpu_for_gpu, args), **_with_device(kwargs, _cpu_for_gpu))


def _fork_rng(original: Function, _devices: Any = (), *args: Any, **kwargs: Any) -> Any:
    return original([], *args, **{name: value for name, value in kwargs.items() if name != "devices"})


def _load(original: Function, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    return original(f, _cpu_for_gpu(map_location), *args, **kwargs)


def _leave_mode_for_calls(_: None, context: Any, *_args: Any, **_kwargs: Any) -> None:
    """Turn the mode off for each call of a compiled function."""
    context.enter_exit_hooks.append(_leave_mode)


@contextmanager
def _leave_mode_for_older() -> Iterator[None]:
    """In the block, turn the mode off for each call of a function that was compiled before the block."""
    kinds = {_TorchDynamoContext, *_TorchDynamoContext.__subclasses__()}
    older = [each for each in gc.get_objects() if type(each) in kinds]
    for context in older:
        context.enter_exit_hooks.append(_leave_mode)
    try:
        yield
    finally:
        for context in older:
            context.enter_exit_hooks.remove(_leave_mode)


def _leave_mode() -> Callable[[], None]:
    with ExitStack() as stack:
        stack.enter_context(without_cpu_mode())
        return stack.pop_all().close


def has_gpu() -> bool:
    return torch.cuda.is_available()


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
