"""Copy a user's call: function, modules, tensors and optimizers, with equal weights.

All are copied together, so that shared weights stay shared. A function is rebuilt over copies of its closure variables
and globals. Its code object is copied too, so that compiled code of the copy and of the original are not mixed up.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from compiler.calls.call import Call, closure_of, copy_for_guards, nested_codes
from compiler.capture.sources import is_installed
from compiler.torch_api.pytrees import tree_map

_PLAIN = (list, tuple, dict, set)
_CALLABLES = (FunctionType, MethodType, functools.partial)
NO_VALUES = "the call's tensors are on the meta device, which holds shapes and no values: nothing of it can be measured"
GIVE_VALUES = "to time or check the call, make it with tensors that have memory"


class CannotCopyError(Exception):
    """Some part of a call can't be copied; the message names the part and the reason."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copied function or module, its arguments, and all modules and tensors that were copied."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...]

    def leaves(self) -> list[Tensor]:
        """Parameters and arguments that require grad, each once."""
        own = [parameter for module in self.modules for parameter in module.parameters()]
        wanting = {id(leaf): leaf for leaf in (*own, *self.tensors) if leaf.requires_grad and leaf.is_leaf}
        return list(wanting.values())

    def parameters(self) -> list[Tensor]:
        """Tensors for an optimizer: the parameters, or all leaves if the call has no parameters."""
        leaves = self.leaves()
        return [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)] or leaves


def copy_call(call: Call) -> Copy:
    """Copy a call. Raises CannotCopyError, also for meta tensors, as they have no values."""
    if "meta" in call.devices():
        raise CannotCopyError(f"{NO_VALUES}; {GIVE_VALUES}")
    copier = _Copier()
    fn = copier(call.fn)
    args, kwargs = copier(tuple(call.args)), copier(dict(call.kwargs))
    return Copy(fn, args, kwargs, tuple(copier.modules), tuple(copier.tensors))


class _Copier:
    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self.modules: list[nn.Module] = []
        self.tensors: list[Tensor] = []
        self.original: dict[str, Any] | None = None
        self.globals: dict[str, Any] = {}
        self.kept: list[Any] = []  # keeps the originals alive, as their ids are keys of the memo

    def __call__(self, value: Any) -> Any:
        if id(value) in self.memo:
            return self.memo[id(value)]
        self.kept.append(value)
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self(value.__self__))
        if isinstance(value, functools.partial):
            return functools.partial(self(value.func), *self(value.args), **self(value.keywords))
        if type(value) in _PLAIN or not _has_state(value):
            return self._parts(value)
        return self._whole(value)

    def _tensor(self, value: Tensor) -> Tensor:
        if isinstance(value, nn.Parameter):
            return self._whole(value)
        made = copy_for_guards(value.detach())
        self.memo[id(value)] = made.requires_grad_() if value.requires_grad else made
        self.tensors.append(made)
        return made

    def _parts(self, value: Any) -> Any:
        """Copy the elements of a container; return a value without state unchanged."""
        if type(value) is set:
            return {self(item) for item in value}
        return tree_map(lambda leaf: self(leaf) if leaf is not value and _is_copied(leaf) else leaf, value)

    def _whole(self, value: Any) -> Any:
        try:
            made = copy.deepcopy(value, self.memo)
        except Exception as error:  # noqa: BLE001 - the user's __deepcopy__ may raise anything
            name = type(value).__name__
            raise CannotCopyError(f"a {name} can't be copied: {type(error).__name__}: {error}") from None
        if isinstance(made, nn.Module):
            self.modules.append(made)
        elif isinstance(made, Tensor):
            self.tensors.append(made)
        return made

    def _function(self, value: FunctionType) -> FunctionType:
        """Copy a function; return one of an installed package or another module unchanged, as TorchDynamo looks up its
        globals by name.
        """
        self.original = value.__globals__ if self.original is None else self.original
        if is_installed(value.__code__.co_filename) or value.__globals__ is not self.original:
            return value
        self.globals = self.globals or dict(self.original)
        cells = tuple(CellType() for _ in value.__closure__ or ())
        made = FunctionType(value.__code__.replace(), self.globals, value.__name__, None, cells or None)
        self.memo[id(value)] = made
        made.__dict__.update(value.__dict__)
        made.__module__, made.__qualname__ = value.__module__, value.__qualname__
        made.__defaults__ = self(value.__defaults__) if value.__defaults__ else None
        made.__kwdefaults__ = self(value.__kwdefaults__) if value.__kwdefaults__ else None
        known = closure_of(value)
        for name, cell in zip(value.__code__.co_freevars, cells, strict=True):
            if name in known:
                cell.cell_contents = self(known[name])
        for name in (name for code in nested_codes(value.__code__) for name in code.co_names):
            if name in self.original and _is_copied(self.original[name]):
                self.globals[name] = self(self.original[name])
        return made


def _is_copied(value: Any) -> bool:
    return isinstance(value, _CALLABLES) or type(value) in _PLAIN or _has_state(value)


def _has_state(value: Any) -> bool:
    """Whether a call may change a value: a module, optimizer, tensor or callable object."""
    if isinstance(value, Tensor | nn.Module | Optimizer):
        return True
    package = getattr(type(value), "__module__", "").partition(".")[0]
    is_object = callable(value) and not isinstance(value, type) and hasattr(value, "__dict__")
    return is_object and package not in ("builtins", "torch", "functools", "numpy", "types")


def main_device(copy_: Copy) -> torch.device:
    """The device of the call's first tensor that is not on the CPU, or else the CPU."""
    own = [tensor for module in copy_.modules for tensor in (*module.parameters(), *module.buffers())]
    devices = (tensor.device for tensor in (*copy_.tensors, *own))
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
