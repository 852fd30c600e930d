"""Save the state of the user's objects that a call can reach, and restore it after the call is repeated.

Running on copies is not possible, as locks, files and objects that hold them can't be copied. So the program runs on
the user's own objects. Tensors, containers, attributes (also of classes and modules), closure variables, globals and
random generators are restored.
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import logging
import random
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from compiler.calls.call import closure_of, nested_codes
from compiler.capture.sources import is_installed
from compiler.torch_api.dtensor import inner_tensor
from compiler.torch_api.fake_tensors import has_storage

MOST_OBJECTS = 200_000
_LEAVES = (str, bytes, int, float, complex, bool, type(None), BuiltinFunctionType, logging.Logger,
           torch.dtype, torch.device, torch.Size)  # fmt: skip
_CONTAINERS = (dict, list, collections.deque, set, tuple, frozenset)
_HELD = (str, bytes, int, float, complex, bool, type(None), torch.Tensor)
_MEMORY_FILES = (io.StringIO, io.BytesIO)
_ITERATORS = ("builtins", "itertools")
Restore = Callable[[], None]


@dataclass
class State:
    """The saved state of all objects reachable from some roots. `restore` can be called any number of times.

    Elements of tensors and arrays of more than `largest` bytes are not saved; None saves all. `consumed` are names of
    iterators: their position can't be restored. `complete` is False if more than `most` objects are reachable.
    `objects` are the saved objects, as pairs of name and object.
    """

    largest: int | None = None
    most: int = MOST_OBJECTS
    consumed: list[str] = field(default_factory=list)
    complete: bool = True
    objects: list[tuple[str, Any]] = field(default_factory=list)
    _restores: list[Restore] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, roots: Iterable[tuple[str, Any]], largest: int | None = None, most: int = MOST_OBJECTS) -> State:
        """Save the state of all objects reachable from `roots`, which are pairs of name and object."""
        state, todo = cls(largest, most), collections.deque(roots)
        while todo:
            name, value = todo.popleft()
            if isinstance(value, _LEAVES) or id(value) in state._seen:
                continue
            if len(state._seen) >= state.most:
                state.complete = False
                break
            state._seen.add(id(value))
            state.objects.append((name, value))
            todo.extend(state._save(name, value))
        return state

    def restore(self) -> None:
        """Restore the saved state."""
        with torch.no_grad():
            for restore in self._restores:
                restore()

    def values(self) -> dict[str, Any]:
        """Copies of the current tensors and plain values in the objects, by name."""
        return {name: _copy_of(value) for owner, each in self.objects for name, value in _values(owner, each)}

    def tensors(self) -> list[torch.Tensor]:
        """Distinct leaf tensors that require grad."""
        found = (value for _, value in self.objects if isinstance(value, torch.Tensor))
        return [value for value in found if value.is_leaf and value.requires_grad]

    def _save(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Save one object; yield the names and values of the objects in it."""
        if isinstance(value, torch.Tensor):
            is_copied = value.layout == torch.strided and self._is_copied(value.nbytes)
            self._restores.append(_restore_of_tensor(value, is_copied))
            yield f"{name}.grad", value.grad if value.is_leaf else None
        elif isinstance(value, np.ndarray):
            if value.flags.writeable and self._is_copied(value.nbytes):
                self._restores.append(functools.partial(np.copyto, value, value.copy(), casting="no"))
        elif isinstance(value, type | ModuleType):
            yield from self._save_namespace(name, value)
        elif isinstance(value, FunctionType):
            yield from self._save_function(value)
        elif parts := _parts(value):
            yield from ((name, part) for part in parts)
        elif restore := _restore_of_generator(value):
            self._restores.append(restore)
        elif is_builtin_iterator(value):
            self.consumed.append(name)
        else:
            yield from self._save_object(name, value)

    def _is_copied(self, size: int) -> bool:
        return self.largest is None or size <= self.largest

    def _save_object(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Save a container or any other object: its items, attributes, slots and class."""
        if isinstance(value, _CONTAINERS):
            yield from self._save_container(name, value)
        if isinstance(getattr(value, "__dict__", None), dict):
            self._restores.append(_restore_of_dict(vars(value)))
            yield from ((f"{name}.{key}" if name else key, item) for key, item in vars(value).items())
        for slot in _slots(value.__class__):
            if hasattr(value, slot):
                self._restores.append(functools.partial(_set_if_changed, value, slot, getattr(value, slot)))
                yield f"{name}.{slot}", getattr(value, slot)
        yield type(value).__qualname__, type(value)

    def _save_container(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self._restores.append(_restore_of_dict(value))
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items() if not isinstance(item, _LEAVES))
            return
        if isinstance(value, list | collections.deque):
            self._restores.append(_restore_of_sequence(value))
        elif isinstance(value, set):
            self._restores.append(_restore_of_set(value))
        yield from ((f"{name}[{n}]", item) for n, item in enumerate(value) if not isinstance(item, _LEAVES))

    def _save_function(self, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """Save closure variables of a user's function, and the globals that its code uses."""
        if is_installed(function.__code__.co_filename):
            return
        for cell in function.__closure__ or ():
            if cell != CellType():
                self._restores.append(functools.partial(setattr, cell, "cell_contents", cell.cell_contents))
        yield from closure_of(function).items()
        yield from ((function.__name__, item) for item in function.__defaults__ or ())
        own = function.__globals__
        for name in _global_names(function):
            self._restores.append(functools.partial(_set_item, own, name, own.get(name, _MISSING)))
            if name in own:
                yield name, own[name]
        yield from ((name, item) for name, item in vars(function).items() if name == "__wrapped__")

    def _save_namespace(self, name: str, value: type | ModuleType) -> Iterator[tuple[str, Any]]:
        """Save the attributes of a user's class or module (except `__main__`); yield them, and a class's bases."""
        if not _is_users(value) or (isinstance(value, ModuleType) and value.__name__ == "__main__"):
            return
        self._restores.append(_restore_of_namespace(value))
        yield from ((f"{name}.{key}", item) for key, item in list(vars(value).items()) if not _is_internal(key))
        if isinstance(value, type):
            yield from ((base.__qualname__, base) for base in value.__mro__[1:])


def _parts(value: Any) -> tuple[Any, ...]:
    """Functions and arguments in a bound method, `functools.partial` or descriptor; () for other values."""
    match value:
        case MethodType():
            return value.__self__, value.__func__
        case functools.partial():
            return value.func, *value.args, *value.keywords.values()
        case staticmethod() | classmethod():
            return (value.__func__,)
        case property():
            return value.fget, value.fset, value.fdel
    return ()


_MISSING = object()


def _is_internal(name: str) -> bool:
    return name.startswith("__") or name == "_abc_impl"


def _is_users(value: type | ModuleType) -> bool:
    """Whether a class or module is the user's, such as a class of a notebook, whose module has no file."""
    name = value.__module__ if isinstance(value, type) else value.__name__
    module = sys.modules.get(str(name))
    file = getattr(module, "__file__", None)
    if file is None:
        return name not in sys.builtin_module_names and not isinstance(value, ModuleType)
    return not is_installed(file)


def _global_names(function: FunctionType) -> dict[str, None]:
    """Names in a function's code that are, or may become, globals."""
    codes = nested_codes(function.__code__)
    return dict.fromkeys(name for code in codes for name in code.co_names if not _is_internal(name))


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    """Slot names of a user's class and its bases; () for other classes."""
    if not _is_users(kind):
        return ()
    found = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = itertools.chain.from_iterable((each,) if isinstance(each, str) else each for each in found)
    return tuple(name for name in names if not _is_internal(name))


def _set_if_changed(owner: Any, name: str, value: Any) -> None:
    if getattr(owner, name, _MISSING) is not value:
        object.__setattr__(owner, name, value)


def _set_item(owner: dict[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        owner.pop(name, None)
    else:
        owner[name] = value


def _values(owner: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values: a tensor or array itself; of other objects, the tensors and plain values in them."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield owner, value
        return
    if isinstance(value, dict):
        yield from ((f"{owner}[{key!r}]", item) for key, item in value.items() if isinstance(item, _HELD))
    elif isinstance(value, list | collections.deque | tuple):
        yield from ((f"{owner}[{n}]", item) for n, item in enumerate(value) if isinstance(item, _HELD))
    elif isinstance(value, set | frozenset):
        held = sorted((item for item in value if isinstance(item, _HELD)), key=repr)
        yield from ((f"{owner}{{{n}}}", item) for n, item in enumerate(held))
    elif isinstance(value, _MEMORY_FILES) and not value.closed:
        yield f"{owner}.getvalue()", value.getvalue()
    yield from ((name, item) for name, item in _named_values(owner, value) if isinstance(item, _HELD))


def _named_values(owner: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values: attributes of an object, or the globals and closure variables of a user's function."""
    if isinstance(value, FunctionType):
        if not is_installed(value.__code__.co_filename):
            place = "" if value.__module__ == "__main__" else f"{value.__module__}."
            names = (name for name in _global_names(value) if name in value.__globals__)
            yield from ((f"{place}{name}", value.__globals__[name]) for name in names)
            yield from ((f"{value.__qualname__}: {name}", item) for name, item in closure_of(value).items())
    elif isinstance(value, type | ModuleType):
        if _is_users(value):
            yield from ((f"{owner}.{key}", item) for key, item in vars(value).items() if not _is_internal(key))
    elif not isinstance(value, MethodType) and isinstance(getattr(value, "__dict__", None), dict):
        yield from ((f"{owner}.{key}", item) for key, item in vars(value).items())


def _copy_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return None if _is_freed(value) else value.detach().clone()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    return value


def _restore_of_tensor(tensor: torch.Tensor, is_copied: bool) -> Restore:
    if tensor.device.type == "meta" or tensor.layout != torch.strided or _is_freed(tensor):
        return lambda: None
    saved = tensor.detach().clone() if is_copied else None
    grad, wants_grad = tensor.grad if tensor.is_leaf else None, tensor.requires_grad

    def restore() -> None:
        if tensor.is_leaf:
            tensor.requires_grad_(wants_grad)
            tensor.grad = grad
        if saved is None:
            return
        if tensor.shape == saved.shape and tensor.dtype == saved.dtype:
            with torch.inference_mode(tensor.is_inference()):
                _without_overlap(tensor.data).copy_(_without_overlap(saved, like=tensor))
        else:
            tensor.data = saved.clone()

    return restore


def _is_freed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is gone, as FSDP frees that of gathered weights: reading it would crash."""
    own = inner_tensor(tensor)
    return own.numel() > 0 and has_storage(own) and own.untyped_storage().nbytes() == 0


def _without_overlap(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """View of a tensor in which dimensions that are expanded in `like` (by default, the tensor itself) have size 1."""
    for dim, stride in enumerate((tensor if like is None else like).stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _restore_of_dict(value: dict[Any, Any]) -> Restore:
    """A function that restores a dict. It calls no overridden methods: they may have side effects or refuse changes."""
    kind: Any = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    saved = list(kind.items(value))

    def restore() -> None:
        now = list(kind.items(value))
        if len(now) != len(saved) or any(a is not c or b is not d for (a, b), (c, d) in zip(now, saved, strict=True)):
            kind.clear(value)
            for key, item in saved:
                kind.__setitem__(value, key, item)

    return restore


def _restore_of_sequence(value: list[Any] | collections.deque[Any]) -> Restore:
    kind: Any = list if isinstance(value, list) else collections.deque
    saved = list(value)

    def restore() -> None:
        if len(value) != len(saved) or any(now is not item for now, item in zip(value, saved, strict=True)):
            kind.clear(value)
            kind.extend(value, saved)

    return restore


def _restore_of_set(value: set[Any]) -> Restore:
    saved = set(value)

    def restore() -> None:
        if value != saved:
            set.clear(value)
            set.update(value, saved)

    return restore


def _restore_of_namespace(value: Any) -> Restore:
    """A function that restores the attributes of a class or module, except those that Python sets (`__name__`)."""
    saved = {name: item for name, item in vars(value).items() if not _is_internal(name)}
    owner: Any = type if isinstance(value, type) else ModuleType

    def restore() -> None:
        for name in [name for name in vars(value) if name not in saved and not _is_internal(name)]:
            owner.__delattr__(value, name)
        for name, item in saved.items():
            if vars(value).get(name, _MISSING) is not item:
                owner.__setattr__(value, name, item)

    return restore


def is_builtin_iterator(value: Any) -> bool:
    """Whether a value is a generator, or an iterator of `builtins` or `itertools`."""
    return isinstance(value, Generator) or (hasattr(value, "__next__") and type(value).__module__ in _ITERATORS)


def _restore_of_generator(value: Any) -> Restore | None:
    """A function that restores a random number generator, a file in memory, or a list or tuple iterator, or None."""
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if isinstance(value, np.random.RandomState):
        return functools.partial(value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        return functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    if isinstance(value, torch.Generator):
        return _restore_of_torch_generator(value)
    if isinstance(value, _MEMORY_FILES) and not value.closed:
        return _restore_of_memory_file(value)
    if type(value) in (type(iter([])), type(iter(()))):
        return _restore_of_iterator(value)
    return None


def _restore_of_torch_generator(value: torch.Generator) -> Restore:
    saved = value.get_state()

    def restore() -> None:
        value.set_state(saved)

    return restore


def _restore_of_memory_file(value: Any) -> Restore:
    content, position = value.getvalue(), value.tell()

    def restore() -> None:
        if value.closed:
            return
        if value.getvalue() != content:
            value.seek(0)
            value.truncate()
            value.write(content)
        value.seek(position)

    return restore


def _restore_of_iterator(value: Any) -> Restore | None:
    _, arguments, *index = value.__reduce__()  # (iter, (items,), index), or without an index at the end
    return functools.partial(value.__setstate__, index[0]) if index and arguments else None


@contextmanager
def same_random_numbers() -> Iterator[Restore]:
    """Restore the random state of torch, NumPy and Python after the block; yield a function to restore it earlier."""
    restore = restore_of_random_numbers()
    with torch.random.fork_rng():
        try:
            yield restore
        finally:
            restore()


def restore_of_random_numbers() -> Restore:
    """A function that restores the current random state of torch (on the CPU), NumPy and Python."""
    of_torch, of_numpy, of_python = torch.get_rng_state(), np.random.get_state(), random.getstate()

    def restore() -> None:
        torch.set_rng_state(of_torch)
        np.random.set_state(of_numpy)
        random.setstate(of_python)

    return restore


@dataclass(frozen=True)
class StateBefore:
    """The state saved before a call, without the elements of large tensors. `objects` are pairs of name and object."""

    objects: tuple[tuple[str, Any], ...]
    restore: Restore


LARGEST_BEFORE = 2**16
MOST_OBJECTS_BEFORE = 50_000


def state_before(fn: Any, args: Any, kwargs: Mapping[str, Any]) -> StateBefore:
    """Save the state before a call, so that the call can be repeated from it."""
    random_numbers = restore_of_random_numbers()
    state = State.of(roots_of(fn, args, kwargs), LARGEST_BEFORE, MOST_OBJECTS_BEFORE)

    def restore() -> None:
        state.restore()
        random_numbers()

    return StateBefore(tuple(state.objects), restore)


def roots_of(fn: Any, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A call's function and arguments, with names: the objects from which its state is reached."""
    return [("self", fn), ("args", args), ("kwargs", dict(kwargs))]
