"""Look up operators by name, as users write them: `aten.gelu`, `torch.nn.functional.gelu`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional

from compiler.record.plain_text import did_you_mean
from compiler.torch_api.decomposition_tables import is_operator

_NAMESPACES = ("aten", "prims")


class OperatorError(ValueError):
    """Raised for an unknown name, or a call that can't be decomposed; the message suggests similar names."""


def operator_named(what: str | Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """The display name and the callable of an operator or function, given by name or directly.

    `aten.gelu` is the operator, whose overload depends on the arguments; `aten.add.Tensor` is one overload. `gelu` is
    looked up in torch.ops.aten. `torch.…` and `F.…` are functions.
    Raises OperatorError for an unknown name, TypeError for a value that is neither a name nor callable.
    """
    if isinstance(what, str):
        return _resolve(what.strip())
    if not callable(what):
        raise TypeError(f"decompose takes the name of an operator, or a function, and its arguments; got {what!r}")
    return function_name(what), what


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function in torch: `aten.gelu.default`, `torch.nn.functional.gelu`."""
    if is_operator(function) or hasattr(function, "overloads"):
        return str(function)
    public = torch.overrides.resolve_name(function)
    return str(public or getattr(function, "__qualname__", None) or repr(function))


def _resolve(name: str) -> tuple[str, Callable[..., Any]]:
    path = name.removeprefix("torch.ops.").replace("::", ".")
    if path.startswith(("torch.", "F.")):
        return _function("torch.nn.functional." + path[2:] if path.startswith("F.") else path)
    namespace, _, rest = path.partition(".")
    if namespace not in _NAMESPACES and not hasattr(torch.ops, namespace):
        return _operator("aten", path)
    return _operator(namespace, rest) if rest else _operator("aten", path)


def _function(path: str) -> tuple[str, Callable[..., Any]]:
    owner: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(owner, part, None)
        if found is None:
            raise OperatorError(f"there is no {path!r}{did_you_mean(part, dir(owner), ': ')}")
        owner = found
    if not callable(owner):
        raise OperatorError(f"{path!r} can't be called")
    return path, owner


def _operator(namespace: str, path: str) -> tuple[str, Callable[..., Any]]:
    name, _, overload = path.partition(".")
    space = getattr(torch.ops, namespace)
    packet = getattr(space, name, None)
    if packet is None or not callable(packet):
        known = [entry.split("::")[1].partition(".")[0] for entry in _operator_names(namespace)]
        raise OperatorError(f"there is no operator {namespace}.{path}{did_you_mean(name, known, ': ')}")
    if not overload:
        return f"{namespace}.{name}", packet
    if overload not in packet.overloads():
        raise OperatorError(f"{namespace}.{name} has no overload {overload!r}; it has: {', '.join(packet.overloads())}")
    return f"{namespace}.{path}", getattr(packet, overload)


def _operator_names(namespace: str) -> list[str]:
    from compiler.torch_api.decomposition_tables import all_overloads

    return [name for name in all_overloads() if name.startswith(f"{namespace}::")]
