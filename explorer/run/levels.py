"""A run's graphs at each level, made when they are asked for, and in its record from then on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from compiler.decompose.levels import LEVELS, level_named
from compiler.record import Artifact, Entity, Problem, Record
from compiler.record.builder import in_pipeline_order
from explorer.run.compiling import Maker

if TYPE_CHECKING:
    import pandas as pd

    from compiler.calls.kept_graphs import KeptFrame
    from compiler.decompose.graphs import LevelGraphs as Graphs
    from explorer.findings.decompose.op_levels import OpLevels

COLUMNS = {
    "graph": "string",
    "level": "category",
    "half": "category",
    "ops": "Int64",
    "different": "Int64",
    "dtype": "string",
    "tensors": "Int64",
    "max_absolute": "float64",  # not Float64: pandas shows its 1e-7 as 0.0
    "max_relative": "float64",
    "tolerance": "Float64",
    "verdict": "category",
    "note": "string",
    "id": "string",
}
_CHECKED = ("dtype", "max_absolute", "max_relative", "tolerance", "verdict", "note")
_GETITEM = "operator.getitem"
_NOT_KEPT = (
    "the levels of this run can't be made: a saved record has the text of its graphs, and neither the graphs nor the "
    "inputs to trace them again. Explore with stages=[..., 'decomposed'] (--stages) to have them in the record."
)


class LevelArtifacts(tuple[Artifact, ...]):
    """The graphs of a run at one level. Prints as their texts, one after the other."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"# {artifact.id}: {artifact.title}\n{artifact.text}" for artifact in self)

    __repr__ = __str__


class RunLevels:
    """Makes the levels of a run's captures, each once."""

    def __init__(self) -> None:
        self._graphs: dict[str, Graphs] = {}

    def grown(self, record: Record, kept: Mapping[str, KeptFrame]) -> Record:
        """The record with its graphs at every level; the same record if it has them, or could not have them.

        Raises ValueError for a record that was loaded without them.
        """
        left = _left(record)
        if not left:
            return record
        if not kept:
            raise ValueError(_NOT_KEPT)
        for captured in left:
            record = self._with(record, captured, kept)
        return record

    def _with(self, record: Record, captured: Artifact, kept: Mapping[str, KeptFrame]) -> Record:
        from compiler.decompose.graphs import LevelError

        try:
            found = self.graphs(captured, kept).artifacts()
        except LevelError as error:
            return record.with_fields(
                problems=(*record.problems, Problem("decomposed", str(error), graph=captured.graph))
            )
        return record.with_fields(artifacts=tuple(in_pipeline_order([*record.artifacts, *found])))

    def graphs(self, captured: Artifact, kept: Mapping[str, KeptFrame]) -> Graphs:
        """The graphs of one capture at every level. Raises LevelError."""
        from compiler.decompose.graphs import LevelError, LevelGraphs

        frame = captured.graph
        if frame not in kept:
            raise LevelError(_NOT_KEPT)
        if frame not in self._graphs:
            self._graphs[frame] = LevelGraphs(frame, kept[frame], captured)
        return self._graphs[frame]

    def op_levels(self, record: Record, kept: Mapping[str, KeptFrame], name: str) -> OpLevels:
        """The call that an entity of a graph stands for, at each level, on this run's values.

        Raises KeyError where no entity has that name, LevelError where it calls nothing or its graph was not kept,
        OperatorError where its call can't be repeated here.
        """
        from compiler.decompose.node_call import frame_of, node_call
        from compiler.decompose.one_op import decompose_call
        from explorer.findings.decompose.op_levels import OpLevels

        artifact, entity = entity_named(record, name)
        frame = frame_of(artifact, kept)
        half = None
        if artifact.stage == "decomposed":
            captured = next(item for item in record.of_stage("captured") if item.graph == artifact.graph)
            half = self.graphs(captured, kept).half(artifact.id)
        call = node_call(entity, artifact, frame, half)
        return OpLevels(decompose_call(call.name, call.function, call.args, call.kwargs, call.note))


def _left(record: Record) -> list[Artifact]:
    """The captured graphs whose levels nobody has tried to make yet."""
    problems = [problem for problem in record.problems if problem.stage == "decomposed"]
    known = {artifact.graph for artifact in record.of_stage("decomposed")} | {problem.graph for problem in problems}
    return [artifact for artifact in record.of_stage("captured") if artifact.graph not in known and "" not in known]


def tree_of(levels: RunLevels, record: Record, kept: Mapping[str, KeptFrame], entity: str) -> str:
    """A call at each level as text, or why it can't be had."""
    from compiler.decompose.graphs import LevelError
    from compiler.decompose.operators import OperatorError

    try:
        return str(levels.op_levels(record, kept, entity))
    except (KeyError, LevelError, OperatorError) as error:
        return str(error.args[0]) if error.args else type(error).__name__


def levels_maker(levels: RunLevels, kept: Mapping[str, KeptFrame]) -> Maker:
    """What makes the levels when the live view asks for them; of graphs that were kept."""
    return Maker(
        lambda record: sum(artifact.graph in kept for artifact in _left(record)),
        lambda record: levels.grown(record, kept),
    )


def entity_named(record: Record, name: str) -> tuple[Artifact, Entity]:
    """The entity with this id (`forward[0/0].gelu_1`), or named by its stage (`forward.gelu_1`).

    Raises KeyError that names the nearest, or the calls of a function of that name.
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
            near += _near(artifact, label, prefix)
    meant = f": did you mean {', '.join(near[:4])}?" if near else ""
    raise KeyError(f"no entity {name!r}{meant or ': name one by its id (captured[0/0].add) or stage (captured.add)'}")


def _near(artifact: Artifact, label: str, prefix: str) -> list[str]:
    """Calls of a function of that name, or else labels that are spelled nearly so."""
    calls = [entity for entity in artifact.entities if entity.kind == "call"]
    named = [entity.label for entity in calls if label in str(entity.attrs.get("target", "")).split(".")]
    close = named or get_close_matches(label, [entity.label for entity in calls], n=2)
    return [f"{prefix}{other}" for other in close]


def at_level(record: Record, name: str) -> LevelArtifacts:
    """The graphs of a record at a level; `torch` are the captured graphs. Raises ValueError for another level, and
    where the record has none at this one, with why.
    """
    level = level_named(name)
    found = record.of_stage("captured") if level == "torch" else _of_level(record, level)
    if not found:
        problems = [problem.reason for problem in record.problems if problem.stage == "decomposed"]
        raise ValueError(problems[0] if problems else f"this run has no graph at level {level}")
    return LevelArtifacts(found)


def _of_level(record: Record, level: str) -> tuple[Artifact, ...]:
    return tuple(artifact for artifact in record.of_stage("decomposed") if artifact.attrs.get("level") == level)


def levels(record: Record) -> pd.DataFrame:
    """One row a graph at a level: calls, different operators, and its numbers against eager's, dtype by dtype.

    `half` is "forward", "backward" or "inference", "" for the captured graph, which is both. `max_relative` and
    `tolerance` are to the largest magnitude of each tensor; numbers are those of both halves together.
    """
    import pandas as pd

    rows = [row for artifact in _levelled(record) for row in _rows(artifact)]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _levelled(record: Record) -> Iterator[Artifact]:
    for frame in record.of_stage("captured"):
        yield frame
        yield from (artifact for artifact in record.of_stage("decomposed") if artifact.graph == frame.graph)


def _rows(artifact: Artifact) -> Iterator[dict[str, Any]]:
    counts = level_ops_of(artifact)
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


def level_ops_of(artifact: Artifact) -> Counter[str]:
    """How often a graph calls each operator; what takes one result out of several is no operator."""
    names = (str(entity.attrs.get("target") or entity.label) for entity in artifact.entities if entity.kind == "call")
    return Counter(name for name in names if name != _GETITEM)


def level_ops(record: Record) -> pd.DataFrame:
    """How often each operator (rows) is called at each level (columns), all graphs together; most often first."""
    import pandas as pd

    found: dict[str, Counter[str]] = {level: Counter() for level in LEVELS}
    for artifact in _levelled(record):
        found[artifact.attrs.get("level", LEVELS[0])].update(level_ops_of(artifact))
    table = pd.DataFrame(found, columns=pd.Index(LEVELS, name="level"), dtype="Int64").fillna(0)
    table.index.name = "op"
    return table.loc[_most_first(table.index, found.values())]


def _most_first(names: Iterable[str], counts: Iterable[Counter[str]]) -> list[str]:
    most = {name: max(count[name] for count in counts) for name in names}
    return sorted(most, key=lambda name: (-most[name], name))
