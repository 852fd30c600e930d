"""`Run`, the result of an exploration: its record as tables, texts, drawings, a widget and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from compiler.record import Artifact, ExploredCall, Record
from compiler.record.plain_text import did_you_mean, pluralize
from explorer.findings.cards import Cards, all_cards
from explorer.reading.stages import stage_key
from explorer.run import files, text
from explorer.run.compiling import KernelCompiler, RecordHolder, reason_absent
from explorer.run.levels import LevelArtifacts, RunLevels
from explorer.run.old_names import new_name
from explorer.run.subjects import Fusion, Memory, Timing
from explorer.run.xray import XRayed

if TYPE_CHECKING:
    import pandas as pd
    from graphviz import Digraph

    from compiler.calls.call import Call
    from compiler.calls.kept_graphs import KeptFrame
    from compiler.distributed.ranks import Ranks
    from compiler.record.builder import Listener
    from explorer.findings.advice.adviser import AdviceList
    from explorer.findings.decompose.op_levels import OpLevels
    from explorer.findings.diagnosis import Diagnosis
    from explorer.findings.replay import Replay
    from explorer.run.autograd_run import AutogradRun
    from explorer.run.diff import ArtifactDiff, RunDiff
    from explorer.run.kernel_code import KernelCode
    from explorer.run.morph import Morph
    from explorer.run.overlap import Overlap
    from explorer.run.partitions import Partitions
    from explorer.run.patch import Patch
    from explorer.run.ranks import RankRuns
    from explorer.run.tables import Tables


class Run(RecordHolder):
    """One exploration: stages, tables, findings, drawings and files.

    >>> print(run)                           # a summary
    >>> print(run["forward"], run.cards)     # a stage; what to change
    >>> run.kernels[["name", "bytes"]]       # a table
    >>> run.save("run.html")                 # a page that needs no network

    `record` holds all results; `value` is the return value of the explored call.

    Stages and findings print as text. The tables (`run.breaks`, `run.ops`, …) are new DataFrames at each access, so
    changing one does not change the run.

    Stages of machine code (`run["ptx"]`, `run.binaries`) are compiled at the first access, and are then in `record`.
    """

    def __init__(
        self,
        record: Record,
        value: Any = None,
        widget: Any = None,
        *,
        kept: Mapping[str, KeptFrame] | None = None,
        call: Call | None = None,
        calls: Mapping[str, Call] | None = None,
        ranks: Callable[[], Ranks] | None = None,
    ) -> None:
        """`kept` has graphs and inputs by frame, `call` is the explored call, `calls` has the cell's calls by callee,
        `ranks` gives the ranks of a job.

        None of these are saved.
        """
        self._ranks = ranks
        self.value, self.kept, self.call, self.calls = value, kept or {}, call, calls or {}
        self.compiler = KernelCompiler(record) if widget is None else widget.compiler
        self.compiler.replace(record)
        self._widget = widget
        self._selection: tuple[str, ...] = ()
        self._other: KernelCompiler | None = None
        self._levels = RunLevels(self.compiler, self.kept)
        self._xrayed = XRayed(self.compiler, call)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(new_name("run", name) or f"a run has no attribute {name!r}")

    @property
    def _shown(self) -> Record:
        """The record with its findings, which are cached and shared with the live view."""
        return self.compiler.known.look_up(self.record)[1]

    def __getitem__(self, name: str) -> Artifact:
        """The artifact with this id (`forward[0/0]`), or the first of this stage (`forward`, `Forward`).

        Compiles kernels if the stage needs it, and traces graphs for `decomposed`. Raises KeyError.
        """
        key = stage_key(str(name))
        stage = key.partition("[")[0]
        if reason := reason_absent(self.record, key):
            raise KeyError(reason)
        if self.compiler.has_yet_to_make(stage) and all(key != artifact.id for artifact in self.record.artifacts):
            self.compiler.make_of_kernels(stage)
        if stage == "decomposed" and self.kept:
            _ = self._levels.record
        if stage == "memory":
            self._with_eager_memory()
        return self._shown[key]

    def __iter__(self) -> Iterator[Any]:  # a chain rule yields its steps
        """The names of the stages that the run has so far; `run[name]` may make others."""
        return iter(dict.fromkeys(artifact.stage for artifact in self._shown.artifacts))

    def __contains__(self, name: object) -> bool:
        """Whether the run has this stage or artifact so far, by the names that `run[name]` takes."""
        key = stage_key(str(name))
        return any(key in (artifact.id, artifact.stage) for artifact in self._shown.artifacts)

    def _ipython_key_completions_(self) -> list[str]:
        artifacts = self._shown.artifacts
        made = [artifact.stage for artifact in artifacts]
        stages = dict.fromkeys([*made, *self.compiler.pending_stages(), *self.compiler.makes()])
        return [*stages, *(artifact.id for artifact in artifacts)]

    def switch(self, callee: str, listener: Listener | None = None) -> Run:
        """Explore another call of the same cell, by its callee: `run.switch("batch")`.

        The callee's first call is repeated on copies of its arguments. RNG state and buffers are restored, and its
        output is discarded. Other side effects, such as appending to a list or writing a file, happen again; to avoid
        that, run the cell with `--fn`. Returns the new run, and shows it in the live view. Raises KeyError for a callee
        that the cell did not call, and any exception of the call.
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
        run = Run(record, None, self._widget, kept=found.kept, call=found.call, calls=self.calls)
        if self._widget is not None:
            self._widget.update(record)
        return run

    def trust(self) -> Run:
        """Allow the code of a loaded run's kernels to be executed on this machine; returns this run.

        `tcompile.load` and reading the run execute nothing, but compiling its kernels executes code: the source of
        Triton kernels is Python that runs when it is compiled, and the kernel lab builds and runs kernels. The author
        of the file wrote that source. So machine code (`run["ptx"]`, `run.binaries`) and `%%tkernel` raise
        UntrustedError until you call this:

        run = tcompile.load("run.json")
        print(run["kernels"])         # read what would be executed
        print(run.trust()["ptx"])     # you trust whoever made the file

        Even then a kernel is compiled only if it consists of statements that Inductor and our own backend write: known
        imports, functions under `@triton.jit`, constants. `run.tables.problems` lists the refused kernels. A run made
        in this process is trusted.
        """
        self.compiler.trust()
        if self._other is not None:
            self._other.trust()
        return self

    def compile_kernels(self, config: int = 0) -> Run:
        """Compile all Triton kernels to machine code; returns this run.

        `config` is the index of the launch configuration among the autotuning candidates, from 0
        (`run.binaries.configs` is the number of candidates). Nothing is compiled twice. Raises ValueError for an
        invalid index, UntrustedError for a loaded run before `run.trust()`.
        """
        self.compiler.compile(config=config)
        return self

    def kernel(self, name: str) -> KernelCode:
        """The source and facts of the kernel with this name or id. Raises KeyError."""
        from explorer.run.kernel_code import kernel_code

        return kernel_code(self.record, name)

    def linked(self, ids: str | Iterable[str]) -> pd.DataFrame:
        """One row per entity linked to these ids: their origins, and the entities made from them.

        Raises ValueError for an unknown id.
        """
        return _tables().linked_entities(self._shown, self._check_ids(ids))

    @property
    def cards(self) -> Cards:
        """A card for each graph break and recompilation: place, cause, cost, and fix.

        Prints all cards; `run.cards[0]` is the text of the first.
        """
        return all_cards(self.record)

    @property
    def breaks(self) -> pd.DataFrame:
        """One row per graph break: place, cause, graphs around it, fix, torch's message."""
        return _tables().breaks(self.record)

    def xray(self, listener: Callable[[str], None] | None = None, seconds: float = 60.0) -> XRayed:
        """Find all sites of graph breaks, including those hidden behind others.

        print(run.xray())       # also `.sites` and `.table`; `run["xray"]` from then on

        The call is captured repeatedly. Each time, the expressions that broke are replaced by their values, until
        nothing breaks. The user's objects and the RNG state are restored. A site that writes files, starts processes or
        uses the network is only explained, not run. The result is kept in the record: later calls return the same.
        `listener` is called with words on the progress, here and when fixes are tried. Each repetition of the call may
        take `seconds`. Raises ValueError for a run without a call, unless its record has the sites.
        """
        self._xrayed.listener = listener
        return self._xrayed.find_sites(seconds)

    def patch(self, sites: Sequence[str | int] | None = None) -> Patch:
        """The fixes of the x-ray's sites that work together, as a unified diff of your files or cell.

        print(run.patch())          # what the fixes achieve, then the diff
        run.patch(sites=[1, 3])     # the fixes of sites 1 and 3 of `run.xray()`, tried together first

        Tries the fixes first if necessary. `git apply` takes the diff; nothing is changed. If no fix works, there are
        only the lines that say what is left.
        """
        return self._xrayed.patch(sites)

    def diagnose(self, *, try_fixes: bool = True, command: str = "") -> Diagnosis:
        """All that is wrong, ranked: each finding with its place, its cause, an edit as a diff, and the evidence.

        print(run.diagnose())           # `.findings` are plain data, `.patch` is the diff of all that holds

        If the call breaks or recompiles it is x-rayed, and fixes are tried, unless `try_fixes` is False. `command` are
        the words after `tcompile diagnose` that made this run, for what to run next.
        """
        from explorer.run.diagnose import diagnose_run

        return diagnose_run(self, try_fixes=try_fixes, command=command)

    @property
    def guards(self) -> pd.DataFrame:
        """One row per guard: argument, check in words, line that installed it, failures."""
        return _tables().guards(self.record)

    @property
    def recompiles(self) -> pd.DataFrame:
        """One row per recompilation: its argument, the old and new value, the call, a fix."""
        return _tables().recompiles(self.record)

    @property
    def collectives(self) -> pd.DataFrame:
        """One row per collective of this rank: kind, group, exact bytes in and out, line, estimated time."""
        return _tables().collectives(self.record)

    @property
    def ops(self) -> pd.DataFrame:
        """Number of calls of each op (rows) in each stage (columns)."""
        return _tables().ops(self.record)

    @overload
    def decompose(self) -> RunLevels: ...
    @overload
    def decompose(self, name: str) -> LevelArtifacts | OpLevels: ...
    def decompose(self, name: str = "") -> RunLevels | LevelArtifacts | OpLevels:
        """Decompose the run's graphs, or one of their calls, from torch's functions to prims.

        run.decompose()                 # each graph at each level, against eager; `.table` and `.operators`
        run.decompose("prims")          # the graphs at a level: "torch", "ATen", "core ATen", "Inductor" or "prims"
        run.decompose("captured.gelu")  # one call at each level, on the values it had in this run

        A call is named by its id (`captured[0/0].gelu`) or its stage and name. Raises ValueError for an unknown level,
        or for a loaded run, whose graphs are only text; KeyError for an unknown call; LevelError (a RuntimeError) if
        the node calls nothing or its graph was not kept; OperatorError (a ValueError) for an operator of another
        device.
        """
        if not name:
            return self._levels
        return self._levels.decompose_call(name) if "." in name else self._levels.at_level(name)

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per generated kernel: kind, calls, bytes per call, lines, registers, and more.

        Facts of the binaries are NA until the kernels are compiled.
        """
        return _tables().kernels(self.record)

    @property
    def binaries(self) -> pd.DataFrame:
        """One row per compiled kernel: registers, spills, occupancy, roofline, instructions.

        The kernels are compiled at the first access.
        """
        return _tables().binaries(self.compile_kernels().record)

    @property
    def tables(self) -> Tables:
        """All tables of the run: `run.tables.frames`; `print(run.tables)` lists them.

        Each access returns a new DataFrame, so changing one does not change the run.
        """
        return _tables().Tables(self)

    @property
    def timing(self) -> Timing:
        """Measured and estimated times, and methods to measure. Prints whether compiling pays off."""
        return Timing(self)

    @property
    def memory(self) -> Memory:
        """Memory use over a call: `steps`, `peak`, `plot()`, `trace(call)`. Prints a summary."""
        return Memory(self)

    @property
    def overlap(self) -> Overlap:
        """Communication beside compute, by estimates; `compare()` tries Inductor's passes on it. Prints a report."""
        from explorer.run.overlap import Overlap

        return Overlap(self)

    @property
    def fusion(self) -> Fusion:
        """Kernel fusion: `kernels` and `unfused` are tables. Prints the rounds of fusion."""
        return Fusion(self)

    @cached_property
    def ranks(self) -> RankRuns:
        """The ranks of a job: which were simulated or recorded, which are equal, and which wait for each other.

        `run.ranks[7]` is the run of rank 7, `.table` a DataFrame. In a real job, rank 0 gathers the records that the
        other ranks made of this call, and waits for them. Raises ValueError for a run without a process group.
        """
        from explorer.run.ranks import rank_runs

        return rank_runs(self.record, self._ranks() if self._ranks is not None else None, Run)

    @property
    def advice(self) -> AdviceList:
        """Advice to speed up the call or its compilation, with evidence, by expected gain.

        Prints as text. `table` is a DataFrame, and `run.advice[0]` the first finding as plain data.
        `run.advice.measure(0)` makes the change of the first finding, and times the call with and without the change.
        Numbers are measured if the run was timed (`--time`), otherwise they are marked as estimates.
        """
        from explorer.findings.advice.adviser import AdviceList

        return AdviceList(self.record, self.compiler.grow, self.call)

    def _with_eager_memory(self) -> Record:
        from compiler.autograd.eager_memory import with_eager_memory

        return self.compiler.grow(lambda record: with_eager_memory(record, self.kept))

    @cached_property
    def partitions(self) -> Partitions:
        """Other partitions into forward and backward: `.table()`, `.plot()`, `.control()`.

        They need the run's graphs, which a loaded run does not have.
        """
        from explorer.run.partitions import Partitions

        return Partitions(self.kept)

    @property
    def autograd(self) -> AutogradRun:
        """The autograd graphs of the captured graphs, with tables `nodes`, `saved` and `leaves`."""
        from explorer.run.autograd_run import AutogradRun

        stages = ("source", "captured", "autograd")
        kept = tuple(artifact for artifact in self.record.artifacts if artifact.stage in stages)
        return AutogradRun(self.record.with_fields(artifacts=kept), self.value)

    def replay(self) -> Replay:
        """TorchDynamo's trace of the code, step by step. Raises ValueError without `--step`."""
        from explorer.findings.replay import Replay

        return Replay(self.record)

    def drawing(self, name: str = "captured", depth: int | None = None, direction: str = "TB") -> Digraph:
        """Draw a stage's graph, grouped by module: `run.drawing("forward").render("forward.pdf")`.

        `depth` is the number of expanded module levels; by default as many as are readable. `direction` is `TB` (top to
        bottom) or `LR`. Raises KeyError for an unknown stage, ValueError for a stage that is not a graph.
        """
        from explorer.render.drawing import drawing

        return drawing(self.record, self[name], depth=depth, direction=direction)

    def morph(self, graph: str = "") -> Morph:
        """One graph on its way from eager mode to kernels, as a page with a slider or as SVG frames.

        print(run.morph())                 # what each state counts: nodes, launches, bytes
        run.morph().save("morph.html")     # eager, joint, cut, decomposed, fused
        run.morph().frames("slides")       # one SVG for each state

        By default it is the graph with most nodes. Raises ValueError for an unknown graph, or if the run has no graph
        of AOTAutograd.
        """
        from explorer.run.morph import Morph

        return Morph(self.record, graph)

    @overload
    def diff(self, other: str) -> ArtifactDiff: ...
    @overload
    def diff(self, other: Run | Record | None = None) -> RunDiff: ...
    def diff(self, other: Run | Record | str | None = None) -> RunDiff | ArtifactDiff:
        """Compare this run (`-`) with another (`+`), stage by stage.

        The diff has changed breaks, guards and recompilations, merged graphs, each stage's text, op counts, and
        kernels.

        run.diff(other)   # another exploration: before and after a fix, or for two GPUs
        run.diff()        # another backend's code for the same call (`--vs`)
        run.diff("0/1")   # the captured graph of a recompilation, and that of the closest cache entry

        Machine code is compared on request: `diff["ptx"]`, `diff.kernels`. `run.diff().widget()` shows both sides.
        Raises ValueError for `diff()` of a run without `--vs`, KeyError for an unknown recompilation.
        """
        from explorer.run.diff import RunDiff, recompile_diff

        if isinstance(other, str):
            return recompile_diff(self.record, other)
        if other is None:
            return RunDiff(self.compiler, self._other_side())
        return RunDiff(self.compiler, other.compiler if isinstance(other, Run) else KernelCompiler(other))

    def _other_side(self) -> KernelCompiler:
        if self.record.versus is None:
            raise ValueError('this run has one side: explore with vs="inductor" (--vs inductor) to have another')
        if self._other is None:
            self._other = KernelCompiler(self.record.versus)
        return self._other

    def save(self, path: str | Path, *, stage: str = "", as_graph: bool = False) -> Path:
        """Save as `.html` (one interactive page, no network needed) or `.json` (data), atomically.

        run.save("captured.html", stage="captured", as_graph=True)  # one stage, small, for an <iframe>

        A page of one stage opens as a text, or as a drawing with `as_graph`; it does not hold the run. Returns the
        path. Raises ValueError for another suffix or an unknown stage, OSError if the file can't be written.
        """
        if stage:
            return files.write_stage(self.record, path, stage, as_graph=as_graph)
        return files.write(self.record, path)

    def widget(self) -> Any:
        """The live view of this run, made at the first call and then reused."""
        if self._widget is None:
            from explorer.run.widget import Explorer

            self._widget = Explorer(self.compiler) if self.record.versus is None else self.diff().widget()
            self._widget.selection = list(self._selection)
        return self._widget

    @property
    def selection(self) -> tuple[str, ...]:
        """Ids of the selected entities, shared with the widget; set it to select from Python.

        Setting it raises ValueError for an unknown id.
        """
        return tuple(self._widget.selection) if self._widget is not None else self._selection

    @selection.setter
    def selection(self, ids: str | Iterable[str]) -> None:
        self._selection = self._check_ids(ids)
        if self._widget is not None:
            self._widget.selection = list(self._selection)

    def _check_ids(self, ids: str | Iterable[str]) -> tuple[str, ...]:
        """Return these ids as a tuple. Raises ValueError for an id that the record does not have."""
        chosen = (ids,) if isinstance(ids, str) else tuple(ids)
        known = {entity.id for entity in self._shown.entities()}
        unknown = next((entity_id for entity_id in chosen if entity_id not in known), None)
        if unknown is not None:
            raise ValueError(f"no entity has the id {unknown!r}{did_you_mean(unknown, sorted(known))}")
        return chosen

    def __str__(self) -> str:
        return text.summary(self.record)

    def __repr__(self) -> str:
        stages = len({artifact.stage for artifact in self.record.artifacts})
        return f"<Run {self.record.title or 'tcompile'}: {pluralize(stages, 'stage')}; print(run) for a summary>"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Text, and static HTML without scripts. The widget is a separate output."""
        from explorer.run.static_view import twin

        return {"text/plain": str(self), "text/html": twin(self.record)}

    def _ipython_display_(self) -> None:
        """Display static HTML, then the widget, whose script hides the HTML; a saved notebook shows the HTML."""
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        display(self._repr_mimebundle_(), raw=True)
        if getattr(get_ipython(), "kernel", None) is not None:
            display(self.widget())


def _tables() -> Any:
    """The `tables` module, imported lazily because importing pandas takes longer than reading a record."""
    from explorer.run import tables

    return tables
