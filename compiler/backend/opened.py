"""A call opened up: what the backend makes of it, stage by stage, with passes that can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch.fx import GraphModule

from compiler.backend import build, pipeline
from compiler.backend.backend import example_sizes, interpreted
from compiler.backend.context import Context, Thresholds, with_options
from compiler.backend.emit_cpp import emit
from compiler.backend.fuse import Pair, Steps, legal
from compiler.backend.ir import BackendError, Program
from compiler.backend.launch import Launcher
from compiler.backend.lower.graph import lower
from compiler.record import Decision
from compiler.torch_api.backend import Call, compile_with_autograd, with_backward
from compiler.torch_api.dynamo import Unheard, observing
from compiler.torch_api.dynamo import compiled as observed

_STAGES = {
    "lowered": "lowered",
    "simplified": "simplify",
    "inlined": "inline",
    "fused": "fuse",
    "ordered": "order",
    "scheduled": "schedule",
}


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of the call: its program as lowered, what each pass made of it, and what they decided."""

    name: str
    sizes: Mapping[str, int]
    stages: pipeline.Stages
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Opened:
    """What the backend makes of a call. Stages print; each is of the graph `selected`, the first one unless told.

    >>> p = compiler.open(torch.nn.functional.gelu, torch.randn(8))
    >>> print(p.fused)
    >>> p.replace("fuse", lambda program, ctx: program).fused
    """

    graphs: tuple[Graph, ...]
    passes: Mapping[str, pipeline.Pass] = field(default_factory=lambda: pipeline.PASSES)
    thresholds: Thresholds = field(default_factory=Thresholds)
    selected: int = 0

    @property
    def graph(self) -> Graph:
        """The graph whose stages are shown."""
        return self.graphs[self.selected]

    def of(self, name: str) -> Opened:
        """The same for another graph: "forward", "backward" or "inference". Raises BackendError if there is none."""
        for number, graph in enumerate(self.graphs):
            if graph.name == name:
                return replace(self, selected=number)
        raise BackendError(f"there is no {name} graph, only {', '.join(graph.name for graph in self.graphs)}")

    @property
    def backward(self) -> Opened:
        """The stages of the backward."""
        return self.of("backward")

    def __getattr__(self, name: str) -> Program:
        """A stage: lowered, simplified, inlined, fused, ordered or scheduled."""
        if name in _STAGES:
            return self.graph.stages.programs[_STAGES[name]]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; its stages are {', '.join(_STAGES)}")

    @property
    def code(self) -> str:
        """The C++ of the kernels."""
        return emit(self.scheduled, self._context(), build.has_vector_math()).text

    @property
    def call(self) -> str:
        """The Python function that allocates and launches."""
        return Launcher(self.scheduled, emit(self.scheduled, self._context(), build.has_vector_math())).text

    def replace(self, name: str, change: pipeline.Pass) -> Opened:
        """The same call with another function as one of the passes. Raises BackendError for a name that no pass has,
        or if what the function makes breaks a rule of the IR.
        """
        if name not in self.passes:
            near = get_close_matches(name, self.passes, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise BackendError(f"there is no pass {name!r}, only {', '.join(self.passes)}{meant}")
        return self._again({**self.passes, name: change}, self.thresholds)

    def with_thresholds(self, **changes: int) -> Opened:
        """The same call with other thresholds: see `compiler.backend.context.Thresholds`."""
        return self._again(self.passes, with_options(self.thresholds, changes))

    def why(self, first: str, second: str) -> str:
        """Whether two values, by their names in the graph, are computed by one kernel, and if not, why not."""
        for kernel in self.fused.kernels:
            if {first, second} <= set(kernel.targets):
                return f"{first} and {second} are computed by one kernel, {kernel.name}"
        steps = Steps.of(self.fused)
        places = [self._place(name, steps) for name in (first, second)]
        found = legal(steps, Pair(min(places), max(places), 0), self._context())
        if hasattr(found, "why"):
            return f"not in one kernel: {found.why}"
        return "one kernel of both would be legal, but they share nothing that would save bytes"

    def _place(self, name: str, steps: Steps) -> int:
        kernels = {number: step for number, step in steps.steps.items() if step in self.fused.kernels}
        for number, step in kernels.items():
            if name in step.targets:
                return number
        raise BackendError(f"no kernel computes {name}: it is a call of PyTorch, was inlined, or is not in this graph")

    def _context(self) -> Context:
        return Context(self.thresholds, self.graph.sizes, self.graph.name)

    def _again(self, passes: Mapping[str, pipeline.Pass], thresholds: Thresholds) -> Opened:
        graphs = tuple(_run(graph.stages.programs["lowered"], graph.sizes, passes, thresholds) for graph in self.graphs)
        return replace(self, graphs=graphs, passes=passes, thresholds=thresholds)


def _run(
    lowered: Program,
    sizes: Mapping[str, int],
    passes: Mapping[str, pipeline.Pass],
    thresholds: Thresholds,
    decisions: Sequence[Decision] = (),
) -> Graph:
    ctx = Context(thresholds, sizes, lowered.name, decisions=list(decisions))
    stages = pipeline.run(lowered, ctx, passes)
    return Graph(lowered.name, sizes, stages, tuple(ctx.decisions))


def open_call(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Opened:
    """Compile a call and keep what each pass makes of each of its graphs. The call is run once, by the reference
    interpreter; if its result needs a gradient, there is a backward graph too. Raises BackendError where a graph can't
    be compiled, or where there is none.
    """
    graphs: list[Graph] = []
    errors: list[Exception] = []

    def keep(module: GraphModule, _inputs: Sequence[Any], name: str) -> Call:
        try:
            graphs.append(_graph(module, name))
        except Exception as error:
            errors.append(error)
            raise
        return interpreted(graphs[-1].stages.last)

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        compilers = (partial(keep, name=name) for name in ("forward", "backward", "inference"))
        return compile_with_autograd(module, inputs, *compilers)

    with observing(Unheard()), with_backward():
        observed(fn, backend, dynamic=dynamic, fullgraph=False)(*args, **kwargs)
    if errors:
        raise errors[0]
    if not graphs:
        raise BackendError("the call has no tensor operations that torch.compile captures")
    return Opened(tuple(graphs))


def _graph(module: GraphModule, name: str) -> Graph:
    sizes = example_sizes(module)
    ctx = Context(sizes=sizes, graph=name, pass_name="lower")
    return _run(lower(module, name, ctx), sizes, pipeline.PASSES, Thresholds(), ctx.decisions)
