"""Run a joint graph as the two halves that AOTAutograd calls: a forward and, later, a backward.

AOTAutograd passes saved tensors from the forward to the backward and does not look at them. So the forward keeps its
inputs and saves the index of its call; the backward runs the joint graph on the inputs of that call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from compiler.numerics.random_replay import Draws, Handing
from compiler.triton_interpreter.reference import copy_to_cpu


class JointHalves:
    """`joint` returns `count` outputs, then gradients; `forward` is the half that code was generated from."""

    def __init__(self, joint: GraphModule, forward: GraphModule, count: int) -> None:
        self._joint, self._count = joint, count
        self._given = _outputs(forward)[count:]
        self._calls: dict[int, tuple[list[Any], Draws]] = {}

    def forward(self, inputs: list[Any], draws: Draws) -> list[Any]:
        """The outputs of the joint graph, and a stand-in for each saved value."""
        number = len(self._calls)
        self._calls[number] = ([copy_to_cpu(value) for value in inputs], draws)
        outputs = self._run(inputs, [], draws)[: self._count]
        return [*outputs, *(self._stand_in(node, number) for node in self._given)]

    def backward(self, inputs: list[Any], _draws: Draws) -> list[Any]:
        """Gradients of the forward call whose index was saved, after any saved sizes."""
        tangents = [node for node in _placeholders(self._joint) if node.name.startswith("tangents")]
        saved = inputs[: len(inputs) - len(tangents)]
        number = next((int(value) for value in saved if isinstance(value, Tensor)), len(self._calls) - 1)
        primals, draws = self._calls[number]
        return self._run([copy_to_cpu(value) for value in primals], inputs[len(saved) :], draws)[self._count :]

    def _run(self, primals: Sequence[Any], tangents: Sequence[Any], draws: Draws) -> list[Any]:
        """Run the joint graph; without tangents its gradients are not used."""
        missing = len(_placeholders(self._joint)) - len(primals) - len(tangents)
        runner = Handing(self._joint, (), draws)
        draws.started()
        found = list(runner.run(*primals, *tangents, *[None] * missing))
        draws.ended()
        return found

    def _stand_in(self, node: Any, number: int) -> Any:
        is_tensor = isinstance(node, Node) and "dtype" in node.meta
        return torch.tensor(number) if is_tensor else 0


def _placeholders(graph: GraphModule) -> list[Node]:
    return list(graph.graph.find_nodes(op="placeholder"))


def _outputs(graph: GraphModule) -> list[Any]:
    (output,) = graph.graph.find_nodes(op="output")
    found: Any = output.args[0]
    return list(found)
