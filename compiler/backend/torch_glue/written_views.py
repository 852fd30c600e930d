"""Find results that are views of a mutated input.

AOTAutograd regenerates such results as views of the caller's tensor. If it can't replay the views, as with symbolic
sizes, it uses the sizes, strides and offset of the tensor that the graph returns (gen_alias_from_base of
torch._functorch._aot_autograd.functional_utils). In a functional graph that tensor is a view of the new value, whose
layout may differ from the input's. So the graph must return the same view of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from compiler.torch_api.aot import aot_facts
from compiler.torch_api.decomposition_tables import is_operator
from compiler.torch_api.fx import fake_mode, value_of

_COPY = torch.ops.aten.copy_.default
_PLACED = torch.ops.aten.as_strided.default
"""A view by absolute strides and offset, which can't be replayed on another tensor."""


def views_of_written_inputs(module: GraphModule, name: str) -> Mapping[int, tuple[Node, torch.Tensor]]:
    """Results that must be views of a mutated input, by index: the input's node, and the view as a fake tensor.

    Empty for a backward.
    """
    facts = aot_facts()
    if facts is None or facts.subclasses or name == "backward":
        return {}
    placeholders = module.graph.find_nodes(op="placeholder")
    results: Any = module.graph.output_node().args[0]
    found = {}
    for place, fact in enumerate(facts.outputs, facts.first_output):
        if fact.kind != "alias_of_input" or fact.base is None or not isinstance(results[place], Node):
            continue
        written = _copy_into(placeholders[fact.base])
        if written is not None and (views := _views(results[place], written.args[1])):
            found[place] = (placeholders[fact.base], _repeat_views(placeholders[fact.base], views))
    return found


def _copy_into(placeholder: Node) -> Node | None:
    """The last `copy_` into an input; None if there is none."""
    copies = [user for user in placeholder.users if user.target is _COPY and user.args[0] is placeholder]
    return copies[-1] if copies else None


def _views(result: Node, value: Any) -> list[Node]:
    """The chain of views from a value to a result, in order; empty if the result is no view of the value."""
    views: list[Node] = []
    while result is not value:
        if not _is_view(result):
            return []
        views.insert(0, result)
        result = result.args[0]  # type: ignore[assignment]
    return views


def _is_view(node: Node) -> bool:
    target: Any = node.target
    return is_operator(target) and target.is_view and target is not _PLACED


def _repeat_views(placeholder: Node, views: list[Node]) -> torch.Tensor:
    """Apply views to an input's fake tensor. Raises RuntimeError if its layout does not allow them."""
    value: torch.Tensor = value_of(placeholder)
    with fake_mode([value]):
        for view in views:
            args, kwargs = map_arg((view.args[1:], view.kwargs), value_of)
            value = view.target(value, *args, **kwargs)  # type: ignore[operator]
    return value
