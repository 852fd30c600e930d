"""Inspect a call stage by stage in our own backend, and replace its passes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch.fx import GraphModule

from compiler.backend import pipeline
from compiler.backend.backend import KINDS, compile_graph, donatable_buffers, donated_inputs
from compiler.backend.cpp.emit import Code
from compiler.backend.cpp.emit import emit as emit_cpp
from compiler.backend.inspect.bisect_passes import PassComparison, compare_passes
from compiler.backend.inspect.graph_capture import (
    CapturedGraph,
    InspectedCall,
    capture_for_gpu,
    capture_graphs,
    interpret_without_gpu,
)
from compiler.backend.inspect.why_not_fused import Lookup
from compiler.backend.ir import BackendError, Kernel, Program
from compiler.backend.options import BackendOptions, check_thresholds
from compiler.backend.passes.context import Context, Thresholds
from compiler.backend.passes.cost import Totals, totals, traffic
from compiler.backend.passes.matmuls import fuse_matmuls
from compiler.backend.passes.verify import BrokenProgramError
from compiler.backend.pipeline import watch
from compiler.backend.runtime import build_cpp
from compiler.backend.runtime.launch import Launcher, by_kernel
from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.triton.emit import TritonCode
from compiler.backend.triton.emit import emit as emit_triton
from compiler.record import Decision
from compiler.record.plain_text import pluralize
from compiler.targets import Target, target
from compiler.torch_api.aot import Call
from compiler.torch_api.dynamo import inner_function, reason_disabled

if TYPE_CHECKING:
    import pandas as pd

HOME = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of the call: the program after each pass, and the decisions of the passes."""

    captured: CapturedGraph
    stages: pipeline.Stages
    decisions: tuple[Decision, ...]

    @property
    def name(self) -> str:
        """Name of the graph: forward, backward or inference, with a number if there are several ("forward_2")."""
        return self.captured.name

    @property
    def programs(self) -> Mapping[str, Program]:
        """The programs by stage, "lowered" first."""
        return {pipeline.stage_name(name): program for name, program in self.stages.programs.items()}

    @property
    def last(self) -> Program:
        """The program after the last pass."""
        return self.stages.last

    @property
    def is_on_gpu(self) -> bool:
        """Whether the graph has buffers on a GPU."""
        return any(buffer.device.startswith("cuda") for buffer in self.last.buffers)

    def context(self, thresholds: Thresholds) -> Context:
        """A new context for the graph's passes, with these thresholds and without decisions."""
        return replace(self.captured.start, thresholds=thresholds, decisions=[])


@dataclass(slots=True)
class _ContextWatcher:
    """Implements `compiler.backend.pipeline.Watcher`: collects the contexts of graphs that are compiled for `run`."""

    found: list[Context]
    builds: bool = True
    replaces: bool = False

    def after_passes(self, _stages: pipeline.Stages, ctx: Context, _options: BackendOptions) -> None:
        self.found.append(ctx)


@dataclass(frozen=True, repr=False)
class Inspection:
    """A call compiled by our backend: its graphs, and the program after each pass. Stages print as text.

    >>> p = tcompile.open(torch.nn.functional.gelu, torch.randn(8))
    >>> print(p.fused)
    >>> p.replace("fuse", lambda program, ctx: program).fused

    Stages are those of the graph with index `selected`. An Inspection is immutable: `replace`, `with_thresholds` and
    `on` return a new Inspection.
    """

    asked: InspectedCall
    graphs: tuple[Graph, ...]
    passes: Mapping[str, pipeline.Pass] = field(default_factory=lambda: pipeline.PASSES)
    thresholds: Thresholds = field(default_factory=Thresholds)
    selected: int = 0
    target: Target | None = None
    ran: list[Context] = field(default_factory=list, compare=False)

    @property
    def graph(self) -> Graph:
        """The graph whose stages are shown."""
        return self.graphs[self.selected]

    def of(self, name: str) -> Inspection:
        """Select another graph: "forward", "backward" or "inference". Raises BackendError if there is none."""
        names = [graph.name for graph in self.graphs]
        if name not in names:
            raise BackendError(f"there is no {name} graph, only {', '.join(names)}")
        return replace(self, selected=names.index(name))

    @property
    def backward(self) -> Inspection:
        """The same call with the backward graph selected. Raises BackendError if there is none."""
        return self.of("backward")

    def stage(self, name: str) -> Program:
        """The program of a stage, or after a pass, by its name. Raises BackendError if the name is unknown."""
        programs = self.graph.programs
        for known in (name, pipeline.stage_name(name)):
            if known in programs:
                return programs[known]
        raise BackendError(f"there is no stage {name!r}, only {', '.join(programs)}{_did_you_mean(name, programs)}")

    def __getattr__(self, name: str) -> Program:
        """The program of a stage, such as lowered, simplified, inlined, fused, ordered or scheduled."""
        if name.startswith("_") or name not in self.graph.programs:
            known = [] if name.startswith("_") else dir(self)
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{_did_you_mean(name, known)}")
        return self.graph.programs[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.graph.programs]

    def diff(self, before: str, after: str) -> TextDiff:
        """A unified diff of the texts of two stages. Raises BackendError if a stage is unknown."""
        old, new = (str(self.stage(name)).splitlines() for name in (before, after))
        return TextDiff((before, after), tuple(difflib.unified_diff(old, new, before, after, lineterm="")))

    @property
    def totals(self) -> Totals:
        """Kernels, calls of PyTorch, and bytes that kernels move: totals of all graphs after the last pass."""
        return sum((totals(graph.last, graph.context(self.thresholds)) for graph in self.graphs), Totals())

    @property
    def stages(self) -> pd.DataFrame:
        """DataFrame with one row per stage: pass, its seconds, kernels, calls of PyTorch, bytes moved by kernels."""
        rows = []
        for change, program in self.graph.stages.programs.items():
            found = totals(program, self.graph.context(self.thresholds))
            made_by = "lower" if change == "lowered" else change
            seconds = self.graph.stages.seconds.get(change)
            rows.append((pipeline.stage_name(change), made_by, found.kernels, found.calls, found.bytes, seconds))
        return _table(rows, "stage pass kernels calls bytes seconds", seconds="Float64").set_index("stage")

    @property
    def kernels(self) -> pd.DataFrame:
        """DataFrame with one row per kernel or call of PyTorch, after the last pass.

        Columns: kind, number of loops, bytes moved, names of the computed values, and lines of the user's code. Loops
        and bytes of a call of PyTorch are NA.
        """
        program, ctx = self.graph.last, self.graph.context(self.thresholds)
        rows: list[tuple[Any, ...]] = []
        for step in program.steps:
            made = ", ".join(step.targets)
            if isinstance(step, Kernel):
                lines = "; ".join(dict.fromkeys(loop.source for loop in step.loops if loop.source))
                rows.append((step.name, "kernel", len(step.loops), traffic(step, program, ctx), made, lines))
            else:
                rows.append((step.name, "call of PyTorch", None, None, made, step.source))
        return _table(rows, "name kind loops bytes computes lines", loops="Int64", bytes="Int64").set_index("name")

    @property
    def decisions(self) -> pd.DataFrame:
        """DataFrame with one row per decision of a pass: verdict, subjects, reason, and potential saving in bytes."""
        rows = [
            (found.pass_name, found.verdict, ", ".join(found.subjects), found.why, found.numbers.get("bytes"))
            for found in self._all_decisions(self.graph)
        ]
        return _table(rows, "pass verdict subjects why bytes", bytes="Int64")

    @property
    def code(self) -> Text:
        """Source of the kernels: C++ for the CPU, Triton for a GPU."""
        return Text(self._emit().text)

    @property
    def call(self) -> Text:
        """Source of the Python function that allocates buffers and launches kernels."""
        return Text(Launcher(self.graph.last, by_kernel(self._emit())).text)

    def _emit(self) -> Code | TritonCode:
        program, ctx = self.graph.last, self.graph.context(self.thresholds)
        return (
            emit_triton(program, ctx) if self.graph.is_on_gpu else emit_cpp(program, ctx, build_cpp.has_vector_math())
        )

    @property
    def triton(self) -> Text:
        """Triton source of the kernels; for an H100 if the call is on the CPU (see `on`)."""
        return self.code if self.graph.is_on_gpu else self.on("h100").code

    def on(self, gpu: str) -> Inspection:
        """Inspect the same call for a GPU that this machine need not have (`tcompile.targets()` lists them).

        Captures the call again, with the kernels that torch chooses for that GPU and the layouts that it prefers. The
        result can't be run. Raises UnknownTargetError, and BackendError if the GPU lacks a format that the call uses.
        """
        found = target(gpu)
        graphs = _run_all(capture_for_gpu(self.asked, found), self.passes, self.thresholds)
        return replace(self, graphs=graphs, target=found, ran=[])

    def replace(self, name: str, change: pipeline.Pass) -> Inspection:
        """Run the passes again with the function `change` in place of the pass `name`.

        Raises BackendError if there is no such pass, if `change` can't be called with a program and a context, or if
        the program that it returns breaks a rule of the IR; the message names the loop and the rule.
        """
        if name not in self.passes:
            lowered = f"; {next(iter(self.passes))} is given what was lowered"
            meant = lowered if name in ("lower", "lowered") else _did_you_mean(name, self.passes)
            raise BackendError(f"there is no pass {name!r}, only {', '.join(self.passes)}{meant}")
        if not _takes_two(change):
            raise BackendError(f"a pass takes a program and a context, and returns a program: def {name}(program, ctx)")
        try:
            return self._run_again({**self.passes, name: change}, self.thresholds)
        except Exception as error:  # noqa: BLE001 raise any error of the user's pass with its own traceback
            raise error.with_traceback(_traceback_of_pass(error))  # noqa: B904 it is the same error

    @property
    def tuned(self) -> Inspection:
        """The same call as compiled with mode="max-autotune": kernels may contain matmuls.

        Unchanged if the call is on the CPU.
        """
        if not any(graph.is_on_gpu for graph in self.graphs):
            return self
        return self._run_again(pipeline.passes_for_tuning(self.passes), self.thresholds)

    def with_thresholds(self, **changes: int) -> Inspection:
        """Run the passes again with other thresholds: see `compiler.backend.passes.context.Thresholds`.

        Raises OptionError for an unknown name or an invalid value.
        """
        check_thresholds(changes)
        return self._run_again(self.passes, replace(self.thresholds, **changes))

    def why(self, first: str, second: str) -> Text:
        """Explain whether one kernel computes two values, and if not, why not.

        Names may be those of a stage or of the graph (loops, calls, kernels, inputs, views), or of an operation before
        decompositions ("gelu"). Raises BackendError for an unknown name.
        """
        if not (isinstance(first, str) and isinstance(second, str)):
            raise BackendError(f"why takes the names of two values, as text; got {first!r:.40} and {second!r:.40}")
        lookups = [Lookup(graph.captured.module, graph.programs, self._all_decisions(graph)) for graph in self.graphs]
        for name in (first, second):
            if not any(lookup.knows(name) for lookup in lookups):
                known = [known for lookup in lookups for known in lookup.names]
                there = _did_you_mean(name, known) or "; each stage shows its names: print(p.lowered)"
                raise BackendError(f"there is no value {name!r}{there}")
        homes = [self._home(name, lookups) for name in (first, second)]
        if homes[0] != homes[1]:
            one, two = (self.graphs[home].name for home in homes)
            where = f"{first} is in the {one}, {second} is in the {two}"
            return Text(f"{where}: graphs run one after the other, and no kernel is part of two")
        graph = self.graphs[homes[0]]
        found = lookups[homes[0]].explain(first, second, graph.context(self.thresholds))
        return Text(found if homes[0] == self.selected else f"in the {graph.name}: {found}")

    def _home(self, name: str, lookups: Sequence[Lookup]) -> int:
        """Number of the graph that contains a value: the selected graph if possible, else the first such graph."""
        having = [number for number, lookup in enumerate(lookups) if lookup.knows(name)]
        return self.selected if self.selected in having else having[0]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call with the code of these passes, and return its result.

        Without arguments, it runs the opened call. The code is Triton on a GPU, C++ on the CPU; without a C++ compiler,
        the reference interpreter runs. The first run compiles; runs with other sizes may compile again. Raises
        BackendError after `on`, as that GPU may not be available.
        """
        self._require_device()
        if not args and not kwargs:
            args, kwargs = tuple(self.asked.args), dict(self.asked.kwargs)
        try:
            return self._compiled(*args, **kwargs)
        except Exception as error:
            if isinstance(inner := getattr(error, "inner_exception", None), Exception):
                raise inner from None  # without TorchDynamo's wrapper, which does not name the pass
            raise

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        options = BackendOptions(self.thresholds, tuned=self.passes["matmuls"] is fuse_matmuls)

        def compile_one(module: GraphModule, inputs: Sequence[Any], name: str) -> Call:
            with watch(_ContextWatcher(self.ran)):
                return compile_graph(module, inputs, name=name, options=options, passes=self.passes)

        def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return compile_with_autograd(module, inputs, *(partial(compile_one, name=name) for name in KINDS))

        return self.asked.compile(backend)

    def _all_decisions(self, graph: Graph) -> Sequence[Decision]:
        """Decisions of a graph's passes, then its autotuning decisions from calls of `run`."""
        late = (found for ctx in self.ran if ctx.graph == graph.name for found in ctx.decisions)
        return [*graph.decisions, *(found for found in late if found.pass_name == "tune")]

    def _require_device(self) -> None:
        if self.target is not None:
            raise BackendError(f"{self.target.title} is not here: its code can be read, not run")

    def check(self) -> PassComparison:
        """Compare each stage with eager mode, to find the first pass that changes a result.

        The reference interpreter runs the stages, on copies of the call's own inputs. A backward that the call did not
        run gets random gradients.
        """
        self._require_device()
        with interpret_without_gpu(None):
            return compare_passes((graph.captured, graph.stages.programs) for graph in self.graphs)

    def _run_again(self, passes: Mapping[str, pipeline.Pass], thresholds: Thresholds) -> Inspection:
        graphs = tuple(_run(graph.captured, passes, thresholds) for graph in self.graphs)
        return replace(self, graphs=graphs, passes=passes, thresholds=thresholds, ran=[])

    def __str__(self) -> str:
        parts = [f"{self.asked.title}: {self.summary}"]
        for number, graph in enumerate(self.graphs):
            table = replace(self, selected=number).stages.drop(columns="pass")
            seconds = table.seconds.map(lambda value: f"{1000 * value:.3f} ms", na_action="ignore").fillna("")
            parts.append(f"{graph.name}\n{table.assign(seconds=seconds).to_string()}")
        return "\n\n".join([*parts, "\n".join(self.next_steps())])

    __repr__ = __str__

    @property
    def summary(self) -> str:
        """Line of text with the kernels, calls and bytes of all graphs, and the device."""
        found = self.totals
        where = self.target.title if self.target else "the GPU" if self.graph.is_on_gpu else "the CPU"
        kernels, calls = pluralize(found.kernels, "kernel"), pluralize(found.calls, "call")
        return f"{kernels}, {calls} of PyTorch, {found.bytes:,} bytes moved by kernels; for {where}"

    def next_steps(self) -> Iterator[str]:
        """Lines that suggest what to call next."""
        stages = [f"p.{name}" for name in self.graph.programs]
        yield f"print({stages[0]}), … {', '.join(stages[1:])}: the program after each pass"
        yield 'p.diff("lowered", "fused"), p.kernels, p.decisions, p.why("…", "…"), p.code, p.call, p.triton'
        yield 'p.replace("fuse", my_fuse) runs another pass, p.check() says which pass is wrong, p.run() runs the code'
        if len(self.graphs) > 1:
            yield f"graphs: {', '.join(f'p.of({graph.name!r})' for graph in self.graphs)}"


class Text(str):
    """Text that a notebook cell shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


@dataclass(frozen=True, repr=False, slots=True)
class TextDiff:
    """A unified diff of two texts, which prints as text. `lines` is empty if the texts are equal."""

    names: tuple[str, str]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines) or f"{self.names[0]} and {self.names[1]} are the same"

    __repr__ = __str__


def _table(rows: Sequence[tuple[Any, ...]], columns: str, **dtypes: str) -> pd.DataFrame:
    """DataFrame of the rows. `columns` are names separated by spaces, `dtypes` the dtypes of columns with NA."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns.split()).astype(dtypes)


def _did_you_mean(name: str, known: Any) -> str:
    near = get_close_matches(name, list(dict.fromkeys(known)), 3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _traceback_of_pass(error: Exception) -> TracebackType | None:
    """The traceback from the user's pass on, without the backend's frames before the pass.

    If there are no other frames: None for a BrokenProgramError, the whole traceback for other errors.
    """
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(HOME):
        found = found.tb_next
    return found or (None if isinstance(error, BrokenProgramError) else error.__traceback__)


def _takes_two(change: Any) -> bool:
    try:
        inspect.signature(change).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return callable(change)
    return True


def _run_all(
    captured: Sequence[CapturedGraph], passes: Mapping[str, pipeline.Pass], thresholds: Thresholds
) -> tuple[Graph, ...]:
    """Run the passes on all graphs. A backward may overwrite values that its forward saved only for it."""
    graphs: list[Graph] = []
    for one in captured:
        for before in graphs:
            if before.captured is one.forward and one.start.processors:
                names = donatable_buffers(before.stages.last, before.captured.saved)
                one.start.donated = donated_inputs(one.module, names)
        graphs.append(_run(one, passes, thresholds))
    return tuple(graphs)


def _run(captured: CapturedGraph, passes: Mapping[str, pipeline.Pass], thresholds: Thresholds) -> Graph:
    ctx = replace(captured.start, thresholds=thresholds, decisions=list(captured.start.decisions))
    return Graph(captured, pipeline.run(captured.lowered, ctx, passes), tuple(ctx.decisions))


def open(fn: Callable[..., Any], *args: Any, dynamic: bool | None = None, **kwargs: Any) -> Inspection:  # noqa: A001
    """Compile a call with our own backend and keep the program after each pass.

    >>> p = tcompile.open(torch.nn.functional.gelu, torch.randn(8))
    >>> print(p.lowered, p.fused)
    >>> print(p.code)

    `dynamic` is as for torch.compile. The call runs once, with its graphs in eager mode; if its result requires grad,
    there is a backward graph too. The graphs' arguments are kept for `check`.

    Raises BackendError if a graph can't be compiled or the call has no graph, TypeError if `fn` is not callable.
    """
    if not callable(fn):
        raise TypeError(f"tcompile.open takes a function or a module, and what to call it with; got {fn!r:.60}")
    function = inner_function(fn) or fn
    asked = InspectedCall(function, function, args, kwargs, dynamic=dynamic)
    if not (captured := capture_graphs(asked)):
        reason = reason_disabled() or "the call has no tensor operations that torch.compile captures"
        raise BackendError(f"nothing was compiled: {reason}")
    return Inspection(asked, _run_all(captured, pipeline.PASSES, Thresholds()))
