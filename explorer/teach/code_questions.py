"""Questions about Inductor's half: decompositions, fusion, kernels, memory traffic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from compiler.record import Entity, Kernel, Record
from compiler.record.plain_text import pluralize, size_text
from explorer.teach.capture_questions import calls_in
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
    line_numbers,
)

Pairs = frozenset[frozenset[int]]


@dataclass(frozen=True)
class Kernels(NumberQuestion):
    """How many kernels are generated."""

    kind: ClassVar[str] = "kernels"
    stage: ClassVar[str] = "kernels"
    subjects: ClassVar[tuple[str, ...] | None] = ("forward", "backward", "pointwise", "reduction", "extern")

    def ask(self) -> str:
        if self.subject == "extern":
            return "How many calls of library kernels (such as a matmul) are there?"
        of_kind = f"{self.subject} " if self.subject in ("pointwise", "reduction") else ""
        where = f" for the {self.subject} pass" if self.subject in ("forward", "backward") else ""
        return f"How many {of_kind}kernels does torch.compile generate{where} (calls of library kernels not counted)?"

    def find(self, facts: Facts) -> int:
        artifacts_of(facts.record, "kernels", "generated code")
        return len(self._kernels(facts.record))

    def _kernels(self, record: Record) -> list[Kernel]:
        return [kernel for kernel in record.kernels if self._counts(kernel)]

    def _counts(self, kernel: Kernel) -> bool:
        if self.subject in ("forward", "backward"):
            halves = ("forward", "inference") if self.subject == "forward" else ("backward",)
            return kernel.half in halves and kernel.category != "extern"
        return kernel.category == self.subject if self.subject else kernel.category != "extern"

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        kernels = self._kernels(compared.record)
        names = ", ".join(f"`{kernel.name}`" for kernel in kernels)
        told = Explanation(f"there {'is' if compared.found == 1 else 'are'} {names or 'none'}", "kernels",
                           tuple(kernel.id for kernel in kernels))  # fmt: skip
        library = [kernel for kernel in compared.record.kernels if kernel.category == "extern"]
        if compared.given == len(compared.record.kernels) != compared.found and library and self.subject != "extern":
            words = f"{pluralize(len(library), 'call')} of library kernels: nothing is generated for them"
            return Explanation(words, "kernels", tuple(kernel.id for kernel in library)), told
        return (told,)


@dataclass(frozen=True)
class Fusion(Question):
    """Which lines end up in one kernel, as pairs of lines."""

    kind: ClassVar[str] = "fusion"
    form: ClassVar[Form] = "groups"
    stage: ClassVar[str] = "fusion"

    def ask(self) -> str:
        return "Which lines are computed by the same kernel in the forward pass?"

    def hint(self) -> str:
        return "lines of a kernel joined by +, such as 3+4, 6+7, or none"

    def read(self, text: str) -> Pairs:
        if text.lower() in NONE:
            return frozenset()
        groups = [line_numbers(group) for group in re.split(r"[,;]", text) if group.strip()]
        if not any(len(group) > 1 for group in groups):
            raise AnswerError("join the lines of a kernel by +, such as 3+4")
        return _pairs(groups)

    def find(self, facts: Facts) -> Pairs:
        artifacts_of(facts.record, "kernels", "generated code")
        if facts.record.kernels and not facts.record.of_stage("fused_ir"):
            raise NotGradableError("this can't be graded, because fusion is known for the inductor backend only")
        return _pairs([lines for _, lines in self._kernels(facts)])

    def _kernels(self, facts: Facts) -> Iterator[tuple[Kernel, frozenset[int]]]:
        """The generated kernels of the forward pass, each with the shown lines that it computes."""
        files = facts.listing.files_in(facts.record)
        known = {entity.id: entity for entity in facts.record.entities()}
        wanted = {entity.id for graph in facts.record.last_graphs() for entity in graph.entities}
        for kernel in facts.record.kernels:
            if kernel.category != "extern" and kernel.half != "backward":
                nodes = [known[name] for name in _origins(kernel.nodes, known) & wanted]
                lines = {node.attrs["line"] for node in nodes if node.attrs.get("file") in files}
                shown = (facts.listing.statement_at(line) for line in lines if line in facts.listing.shown)
                yield kernel, frozenset(shown)

    def show(self, answer: Pairs) -> str:
        return ", ".join("+".join(map(str, sorted(group))) for group in _groups(answer)) or "none"

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        return tuple(self._explain(compared))

    def _explain(self, compared: Compared) -> Iterator[Explanation]:
        for pair in sorted(map(sorted, (compared.given or frozenset()) - compared.found)):
            yield Explanation(f"lines {pair[0]} and {pair[1]} share no kernel", "fusion")
        for kernel, lines in self._kernels(compared):
            said = ", ".join(map(str, sorted(lines))) or "lines that are not shown"
            yield Explanation(
                f"`{kernel.name}` computes line{'s' if len(lines) > 1 else ''} {said}", "fusion", (kernel.id,)
            )
        for kernel in compared.record.kernels:
            if kernel.category == "extern" and kernel.half != "backward":
                yield Explanation(
                    f"`{kernel.name}` is a library kernel: nothing is fused into it", "kernels", (kernel.id,)
                )


@dataclass(frozen=True)
class Becomes(NamesQuestion):
    """Which ATen operations a captured operation becomes."""

    kind: ClassVar[str] = "becomes"
    stage: ClassVar[str] = "inference"
    subjects: ClassVar[tuple[str, ...] | None] = None
    needs_subject: ClassVar[bool] = True

    def ask(self) -> str:
        return f"Which ATen operations does `{self.subject}` become in the forward pass, after decomposition?"

    def hint(self) -> str:
        return "ATen names with commas between them, such as mul, add"

    def find(self, facts: Facts) -> frozenset[str]:
        return frozenset(_operator(node) for node in self._nodes(facts.record))

    def _nodes(self, record: Record) -> list[Entity]:
        """The decomposed operations that come from the subject. Raises NotGradableError."""
        captured = artifacts_of(record, "captured", "a captured graph")
        graphs = record.of_stage("forward") + record.of_stage("inference")
        graphs = graphs or artifacts_of(record, self.stage, "a graph of ATen operations")
        sources = {entity.id for graph in captured for entity in calls_in(graph) if self._is_subject(entity)}
        if not sources:
            raise NotGradableError(f"this can't be graded, because no captured graph calls {self.subject}")
        known = {entity.id: entity for entity in record.entities()}
        nodes = (node for graph in graphs for node in calls_in(graph) if _operator(node) != "getitem")
        return [node for node in nodes if _origins([node.id], known) & sources]

    def _is_subject(self, entity: Entity) -> bool:
        target = str(entity.attrs.get("target", "")).rsplit(".", 1)[-1]
        return self.subject in (entity.label, target)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        nodes = self._nodes(compared.record)
        stage = "forward" if compared.record.of_stage("forward") else self.stage
        words = f"`{self.subject}` becomes {', '.join(node.label for node in nodes) or 'nothing'}"
        return (Explanation(words, stage, tuple(node.id for node in nodes)),)


@dataclass(frozen=True)
class Traffic(NumberQuestion):
    """How many bytes the kernels read and write."""

    kind: ClassVar[str] = "bytes"
    stage: ClassVar[str] = "kernels"
    subjects: ClassVar[tuple[str, ...] | None] = ("forward", "backward")

    def ask(self) -> str:
        where = f" of the {self.subject} pass" if self.subject else ""
        return (
            f"How many bytes do the generated kernels{where} read and write in one call, each byte once for a kernel?"
        )

    @property
    def counts_bytes(self) -> bool:
        return True

    def find(self, facts: Facts) -> int:
        artifacts_of(facts.record, "kernels", "generated code")
        kernels = Kernels(self.subject)._kernels(facts.record)
        if not all(kernel.bytes for kernel in kernels):
            raise NotGradableError("this can't be graded, because Inductor counts no bytes for one of the kernels")
        return sum(kernel.bytes * kernel.calls for kernel in kernels)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        return tuple(
            Explanation(f"`{kernel.name}` reads and writes {size_text(kernel.bytes)}", "kernels", (kernel.id,))
            for kernel in Kernels(self.subject)._kernels(compared.record)
        )


def _pairs(groups: list[frozenset[int]]) -> Pairs:
    return frozenset(frozenset(pair) for group in groups for pair in combinations(sorted(group), 2))


def _groups(pairs: Pairs) -> list[frozenset[int]]:
    """The largest groups of lines in which each two are a pair, in order of their lines."""
    groups: list[set[int]] = []
    for line in sorted({line for pair in pairs for line in pair}):
        fitting = [group for group in groups if all(frozenset((line, other)) in pairs for other in group)]
        for group in fitting:
            group.add(line)
        joined = {other for group in fitting for other in group}
        rest = [other for other in sorted({o for pair in pairs if line in pair for o in pair} - joined) if other < line]
        groups += [{other, line} for other in rest]
    return [frozenset(group) for group in groups]


def _operator(node: Entity) -> str:
    """The name of an operation's operator: `aten.add.Tensor` is `add`."""
    parts = str(node.attrs.get("target", node.label)).split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def _origins(ids: Iterable[str], known: Mapping[str, Entity]) -> set[str]:
    """The ids of all direct and indirect origins of entities, the entities included."""
    found: set[str] = set()
    todo = list(ids)
    while todo:
        name = todo.pop()
        if name not in found and name in known:
            found.add(name)
            todo += known[name].origins
    return found
