"""Detect functions that train, build, evaluate or time a model, to explore the model instead."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from operator import or_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from compiler.torch_api import settings
from explorer.entry import callee as callees

_TRAINING_NAMES = frozenset({"zero_grad", "eval", "train"})
_MOST_FUNCTIONS = 100


@dataclass(frozen=True, slots=True)
class TrainingCode:
    """Features of a function's code, including the user's functions that it calls.

    `trains`: it has a training step, an evaluation or a clock. `has_model`: it names a module. `has_parameters`: it
    names a module with parameters. `builds_model`: it names a module class. `has_compiled`: it names a compiled
    callable.
    """

    trains: bool = False
    has_model: bool = False
    has_parameters: bool = False
    builds_model: bool = False
    has_compiled: bool = False

    @property
    def runs_model(self) -> bool:
        return self.builds_model or self.has_compiled or (self.trains and self.has_model)

    def __or__(self, other: TrainingCode) -> TrainingCode:
        return TrainingCode(*map(or_, astuple(self), astuple(other)))


def training_code(callee: object) -> TrainingCode:
    """Inspect the code of `callee` and of the user's own functions that it names, without running it."""
    found, waiting, seen = TrainingCode(), [callee], set[CodeType]()
    while waiting and len(seen) < _MOST_FUNCTIONS:
        each = waiting.pop()
        function = callees.python_function(each)
        if function is None or isinstance(each, Module):
            continue
        function = inspect.unwrap(function)
        if not isinstance(function, FunctionType) or function.__code__ in seen or callees.owner_of(function):
            continue
        seen.add(function.__code__)
        names = set(_names(function.__code__))
        values = list(_values(names, function, _owner(each)))
        found |= TrainingCode(
            trains=any(name in _TRAINING_NAMES or name.endswith("backward") for name in names)
            or _any_trainer(values)
            or _any_clock(values),
            has_model=_any_model(values),
            has_parameters=any(isinstance(value, Module) and any(True for _ in value.parameters()) for value in values),
            builds_model=any(inspect.isclass(value) and issubclass(value, Module) for value in values),
            has_compiled=any(map(settings.is_compiled, values)),
        )
        waiting += [value for value in values if isinstance(value, FunctionType | MethodType)]
    return found


def is_given_model(code: TrainingCode, args: Iterable[object], kwargs: Mapping[str, object]) -> bool:
    """Whether the arguments show that a function runs a model.

    They do if they include a data loader, an optimizer, a function that names a model, or (if `code` trains) a model.
    """
    given = [*args, *kwargs.values()]
    return _any_trainer(given) or (code.trains and _any_model(given)) or any(map(_names_model, given))


def _names_model(value: object) -> bool:
    return isinstance(value, FunctionType | MethodType) and training_code(value).has_parameters


def _any_trainer(values: Iterable[object]) -> bool:
    return any(isinstance(value, Optimizer | DataLoader) for value in values)


def _any_clock(values: Iterable[object]) -> bool:
    return any(value is time or (inspect.isbuiltin(value) and value.__module__ == "time") for value in values)


def _any_model(values: Iterable[object]) -> bool:
    return any(isinstance(value, Module) for value in values)


def _owner(callee: object) -> object:
    """The `self` of a call of `callee`; None for a function."""
    if isinstance(callee, MethodType):
        return callee.__self__
    return None if isinstance(callee, FunctionType) else callee


def _names(code: CodeType) -> Iterator[str]:
    yield from (*code.co_names, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _values(names: set[str], function: FunctionType, owner: object) -> Iterator[Any]:
    """Values of the names in a function's code.

    They are globals, closure variables, attributes of `self`, and attributes of `torch.nn` and of the user's modules.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    known = function.__globals__ | {name: cell.cell_contents for name, cell in cells if cell != CellType()}
    found = [known[name] for name in names if name in known]
    if owner is not None and not inspect.isclass(owner):
        found += [getattr(owner, name) for name in names if name in getattr(owner, "__dict__", ())]
        found += [MethodType(each, owner) for name in names if isinstance(each := _of_class(owner, name), FunctionType)]
    yield from found
    for module in (value for value in found if isinstance(value, ModuleType)):
        yield from _members(module, names)


def _of_class(owner: object, name: str) -> object:
    return inspect.getattr_static(type(owner), name, None)


def _members(module: ModuleType, names: set[str]) -> Iterator[Any]:
    modules = [torch.nn, torch.optim] if module is torch else [module]
    yield from (vars(each)[name] for each in modules for name in names if name in vars(each))
