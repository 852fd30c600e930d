"""Results that are views of an input which the graph overwrites.

AOTAutograd makes such results again, as views of the caller's tensor: where it can't repeat the views, as with symbolic
sizes, with the sizes, strides and offset of what the graph returns (gen_alias_from_base of
torch._functorch._aot_autograd.functional_utils). In a functional graph that is a view of the new value, which may lie
otherwise in memory than the input does. Here it becomes the same view of the input, after its copy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from compiler.torch_api.aot_metadata import aot_facts
from compiler.torch_api.fx import fake_mode, value_of

_COPY = torch.ops.aten.copy_.default
_PLACED = torch.ops.aten.as_strided.default
"""A view by its place in memory, which no other value has."""


def with_views_of_what_is_written(module: GraphModule, name: str) -> None:
    """Change a forward's or an inference's graph in place."""
    facts = aot_facts()
    if facts is None or facts.subclasses or name == "backward":
        return
    output = module.graph.output_node()
    placeholders, results = module.graph.find_nodes(op="placeholder"), list(output.args[0])  # type: ignore[arg-type]
    changed = False
    for place, fact in enumerate(facts.outputs, facts.first_output):
        if fact.kind != "alias_of_input" or fact.base is None or not isinstance(results[place], Node):
            continue
        written = _copy_into(placeholders[fact.base])
        if written is not None and (views := _views(results[place], written.args[1])):
            results[place] = _repeated(module, written, views)
            changed = True
    if changed:
        output.args = (tuple(results),)
        module.recompile()


def _copy_into(placeholder: Node) -> Node | None:
    """The last copy into an input, if there is one."""
    copies = [user for user in placeholder.users if user.target is _COPY and user.args[0] is placeholder]
    return copies[-1] if copies else None


def _views(result: Node, value: Any) -> list[Node]:
    """The views that make a result of a value, the first one first; none if it is anything else."""
    views: list[Node] = []
    while result is not value:
        if not _is_view(result):
            return []
        views.insert(0, result)
        result = result.args[0]  # type: ignore[assignment]
    return views


def _is_view(node: Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view and target is not _PLACED


def _repeated(module: GraphModule, written: Node, views: list[Node]) -> Node:
    """The views of an input after its copy. Raises RuntimeError where the input can't be seen so."""
    base = written.args[0]
    assert isinstance(base, Node)
    node, value = written, value_of(base)
    with fake_mode([value]), module.graph.inserting_before(module.graph.output_node()):
        for view in views:
            args, kwargs = torch.fx.node.map_arg((view.args[1:], view.kwargs), value_of)
            value = view.target(value, *args, **kwargs)  # type: ignore[operator]
            node = module.graph.create_node("call_function", view.target, (node, *view.args[1:]), view.kwargs)
            node.meta = {**view.meta, "val": value}
    return node
