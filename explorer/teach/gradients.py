"""The gradients that variables hold after code has run, as plain numbers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import torch

from explorer.teach.backward_questions import MOST_NUMBERS


def gradients_of(names: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Gradients of the leaf tensors that the source names: nested lists, None for no gradient, or a reason."""
    try:
        used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    except SyntaxError:
        used = set()
    leaves = {name: names[name] for name in sorted(used) if isinstance(names.get(name), torch.Tensor)}
    return {name: _gradient(name, leaf) for name, leaf in leaves.items() if leaf.is_leaf and leaf.requires_grad}


def _gradient(name: str, leaf: torch.Tensor) -> Any:
    gradient = leaf.grad
    if gradient is None:
        return None
    if gradient.numel() > MOST_NUMBERS or gradient.layout != torch.strided or gradient.is_complex():
        return f"{name}.grad has {gradient.numel():,} numbers, too many to fill in"
    return gradient.detach().to("cpu", torch.float64).tolist()
