"""Questions about TorchDynamo's half: breaks, graphs, recompilations, captured values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from compiler.record import Artifact, Entity, GraphBreak, Recompile, Record, Span
from compiler.record.plain_text import pluralize
from explorer.findings.breaks import break_id
from explorer.findings.timeline import recompile_id
from explorer.reading.shapes import dtype_called, dtype_name, shape_text
from explorer.teach.question import (
    NONE,
    AnswerError,
    Compared,
    Explanation,
    Facts,
    Form,
    NamesQuestion,
    NotGradableError,
    NumberQuestion,
    Question,
    artifacts_of,
    base_name,
    line_numbers,
    why_absent,
)


def _require_frames(record: Record) -> None:
    """Raise NotGradableError if TorchDynamo compiled nothing."""
    if not record.frames:
        raise NotGradableError(why_absent(record, "captured", "a captured graph"))


@dataclass(frozen=True)
class Breaks(Question):
    """Which lines break the graph."""

    kind: ClassVar[str] = "breaks"
    form: ClassVar[Form] = "lines"
    stage: ClassVar[str] = "breaks"

    def ask(self) -> str:
        return "Which lines break the graph?"

    def hint(self) -> str:
        return "line numbers, such as 4, 7, or none"

    def read(self, text: str) -> frozenset[int]:
        return frozenset() if text.lower() in NONE else line_numbers(text)

    def find(self, facts: Facts) -> frozenset[int]:
        _require_frames(facts.record)
        lines = (_line(found, facts) for found in _breaks(facts.record))
        return frozenset(line for line in lines if line)

    def show(self, answer: frozenset[int]) -> str:
        return ", ".join(map(str, sorted(answer))) or "none"

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        return tuple(self._explain(compared))

    def _explain(self, compared: Compared) -> Iterator[Explanation]:
        given = compared.given or frozenset()
        ordered = sorted(_breaks(compared.record), key=lambda each: (_line(each, compared) in given, each.id))
        told = set()
        for each in ordered:
            line = _line(each, compared)
            where = f"line {line}" if line else f"`{each.file}` line {each.line}, which is not shown here"
            if (where, each.what) not in told:
                told.add((where, each.what))
                yield Explanation(f"{where} breaks: {each.what or each.kind}", "breaks", (break_id(each),))
        for line in sorted(given - compared.found):
            yield Explanation(f"line {line} does not break: it is traced, or never reached", "captured")
        if not ordered:
            whole = "the whole function is one graph" if compared.record.of_stage("captured") else "there is no graph"
            yield Explanation(f"nothing breaks: {whole}", "captured")


@dataclass(frozen=True)
class Graphs(NumberQuestion):
    """How many graphs are captured."""

    kind: ClassVar[str] = "graphs"
    stage: ClassVar[str] = "captured"

    def ask(self) -> str:
        return "How many graphs does TorchDynamo capture, over all calls of the compiled function?"

    def find(self, facts: Facts) -> int:
        _require_frames(facts.record)
        return len(facts.record.of_stage("captured"))

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        graphs = compared.record.of_stage("captured")
        sizes = ", ".join(pluralize(len(calls_in(graph)), "operation") for graph in graphs)
        again = pluralize(Recompiles().find(compared), "recompilation")
        why = f"{pluralize(len(_breaks(compared.record)), 'graph break')}, {again}"
        words = f"{pluralize(compared.found, 'graph')} ({sizes}): {why}" if graphs else f"no graph: {why}"
        return (Explanation(words, "captured", tuple(graph.id for graph in graphs)),)


@dataclass(frozen=True)
class Recompiles(NumberQuestion):
    """How often code is compiled again."""

    kind: ClassVar[str] = "recompiles"
    stage: ClassVar[str] = "recompiles"

    def ask(self) -> str:
        return "How many times is code compiled again, because a guard fails?"

    def find(self, facts: Facts) -> int:
        _require_frames(facts.record)
        return sum(not each.limit for each in facts.record.recompiles)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        if not compared.record.of_stage("captured"):
            return (Explanation("nothing was compiled, so nothing could be compiled again", "breaks"),)
        if not compared.record.recompiles:
            return (Explanation("every call after the first passed the guards", "guards"),)
        return tuple(
            Explanation(_recompile_words(each), "recompiles", (recompile_id(each),))
            for each in compared.record.recompiles
        )


@dataclass(frozen=True)
class Changed(NamesQuestion):
    """Which argument makes a guard fail."""

    kind: ClassVar[str] = "changed"
    stage: ClassVar[str] = "recompiles"

    def ask(self) -> str:
        return "Which arguments or variables make a guard fail, so that the code is compiled again?"

    def find(self, facts: Facts) -> frozenset[str]:
        _require_frames(facts.record)
        blamed = [base_name(each.argument.removeprefix("global ").lower()) for each in facts.record.recompiles]
        if not all(re.fullmatch(r"[\w.]+", name) for name in blamed):
            raise NotGradableError("this can't be graded, because what changed in one recompilation has no name")
        return frozenset(blamed)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        return Recompiles().explain(compared)


@dataclass(frozen=True)
class Operations(NumberQuestion):
    """How many operations the graphs of a stage have."""

    kind: ClassVar[str] = "ops"
    stage: ClassVar[str] = "captured"
    subjects: ClassVar[tuple[str, ...] | None] = (
        "captured", "joint", "forward", "backward", "inference", "post_grad", "autograd",
    )  # fmt: skip

    def ask(self) -> str:
        which = self._stage.replace("_", "-")
        more = ", over all graphs" if self._stage != "autograd" else ", gradients of leaves not counted"
        return f"How many operations do you find in the {which} stage{more}?"

    @property
    def _stage(self) -> str:
        return self.subject or self.stage

    def find(self, facts: Facts) -> int:
        graphs = artifacts_of(facts.record, self._stage, f"the {self._stage} stage")
        return sum(len(calls_in(graph)) for graph in graphs)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        return tuple(
            Explanation(f"{graph.id}: {', '.join(entity.label for entity in calls_in(graph)) or 'no operations'}",
                        self._stage, (graph.id,))
            for graph in compared.record.of_stage(self._stage)
        )  # fmt: skip


@dataclass(frozen=True)
class Inputs(NumberQuestion):
    """How many inputs the captured graphs have."""

    kind: ClassVar[str] = "inputs"
    stage: ClassVar[str] = "captured"

    def ask(self) -> str:
        return "How many inputs does the first captured graph have (parameters are inputs too)?"

    def find(self, facts: Facts) -> int:
        return len(self._inputs(facts.record))

    def _inputs(self, record: Record) -> list[Entity]:
        graph = artifacts_of(record, "captured", "a captured graph")[0]
        return [entity for entity in graph.entities if entity.kind == "placeholder"]

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        inputs = self._inputs(compared.record)
        names = ", ".join(f"`{entity.attrs.get('source', entity.label)}`" for entity in inputs)
        ids = tuple(entity.id for entity in inputs)
        return (Explanation(f"the inputs are {names or 'none'}", "captured", ids),)


@dataclass(frozen=True)
class Plain(Breaks):
    """Which lines run as plain Python."""

    kind: ClassVar[str] = "plain"
    stage: ClassVar[str] = "frame_map"

    def ask(self) -> str:
        return "Which lines that compute something run as plain Python, because they are in no graph?"

    def find(self, facts: Facts) -> frozenset[int]:
        _require_frames(facts.record)
        files = facts.listing.files_in(facts.record)
        lines = (line for frame in facts.record.frames if frame.file in files for line in frame.plain)
        return frozenset(map(facts.listing.statement_at, lines)).intersection(facts.listing.computing)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        lines = self.show(compared.found)
        words = f"lines that run as plain Python: {lines}" if compared.found else "all that is computed is in a graph"
        return (Explanation(words, "frame_map"),)


@dataclass(frozen=True)
class ValueQuestion(Question):
    """A question about one value in the captured graphs: a variable, or the result if there is no subject."""

    form: ClassVar[Form] = "text"
    stage: ClassVar[str] = "captured"
    subjects: ClassVar[tuple[str, ...] | None] = None

    @property
    def _words(self) -> str:
        return f"`{self.subject}`" if self.subject else "the value that the function returns"

    def value(self, facts: Facts) -> Entity:
        """The value's node. Raises NotGradableError."""
        graphs = artifacts_of(facts.record, "captured", "a captured graph")
        found = self._find_named_value(graphs, facts) if self.subject else self._find_returned_value(graphs)
        if "shape" not in found.attrs:
            raise NotGradableError(f"this can't be graded, because {self._words} is no tensor")
        return found

    def _find_named_value(self, graphs: tuple[Artifact, ...], facts: Facts) -> Entity:
        numbered = re.compile(rf"{re.escape(self.subject)}(_\d+)?")
        nodes = [node for graph in graphs for node in calls_in(graph) if numbered.fullmatch(node.label)]
        files, lines = facts.listing.files_in(facts.record), facts.listing.lines_that_assign(self.subject)
        placed = [node for node in nodes if node.attrs.get("line") in lines and node.attrs.get("file") in files]
        inputs = [entity for graph in graphs for entity in graph.entities if _is_input(entity, self.subject)]
        known = placed or nodes or inputs
        if not known:
            raise NotGradableError(
                f"this can't be graded, because no captured graph has a value named {self.subject}: it is no tensor, "
                "runs as plain Python, or has another name there"
            )
        return known[-1]

    def _find_returned_value(self, graphs: tuple[Artifact, ...]) -> Entity:
        last = graphs[-1]
        names = {name for entity in last.entities if entity.kind == "output" for name in entity.inputs}
        results = [entity for entity in last.entities if entity.id in names]
        if len(results) != 1:
            raise NotGradableError(
                f"this can't be graded, because the last graph returns {len(results)} tensors: ask for one by the name "
                f"of its variable, as in {self.kind}:y"
            )
        return results[0]


@dataclass(frozen=True)
class Shape(ValueQuestion):
    """The shape of a value."""

    kind: ClassVar[str] = "shape"

    def ask(self) -> str:
        return f"What is the shape of {self._words}?"

    def hint(self) -> str:
        return "sizes with commas between them, such as 8, 64 (any name for a symbolic size), or scalar"

    def read(self, text: str) -> tuple[str, ...]:
        bare = text.lower().removeprefix("torch.size").strip("()[] ")
        if bare in ("", "scalar") or bare in NONE:
            return ()
        sizes = tuple(size.strip() for size in re.split(r"[,x×*\s]+", bare) if size.strip())
        if not all(re.fullmatch(r"\w+", size) for size in sizes):
            raise AnswerError("give sizes with commas between them, such as 8, 64")
        return sizes

    def find(self, facts: Facts) -> tuple[str, ...]:
        return tuple(str(size) for size in self.value(facts).attrs["shape"])

    def agree(self, given: tuple[str, ...], found: tuple[str, ...]) -> bool:
        """Whether the sizes are equal; each symbolic size may have any name."""
        pairs = set(zip(given, found, strict=False))
        renamed = all(one == other or not (one.isdigit() or other.isdigit()) for one, other in pairs)
        return len(given) == len(found) and renamed and len(pairs) == len(set(given)) == len(set(found))

    def show(self, answer: tuple[str, ...]) -> str:
        return shape_text(answer)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        node = self.value(compared)
        made = "an input" if node.kind == "placeholder" else f"the result of `{node.attrs.get('target', node.label)}`"
        return (Explanation(f"{self._words} is {shape_text(compared.found)}, {made}", "captured", (node.id,)),)


@dataclass(frozen=True)
class Dtype(ValueQuestion):
    """The dtype of a value."""

    kind: ClassVar[str] = "dtype"

    def ask(self) -> str:
        return f"What is the dtype of {self._words}?"

    def hint(self) -> str:
        return "a dtype, such as float32 or bool"

    def read(self, text: str) -> str:
        name = dtype_called(text)
        if not name:
            raise AnswerError("give a dtype, such as float32, bfloat16 or int64")
        return name

    def find(self, facts: Facts) -> str:
        return dtype_name(self.value(facts).attrs.get("dtype"))

    def show(self, answer: str) -> str:
        return answer

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        node = self.value(compared)
        return (Explanation(f"`{node.label}` is {compared.found}", "captured", (node.id,)),)


def calls_in(graph: Artifact) -> list[Entity]:
    """The operations of a graph."""
    return [entity for entity in graph.entities if entity.kind in ("call", "custom")]


def _is_input(entity: Entity, name: str) -> bool:
    return entity.kind == "placeholder" and entity.attrs.get("source") == f"L[{name!r}]"


def _breaks(record: Record) -> list[GraphBreak]:
    return [found for found in record.breaks if not found.of_export]


def _line(found: GraphBreak, facts: Facts) -> int:
    """The innermost line of the shown code that leads to a break; 0 if there is none."""
    listing = facts.listing
    files = listing.files_in(facts.record)
    spans = [*reversed(found.chain), Span(found.file, found.line)]
    inside = (span.line for span in spans if span.file in files and span.line in listing.shown)
    return next(map(listing.statement_at, inside), 0)


def _recompile_words(found: Recompile) -> str:
    words = found.failures[0].words if found.failures else " ".join(found.reasons)
    done = f"not compiled again, because of {found.limit}" if found.limit else "compiled again"
    return f"call {found.call_number} {done}: {words or 'torch gives no reason'}"
