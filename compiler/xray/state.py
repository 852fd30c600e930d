"""Save the state of the user's objects that a call can reach, and restore it after the call is repeated.

Running on copies is not possible, as locks, files and objects that hold them can't be copied. So the program runs on
the user's own objects, and tensors, containers, attributes, closure variables and globals are restored.
"""

from __future__ import annotations

import collections
import functools
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from compiler.calls.call import closure_of, nested_codes
from compiler.capture.sources import is_installed

MOST_OBJECTS = 200_000
_LEAVES = (str, bytes, int, float, complex, bool, type, type(None), ModuleType, BuiltinFunctionType, logging.Logger,
           torch.dtype, torch.device, torch.Size)  # fmt: skip
Restore = Callable[[], None]


@dataclass
class State:
    """The saved state of all objects reachable from some roots; `restore` can be called any number of times."""

    _restores: list[Restore] = field(default_factory=list)
    _objects: list[tuple[str, Any]] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, roots: Iterable[tuple[str, Any]]) -> State:
        """Save the state of objects, given as pairs of name and object."""
        state, todo = cls(), collections.deque(roots)
        while todo and len(state._seen) < MOST_OBJECTS:
            name, value = todo.popleft()
            if isinstance(value, _LEAVES) or id(value) in state._seen:
                continue
            state._seen.add(id(value))
            state._objects.append((name, value))
            todo.extend(state._save(name, value))
        return state

    def restore(self) -> None:
        """Restore the saved state."""
        with torch.no_grad():
            for restore in self._restores:
                restore()

    def values(self) -> dict[str, Any]:
        """Copies of the tensors and plain values that the objects hold now, by name."""
        return {name: _copy_of(value) for owner, each in self._objects for name, value in _values(owner, each)}

    def tensors(self) -> list[torch.Tensor]:
        """Distinct leaves that require grad."""
        found = (value for _, value in self._objects if isinstance(value, torch.Tensor))
        return [value for value in found if value.is_leaf and value.requires_grad]

    def _save(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Save one object; yield the objects that it holds, with names."""
        if isinstance(value, torch.Tensor):
            self._restores.append(_restore_of_tensor(value))
            yield f"{name}.grad", value.grad if value.is_leaf else None
        elif isinstance(value, np.ndarray):
            self._restores.append(functools.partial(np.copyto, value, value.copy(), casting="no"))
        elif isinstance(value, dict | list | collections.deque | set | tuple | frozenset):
            yield from self._save_container(name, value)
        elif isinstance(value, MethodType):
            yield from ((name, value.__self__), (name, value.__func__))
        elif isinstance(value, functools.partial):
            yield from ((name, item) for item in (value.func, *value.args, *value.keywords.values()))
        elif isinstance(value, FunctionType):
            yield from self._save_function(value)
        elif isinstance(getattr(value, "__dict__", None), dict):
            self._restores.append(_restore_of_dict(vars(value)))
            yield from ((f"{name}.{key}" if name else key, item) for key, item in vars(value).items())

    def _save_container(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self._restores.append(_restore_of_dict(value))
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items())
            return
        if isinstance(value, list | collections.deque):
            self._restores.append(_restore_of_sequence(value))
        elif isinstance(value, set):
            self._restores.append(_restore_of_set(value))
        yield from ((f"{name}[{n}]", item) for n, item in enumerate(value))

    def _save_function(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """Save closure variables of a user's function, and the globals that its code uses."""
        if is_installed(function.__code__.co_filename):
            return
        for cell in function.__closure__ or ():
            if cell != CellType():
                self._restores.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
        yield from closure_of(function).items()
        yield from ((function.__name__, item) for item in function.__defaults__ or ())
        names = dict.fromkeys(name for code in nested_codes(function.__code__) for name in code.co_names)
        own = function.__globals__
        for name in names:
            if name in own:
                self._restores.append(functools.partial(own.__setitem__, name, own[name]))
                yield name, own[name]


def _values(owner: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield an object's own values: an array itself, or items and attributes that are tensors, numbers or strings."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield owner, value
    elif isinstance(value, dict):
        yield from ((f"{owner}[{key!r}]", item) for key, item in value.items() if isinstance(item, _HELD))
    elif isinstance(value, list | collections.deque | tuple):
        yield from ((f"{owner}[{n}]", item) for n, item in enumerate(value) if isinstance(item, _HELD))
    elif not isinstance(value, FunctionType | MethodType) and isinstance(getattr(value, "__dict__", None), dict):
        yield from ((f"{owner}.{key}", item) for key, item in vars(value).items() if isinstance(item, _HELD))


_HELD = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)


def _copy_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    return value


def _restore_of_tensor(tensor: torch.Tensor) -> Restore:
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        return lambda: None
    saved, grad, wants_grad = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None, tensor.requires_grad

    def restore() -> None:
        if tensor.is_leaf:
            tensor.requires_grad_(wants_grad)
            tensor.grad = grad
        if tensor.shape == saved.shape and tensor.dtype == saved.dtype:
            with torch.inference_mode(tensor.is_inference()):
                tensor.data.copy_(saved)
        else:
            tensor.data = saved.clone()

    return restore


def _restore_of_dict(value: dict[Any, Any]) -> Restore:
    saved = dict(value)

    def restore() -> None:
        if len(value) != len(saved) or any(value.get(key, saved) is not item for key, item in saved.items()):
            value.clear()
            value.update(saved)

    return restore


def _restore_of_sequence(value: list[Any] | collections.deque[Any]) -> Restore:
    saved = list(value)

    def restore() -> None:
        if len(value) != len(saved) or any(now is not item for now, item in zip(value, saved, strict=True)):
            value.clear()
            value.extend(saved)

    return restore


def _restore_of_set(value: set[Any]) -> Restore:
    saved = set(value)

    def restore() -> None:
        if value != saved:
            value.clear()
            value.update(saved)

    return restore


@contextmanager
def same_random_numbers() -> Iterator[Restore]:
    """Restore the random state of torch, NumPy and Python after the block; yield a function to restore it earlier."""
    of_torch, of_numpy, of_python = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def restore() -> None:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)

    with torch.random.fork_rng():
        try:
            yield restore
        finally:
            restore()
