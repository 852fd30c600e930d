"""The inputs of a compiled graph: the user's inputs, saved values, and incoming gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compiler.calls.kept_graphs import KeptFrame, KeptGraph
from compiler.record import Artifact
from compiler.torch_api.buffers import InputLayout, Kind
from compiler.triton_interpreter.program import Program, ProgramError
from compiler.triton_interpreter.reference import Unknown

_INPUT = re.compile(r"primals_(?P<from_one>\d+)|arg(?P<from_zero>\d+)_1")
MADE_UP = "gradients of the outputs are made up: the exploration saw none"


class Programs:
    """The forward and backward programs of one capture; eager's forward values are computed once for both."""

    def __init__(self, frame: KeptFrame | None, artifacts: Sequence[Artifact]) -> None:
        self._frame = frame
        written = (each for each in artifacts if any(entity.kind == "kernel" for entity in each.entities))
        self._codes = {artifact.half: artifact.text for artifact in written}  # without autotuning candidates
        self._made: dict[str, Program] = {}

    def of_half(self, half: Any) -> Program:
        """The program of the forward or backward with real inputs. Raises ProgramError if any is missing."""
        if half not in self._made:
            with torch.random.fork_rng(devices=()):
                self._made[half] = self._make(half)
        return self._made[half]

    def _make(self, half: Kind) -> Program:
        frame = self._frame
        if frame is None or half not in frame.graphs or half not in self._codes:
            raise ProgramError("its graph was not kept")
        graph, note = frame.graphs[half], ""
        if half == "backward":
            values, note = self._backward(frame, graph)
        elif frame.arguments is None:
            raise ProgramError("its graph was not called")
        else:
            values = [argument(layout.name, frame.arguments) for layout in graph.inputs]
        laid_out = [_fit_layout(layout, value) for layout, value in zip(graph.inputs, values, strict=True)]
        return Program(graph, self._codes[half], laid_out, note)

    def _backward(self, frame: KeptFrame, graph: KeptGraph) -> tuple[list[Any], str]:
        """The backward's inputs: saved values in the partitioner's order (sizes first), then gradients."""
        saved = [layout for layout in graph.inputs if not layout.name.startswith("tangents")]
        tangents = [layout for layout in graph.inputs if layout.name.startswith("tangents")]
        if graph.inputs != (*saved, *tangents):
            raise ProgramError("its inputs are not in the order that is known")
        outputs = self.of_half("forward").outputs
        tail = outputs[len(outputs) - len(saved) :] if saved else []
        values = sorted(tail, key=lambda value: isinstance(value, Tensor | Unknown))
        found = [frame.gradients.get(index) for index in frame.trained]
        if len(found) == len(tangents) and all(map(_is_gradient, tangents, found)):
            return [*values, *found], ""
        return [*values, *map(_random_input, tangents)], MADE_UP


def _is_gradient(layout: InputLayout, value: Tensor | None) -> bool:
    return value is not None and layout.fits(value)


def argument(name: str, arguments: Sequence[Any]) -> Any:
    match = _INPUT.fullmatch(name)
    if match is None:
        raise ProgramError(f"its input {name} is none of the call's")
    place = int(match["from_one"]) - 1 if match["from_one"] else int(match["from_zero"])
    if place >= len(arguments):
        raise ProgramError(f"its input {name} is none of the call's {len(arguments)}")
    if getattr(arguments[place], "is_meta", False):
        raise ProgramError(f"its input {name} is a meta tensor, which has no values")
    return arguments[place]


def _fit_layout(layout: InputLayout, value: Any) -> Any:
    if isinstance(value, Unknown):
        raise ProgramError(f"its input {layout.name} could not be computed: {value.reason}")
    if not layout.fits(value):
        raise ProgramError(f"its input {layout.name} is not what the call gives")
    return layout.restride(value) if isinstance(value, Tensor) else value


def _random_input(layout: InputLayout) -> Tensor:
    if layout.shape is None or layout.dtype is None:
        raise ProgramError(f"no gradient came back for {layout.name}, and its size is symbolic")
    generator = torch.Generator().manual_seed(0)
    return torch.randn(layout.shape, generator=generator).to(layout.dtype)
