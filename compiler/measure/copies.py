"""Fresh copies of what the user called, with equal weights: what is measured on them, the user never notices.

Modules, tensors and optimizers are copied together, so that a weight that two of them share is one weight in the copies
too. A function is made anew over copies of what it closes over and names; its code is a copy, so that compiled code for
it is kept apart from the user's.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from compiler.capture.sources import is_installed
from compiler.measure.calls import Call, copied_tensor
from compiler.torch_api.pytrees import tree_map

_PLAIN = (list, tuple, dict, set)


class CannotCopyError(Exception):
    """Why there is no fresh copy of something, in the user's terms."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A function or module of the user's with its arguments, apart from the user's own; and the modules and tensors
    that it came with.
    """

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    modules: tuple[nn.Module, ...]
    tensors: tuple[Tensor, ...]

    def leaves(self) -> list[Tensor]:
        """Parameters and arguments that want gradients, each once."""
        own = [parameter for module in self.modules for parameter in module.parameters()]
        wanting = {id(leaf): leaf for leaf in (*own, *self.tensors) if leaf.requires_grad and leaf.is_leaf}
        return list(wanting.values())

    def parameters(self) -> list[Tensor]:
        """What an optimizer is to train: parameters, or the leaves of a call that has none."""
        leaves = self.leaves()
        return [leaf for leaf in leaves if isinstance(leaf, nn.Parameter)] or leaves


def copied(call: Call) -> Copy:
    """A fresh copy of a call. Raises CannotCopyError."""
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
        self.kept: list[Any] = []  # ids are keys: what they are of has to stay

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
        made = copied_tensor(value.detach())
        self.memo[id(value)] = made.requires_grad_() if value.requires_grad else made
        self.tensors.append(made)
        return made

    def _parts(self, value: Any) -> Any:
        """What is inside lists and the like; anything without state stays what it is."""
        if type(value) is set:
            return {self(item) for item in value}
        return tree_map(lambda leaf: self(leaf) if leaf is not value and _is_copied(leaf) else leaf, value)

    def _whole(self, value: Any) -> Any:
        try:
            made = copy.deepcopy(value, self.memo)
        except Exception as error:  # noqa: BLE001 - whatever the user's __deepcopy__ raises
            name = type(value).__name__
            raise CannotCopyError(f"a {name} can't be copied: {type(error).__name__}: {error}") from None
        if isinstance(made, nn.Module):
            self.modules.append(made)
        elif isinstance(made, Tensor):
            self.tensors.append(made)
        return made

    def _function(self, value: FunctionType) -> FunctionType:
        """Functions of other files than the first one's see their own globals, as TorchDynamo reads these by name."""
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
        for cell, own in zip(cells, value.__closure__ or (), strict=True):
            if _is_filled(own):
                cell.cell_contents = self(own.cell_contents)
        for name in _names(value.__code__):
            if name in self.original and _is_copied(self.original[name]):
                self.globals[name] = self(self.original[name])
        return made


def _is_copied(value: Any) -> bool:
    return (
        isinstance(value, (FunctionType, MethodType, functools.partial)) or type(value) in _PLAIN or _has_state(value)
    )


def _has_state(value: Any) -> bool:
    """What a call may change: modules, optimizers, tensors, and objects that are called."""
    if isinstance(value, Tensor | nn.Module | Optimizer):
        return True
    return callable(value) and not isinstance(value, type) and hasattr(value, "__dict__") and not _is_of_package(value)


def _is_of_package(value: Any) -> bool:
    module = getattr(type(value), "__module__", "")
    return module.partition(".")[0] in ("builtins", "torch", "functools", "numpy", "types")


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def devices(copy_: Copy) -> list[torch.device]:
    """Where the tensors of a call are, each once."""
    own = [tensor for module in copy_.modules for tensor in (*module.parameters(), *module.buffers())]
    return list(dict.fromkeys(tensor.device for tensor in (*copy_.tensors, *own)))
