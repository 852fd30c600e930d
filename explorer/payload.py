"""What the front end is given: a manifest, small and whole, and per artifact compressed parts it asks for.

A part is zlib-compressed JSON: `entities` (entities and the line map), `text` (text and shown line numbers) and, where
passes decided something about the artifact's entities, `decisions`. The manifest names every part with a digest, so a
front end that compares it with what it holds knows what to ask for. The same record gives the same bytes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from compiler.record import STAGES, Artifact, Decision, Entity, GraphBreak, Record

COMPRESSION = 9


@dataclass(frozen=True, slots=True)
class StageWords:
    """How a stage is told to a person. Its ribbon chip counts entities of `kinds`, or lines of text without any."""

    title: str
    about: str
    kinds: frozenset[str] = frozenset()
    unit: str = "lines"


_CALLS = frozenset({"call"})
_LOOPS = frozenset({"pointwise", "reduction", "extern", "template", "fused", "other"})

STAGE_WORDS: dict[str, StageWords] = {
    "source": StageWords("Source", "The Python code that was run.", frozenset({"line"})),
    "bytecode": StageWords(
        "Bytecode", "What TorchDynamo read, and what it put in its place.", frozenset({"instruction"}), "instr"
    ),
    "captured": StageWords("Captured", "The graphs that TorchDynamo captured from the bytecode.", _CALLS, "ops"),
    "pre_grad": StageWords("Pre-grad", "The captured graphs after Inductor's first passes.", _CALLS, "ops"),
    "joint": StageWords("Joint", "Forward and backward in one graph of ATen operations.", _CALLS, "ops"),
    "forward": StageWords("Forward", "What the forward pass runs, as ATen operations.", _CALLS, "ops"),
    "backward": StageWords("Backward", "What the backward pass runs, as ATen operations.", _CALLS, "ops"),
    "inference": StageWords("Inference", "Graphs without gradients, as ATen operations.", _CALLS, "ops"),
    "decomposed": StageWords("Decomposed", "The graphs in simpler operations.", _CALLS, "ops"),
    "post_grad": StageWords("Post-grad", "The graphs after Inductor's passes, as they are lowered.", _CALLS, "ops"),
    "ir": StageWords("Inductor IR", "Loops over buffers, before fusion.", _LOOPS, "nodes"),
    "fused_ir": StageWords("Fused IR", "The loops after fusion: each becomes one kernel.", _LOOPS, "nodes"),
    "kernels": StageWords(
        "Kernels", "Generated kernels, and the code that calls them.", frozenset({"kernel"}), "kernels"
    ),
    "ttir": StageWords("TTIR", "Triton's intermediate representation."),
    "ttgir": StageWords("TTGIR", "Triton's representation with GPU layouts."),
    "llir": StageWords("LLVM IR", "LLVM's intermediate representation."),
    "ptx": StageWords("PTX", "NVIDIA's virtual instruction set."),
    "sass": StageWords("SASS", "The GPU's own instructions."),
    "amdgcn": StageWords("AMD GCN", "The GPU's own instructions."),
    "timing": StageWords("Timing", "How long it took."),
}


def stage_words(stage: str) -> StageWords:
    """What to call a stage; one that is not known is called by its own name."""
    return STAGE_WORDS.get(stage) or StageWords(stage.replace("_", " ").capitalize(), "")


@dataclass(frozen=True, slots=True)
class Part:
    """One compressed piece of an artifact. `size` is its length in bytes before compression."""

    artifact: str
    name: str
    data: bytes
    digest: str
    size: int

    @classmethod
    def of(cls, artifact: str, name: str, content: Any) -> Part:
        raw = msgspec.json.encode(content)
        digest = blake2b(raw, digest_size=8).hexdigest()
        return cls(artifact, name, zlib.compress(raw, COMPRESSION), digest, len(raw))

    def content(self) -> Any:
        return msgspec.json.decode(zlib.decompress(self.data))


def artifact_parts(artifact: Artifact) -> dict[str, Part]:
    """The parts that an artifact has by itself."""
    entities = {"entities": artifact.entities, "lines": artifact.lines}
    text = {"text": artifact.text, "numbers": artifact.attrs.get("numbers")}
    return {
        "entities": Part.of(artifact.id, "entities", entities),
        "text": Part.of(artifact.id, "text", text),
    }


@dataclass
class Payload:
    """A record as the front end gets it. A record that grows keeps the parts already made."""

    record: Record
    _made: dict[str, tuple[Artifact, dict[str, Part]]] = field(default_factory=dict)
    _decisions: dict[str, Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.update(self.record)

    def update(self, record: Record) -> None:
        """Take the record as it now is. An artifact that is the same object as before is not compressed again."""
        for artifact in record.artifacts:
            known = self._made.get(artifact.id)
            if known is None or known[0] is not artifact:
                self._made[artifact.id] = (artifact, artifact_parts(artifact))
        self._decisions = decision_parts(record)
        self.record = record

    def parts_of(self, artifact: str) -> dict[str, Part]:
        """The parts of an artifact by name. Raises KeyError when the record has no such artifact."""
        parts = self._made[artifact][1]
        decisions = self._decisions.get(artifact)
        return parts | {"decisions": decisions} if decisions else parts

    def part(self, artifact: str, name: str) -> Part | None:
        """A part by name, or None when the record does not have it."""
        return self.parts_of(artifact).get(name) if artifact in self._made else None

    def parts(self) -> Iterable[Part]:
        """Every part, artifacts in pipeline order."""
        for artifact in self.record.artifacts:
            yield from self.parts_of(artifact.id).values()

    def manifest(self) -> dict[str, Any]:
        """What the front end shows before any part is there: plain JSON values, no text of any artifact."""
        record = self.record
        sources = record.of_stage("source")
        landed = landed_lines(record)
        return {
            "title": record.title,
            "options": msgspec.to_builtins(record.options),
            "environment": msgspec.to_builtins(record.environment),
            "home": [artifact.id for artifact in sorted(sources, key=lambda source: _interest(source, landed))],
            "stages": [self._stage(name) for name in stage_names(record)],
            "breaks": [break_entry(item, sources) for item in record.breaks],
            "frames": [msgspec.to_builtins(frame) for frame in record.frames],
            "kernels": kernel_counts(record),
            "decisions": decision_counts(record.decisions),
            "guards": len(record.guards),
            "recompiles": [msgspec.to_builtins(item) for item in record.recompiles],
            "landed": landed,
        }

    def _stage(self, name: str) -> dict[str, Any]:
        artifacts = self.record.of_stage(name)
        words = stage_words(name)
        count = sum(counted(artifact, words.kinds) for artifact in artifacts)
        return {
            "name": name,
            "title": words.title,
            "about": words.about,
            "count": count,
            "unit": words.unit.removesuffix("s") if count == 1 else words.unit,
            "seconds": stage_seconds(self.record, name),
            "problems": [msgspec.to_builtins(item) for item in self.record.problems if item.stage == name],
            "artifacts": [self._artifact(artifact) for artifact in artifacts],
        }

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        parts = self.parts_of(artifact.id)
        return {
            "id": artifact.id,
            "stage": artifact.stage,
            "title": artifact.title,
            "language": artifact.language,
            "graph": artifact.graph,
            "lines": artifact.text.count("\n") + (not artifact.text.endswith("\n")),
            "chars": len(artifact.text),
            "entities": len(artifact.entities),
            "drawable": any(entity.inputs for entity in artifact.entities),
            "parts": {name: {"digest": part.digest, "bytes": len(part.data)} for name, part in parts.items()},
        }


def manifest(record: Record) -> dict[str, Any]:
    """The manifest of a record that is complete."""
    return Payload(record).manifest()


def stage_names(record: Record) -> list[str]:
    """The stages that a record has or could not have, in pipeline order; unknown stages stay where they are."""
    present = list(dict.fromkeys(artifact.stage for artifact in record.artifacts))
    missing = [problem.stage for problem in record.problems if problem.stage not in present]
    for stage in dict.fromkeys(missing):
        present.insert(_place(stage, present), stage)
    return present


def _place(stage: str, present: list[str]) -> int:
    if stage not in STAGES:
        return len(present)
    earlier = set(STAGES[: STAGES.index(stage)])
    return max((index + 1 for index, name in enumerate(present) if name in earlier), default=0)


def counted(artifact: Artifact, kinds: frozenset[str]) -> int:
    """How many entities of these kinds; without kinds, how many lines of text."""
    if not kinds:
        return len(artifact.text.splitlines())
    return sum(entity.kind in kinds for entity in artifact.entities)


def stage_seconds(record: Record, stage: str) -> float | None:
    """Seconds spent making a stage's artifacts, or None where nobody measured it."""
    subjects = {stage, *(artifact.id for artifact in record.of_stage(stage))}
    measured = [item.seconds for item in record.timings if item.subject in subjects and item.what == "compile"]
    return sum(measured) if measured else None


def decision_parts(record: Record) -> dict[str, Part]:
    """For each artifact, what passes decided about its entities, newest last."""
    owner = {entity.id: artifact.id for artifact in record.artifacts for entity in artifact.entities}
    about: dict[str, list[Decision]] = {}
    for decision in record.decisions:
        for artifact in dict.fromkeys(owner[subject] for subject in decision.subjects if subject in owner):
            about.setdefault(artifact, []).append(decision)
    return {artifact: Part.of(artifact, "decisions", decisions) for artifact, decisions in about.items()}


def decision_counts(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    counts = Counter((decision.pass_name, decision.verdict) for decision in decisions)
    return [{"pass": name, "verdict": verdict, "count": count} for (name, verdict), count in counts.items()]


def kernel_counts(record: Record) -> list[dict[str, Any]]:
    counts = Counter((kernel.language, kernel.category) for kernel in record.kernels)
    return [{"language": name, "category": kind, "count": count} for (name, kind), count in counts.items()]


def _interest(source: Artifact, landed: Mapping[str, Mapping[str, list[int]]]) -> tuple[bool, int]:
    """Sorts sources: the user's own files before installed ones, those with more captured lines first."""
    return bool(source.attrs.get("installed")), -sum(len(rows) for rows in landed.get(source.id, {}).values())


def break_entry(item: GraphBreak, sources: Iterable[Artifact]) -> dict[str, Any]:
    """A graph break with its place in the source shown: artifact id and row, or None where that file isn't shown."""
    return msgspec.to_builtins(item) | {"place": placed(sources, item.file, item.line)}


def placed(sources: Iterable[Artifact], file: str, line: int) -> list[Any] | None:
    for artifact in sources:
        row = row_of(artifact, line) if file and file in (artifact.title, artifact.attrs.get("path")) else None
        if row is not None:
            return [artifact.id, row]
    return None


def row_of(artifact: Artifact, number: int) -> int | None:
    """The 1-based row of an artifact's text that is shown with this line number."""
    numbers = artifact.attrs.get("numbers")
    if numbers:
        return numbers.index(number) + 1 if number in numbers else None
    return number if 0 < number <= len(artifact.text.splitlines()) else None


def landed_lines(record: Record) -> dict[str, dict[str, list[int]]]:
    """Source artifact -> graph -> rows whose code is in that captured graph."""
    rows = {
        name: (artifact.id, row)
        for artifact in record.of_stage("source")
        for row, names in artifact.lines.items()
        for name in names
    }
    origins = {entity.id: entity.origins for entity in record.entities()}
    landed: dict[str, dict[str, list[int]]] = {}
    for artifact in record.of_stage("captured"):
        for place in sorted({rows[name] for name in ancestors(artifact.entities, origins) if name in rows}):
            landed.setdefault(place[0], {}).setdefault(artifact.graph, []).append(place[1])
    return landed


def ancestors(entities: Iterable[Entity], origins: Mapping[str, tuple[str, ...]]) -> set[str]:
    """All ids that these entities came from."""
    todo = [origin for entity in entities if entity.kind == "call" for origin in entity.origins]
    seen = set(todo)
    while todo:
        for origin in origins.get(todo.pop(), ()):
            if origin not in seen:
                seen.add(origin)
                todo.append(origin)
    return seen
