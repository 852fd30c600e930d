"""The steps of the chain rule on a graph, and the canvas on which its values and gradients can be changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from compiler.autograd.backward_run import BackwardRun
    from compiler.autograd.chain import ChainStep
    from compiler.autograd.eager_graph import EagerGraph, GraphNode
    from compiler.autograd.recording import Recording
    from compiler.autograd.tape import Tape, TapeRecorder
    from compiler.autograd.values import Value
    from compiler.record import Artifact, Record
    from explorer.findings.chain.program import Program

PLACE = ("file", "line", "code", "module", "module_type")
UNASKED = 300
"""Maximum number of nodes of a graph whose backward pass is run for the canvas alone."""
NOT_RECORDED = (
    "This graph was built before it could be recorded: values that nothing saved are `?`, and lines are not known. For "
    "those, give the function: tcompile.chain_rule(lambda: ...)."
)


@dataclass(frozen=True)
class Recorded:
    """How a graph was built: `names` has the names of tensors by `id`, `title` that of the function."""

    recording: Recording
    tape: TapeRecorder
    title: str = ""
    names: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LivingGraph:
    """A graph's steps; its record with their artifact; and, if the graph can be run again, what does that."""

    graph: EagerGraph
    steps: Sequence[ChainStep]
    record: Record
    evaluate: Callable[[Mapping[str, Any]], tuple[dict[str, Any], bytes]] | None

    @property
    def artifact(self) -> Artifact:
        """The artifact of the steps."""
        return self.record.artifacts[-1]


def living_graph(
    outputs: Sequence[Tensor],
    recorded: Recorded | None,
    frame: FrameType | None,
    gradients: Sequence[Tensor] | None = None,
) -> LivingGraph:
    """Run a backward pass from these outputs, and put its steps together. The graph is retained, no `.grad` changes.

    Raises NoGraphError, FreedGraphError, and any exception of the user's hooks and custom functions.
    """
    from compiler.autograd.chain import chain_steps, known_values, with_variables
    from compiler.autograd.eager_graph import eager_graph
    from compiler.autograd.explore import graph_record, names_of_tensors
    from compiler.autograd.health import health_of
    from explorer.findings.chain.program import variables_of
    from explorer.findings.chain.record import chain_artifact

    recording = recorded.recording if recorded else None
    names = (dict(recorded.names) if recorded else {}) | names_of_tensors(frame, recording)
    graph = eager_graph(outputs, recording=recording, names=names)
    run, note = _run_backward(graph, outputs, gradients)
    tape = recorded.tape.tape(outputs) if recorded else None
    known = _values_on_tape(tape, graph) if recording and not recording.keeps_values else {}
    values = known | known_values(graph, outputs, recording)
    health = health_of(graph, run, values) if not note else ()
    record = graph_record(graph, outputs, names, recorded.title if recorded else "", health)
    nodes = record["autograd"].entities
    places = {node.label: {key: node.attrs[key] for key in PLACE if key in node.attrs} for node in nodes}
    steps = chain_steps(graph, outputs, places=places, run=run, values=values)
    program, shown = _canvas(tape, graph, names, steps, outputs, gradients, note)
    if tape is not None and not tape.problem:
        steps = with_variables(steps, *variables_of(tape, graph, names))
    note = note or ("" if graph.recorded else NOT_RECORDED)
    artifact = chain_artifact(record.title, steps, note, record["autograd"], shown)
    record = record.with_fields(artifacts=(*record.artifacts, artifact))
    return LivingGraph(graph, steps, record, program.evaluate if program is not None else None)


def runs_no_code_of_users(outputs: Sequence[Tensor], recording: Recording) -> bool:
    """Whether a backward pass from these outputs is short, and calls no hook, custom function or checkpoint.

    Hooks of what was computed before the recording are not known.
    """
    from compiler.autograd.eager_graph import eager_graph

    nodes = eager_graph(outputs, recording=recording).nodes
    return len(nodes) <= UNASKED and not any(map(_may_run_code, nodes))


def _may_run_code(node: GraphNode) -> bool:
    if node.kind == "accumulate":
        return bool(node.hooks)
    return node.kind != "call" or node.call is None or bool(node.hooks) or any(slot.packed for slot in node.saved)


def _values_on_tape(tape: Tape | None, graph: EagerGraph) -> dict[tuple[str, int], Value]:
    """Results of a tape's calls by (node, output)."""
    from compiler.autograd.tape import run_forward
    from compiler.autograd.values import Value

    if tape is None or tape.problem:
        return {}
    names = {node.number: node.name for node in graph.nodes if node.number is not None}
    results = run_forward(tape).items()
    made = ((tape.calls[ref.call].number, ref.output, tensor) for ref, tensor in results if ref.call >= 0)
    return {(names[number], output): Value.of_tensor(tensor) for number, output, tensor in made if number in names}


def _run_backward(
    graph: EagerGraph, outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None
) -> tuple[BackwardRun, str]:
    """The gradients of a backward pass; if torch refuses it for a write in place, none, and torch's reason."""
    from compiler.autograd.backward_run import BackwardRun, run_backward

    try:
        return run_backward(graph, outputs, gradients), ""
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return BackwardRun(), f"Backward stops here, torch says: {error}"


def _canvas(
    tape: Tape | None,
    graph: EagerGraph,
    names: Mapping[int, str],
    steps: Sequence[ChainStep],
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor] | None,
    note: str,
) -> tuple[Program | None, Mapping[str, Any]]:
    """The program of the living canvas, None if it can't be evaluated again, and its data."""
    import torch

    from explorer.findings.chain.program import program_of, recorded_program

    if tape is None:
        return None, recorded_program(graph, steps, "values change only if the graph is built by this call")
    if not note:
        seeds = list(gradients) if gradients is not None else [torch.ones_like(output) for output in outputs]
        program = program_of(tape, graph, names, steps, seeds)
        if program is not None:
            return program, program.data
    failed = "torch refuses to run this backward" if note else ""
    hooked = any(node.hooks for node in graph.nodes)
    failed = failed or tape.problem or ("hooks of yours run in backward, and would not run again" if hooked else "")
    reason = failed or "run again, its operations give other numbers, or some are not PyTorch's"
    return None, recorded_program(graph, steps, reason)
