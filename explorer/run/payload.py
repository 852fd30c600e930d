"""The data for the front end: a small manifest, and compressed parts of artifacts that it requests.

A part is zlib-compressed JSON: `entities` (entities and the line map), `text` (text and shown line numbers), `view`
(the data of a finding's view) and `decisions` (decisions of passes about the artifact's entities). The manifest has a
digest of every part, so a front end can tell which parts it lacks. The same record gives the same bytes. A part
`words` explains words in an artifact's text (instructions, functions); it is made on request, and a page has one for
each language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from compiler.record import Artifact, Decision, Frame, GraphBreak, Problem, Record
from explorer.findings import Finding, KnownFindings, views
from explorer.findings.breaks import break_id
from explorer.findings.timing.heat import source_heat
from explorer.findings.timing.measured import add_measured_times
from explorer.findings.versus import names_of, totals
from explorer.reading.kernel_table import list_of_kernels
from explorer.reading.placements import add_placed_lines
from explorer.reading.sites import break_count, break_of, graphs_of, problem_groups, recompile_count
from explorer.reading.source_lines import SourceLines
from explorer.reading.source_marks import source_marks
from explorer.reading.stacks import folded_rows, names_of_stacks, stacks_of
from explorer.reading.stages import stage_place, stage_words, stages_not_in_log
from explorer.render.finding import COUNT
from explorer.run.both_sides import SIDE
from explorer.run.payload_part import Part, words_part

#: Number of context rows above the row where a source is opened.
ROWS_ABOVE: Final = 3


def artifact_parts(artifact: Artifact, finding: Finding | None = None) -> dict[str, Part]:
    """The parts of an artifact; a finding also has the data of its view."""
    stacks = stacks_of(artifact)
    entities: dict[str, Any] = {"entities": artifact.entities, "lines": artifact.lines}
    text: dict[str, Any] = {"text": artifact.text, "numbers": artifact.attrs.get("numbers")}
    if stacks:
        entities["stacks"], text["folds"] = names_of_stacks(stacks), folded_rows(artifact, stacks)
    parts = {"entities": entities, "text": text} | ({"view": finding.data} if finding and finding.view else {})
    return {name: Part.pack(artifact.id, name, content) for name, content in parts.items()}


@dataclass
class Payload:
    """A record's data for the front end. When the record grows, parts already made are reused."""

    record: Record
    known: KnownFindings = field(default_factory=KnownFindings)
    _made: dict[str, tuple[Artifact | Finding, dict[str, Part]]] = field(default_factory=dict)
    _findings: dict[str, Finding] = field(default_factory=dict)
    _decisions: dict[str, Part] = field(default_factory=dict)
    _starts: dict[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    makes: Mapping[str, int] = field(default_factory=dict)
    trees: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.update(self.record)

    def update(self, record: Record) -> None:
        """Take a new version of the record, with its findings; only changed parts are compressed again."""
        found, shown = self.known.look_up(record)
        self._findings = {finding.artifact.id: finding for finding in (*views(record), *found)}
        self.record = add_placed_lines(add_measured_times(shown))
        for artifact in self.record.artifacts:
            finding = self._findings.get(artifact.id)
            known, now = self._made.get(artifact.id), finding or artifact
            if known is None or (known[0] is not now and known[0] != now):
                self._made[artifact.id] = (now, artifact_parts(artifact, finding))
        self._decisions = decision_parts(record)
        self._starts = source_starts(record)

    def parts_of(self, artifact: str) -> dict[str, Part]:
        """The parts of an artifact by name. Raises KeyError if the record has no such artifact."""
        parts = self._made[artifact][1]
        decisions = self._decisions.get(artifact)
        return parts | {"decisions": decisions} if decisions else parts

    def part(self, artifact: str, name: str) -> Part | None:
        """A part by name, or None if the record does not have it."""
        if artifact not in self._made:
            return None
        return words_part(self._shown_artifact(artifact)) if name == "words" else self.parts_of(artifact).get(name)

    def _shown_artifact(self, artifact: str) -> Artifact:
        made = self._made[artifact][0]
        return made.artifact if isinstance(made, Finding) else made

    def parts(self) -> Iterable[Part]:
        """All parts, with artifacts in pipeline order."""
        for artifact in self.record.artifacts:
            yield from self.parts_of(artifact.id).values()

    def keep_only(self, artifacts: Sequence[Artifact]) -> None:
        """Drop all other artifacts. These may have other entities than the record's artifacts with their ids."""
        for artifact in artifacts:
            parts = artifact_parts(artifact, self._findings.get(artifact.id))
            self._made[artifact.id] = (artifact, parts)
        self._made = {artifact.id: self._made[artifact.id] for artifact in artifacts}
        self.record = self.record.with_fields(artifacts=tuple(artifacts))

    def manifest(self) -> dict[str, Any]:
        """The data that the front end shows before any part has arrived: JSON values, without texts of artifacts."""
        record = self.record
        sources = record.of_stage("source")
        marks = source_marks(record)
        return {
            "title": record.title if record.origin == "observed" else record.full_title,
            "explored": None if record.explored is None else msgspec.to_builtins(record.explored),
            "options": msgspec.to_builtins(record.options),
            "environment": msgspec.to_builtins(record.environment),
            "home": [artifact.id for artifact in sorted(sources, key=interest(record, marks["landed"]))],
            "target": record.target,
            "compare": compared_first(record),
            "first": opened_first(record),
            "versus": versus_table(record),
            "trees": self.trees,
            "stages": [self._stage(name) for name in stage_names(record, [*self.pending, *self.makes])],
            "absent": ", ".join(stages_not_in_log(record)),
            "breaks": [msgspec.to_builtins(item) for item in record.breaks],
            "frames": [msgspec.to_builtins(frame) for frame in record.frames],
            "kernels": kernel_counts(record),
            "decisions": decision_counts(record),
            "guards": len(record.guards),
            "recompiles": len(record.recompiles),
            "counts": {"breaks": break_count(record.breaks), "recompiles": recompile_count(record.recompiles)},
            **marks,
            "heat": source_heat(record),
        }

    def _stage(self, name: str) -> dict[str, Any]:
        artifacts = self.record.of_stage(name)
        words = stage_words(name)
        sides = Counter[str]()
        for artifact in artifacts:
            sides[artifact.attrs.get(SIDE, "")] += count_shown(artifact, words.kinds)
        count: float = sides.total()
        both = len(sides) > 1 and "" not in sides
        unit = singular(words.unit) if count == 1 else words.unit
        told = next((str(artifact.attrs[COUNT]) for artifact in artifacts if COUNT in artifact.attrs), "")
        if told and not both:
            number, _, unit = told.partition(" ")
            count = (float if "." in number else int)(number.replace(",", ""))
        return {
            "name": name,
            "title": words.title,
            "about": words.about,
            "group": words.group,
            "count": count,
            "sides": [*sides.values()] if both else [],
            "unit": unit,
            "seconds": None if both else stage_seconds(self.record, name),
            "problems": [_problem(group, self.record) for group in problem_groups(self.record, name)],
            "artifacts": [self._artifact(artifact) for artifact in artifacts],
            "pending": self.pending.get(name, 0) or self.makes.get(name, 0),
            "makes": words.ask if name in self.makes else "",
            "list": list_of_kernels(self.record) if name == "kernels" else None,
        }

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        parts = self.parts_of(artifact.id)
        finding = self._findings.get(artifact.id)
        return {
            "id": artifact.id,
            "stage": artifact.stage,
            "title": artifact.title,
            "language": artifact.language,
            "graph": artifact.graph,
            "lines": artifact.text.count("\n") + (not artifact.text.endswith("\n")),
            "chars": len(artifact.text),
            "entities": len(artifact.entities),
            "drawable": artifact.stage != "bytecode" and any(entity.inputs for entity in artifact.entities),
            "start": self._starts.get(artifact.id) or first_line_to_read(artifact),
            "operations": sum(entity.kind == "call" for entity in artifact.entities),
            "level": level_of(artifact, self.record),
            "half": artifact.half,
            "side": artifact.attrs.get("side", ""),
            "pair": artifact.attrs.get("pair", ""),
            "view": finding.view if finding else "",
            "opens": finding.opens if finding else "",
            "parts": {name: {"digest": part.digest, "bytes": len(part.data)} for name, part in parts.items()},
        }


def manifest(record: Record) -> dict[str, Any]:
    """The manifest of a complete record."""
    return Payload(record).manifest()


def stage_names(record: Record, pending: Iterable[str] = ()) -> list[str]:
    """The present, pending and failed stages of a record, in pipeline order; unknown stages keep their position.

    Stages that no log has are left out: `absent` names them in one line.
    """
    present = list(dict.fromkeys(artifact.stage for artifact in record.artifacts))
    expected = [*(problem.stage for problem in record.problems if not problem.is_of_all_logs), *pending]
    missing = [stage for stage in expected if stage not in present]
    for stage in dict.fromkeys(missing):
        present.insert(stage_place(stage, present), stage)
    return present


def level_of(artifact: Artifact, record: Record) -> str:
    """The decomposition level of a graph, "torch" for a captured graph that was decomposed, "" if it has none."""
    if artifact.stage == "captured" and any(each.graph == artifact.graph for each in record.of_stage("decomposed")):
        return "torch"
    return str(artifact.attrs.get("level", ""))


def _problem(group: Sequence[Problem], record: Record) -> dict[str, Any]:
    """Equal problems of a stage as JSON values, with the id of the break whose card explains them, or ""."""
    found, graphs = break_of(group[0], record), graphs_of(group)
    card = break_id(found) if found is not None else ""
    reason = f"{graphs}: {group[0].reason}" if graphs else group[0].reason
    return msgspec.to_builtins(group[0]) | {"reason": reason, "card": card}


def singular(unit: str) -> str:
    """The singular of a unit: `launch` for `launches`, `op` for `ops`."""
    return unit.removesuffix("es") if unit.endswith("ches") else unit.removesuffix("s")


def count_shown(artifact: Artifact, kinds: frozenset[str]) -> int:
    """Number of entities of these kinds; without kinds, the artifact's `count`, else its number of lines."""
    if not kinds and "count" in artifact.attrs:
        return int(artifact.attrs["count"])
    if not kinds:
        return len(artifact.text.splitlines())
    return sum(entity.kind in kinds for entity in artifact.entities)


def stage_seconds(record: Record, stage: str) -> float | None:
    """Time spent making a stage's artifacts, in seconds; None if not measured."""
    subjects = {stage, *(artifact.id for artifact in record.of_stage(stage))}
    measured = [item.seconds for item in record.timings if item.subject in subjects and item.what == "compile"]
    return sum(measured) if measured else None


def opened_first(record: Record) -> list[str]:
    """Stages or artifacts to open first, each in a pane, such as the kernels of both backends; [] for no preference."""
    if record.versus is not None:
        pairs = [artifact for artifact in record.of_stage("kernels") if "pair" in artifact.attrs]
        return [name for artifact in pairs[:1] for name in (artifact.id, str(artifact.attrs["pair"]))]
    if record.xray is not None and record.of_stage("frame_map"):
        return ["frame_map"]
    if record.of_stage("profile"):
        return ["profile"]
    chain = record.of_stage("chain_rule")
    graph = ["autograd"] if chain and chain[0].attrs.get("beside") else []
    return [*graph, "chain_rule"] if chain else []


def versus_table(record: Record) -> dict[str, Any] | None:
    """The table that compares two backends' code; None for a single backend."""
    if record.versus is None:
        return None
    rows = [[row.title, *row.texts] for row in totals(record, record.versus)]
    return {"names": names_of(record), "rows": rows}


def compared_first(record: Record) -> list[str] | None:
    """The pair of artifacts that the view of a diff opens with; None for other records.

    This is the first pair that differs in a late stage, else the first that differs, else the first pair.
    """
    if record.versus is not None:
        return None
    known = {artifact.id: artifact for artifact in record.artifacts}
    pairs = [(artifact, known[artifact.attrs["pair"]]) for artifact in record.artifacts if "pair" in artifact.attrs]
    different = [(first, second) for first, second in pairs if first.text != second.text]
    late = [pair for pair in different if pair[0].stage in ("post_grad", "ir", "fused_ir", "kernels")]
    return [artifact.id for artifact in (late or different or pairs)[0]] if pairs else None


def first_line_to_read(artifact: Artifact) -> int:
    """The line where an artifact is opened: the one that it names, its first kernel's, just above the first library
    call of generated code without kernels, or 1.
    """
    if start := artifact.attrs.get("start"):
        return int(start)
    if kernels := _lines_of("kernel", artifact):
        return min(kernels)
    calls = _lines_of("extern", artifact) if artifact.stage == "kernels" else ()
    return max(1, min(calls, default=1) - ROWS_ABOVE)


def _lines_of(kind: str, artifact: Artifact) -> list[int]:
    return [entity.attrs.get("line") or 1 for entity in artifact.entities if entity.kind == kind]


def _reading_order(record: Record) -> list[GraphBreak | Frame]:
    """Points of interest in the source, most important first: breaks, then compiled functions."""
    return [*record.breaks, *record.frames]


def source_starts(record: Record) -> dict[str, int]:
    """The row where each source is opened: just above its first break, else above its first compiled function."""
    lines = SourceLines(record)
    places = [lines.place(item.file, item.line) for item in _reading_order(record)]
    starts: dict[str, int] = {}
    for artifact, row in filter(None, places):
        starts.setdefault(artifact, max(1, row - ROWS_ABOVE))
    return starts


def decision_parts(record: Record) -> dict[str, Part]:
    """Parts with the passes' decisions about an artifact's entities, oldest first, by artifact id."""
    owner = {entity.id: artifact.id for artifact in record.artifacts for entity in artifact.entities}
    about: dict[str, list[Decision]] = {}
    for decision in record.decisions:
        for artifact in dict.fromkeys(owner[subject] for subject in decision.subjects if subject in owner):
            about.setdefault(artifact, []).append(decision)
    return {artifact: Part.pack(artifact, "decisions", decisions) for artifact, decisions in about.items()}


def decision_counts(record: Record) -> list[dict[str, Any]]:
    """Number of decisions by pass and verdict, separated by backend if the record has two."""
    own: Sequence[Decision] = record.decisions
    other: Sequence[Decision] = ()
    if record.versus is not None and any(SIDE in artifact.attrs for artifact in record.artifacts):
        other = record.versus.decisions
        own = own[: len(own) - len(other)]
    names = names_of(record) if other else ("", "")
    counts = Counter((f"{side} {found.pass_name}".strip(), found.verdict)
                     for side, decisions in zip(names, (own, other), strict=True) for found in decisions)  # fmt: skip
    return [{"pass": name, "verdict": verdict, "count": count} for (name, verdict), count in counts.items()]


def kernel_counts(record: Record) -> list[dict[str, Any]]:
    counts: Counter[tuple[str, str]] = Counter()
    launches: Counter[tuple[str, str]] = Counter()
    for kernel in record.kernels:
        counts[kernel.language, kernel.category] += 1
        launches[kernel.language, kernel.category] += kernel.calls
    return [
        {"language": name, "category": kind, "count": count, "launches": launches[name, kind]}
        for (name, kind), count in counts.items()
    ]


def interest(
    record: Record, landed: Mapping[str, Mapping[str, list[int]]]
) -> Callable[[Artifact], tuple[bool, bool, int]]:
    """A sort key for sources: the user's own files first, then installed ones.

    Within each group the file of the first break comes first (without breaks, that of the first compiled function),
    then files with more captured lines.
    """
    first = next((item.file for item in _reading_order(record)), "")

    def key(source: Artifact) -> tuple[bool, bool, int]:
        rows = {row for rows in landed.get(source.id, {}).values() for row in rows}
        return bool(source.attrs.get("installed")), source.title != first, -len(rows)

    return key
