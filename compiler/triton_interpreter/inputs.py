"""A compiled graph's inputs: the user's, saved values, and incoming gradients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class RealProgram:
    """A compiled graph with real inputs; `note` says which are not the user's own, or is ""."""

    program: Program
    note: str = ""


class Programs:
    """The programs of one capture; eager's forward values are computed once, for both halves."""

    def __init__(self, frame: KeptFrame | None, artifacts: Sequence[Artifact]) -> None:
        self._frame = frame
        written = (each for each in artifacts if any(entity.kind == "kernel" for entity in each.entities))
        self._codes = {_kind(artifact): artifact.text for artifact in written}  # without autotuning's candidates
        self._made: dict[Kind, RealProgram] = {}

    def of(self, artifact: Artifact) -> RealProgram:
        """The program of a kernels artifact. Raises ProgramError where its inputs are not to be had."""
        return self._program_of_half(_kind(artifact))

    def _program_of_half(self, kind: Kind) -> RealProgram:
        if kind not in self._made:
            with torch.random.fork_rng(devices=()):
                self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Kind) -> RealProgram:
        if self._frame is None or kind not in self._frame.graphs or kind not in self._codes:
            raise ProgramError("its graph was not kept")
        graph = self._frame.graphs[kind]
        if kind == "backward":
            values, note = self._backward(graph)
        else:
            values, note = self._of_call(graph), ""
        laid_out = [_fit_layout(layout, value) for layout, value in zip(graph.inputs, values, strict=True)]
        return RealProgram(Program(graph, self._codes[kind], laid_out), note)

    def _of_call(self, graph: KeptGraph) -> list[Any]:
        assert self._frame is not None
        arguments = self._frame.arguments
        if arguments is None:
            raise ProgramError("its graph was not called")
        return [argument(layout.name, arguments) for layout in graph.inputs]

    def _backward(self, graph: KeptGraph) -> tuple[list[Any], str]:
        """What the forward saved, in the partitioner's order (sizes first), and the gradients."""
        saved = [layout for layout in graph.inputs if not layout.name.startswith("tangents")]
        tangents = [layout for layout in graph.inputs if layout.name.startswith("tangents")]
        if graph.inputs != (*saved, *tangents):
            raise ProgramError("its inputs are not in the order that is known")
        outputs = self._program_of_half("forward").program.outputs
        tail = outputs[len(outputs) - len(saved) :] if saved else []
        values = sorted(tail, key=lambda value: isinstance(value, Tensor | Unknown))
        gradients, note = self._gradients(tangents)
        return [*values, *gradients], note

    def _gradients(self, tangents: Sequence[InputLayout]) -> tuple[list[Tensor], str]:
        assert self._frame is not None
        found = [self._frame.gradients.get(index) for index in self._frame.trained]
        fits = len(found) == len(tangents) and all(
            value is not None and layout.fits(value) for layout, value in zip(tangents, found, strict=True)
        )
        if fits:
            return [value for value in found if value is not None], ""
        return [_random_input(layout) for layout in tangents], MADE_UP


def _kind(artifact: Artifact) -> Kind:
    kind: Any = artifact.half
    return kind


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
