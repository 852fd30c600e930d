"""A joint graph run as two halves: AOTAutograd calls a forward and, later, a backward.

What the forward saves for the backward is handed through AOTAutograd, which does not look at it. So the forward keeps
its inputs and saves the number of its call, and the backward runs the joint graph on those inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.interpret.reference import copied
from compiler.measure.handed_draws import Draws, Handing


class JointHalves:
    """`joint` gives `count` outputs and then gradients; `forward` is the half that the compiled code was made of."""

    def __init__(self, joint: GraphModule, forward: GraphModule, count: int) -> None:
        self._joint, self._count = joint, count
        self._given = _outputs(forward)[count:]
        self._calls: dict[int, tuple[list[Any], Draws]] = {}

    def forward(self, inputs: list[Any], draws: Draws) -> list[Any]:
        """The joint graph's outputs, and something in the place of each value that is saved."""
        number = len(self._calls)
        self._calls[number] = ([copied(value) for value in inputs], draws)
        outputs = self._run(inputs, [], draws)[: self._count]
        return [*outputs, *(self._saved(node, number) for node in self._given)]

    def backward(self, inputs: list[Any], _draws: Draws) -> list[Any]:
        """The gradients of the forward call whose number was saved; sizes are saved as numbers, before it."""
        tangents = [node for node in _placeholders(self._joint) if node.name.startswith("tangents")]
        saved = inputs[: len(inputs) - len(tangents)]
        number = next((int(value) for value in saved if isinstance(value, Tensor)), len(self._calls) - 1)
        primals, draws = self._calls[number]
        return self._run([copied(value) for value in primals], inputs[len(saved) :], draws)[self._count :]

    def _run(self, primals: Sequence[Any], tangents: Sequence[Any], draws: Draws) -> list[Any]:
        """Without tangents, the gradients are those of zeros, or none."""
        missing = len(_placeholders(self._joint)) - len(primals) - len(tangents)
        runner = Handing(self._joint, (), draws)
        draws.started()
        found = list(runner.run(*primals, *tangents, *[None] * missing))
        draws.ended()
        return found

    def _saved(self, node: Any, number: int) -> Any:
        is_tensor = isinstance(node, Node) and "dtype" in node.meta
        return torch.tensor(number) if is_tensor else 0


def _placeholders(graph: GraphModule) -> list[Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


def _outputs(graph: GraphModule) -> list[Any]:
    (output,) = graph.graph.find_nodes(op="output")
    found: Any = output.args[0]
    return list(found)
