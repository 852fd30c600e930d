"""What names in a cell stand for, read without running anything of the user's."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch


def value_of(node: ast.expr, namespace: Mapping[str, Any]) -> Any:
    """What `model` or `torch.compile` or `model.encoder` stands for, or None. Attributes of modules only are read."""
    if isinstance(node, ast.Name):
        return namespace.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, namespace)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType | torch.nn.Module) else None
    return None


def torch_compile_line(body: Sequence[ast.stmt], namespace: Mapping[str, Any]) -> int:
    """The line on which code names torch.compile, functions that it defines included; 0 where it does not."""
    names = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute))
    return next((node.lineno for node in names if _is_torch_compile(value_of(node, namespace))), 0)


def _is_torch_compile(value: object) -> bool:
    function = getattr(value, "__func__", value)
    return any(function is known for known in (torch.compile, torch.compiler.compile, torch.nn.Module.compile))
