"""Custom operators that change an argument without declaring it: compiled code then reads it before or after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.calls.graph_runs import HookedInterpreter, copy_tensor
from compiler.decompose.random_draws import seed_and_restore
from compiler.torch_api import fx


def undeclared_writes(module: GraphModule, args: tuple[Any, ...]) -> list[tuple[Node, str]]:
    """Calls of custom operators, and the argument that each changes though its schema does not say so.

    The graph runs in eager mode on copies of its arguments. Raises what it raises.
    """
    if not any(map(fx.is_own_operator, module.graph.nodes)):
        return []
    values: dict[Node, Any] = {}
    found: list[tuple[Node, str]] = []

    def note(node: Node, run: Callable[[], Any]) -> Any:
        reads = dict(_arguments_declared_as_read(node)) if fx.is_own_operator(node) else {}
        before = {each: copy_tensor(values[each]) for each in reads.values() if isinstance(values.get(each), Tensor)}
        values[node] = run()
        found.extend(
            (node, name)
            for name, each in reads.items()
            if each in before and not torch.equal(before[each].nan_to_num(), values[each].nan_to_num())
        )
        return values[node]

    copies = [copy_tensor(arg) if isinstance(arg, Tensor) else arg for arg in args]
    values |= dict(zip(module.graph.find_nodes(op="placeholder"), copies, strict=True))
    with seed_and_restore(), torch.no_grad():
        HookedInterpreter(module, note).run(*copies)
    return found


def _arguments_declared_as_read(node: Node) -> Iterator[tuple[str, Node]]:
    """Names of the arguments that the operator does not declare to write, and their nodes."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        value = node.kwargs.get(argument.name, node.args[place] if place < len(node.args) else None)
        if isinstance(value, Node) and not (argument.alias_info and argument.alias_info.is_write):
            yield argument.name, value
