"""A run's graphs at each decomposition level, traced lazily and then kept in its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from compiler.decompose.levels import LEVELS, level_named
from compiler.record import Artifact, Entity, Problem, Record
from compiler.record.builder import in_pipeline_order
from explorer.reading.columns import columns
from explorer.run.compiling import KernelCompiler, Maker

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.kept_graphs import KeptFrame
    from compiler.decompose.graphs import LevelGraphs
    from explorer.findings.decompose.op_levels import OpLevels

COLUMNS = columns(
    ("string", "graph"),
    ("category", "level half"),
    ("Int64", "ops different"),
    ("string", "dtype"),
    ("Int64", "tensors"),
    ("float64", "max_absolute max_relative"),  # not Float64: pandas shows its 1e-7 as 0.0
    ("Float64", "tolerance"),
    ("category", "verdict"),
    ("string", "note id"),
)
_CHECKED = ("dtype", "max_absolute", "max_relative", "tolerance", "verdict", "note")
_GETITEM = "operator.getitem"
_NOT_KEPT = (
    "the levels of this run can't be made: a saved record has the text of its graphs, and neither the graphs nor the "
    "inputs to trace them again. Explore with stages=[..., 'decomposed'] (--stages) to have them in the record."
)


class LevelArtifacts(tuple[Artifact, ...]):
    """The graphs of a run at one level. Prints their texts one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"# {artifact.id}: {artifact.title}\n{artifact.text}" for artifact in self)

    __repr__ = __str__


class RunLevels:
    """The graphs of a run at every level: `table` compares them with eager, `operators` counts their calls.

    The graphs are traced at the first access, with the sizes of the run's first call, and are then in the record and
    the live view as stage `decomposed`. `run.decompose("prims")` returns the graphs of one level, and
    `run.decompose("captured.gelu")` one call at each level.
    """

    def __init__(self, compiler: KernelCompiler, kept: Mapping[str, KeptFrame]) -> None:
        self._compiler, self._kept = compiler, kept
        self._graphs: dict[str, LevelGraphs] = {}
        compiler.makers["decomposed"] = Maker(
            lambda record: sum(artifact.graph in kept for artifact in _unmade(record)), self._grow
        )
        compiler.tree = self._tree if kept else None

    @property
    def record(self) -> Record:
        """The record with its graphs at every level. Raises ValueError for a record loaded without them."""
        return self._compiler.grow(self._grow)

    @property
    def table(self) -> pd.DataFrame:
        """One row per graph, level and dtype: calls, distinct operators, and errors against eager.

        `half` is "forward", "backward" or "inference", "" for the captured graph, which has both. `max_relative` and
        `tolerance` are relative to the largest magnitude of each tensor. Errors are those of forward and backward
        together.
        """
        from explorer.reading.data_frames import frame_of

        rows = [row for artifact in _graphs_by_level(self.record) for row in _rows(artifact)]
        return frame_of(rows, COLUMNS)

    @property
    def operators(self) -> pd.DataFrame:
        """Number of calls of each operator (rows) at each level (columns) in all graphs, most frequent first."""
        from explorer.reading.data_frames import count_table

        found: dict[str, Counter[str]] = {level: Counter() for level in LEVELS}
        for artifact in _graphs_by_level(self.record):
            found[artifact.attrs.get("level", LEVELS[0])].update(count_operators(artifact))
        return count_table(found, "level")

    def at_level(self, name: str) -> LevelArtifacts:
        """The graphs at a level; for "torch", the captured graphs.

        Raises ValueError for an unknown level, or with the reason if the record has no graph at this level.
        """
        level, record = level_named(name), self.record
        found = [
            artifact
            for artifact in record.of_stage("captured" if level == "torch" else "decomposed")
            if level == "torch" or artifact.attrs.get("level") == level
        ]
        if not found:
            problems = [problem.reason for problem in record.problems if problem.stage == "decomposed"]
            raise ValueError(problems[0] if problems else f"this run has no graph at level {level}")
        return LevelArtifacts(found)

    def decompose_call(self, name: str) -> OpLevels:
        """Decompose one call of a graph, named by its entity, at each level, on this run's values.

        Raises KeyError for an unknown entity, LevelError if it calls nothing or its graph was not kept, OperatorError
        if the call can't be repeated here.
        """
        from compiler.decompose.node_call import frame_of, node_call
        from compiler.decompose.one_op import decompose_call
        from explorer.findings.decompose.op_levels import OpLevels

        record = self._compiler.record
        artifact, entity = entity_named(record, name)
        frame = frame_of(artifact, self._kept)
        half = None
        if artifact.stage == "decomposed":
            captured = next(item for item in record.of_stage("captured") if item.graph == artifact.graph)
            half = self._graphs_of(captured).half(artifact.id)
        call = node_call(entity, artifact, frame, half)
        return OpLevels(decompose_call(call.name, call.function, call.args, call.kwargs, call.note))

    def _grow(self, record: Record) -> Record:
        unmade = _unmade(record)
        if unmade and not self._kept:
            raise ValueError(_NOT_KEPT)
        for captured in unmade:
            record = self._with_graphs_of(record, captured)
        return record

    def _with_graphs_of(self, record: Record, captured: Artifact) -> Record:
        from compiler.decompose.graphs import LevelError

        try:
            found = self._graphs_of(captured).artifacts()
        except LevelError as error:
            problem = Problem("decomposed", str(error), graph=captured.graph)
            return record.with_fields(problems=(*record.problems, problem))
        return record.with_fields(artifacts=tuple(in_pipeline_order([*record.artifacts, *found])))

    def _graphs_of(self, captured: Artifact) -> LevelGraphs:
        """The graphs of one capture at every level. Raises LevelError."""
        from compiler.decompose.graphs import LevelError, LevelGraphs

        frame = captured.graph
        if frame not in self._kept:
            raise LevelError(_NOT_KEPT)
        if frame not in self._graphs:
            self._graphs[frame] = LevelGraphs(frame, self._kept[frame], captured)
        return self._graphs[frame]

    def _tree(self, entity: str) -> str:
        """A call at each level as text, or the reason why it can't be decomposed."""
        from compiler.decompose.graphs import LevelError
        from compiler.decompose.operators import OperatorError

        try:
            return str(self.decompose_call(entity))
        except (KeyError, LevelError, OperatorError) as error:
            return str(error.args[0]) if error.args else type(error).__name__

    def __str__(self) -> str:
        return self.table.to_string(index=False)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return str(self.table.to_html(index=False, border=0))


def _unmade(record: Record) -> list[Artifact]:
    """The captured graphs that have not been decomposed or tried yet."""
    problems = [problem for problem in record.problems if problem.stage == "decomposed"]
    known = {artifact.graph for artifact in record.of_stage("decomposed")} | {problem.graph for problem in problems}
    return [artifact for artifact in record.of_stage("captured") if artifact.graph not in known and "" not in known]


def entity_named(record: Record, name: str) -> tuple[Artifact, Entity]:
    """The entity with this id (`forward[0/0].gelu_1`), or with its stage as prefix (`forward.gelu_1`).

    Raises KeyError with similar names, or with the calls of a function of that name.
    """
    near: list[str] = []
    for artifact in record.artifacts:
        for prefix in (f"{artifact.id}.", f"{artifact.stage}."):
            if not name.startswith(prefix):
                continue
            label = name.removeprefix(prefix)
            found = next((entity for entity in artifact.entities if entity.label == label), None)
            if found is not None:
                return artifact, found
            near += _near_names(artifact, label, prefix)
    meant = f": did you mean {', '.join(near[:4])}?" if near else ""
    raise KeyError(f"no entity {name!r}{meant or ': name one by its id (captured[0/0].add) or stage (captured.add)'}")


def _near_names(artifact: Artifact, label: str, prefix: str) -> list[str]:
    """Suggestions for an unknown `label`: calls of the function with this name, or else calls with similar labels."""
    calls = [entity for entity in artifact.entities if entity.kind == "call"]
    named = [entity.label for entity in calls if label in str(entity.attrs.get("target", "")).split(".")]
    close = named or get_close_matches(label, [entity.label for entity in calls], n=2)
    return [f"{prefix}{other}" for other in close]


def _graphs_by_level(record: Record) -> Iterator[Artifact]:
    for frame in record.of_stage("captured"):
        yield frame
        yield from (artifact for artifact in record.of_stage("decomposed") if artifact.graph == frame.graph)


def _rows(artifact: Artifact) -> Iterator[dict[str, Any]]:
    counts = count_operators(artifact)
    row = {
        "graph": artifact.graph,
        "level": artifact.attrs.get("level", LEVELS[0]),
        "half": artifact.half,
        "ops": sum(counts.values()),
        "different": len(counts),
    }
    for check in artifact.attrs.get("numbers_against_eager") or [{}]:
        checked = {name: check.get(name) for name in _CHECKED}
        yield row | checked | {"tensors": check.get("count"), "id": artifact.id}


def count_operators(artifact: Artifact) -> Counter[str]:
    """Number of calls of each operator in a graph, without `getitem`."""
    names = (str(entity.attrs.get("target") or entity.label) for entity in artifact.entities if entity.kind == "call")
    return Counter(name for name in names if name != _GETITEM)
