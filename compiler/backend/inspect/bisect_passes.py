"""Find the first pass that changes a result: run each stage in the reference interpreter, compare with eager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
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
    """A stage of a graph compared with eager mode.

    changed_by  the pass that made the stage
    numbers     the largest errors of its results and mutated inputs, by dtype
    error       the interpreter's error; "" if the stage ran
    where       name of the first value that differs from the value of that name in the stage before; "" for none
    """

    graph: str
    stage: str
    changed_by: str
    numbers: tuple[Numbers, ...] = ()
    error: str = ""
    where: str = ""

    @property
    def differs(self) -> bool:
        """Whether the stage failed, or its results differ from eager's."""
        return bool(self.error) or worst_verdict(self.numbers) == "differs"

    @property
    def words(self) -> str:
        """How the stage's results differ from eager's, as text; defined only if they differ."""
        if self.error:
            return self.error
        worst = next(item for item in self.numbers if item.verdict == "differs")
        if worst.max_relative is None:
            return f"{worst.worst}: {worst.note}"
        off = f"{worst.worst} is off by {worst.max_absolute:.2g}, {worst.max_relative:.2g} of the largest magnitude"
        return f"{off} (allowed {worst.tolerance:g})"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows of the table: one for each dtype, or one for an error."""
        head = (self.graph, self.stage, self.changed_by)
        if self.error:
            yield (*head, "", "fails", None, None, None)
        for item in self.numbers:
            yield (*head, item.dtype, item.verdict, item.max_absolute, item.max_relative, item.tolerance)


@dataclass(frozen=True, repr=False, slots=True)
class PassComparison:
    """All stages of all graphs, in order, compared with eager. Prints as a table and a verdict."""

    stages: tuple[StageNumbers, ...]
    drawing: tuple[str, ...] = ()
    """Graphs that draw random numbers. The backend draws other numbers than eager, so their stages are compared with
    the results of the lowered program."""

    @property
    def first(self) -> StageNumbers | None:
        """The first stage whose results differ from eager's; None if all agree."""
        return next((stage for stage in self.stages if stage.differs), None)

    @property
    def table(self) -> pd.DataFrame:
        """DataFrame with one row for each graph, stage and dtype: verdict, largest errors, and tolerance."""
        import pandas as pd

        columns = ["graph", "stage", "pass", "dtype", "verdict", "max_absolute", "max_relative", "tolerance"]
        rows = [row for stage in self.stages for row in stage.rows()]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[-3:], "float64"))

    @property
    def verdict(self) -> str:
        """Text: whether all stages agree with eager mode, or the first pass whose result differs."""
        found = self.first
        if found is None:
            drawn = f" ({', '.join(self.drawing)}: as lowered, since it draws random numbers)" if self.drawing else ""
            return f"Every stage computes what eager does{drawn}, on the call's own inputs."
        where = f" The first value that differs is {found.where}." if found.where else ""
        who = f"The pass {found.changed_by} is the first whose result differs, in the {found.graph}"
        return f"{who}: {found.words}.{where}"

    def __str__(self) -> str:
        table = self.table.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.2g}")
        return f"{table}\n\n{self.verdict}"

    __repr__ = __str__


def compare_passes(graphs: Iterable[tuple[CapturedGraph, Mapping[str, Program]]]) -> PassComparison:
    """Compare each distinct stage of each graph with eager. A backward that was never called gets random gradients."""
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
    return PassComparison(tuple(found), tuple(drawing))


class _Eager:
    """An eager run of a graph: `results` to compare with, and named `values` that its backward may read."""

    def __init__(self, captured: CapturedGraph, lowered: Program, inputs: Sequence[Any]) -> None:
        self.captured, self.lowered, self.inputs = captured, lowered, inputs
        with seed_and_restore(), Recording() as recorded:
            given, outputs = self.run()
        self.drawn = recorded.drawn
        names = (node.name for node in captured.module.graph.find_nodes(op="placeholder"))
        [output] = captured.module.graph.find_nodes(op="output")
        results = (value.name if isinstance(value, Node) else "" for value in output.args[0])
        self.values = [*zip(names, given, strict=True), *zip(results, outputs, strict=True)]
        self.results = _results(outputs, given, lowered)

    def run(self) -> tuple[list[Any], list[Any]]:
        """Run the graph; returns the inputs after the run, and the outputs."""
        given = copy_written(self.inputs, self.lowered)
        with torch.no_grad():
            return given, list(self.captured.module(*given))

    @cached_property
    def exact(self) -> Named | None:
        """The results in float64, to judge values that are zero up to rounding.

        None if the graph has random or higher-order operators, or can't run in float64.
        """
        if self.drawn:
            return None
        try:
            with Widened(()):
                given, outputs = self.run()
        except (RuntimeError, NotImplementedError):
            return None
        return _results(outputs, given, self.lowered)


def _stages(programs: Mapping[str, Program], inputs: Sequence[Any], eager: _Eager) -> Iterator[StageNumbers]:
    before: Program | None = None
    is_known = False
    for change, program in programs.items():
        if program is not before:
            found = _compare_stage(change, program, inputs, eager)
            if found.differs and not is_known and before is not None:
                found = replace(found, where=_first_difference(before, program, inputs))
            is_known |= found.differs
            yield found
        before = program


def _compare_stage(change: str, program: Program, inputs: Sequence[Any], eager: _Eager) -> StageNumbers:
    head = eager.captured.name, stage_name(change), "lower" if change == "lowered" else change
    try:
        mine = _interpret(program, inputs)
    except Exception as error:  # noqa: BLE001 a user's pass may make anything; the error is the result
        return StageNumbers(*head, error=f"{type(error).__name__}: {error}")
    found = StageNumbers(*head, numbers(mine, eager.results))
    return StageNumbers(*head, numbers(mine, eager.results, eager.exact)) if found.differs else found


def _interpret(program: Program, inputs: Sequence[Any]) -> Named:
    """Run a program in the reference interpreter; returns its outputs and its mutated inputs."""
    given = copy_written(inputs, program)
    with torch.no_grad(), seed_and_restore():
        outputs = interpret(program, given)
    return _results(outputs, given, program)


def _results(outputs: Sequence[Any], given: Sequence[Any], program: Program) -> Named:
    named = zip(program.inputs, given, strict=True)
    changed = [(f"input {name}", value) for name, value in named if name in program.mutated]
    return [*((f"output {place}", value) for place, value in enumerate(outputs)), *changed]


def copy_written(inputs: Sequence[Any], program: Program) -> list[Any]:
    """The inputs; tensors that the program mutates are copied."""
    named = zip(program.inputs, inputs, strict=True)
    return [
        copy_tensor(value) if name in program.mutated and isinstance(value, Tensor) else value for name, value in named
    ]


def _first_difference(before: Program, program: Program, inputs: Sequence[Any]) -> str:
    """Name of the first value that differs from its value in the program before; "" if none does."""
    known = dict(_values(before, inputs))
    for name, value in _values(program, inputs):
        if name in known and judge(name, value, known[name]).verdict == "differs":
            return name
    return ""


def _values(program: Program, inputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Names and values of the tensors that a program's steps compute, until a step fails."""
    state = State.start(program, copy_written(inputs, program))
    with torch.no_grad(), seed_and_restore():
        for step in program.steps:
            try:
                state.run(step)
            except Exception:  # noqa: BLE001 the stage's own error says what failed
                return
            made = ((name, state.memory[name]) for name in step.targets)
            yield from ((name, value.clone()) for name, value in made if isinstance(value, Tensor))


def _inputs(captured: CapturedGraph, results: Mapping[str, Named]) -> list[Any]:
    """Inputs for a backward that was not called: values of its forward by name, and random gradients."""
    known = dict(results[captured.forward.name]) if captured.forward else {}
    generator = torch.Generator().manual_seed(0)
    nodes = captured.module.graph.find_nodes(op="placeholder")
    return [known[node.name] if node.name in known else _gradient(node, generator) for node in nodes]


def _gradient(node: Node, generator: torch.Generator) -> Tensor:
    like: Tensor = fx.value_of(node)
    shape = [size if isinstance(size, int) else size.node.hint for size in like.shape]
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)
