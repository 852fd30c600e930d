"""torch.compile's settings: accepted values, temporary changes, and whether a function is already compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
import torch._inductor
import torch._inductor.config as inductor_config
import torch.fx.experimental._config as shape_config
from torch._dynamo import OptimizedModule

TAKEN_BY_TORCH_COMPILE = ("guard_filter_fn", "use_aoti")
"""Keys of `torch.compile(options=…)` that torch.compile handles itself; Inductor gets the others."""


def modes() -> dict[str, dict[str, Any]]:
    """The modes of torch.compile, each with its Inductor settings."""
    return torch._inductor.list_mode_options()


def backends() -> list[str]:
    """The names of all backends registered with TorchDynamo, debugging backends included."""
    return torch.compiler.list_backends(exclude_tags=())


def advertised_backends() -> list[str]:
    """The backends that torch lists by default, without debugging and experimental ones."""
    return torch.compiler.list_backends()


def dynamo_settings() -> dict[str, Any]:
    """The current values of TorchDynamo's settings."""
    return dict(dynamo_config.get_config_copy())


def set_dynamo_settings(values: Mapping[str, Any]) -> None:
    """Restore earlier values of TorchDynamo's settings; unchanged settings are not set."""
    now = dynamo_settings()
    for name, value in values.items():
        if now.get(name) != value:
            setattr(dynamo_config, name, value)


@cache
def inductor_settings() -> dict[str, Any]:
    """The declared type of each of Inductor's settings, by dotted name (`triton.cudagraphs`)."""
    return {name: inductor_config.get_type(name) for name in inductor_config.get_config_copy()}  # type: ignore[attr-defined]


def is_compiled(target: object) -> bool:
    """Whether torch.compile has been applied to this module, function or method."""
    if isinstance(target, OptimizedModule):
        return True
    if isinstance(target, torch.nn.Module):
        return target._compiled_call_impl is not None or _is_compile_wrapper(target.forward)
    return _is_compile_wrapper(target)


def _is_compile_wrapper(target: object) -> bool:
    function = getattr(target, "__func__", target) if isinstance(target, MethodType) else target
    marks = vars(function) if isinstance(function, FunctionType) else {}
    # torch.compiler.disable leaves the first mark too; functools.wraps copies all of them to another function.
    is_its_own = marks.get("_torchdynamo_wrapper_id", id(function)) == id(function)
    return "_torchdynamo_orig_callable" in marks and is_its_own and not marks.get("_torchdynamo_disable", False)


_SETTING = re.compile(r"torch\._dynamo\.config\.(\w+)")


@contextmanager
def with_settings(statements: Sequence[str]) -> Iterator[None]:
    """Run statements such as `torch._dynamo.config.capture_scalar_outputs = True` for a block.

    Restored afterwards: the named TorchDynamo settings, float32 matmul precision, the number of threads, and
    use_duck_shape.
    """
    names = dict.fromkeys(name for line in statements for name in _SETTING.findall(line))
    values = {name: getattr(dynamo_config, name) for name in names}
    own = {name: set(value) if isinstance(value, set) else value for name, value in values.items()}
    with dynamo_config.patch(own), _of_the_process():
        exec("\n".join(["import torch", *statements]), {})
        yield


@contextmanager
def _of_the_process() -> Iterator[None]:
    duck_shape = shape_config.use_duck_shape
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        yield
    finally:
        shape_config.use_duck_shape = duck_shape
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def stance(name: str) -> AbstractContextManager[Any]:
    """Set a stance of torch.compile in a block; "" changes nothing."""
    return torch.compiler.set_stance(name) if name else nullcontext()


def known_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of some options of Inductor that this version of torch has."""
    known = inductor_config.get_config_copy()
    return {name: value for name, value in options.items() if name in known}
