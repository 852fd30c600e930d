"""Run AOTAutograd's and Inductor's graphs of one capture, on the CPU with the inputs of its call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from compiler.calls.graph_runs import copy_to_cpu
from compiler.calls.kept_graphs import KeptFrame
from compiler.decompose.graphs import Results, version
from compiler.decompose.random_draws import seed_and_restore
from compiler.numerics.random_replay import Draws, run_with_draws
from compiler.torch_api.buffers import InputLayout, bare, input_layouts
from compiler.triton_interpreter.inputs import argument
from compiler.triton_interpreter.program import ProgramError
from compiler.triton_interpreter.reference import Unknown

Graphs = Mapping[str, GraphModule]
_PLAIN = ("non_alias", "unsafe_view_alias", "custom_function_view")


class NotComparableError(RuntimeError):
    """Raised if a stage's results can't be compared with eager's; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The graphs of one stage: "joint", or "forward" and "backward", or "inference"."""

    name: str
    graphs: Graphs
    layouts: Mapping[str, tuple[InputLayout, ...]]


def stages_of(kept: KeptFrame) -> list[Stage]:
    """The kept stages in pipeline order, "post_grad" last."""
    found = [_stage(name, {"joint": kept.stages[name]}) for name in ("joint", "joint passes") if name in kept.stages]
    if {"forward", "backward"} <= kept.stages.keys():
        found.append(_stage("forward + backward", {kind: kept.stages[kind] for kind in ("forward", "backward")}))
    elif "inference" in kept.stages:
        found.append(_stage("inference", {"inference": kept.stages["inference"]}))
    post_grad: dict[str, GraphModule] = {kind: graph.module for kind, graph in kept.graphs.items()}
    if post_grad.keys() in ({"forward", "backward"}, {"inference"}):
        layouts = {kind: graph.inputs for kind, graph in kept.graphs.items()}
        found.append(Stage("post_grad", post_grad, {str(kind): value for kind, value in layouts.items()}))
    return found


def _stage(name: str, graphs: Graphs) -> Stage:
    layouts = {kind: input_layouts(graph) for kind, graph in graphs.items()}
    return Stage(name, {kind: bare(graph) for kind, graph in graphs.items()}, layouts)


class StageRunner:
    """Runs stages of one capture on the inputs of its call.

    `eager` are the captured graph's results, `draws` the random numbers of that run. A stage without a backward
    returns no gradients.
    """

    def __init__(self, kept: KeptFrame, eager: Results, draws: Draws) -> None:
        self._kept, self._eager, self._draws = kept, eager, draws

    def run(self, stage: Stage, values: dict[str, dict[str, Any]] | None = None) -> Results:
        """Run a stage; return its results, and store values of its nodes in `values`, by graph and name.

        Raises NotComparableError if the graphs' inputs or results do not match the call's.
        """
        arguments = [copy_to_cpu(value) for value in self._kept.arguments or ()]
        versions = [version(value) for value in arguments]

        def run(kind: str, saved: Sequence[Any] = ()) -> list[Any]:
            inputs = self._inputs(stage.layouts[kind], arguments, saved)
            own = values.setdefault(kind, {}) if values is not None else None
            return run_with_draws(stage.graphs[kind], inputs, self._draws, own)

        with seed_and_restore(), torch.no_grad(), self._draws.check_count():
            try:
                forward, gradients = self._halves(stage, run)
            except ProgramError as error:
                raise NotComparableError(str(error)) from error
        if self._draws.reason:
            raise NotComparableError(self._draws.reason)
        changed = {place for place, value in enumerate(arguments) if version(value) != versions[place]}
        return self._results(arguments, changed, forward, gradients)

    def _halves(self, stage: Stage, run: Callable[..., list[Any]]) -> tuple[list[Any], list[Any]]:
        """Outputs of the call and gradients of its inputs; `run` runs one of the graphs."""
        if "inference" in stage.graphs:
            return run("inference"), []
        if "joint" in stage.graphs:
            count = self._kept.joint.options["num_fwd_outputs"] if self._kept.joint is not None else 0
            outputs = run("joint")
            return outputs[:count], outputs[count:]
        outputs = run("forward")
        names = [layout.name for layout in stage.layouts["backward"]]
        count = len(outputs) - sum(not name.startswith("tangents") for name in names)
        return outputs[:count], run("backward", outputs[count:])

    def _inputs(self, layouts: Sequence[InputLayout], arguments: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """Inputs of a graph. Saved values are passed in the partitioner's order, sizes before tensors."""
        handed = iter(sorted(saved, key=lambda value: isinstance(value, Tensor | Unknown)))
        tangents = iter(self._tangents(sum(layout.name.startswith("tangents") for layout in layouts)))
        found = []
        for layout in layouts:
            is_tangent = layout.name.startswith("tangents")
            value = next(tangents) if is_tangent else next(handed) if saved else argument(layout.name, arguments)
            found.append(_fit_layout(layout, value))
        return found

    def _tangents(self, count: int) -> list[Tensor]:
        """Gradients of the outputs, from the user's backward or else filled with ones."""
        if not count:
            return []
        facts, trained = self._kept.aot, self._kept.trained
        if facts is None or any(output.kind not in _PLAIN for output in facts.outputs if output.requires_grad):
            raise NotComparableError("an output that wants gradients is a view, and its graph takes another's")
        if len(trained) != count:
            raise NotComparableError(f"it takes {count} gradients, where {len(trained)} outputs want one")
        outputs = [(place, self._eager.outputs[place]) for place in trained]
        return [
            copy_to_cpu(self._kept.gradients.get(place, torch.ones_like(output)).to(output.dtype))
            for place, output in outputs
        ]

    def _results(
        self, arguments: Sequence[Any], changed: set[int], forward: list[Any], gradients: list[Any]
    ) -> Results:
        facts = self._kept.aot
        if facts is None or facts.subclasses:
            raise NotComparableError("its inputs and outputs are not known, or are parts of tensor subclasses")
        unknown = next((value for value in [*forward, *gradients] if isinstance(value, Unknown)), None)
        if unknown is not None:
            raise NotComparableError(unknown.reason)
        changed_after = [place for place, item in enumerate(facts.inputs) if item.mutated == "after"]
        if len(changed_after) != facts.first_output:
            raise NotComparableError("inputs are given another shape in place")
        inputs = [*arguments]
        for place, value in zip(changed_after, forward, strict=False):
            inputs[place] = value
        outputs = forward[facts.first_output : facts.first_output + len(facts.outputs)]
        by_place = {place: gradients[place] for place in self._eager.gradients} if gradients else {}
        tensors = [value for value in outputs if isinstance(value, Tensor)]
        return Results(tensors, by_place, inputs, changed | set(changed_after))


def _fit_layout(layout: InputLayout, value: Any) -> Any:
    if isinstance(value, Unknown):
        raise NotComparableError(value.reason)
    if not layout.fits(value):
        raise NotComparableError(f"its input {layout.name} is not what the call gives")
    if not isinstance(value, Tensor):
        return value
    return value if value.numel() < 2 else layout.restride(value)
