"""What a user holds after an exploration: the record, as tables, texts, drawings, a widget and files."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.record import Artifact, ExploredCall, Record
from compiler.record.plain_text import pluralize
from explorer.findings.cards import Cards, all_cards
from explorer.reading.stages import stage_key
from explorer.run import files, text
from explorer.run.compiling import KernelCompiler
from explorer.run.levels import LevelArtifacts, RunLevels, at_level, level_ops, levels, levels_maker, tree_of
from explorer.run.measured_run import MeasuredRun

if TYPE_CHECKING:
    import pandas as pd
    from graphviz import Digraph
    from matplotlib.figure import Figure

    from compiler.calls.call import Call
    from compiler.calls.kept_graphs import KeptFrame
    from compiler.record.builder import Listener
    from explorer.findings.decompose.op_levels import OpLevels
    from explorer.findings.replay import Replay
    from explorer.run.autograd_run import AutogradRun
    from explorer.run.diff import ArtifactDiff, RunDiff
    from explorer.run.kernel_code import KernelCode
    from explorer.run.partitions import Partitions


class Run(MeasuredRun):
    """One exploration: stages, tables, findings, drawings and files.

    `record` is all that was found; `value` is what the explored call returned.

    `run["forward"]` is a stage: it prints as text. `print(run)` is a summary. The tables (`run.breaks`, `run.ops`, …)
    are DataFrames made anew at each access, so that changing one changes nothing here.

    Stages of machine code (`run["ptx"]`, `run.binaries`) are made when they are first asked for, and are in `record`
    from then on.
    """

    def __init__(self, record: Record, value: Any = None, widget: Any = None) -> None:
        self.value = value
        self.compiler: KernelCompiler = KernelCompiler(record) if widget is None else widget.compiler
        self.compiler.replace(record)
        self._widget = widget
        self._selection: tuple[str, ...] = ()
        self._partitions: Partitions | None = None
        self._other: KernelCompiler | None = None
        self._levels = RunLevels()
        self.kept = {}
        self.call = None  # to time it again; not saved either
        self.calls: Mapping[str, Call] = {}  # of the cell, by callee; not saved either

    @property
    def kept(self) -> Mapping[str, KeptFrame]:
        """Graphs and inputs, for levels and the kernel lab; none of it is saved."""
        return self._kept

    @kept.setter
    def kept(self, kept: Mapping[str, KeptFrame]) -> None:
        self._kept = kept
        self.compiler.makers["decomposed"] = levels_maker(self._levels, kept)
        compiler, levels = self.compiler, self._levels
        compiler.tree = (lambda entity: tree_of(levels, compiler.record, kept, entity)) if kept else None

    @property
    def _shown(self) -> Record:
        """The record with its findings, which are made once for each record, for the live view too."""
        return self.compiler.known.of(self.record)[1]

    def __getitem__(self, name: str) -> Artifact:
        """The artifact with this id (`forward[0/0]`), or the first of this stage (`forward`, `Forward`).

        Kernels are compiled for a stage that needs that, and graphs traced for `decomposed`. Raises KeyError.
        """
        key = stage_key(name)
        stage = key.partition("[")[0]
        if self.compiler.has_yet_to_make(stage) and all(key != artifact.id for artifact in self.record.artifacts):
            self.compiler.compile()
        if stage == "decomposed" and self.kept:
            self._with_levels()
        if stage == "memory":
            self._with_eager_memory()
        return self._shown[key]

    def _ipython_key_completions_(self) -> list[str]:
        artifacts = self._shown.artifacts
        made = [artifact.stage for artifact in artifacts]
        stages = dict.fromkeys([*made, *self.compiler.pending(), *self.compiler.makes()])
        return [*stages, *(artifact.id for artifact in artifacts)]

    def switch(self, callee: str, listener: Listener | None = None) -> Run:
        """Explore another call of the same cell, by its callee: `run.switch("batch")`.

        The first call of it is made once more, on copies of its arguments: random state and buffers are put back, and
        what it prints is dropped. Other side effects of its code, such as appending to a list or writing a file, happen
        again; to avoid that, run the cell with `--fn`. The live view shows the result, which is returned. Raises
        KeyError for a callee that the cell did not call, and what the call raises.
        """
        from compiler.engine import explore_again

        explored = self.record.explored
        if callee not in self.calls or explored is None:
            known = ", ".join(self.calls) or "nothing, as it was loaded or made in another way"
            raise KeyError(f"no call of {callee!r} is kept by this run; it has: {known}")
        call = self.calls[callee]
        found = explore_again(call, self.record.options, listener)
        others = dict.fromkeys((explored.callee, *explored.others))
        others.pop(callee, None)
        line = call.site[-1].line if call.site else 0
        record = found.record.with_fields(explored=ExploredCall(callee, line, "", tuple(others), explored.scripts))
        run = Run(record, None, self._widget)
        run.kept, run.call, run.calls = found.kept, found.call, self.calls
        if self._widget is not None:
            self._widget.update(record)
        return run

    def trust(self) -> Run:
        """Agree that the code of a loaded run's kernels is executed on this machine; returns this run.

        `tcompile.load` executes nothing, and neither does looking at the run. To compile its kernels is another thing:
        the source of Triton kernels is Python, which is executed on this machine to compile it, and the kernel lab
        builds and runs kernels. Whoever made the file wrote that source. So machine code (`run["ptx"]`,
        `run.binaries`) and `%%tkernel` raise UntrustedError until you have called this:

        run = tcompile.load("run.json")
        print(run["kernels"])         # read what would be executed
        print(run.trust()["ptx"])     # you trust whoever made the file

        Even then a kernel is compiled only if it is made of what Inductor and our own backend write: known imports,
        functions under `@triton.jit`, constants. `run.problems` names those that are not. A run that was made in this
        process is trusted.
        """
        self.compiler.trust()
        if self._other is not None:
            self._other.trust()
        return self

    def compile_kernels(self, config: int = 0) -> Run:
        """Compile the Triton kernels to machine code, all at once; returns this run.

        `config` chooses among the launch configurations that Inductor's heuristics would try (`run.binaries.configs`
        says how many there are): 0 is the first. Nothing is compiled twice. Raises ValueError for a negative one,
        UntrustedError for a loaded run before `run.trust()`.
        """
        self.compiler.compile(config=config)
        return self

    def kernel(self, name: str) -> KernelCode:
        """The source of the kernel with this name or id, and what is known of it. Raises KeyError."""
        from explorer.run.kernel_code import kernel_code

        return kernel_code(self.record, name)

    def linked(self, ids: str | Iterable[str]) -> pd.DataFrame:
        """One row an entity linked to one of these: what they came from, and all that came of them.

        Raises ValueError for an id that the record does not have.
        """
        return _tables().linked(self._shown, self._known(ids))

    @property
    def cards(self) -> Cards:
        """A card for each graph break and each recompilation: where, what, what it costs, what to change.

        Prints as all of them; `run.cards[0]` is the text of the first.
        """
        return all_cards(self.record)

    @property
    def breaks(self) -> pd.DataFrame:
        """One row a graph break: where, what it was, the graphs before and after it, what to change, torch's words."""
        return _tables().breaks(self.record)

    @property
    def guards(self) -> pd.DataFrame:
        """One row a guard: the argument, the check in words, the line that asked for it, if it ever failed."""
        return _tables().guards(self.record)

    @property
    def symbols(self) -> pd.DataFrame:
        """One row a size or number that compiled code leaves open: what it stands for, its range."""
        return _tables().symbols(self.record)

    @property
    def recompiles(self) -> pd.DataFrame:
        """One row a recompilation: the argument to blame, its old and new value, the call, what helps."""
        return _tables().recompiles(self.record)

    def recompile_diff(self, frame: str = "") -> ArtifactDiff:
        """The captured graph of a recompilation (`0/1`; the first one's by default) against that of the code that came
        closest: what is gone (`-`) and new (`+`). Prints as a unified diff.

        Raises KeyError where there is no such recompilation, or no graph of one of the two.
        """
        from explorer.run.diff import recompile_diff

        return recompile_diff(self.record, frame)

    @property
    def graphs(self) -> pd.DataFrame:
        """One row an FX graph: nodes, inputs, calls, different ops, outputs, bytes written."""
        return _tables().graphs(self.record)

    @property
    def ops(self) -> pd.DataFrame:
        """How often each op (rows) is called in each stage (columns)."""
        return _tables().ops(self.record)

    def decompose(self, entity: str) -> OpLevels:
        """One call of a graph at each level, from what was called to prims, on the values it had in this run.

        `entity` is its id (`captured[0/0].gelu`) or stage and name (`captured.gelu`). Raises KeyError where there is
        none, LevelError (a RuntimeError) where it calls nothing or its graph is not at hand, as in a loaded run,
        OperatorError (a ValueError) for what only another device has.
        """
        return self._levels.op_levels(self.record, self.kept, entity)

    def at_level(self, level: str) -> LevelArtifacts:
        """The whole graphs at a level: "torch" (as captured), "ATen", "core ATen", "Inductor" or "prims".

        They are made at the first call, with the sizes of the run's first call, and are in `record` and in the live
        view from then on, as stage `decomposed`. Raises ValueError for another level, and where they can't be made:
        a loaded run has its graphs as text alone.
        """
        return at_level(self._with_levels(), level)

    @property
    def levels(self) -> pd.DataFrame:
        """One row a graph at a level (and dtype): operators, different ones, its numbers against eager's.

        Made at the first access, as in `at_level`.
        """
        return levels(self._with_levels())

    @property
    def level_ops(self) -> pd.DataFrame:
        """How often each operator (rows) is called at each level (columns)."""
        return level_ops(self._with_levels())

    def _with_levels(self) -> Record:
        return self.compiler.grow(lambda record: self._levels.grown(record, self.kept))

    @property
    def kernels(self) -> pd.DataFrame:
        """One row a generated kernel: kind, calls, bytes a call reads and writes, its lines; registers and so on.

        What is in the binaries is missing until something asked for them.
        """
        return _tables().kernels(self.record)

    @property
    def binaries(self) -> pd.DataFrame:
        """One row a compiled kernel: registers, spills, shared memory, occupancy and its limit, roofline, instructions.

        The kernels are compiled at the first access.
        """
        return _tables().binaries(self.compile_kernels().record)

    @property
    def decisions(self) -> pd.DataFrame:
        """One row a decision of a pass: about what, the verdict, and why."""
        return _tables().decisions(self.record)

    @property
    def fusion(self) -> pd.DataFrame:
        """One row a kernel: the nodes fused in it and in how many rounds, the bytes that it moves, before and at least.

        `print(run["fusion"])` says the same in words, `run.unfused` has the pairs that were not fused.
        """
        from explorer.findings.fusion.table import fusion

        return fusion(self.record)

    @property
    def unfused(self) -> pd.DataFrame:
        """One row a pair of kernels that was not fused: why, in plain words and torch's; what that costs."""
        from explorer.findings.fusion.table import unfused_pairs

        return unfused_pairs(self.record)

    @property
    def memory(self) -> pd.DataFrame:
        """One row a step of the call: what is allocated, reused and freed, and the bytes in use; eager's steps too.

        `print(run["memory"])` says what it comes to, `run.peak_memory` what is there at the peak, `run.plot_memory()`
        draws it.
        """
        from explorer.findings.memory.table import memory

        return memory(self._with_eager_memory())

    @property
    def peak_memory(self) -> pd.DataFrame:
        """One row a tensor in memory at the peak, of eager and of the generated code: bytes, the line it comes from."""
        from explorer.findings.memory.table import peak_memory

        return peak_memory(self._with_eager_memory())

    def plot_memory(self) -> Figure:
        """The bytes in use over forward and backward, as a chart. Raises ValueError where no code was generated."""
        from explorer.findings.memory.chart import memory_chart

        return memory_chart(self._with_eager_memory())

    def trace_memory(self, call: Callable[[], object]) -> pd.DataFrame:
        """Run `call` and note what it really allocates and frees, on the GPU where there is one, else on the CPU.

        `run.trace_memory(lambda: compiled(x).sum().backward())` is set beside what was computed, in `run.memory`, the
        chart and the live view. Call it once before: the first call compiles. Returns `run.memory`; raises what `call`
        raises, and RecordingError (a RuntimeError) where torch.cuda.memory's history is being recorded already.
        """
        from compiler.timing.memory_trace import with_measured_memory

        self.compiler.grow(lambda record: with_measured_memory(record, call))
        return self.memory

    def _with_eager_memory(self) -> Record:
        from compiler.autograd.eager_memory import with_eager_memory

        return self.compiler.grow(lambda record: with_eager_memory(record, self.kept))

    @property
    def saved(self) -> pd.DataFrame:
        """One row a tensor that the forward keeps for the backward: dtype, shape, bytes, the line it comes from."""
        return _tables().saved(self.record)

    @property
    def partitions(self) -> Partitions:
        """Other ways to divide forward from backward: `run.partitions.table()`, `.plot()`, `.control()`.

        Only a run that was made here has the graphs for it.
        """
        from explorer.run.partitions import Partitions

        if self._partitions is None or self._partitions.kept is not self.kept:
            self._partitions = Partitions(self.kept)
        return self._partitions

    @property
    def checks(self) -> pd.DataFrame:
        """One row a result of the compiled code compared with eager's (`--check`)."""
        return _tables().checks(self.record)

    @property
    def problems(self) -> pd.DataFrame:
        """One row a stage that could not be had, why, and what to do about it."""
        return _tables().problems(self.record)

    @property
    def frames(self) -> pd.DataFrame:
        """One row a compilation of a code object by TorchDynamo: compiled, skipped or failed; what it resumes from."""
        return _tables().frames(self.record)

    @property
    def steps(self) -> pd.DataFrame:
        """One row a bytecode instruction that TorchDynamo read (`--step`): what it pushed, changed and added."""
        from explorer.run.step_table import steps

        return steps(self.record)

    @property
    def autograd(self) -> AutogradRun:
        """The graphs that autograd built as the captured graphs ran, with tables `nodes`, `saved` and `leaves`."""
        from explorer.run.autograd_run import AutogradRun

        stages = ("source", "captured", "autograd")
        kept = tuple(artifact for artifact in self.record.artifacts if artifact.stage in stages)
        return AutogradRun(self.record.with_fields(artifacts=kept), self.value)

    def replay(self) -> Replay:
        """How TorchDynamo read the code, step by step. Raises ValueError if the run was made without `--step`."""
        from explorer.findings.replay import Replay

        return Replay(self.record)

    def drawing(self, name: str = "captured", depth: int | None = None, direction: str = "TB") -> Digraph:
        """A stage's graph for print, grouped by module: `run.drawing("forward").render("forward.pdf")`.

        `depth` is how many levels of modules stay open; None opens as many as can be read. `direction` is `TB` (top
        to bottom) or `LR`. Raises KeyError for a stage that is not there, ValueError for one that is not a graph.
        """
        from explorer.render.drawing import drawing

        return drawing(self.record, self[name], depth=depth, direction=direction)

    @property
    def versus(self) -> RunDiff:
        """What another backend makes of the same call (`--vs`), beside this: prints as a diff, `.widget()` shows both.

        `print(run["versus"])` is the table of both. Raises ValueError for a run without `--vs`.
        """
        from explorer.run.diff import RunDiff

        if self.record.versus is None:
            raise ValueError('this run has one side: explore with vs="inductor" (--vs inductor) to have another')
        if self._other is None:
            self._other = KernelCompiler(self.record.versus)
        return RunDiff(self.compiler, self._other)

    def diff(self, other: Run | Record) -> RunDiff:
        """What differs between this run (`-`) and another (`+`): breaks, guards and recompilations gone and new, graphs
        merged, each stage's text, op counts, kernels.

        Machine code is compared once it is asked for: `diff["ptx"]`, `diff.kernels`.
        """
        from explorer.run.diff import RunDiff

        return RunDiff(self.compiler, other.compiler if isinstance(other, Run) else KernelCompiler(other))

    def save(self, path: str | Path) -> Path:
        """Save as `.html` (one page to explore, no network needed) or `.json` (data). The file is whole or untouched.

        Returns the path. Raises ValueError for another suffix, OSError when it can't be written.
        """
        return files.write(self.record, path)

    def widget(self) -> Any:
        """The live view of this run: made at the first call, the same one after."""
        if self._widget is None:
            from explorer.run.widget import Explorer

            self._widget = Explorer(self.compiler) if self.record.versus is None else self.versus.widget()
            self._widget.selection = list(self._selection)
        return self._widget

    @property
    def selection(self) -> tuple[str, ...]:
        """Ids of the selected entities, in the widget too; set it to select from Python.

        Setting raises ValueError for an id that the record does not have.
        """
        return tuple(self._widget.selection) if self._widget is not None else self._selection

    @selection.setter
    def selection(self, ids: str | Iterable[str]) -> None:
        self._selection = self._known(ids)
        if self._widget is not None:
            self._widget.selection = list(self._selection)

    def _known(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """The ids, which the record must have. Raises ValueError."""
        chosen = (ids,) if isinstance(ids, str) else tuple(ids)
        known = {entity.id for entity in self._shown.entities()}
        unknown = next((entity_id for entity_id in chosen if entity_id not in known), None)
        if unknown is not None:
            raise ValueError(f"no entity has the id {unknown!r}{_nearest(unknown, sorted(known))}")
        return chosen

    def __str__(self) -> str:
        return text.summary(self.record)

    def __repr__(self) -> str:
        stages = len({artifact.stage for artifact in self.record.artifacts})
        return f"<Run {self.record.title or 'tcompile'}: {pluralize(stages, 'stage')}; print(run) for a summary>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text always, and static HTML that needs no script. The widget is an output of its own."""
        from explorer.run.static_view import twin

        return {"text/plain": str(self), "text/html": twin(self.record)}

    def _ipython_display_(self) -> None:
        """Static HTML first, then the widget, whose script hides it: a saved notebook shows the first without one."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())


def load(path: str | Path) -> Run:
    """Read a run saved as `.json` or as a page (`.html`), without executing anything in it.

    >>> run = tcompile.load("run.html")
    >>> print(run.cards)

    `run.value` is None. To compile its kernels, which executes code from the file, call `run.trust()`. Raises
    RecordError, naming the field that is wrong, ValueError for another suffix, OSError.
    """
    return Run(files.read(path))


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _tables() -> Any:
    """Imported at first use: pandas takes longer to import than a record to read."""
    from explorer.run import tables

    return tables
