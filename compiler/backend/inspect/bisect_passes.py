"""Which pass is the first to change a number: each stage of a graph, in the reference interpreter, against eager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from compiler.backend.inspect.graph_capture import CapturedGraph
from compiler.backend.ir import Program
from compiler.backend.ir.reference_interpreter import State, interpret
from compiler.backend.pipeline import stage_name
from compiler.calls.graph_runs import copy_tensor
from compiler.decompose.random_draws import seed_and_restore
from compiler.numerics.policy.by_dtype import Numbers, numbers, worst_verdict
from compiler.numerics.policy.judge import judge
from compiler.torch_api import fx
from compiler.torch_api.decomposition_tables import is_random
from compiler.torch_api.widened import Recording, Widened

if TYPE_CHECKING:
    import pandas as pd

Named = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class StageNumbers:
    """A stage of a graph against eager: by dtype, the largest errors of its results and of the inputs that it changes.

    `error` is what the interpreter raised. `changed_by` is the pass that made the stage. `where` is the first value
    that differs from what the stage before computed for it, "" where none does by its name.
    """

    graph: str
    stage: str
    changed_by: str
    numbers: tuple[Numbers, ...] = ()
    error: str = ""
    where: str = ""

    @property
    def departs(self) -> bool:
        """Whether its results differ from eager's."""
        return bool(self.error) or worst_verdict(self.numbers) == "differs"


@dataclass(frozen=True, repr=False, slots=True)
class Departures:
    """All stages of all graphs, in order. Prints as a table and a sentence."""

    stages: tuple[StageNumbers, ...]
    drawing: tuple[str, ...] = ()
    """Graphs that draw random numbers. The backend draws others than eager, so that their stages are compared with the
    lowered program."""

    @property
    def first(self) -> StageNumbers | None:
        """The first stage that computes something else than eager; None if all compute the same."""
        return next((stage for stage in self.stages if stage.departs), None)

    @property
    def table(self) -> pd.DataFrame:
        """One row a graph, stage and dtype: verdict, largest errors, and what is allowed of the largest magnitude."""
        import pandas as pd

        rows = [row for stage in self.stages for row in _rows(stage)]
        columns = ["graph", "stage", "pass", "dtype", "verdict", "max_absolute", "max_relative", "tolerance"]
        floats = dict.fromkeys(columns[-3:], "float64")
        return pd.DataFrame(rows, columns=columns).astype(floats)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        found = self.first
        if found is None:
            drawn = f" ({', '.join(self.drawing)}: as lowered, since it draws random numbers)" if self.drawing else ""
            return f"Every stage computes what eager does{drawn}, on the call's own inputs."
        where = f" The first value that differs is {found.where}." if found.where else ""
        return f"The pass {found.changed_by} is the first to depart, in the {found.graph}: {_error(found)}.{where}"

    def __str__(self) -> str:
        table = self.table.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.2g}")
        return f"{table}\n\n{self.verdict}"

    __repr__ = __str__


def _rows(stage: StageNumbers) -> Iterator[tuple[Any, ...]]:
    head = (stage.graph, stage.stage, stage.changed_by)
    if stage.error:
        yield (*head, "", "fails", None, None, None)
    for item in stage.numbers:
        yield (*head, item.dtype, item.verdict, item.max_absolute, item.max_relative, item.tolerance)


def _error(stage: StageNumbers) -> str:
    if stage.error:
        return stage.error
    worst = next(item for item in stage.numbers if item.verdict == "differs")
    if worst.max_relative is None:
        return f"{worst.worst}: {worst.note}"
    return (
        f"{worst.worst} is off by {worst.max_absolute:.2g}, {worst.max_relative:.2g} of the largest magnitude "
        f"(allowed {worst.tolerance:g})"
    )


def departures(graphs: Iterable[tuple[CapturedGraph, Mapping[str, Program]]]) -> Departures:
    """Run each distinct stage of each graph, and compare. A backward that was never called gets random gradients."""
    results: dict[str, Named] = {}
    found: list[StageNumbers] = []
    drawing = []
    for captured, programs in graphs:
        inputs = captured.inputs or _inputs(captured, results)
        eager = _Eager(captured, programs["lowered"], inputs)
        results[captured.name] = eager.values
        if any(is_random(node.target) for node in captured.module.graph.nodes):
            drawing.append(captured.name)
            eager.results = _interpret(programs["lowered"], inputs)
        found += _stages(programs, inputs, eager)
    return Departures(tuple(found), tuple(drawing))


class _Eager:
    """A graph run by eager PyTorch: its `results` to compare with, and its `values` by name, to hand on."""

    def __init__(self, captured: CapturedGraph, lowered: Program, inputs: Sequence[Any]) -> None:
        self.captured, self.lowered, self.inputs = captured, lowered, inputs
        given = copies(inputs, lowered.inputs, lowered.mutated)
        with torch.no_grad(), seed_and_restore(), Recording() as recorded:
            outputs = list(captured.module(*given))
        self.drawn = recorded.drawn
        names = (node.name for node in captured.module.graph.find_nodes(op="placeholder"))
        self.values = [*zip(names, given, strict=True), *zip(_output_names(captured), outputs, strict=True)]
        self.results = _results(outputs, given, lowered.inputs, lowered.mutated)

    @cached_property
    def exact(self) -> Named | None:
        """The results in float64: what is zero but for rounding can't be judged without. None where there are none."""
        if self.drawn:
            return None
        given = copies(self.inputs, self.lowered.inputs, self.lowered.mutated)
        try:
            with torch.no_grad(), Widened(()):
                outputs = self.captured.module(*given)
        except (RuntimeError, NotImplementedError):
            return None
        return _results(outputs, given, self.lowered.inputs, self.lowered.mutated)


def _stages(programs: Mapping[str, Program], inputs: Sequence[Any], eager: _Eager) -> Iterator[StageNumbers]:
    before: Program | None = None
    departed = False
    for change, program in programs.items():
        if program is not before:
            found = _compare_stage(change, program, inputs, eager)
            if found.departs and not departed and before is not None:
                found = _with_first(found, before, program, inputs)
            departed |= found.departs
            yield found
        before = program


def _compare_stage(change: str, program: Program, inputs: Sequence[Any], eager: _Eager) -> StageNumbers:
    head = eager.captured.name, stage_name(change), "lower" if change == "lowered" else change
    try:
        mine = _interpret(program, inputs)
    except Exception as error:  # noqa: BLE001 a pass of the user's may make anything: this is the finding
        return StageNumbers(*head, error=f"{type(error).__name__}: {error}")
    found = StageNumbers(*head, numbers(mine, eager.results))
    return StageNumbers(*head, numbers(mine, eager.results, eager.exact)) if found.departs else found


def _interpret(program: Program, inputs: Sequence[Any]) -> Named:
    """What the interpreter makes of a program: its results, and the inputs that it changes."""
    given = copies(inputs, program.inputs, program.mutated)
    with torch.no_grad(), seed_and_restore():
        outputs = interpret(program, given)
    return _results(outputs, given, program.inputs, program.mutated)


def _results(outputs: Sequence[Any], given: Sequence[Any], names: Sequence[str], changed: Iterable[str]) -> Named:
    own = [(f"output {place}", value) for place, value in enumerate(outputs)]
    return own + [(f"input {name}", value) for name, value in zip(names, given, strict=True) if name in changed]


def copies(inputs: Sequence[Any], names: Sequence[str], changed: Iterable[str]) -> list[Any]:
    """The inputs, with copies of those that the graph writes to."""
    return [
        copy_tensor(value) if name in changed and isinstance(value, torch.Tensor) else value
        for name, value in zip(names, inputs, strict=True)
    ]


def _with_first(found: StageNumbers, before: Program, program: Program, inputs: Sequence[Any]) -> StageNumbers:
    """The numbers with the first value, by name, that differs from the program before."""
    known = dict(_values(before, inputs))
    for name, value in _values(program, inputs):
        if name in known and judge(name, value, known[name]).verdict == "differs":
            return replace(found, where=name)
    return found


def _values(program: Program, inputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """What each step of a program computes, until one fails."""
    state = State.start(program, copies(inputs, program.inputs, program.mutated))
    with torch.no_grad(), seed_and_restore():
        for step in program.steps:
            try:
                state.run(step)
            except Exception:  # noqa: BLE001 the stage's own error says what failed
                return
            for name in step.targets:
                if isinstance(value := state.memory[name], torch.Tensor):
                    yield name, value.clone()


def _inputs(captured: CapturedGraph, results: Mapping[str, Named]) -> list[Any]:
    """Inputs for a backward that was not called: values of its forward by name, and random gradients."""
    known = dict(results[captured.forward.name]) if captured.forward else {}
    generator = torch.Generator().manual_seed(0)
    nodes = captured.module.graph.find_nodes(op="placeholder")
    return [known[node.name] if node.name in known else _gradient(node, generator) for node in nodes]


def _gradient(node: Node, generator: torch.Generator) -> torch.Tensor:
    like: torch.Tensor = fx.value_of(node)
    shape = [size if isinstance(size, int) else size.node.hint for size in like.shape]
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)


def _output_names(captured: CapturedGraph) -> list[str]:
    [output] = captured.module.graph.find_nodes(op="output")
    values: Any = output.args[0]
    return [value.name if isinstance(value, Node) else "" for value in values]
