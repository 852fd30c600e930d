"""Questions about the backward pass: leaves, saved values, gradients."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.record import Artifact, Entity, Record
from compiler.record.plain_text import size_text
from explorer.teach.question import (
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
    why_absent,
)

GRADIENTS = "leaf_gradients"
"""Stage of the artifact that holds the gradients of the cell's variables, for grading only."""
MOST_NUMBERS = 64
"""Maximum number of elements of a gradient that a learner is asked to fill in."""
CLOSE = 5e-3
"""Relative difference at which a typed number is right: three digits are enough."""
_SAVED = "saved by the forward"
_NOT_FINITE = re.compile(r"-?\b(?:nan|inf)\b")


def gradients_artifact(gradients: dict[str, Any]) -> Artifact:
    """Build the artifact of the gradients of variables: nested lists of numbers, None for no gradient."""
    entities = tuple(
        Entity(f"{GRADIENTS}.{name}", "leaf", name, {"gradient": values}) for name, values in gradients.items()
    )
    text = "\n".join(f"{name}.grad = {values}" for name, values in gradients.items())
    return Artifact(GRADIENTS, GRADIENTS, "gradients of variables", "text", text, entities=entities)


@dataclass(frozen=True)
class Gradient(Question):
    """The gradient of a variable after the cell has run."""

    kind: ClassVar[str] = "gradient"
    form: ClassVar[Form] = "text"
    stage: ClassVar[str] = "autograd"
    subjects: ClassVar[tuple[str, ...] | None] = None

    def ask(self) -> str:
        name = f"`{self.subject}.grad`" if self.subject else "the gradient of the only tensor that gets one"
        return f"What is {name} after the code has run?"

    def hint(self) -> str:
        return "numbers, such as 2.5 or [1, 2], or none; three digits are enough"

    def read(self, text: str) -> Any:
        bare = re.sub(r"(?:torch\.)?tensor", "", text.strip().lower()).strip()
        if bare in ("none", "no", "no gradient"):
            return None
        try:
            value = ast.literal_eval(_NOT_FINITE.sub(r"'\g<0>'", bare))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise AnswerError("give numbers, such as 2.5 or [1, 2]") from None
        return _as_lists(value)

    def find(self, facts: Facts) -> Any:
        value = self._entity(facts.record).attrs.get("gradient")
        if isinstance(value, str):
            raise NotGradableError(f"this can't be graded, because {value}")
        return value

    def _entity(self, record: Record) -> Entity:
        leaves = [entity for artifact in record.of_stage(GRADIENTS) for entity in artifact.entities]
        if self.subject:
            leaves = [entity for entity in leaves if entity.label == self.subject]
        else:
            leaves = [entity for entity in leaves if entity.attrs.get("gradient") is not None]
        if len(leaves) == 1:
            return leaves[0]
        if self.subject or not leaves:
            what = f"leaf `{self.subject}` that requires a gradient" if self.subject else "leaf with a gradient"
            raise NotGradableError(f"this can't be graded, because the code's variables hold no {what}")
        names = ", ".join(f"gradient:{entity.label}" for entity in leaves)
        raise NotGradableError(f"this can't be graded, because several tensors have a gradient: ask for one of {names}")

    def show(self, answer: Any) -> str:
        if isinstance(answer, list):
            return f"[{', '.join(map(self.show, answer))}]"
        return "none" if answer is None else f"{answer:.4g}"

    def agree(self, given: Any, found: Any) -> bool:
        if isinstance(given, list) or isinstance(found, list):
            lists = isinstance(given, list) and isinstance(found, list) and len(given) == len(found)
            return lists and all(map(self.agree, given, found))
        if given is None or found is None:
            return given is found
        if math.isnan(found) or math.isinf(found):
            return str(given) == str(found)
        return math.isclose(given, found, rel_tol=CLOSE, abs_tol=1e-6)

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        name = self._entity(compared.record).label
        nodes = [entity for graph in compared.record.of_stage("autograd") for entity in graph.entities]
        leaf = tuple(entity.id for entity in nodes if entity.kind == "accumulate" and entity.label == name)
        if compared.found is None:
            return (Explanation(f"`{name}.grad` is None: no backward pass reached it", "autograd"),)
        words = f"`{name}.grad` is {self.show(compared.found)}: the sum over all paths from the loss to `{name}`"
        return (Explanation(words, "autograd" if compared.record.of_stage("autograd") else "", leaf),)


@dataclass(frozen=True)
class Leaves(NamesQuestion):
    """Which tensors get a gradient."""

    kind: ClassVar[str] = "leaves"
    stage: ClassVar[str] = "autograd"

    def ask(self) -> str:
        return "To which tensors does the backward pass add a gradient (parameters by their path, such as a.weight)?"

    def find(self, facts: Facts) -> frozenset[str]:
        return frozenset(entity.label.lower() for entity in self._leaves(facts.record))

    def _leaves(self, record: Record) -> list[Entity]:
        if record.frames and not record.of_stage("autograd") and record.of_stage("inference"):
            return []
        graphs = artifacts_of(record, "autograd", "an autograd graph")
        return [entity for graph in graphs for entity in graph.entities if entity.kind == "accumulate"]

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        ids = tuple(entity.id for entity in self._leaves(compared.record))
        ends = f"the autograd graph ends in {self.show(compared.found)}"
        words = ends if compared.found else "nothing requires a gradient here"
        return (Explanation(words, "autograd" if compared.found else "inference", ids),)


@dataclass(frozen=True)
class Saved(NumberQuestion):
    """How much the compiled forward keeps for its backward."""

    kind: ClassVar[str] = "saved"
    stage: ClassVar[str] = "backward"
    subjects: ClassVar[tuple[str, ...] | None] = ("bytes", "inputs")

    def ask(self) -> str:
        if self.subject == "bytes":
            return "How many bytes does the compiled forward hand to its backward (inputs and parameters included)?"
        if self.subject == "inputs":
            return "How many of the tensors that the backward needs are inputs or parameters?"
        return "How many tensors does the compiled forward keep for its backward (inputs and parameters included)?"

    @property
    def counts_bytes(self) -> bool:
        return self.subject == "bytes"

    def find(self, facts: Facts) -> int:
        tensors = list(self._tensors(facts.record))
        return sum(entity.attrs.get("bytes", 0) for entity in tensors) if self.subject == "bytes" else len(tensors)

    def _tensors(self, record: Record) -> Iterator[Entity]:
        """The tensors that backward graphs take from their forward graphs. Raises NotGradableError."""
        if not record.of_stage("backward") and not record.of_stage("inference"):
            raise NotGradableError(why_absent(record, "backward", "a backward graph"))
        for graph in record.of_stage("backward"):
            for entity in graph.entities:
                if entity.attrs.get("role") == _SAVED and "shape" in entity.attrs and self._counts(entity):
                    yield entity

    def _counts(self, entity: Entity) -> bool:
        return self.subject != "inputs" or "description" in entity.attrs

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        tensors = list(self._tensors(compared.record))
        if not tensors:
            stage = "backward" if compared.record.of_stage("backward") else "inference"
            what = "no input or parameter itself" if self.subject == "inputs" else "nothing"
            return (Explanation(f"{what} is kept for a backward pass", stage),)
        names = ", ".join(f"{each.label} ({size_text(each.attrs.get('bytes', 0))})" for each in tensors)
        return (Explanation(f"the backward takes {names}", "backward", tuple(each.id for each in tensors)),)


@dataclass(frozen=True)
class Recomputed(NumberQuestion):
    """How many operations the backward repeats."""

    kind: ClassVar[str] = "recomputed"
    stage: ClassVar[str] = "backward"

    def ask(self) -> str:
        return "How many operations of the forward does the backward compute again, rather than keep their results?"

    def find(self, facts: Facts) -> int:
        return len(self._recomputed_nodes(facts.record))

    def _recomputed_nodes(self, record: Record) -> list[Entity]:
        graphs = artifacts_of(record, "backward", "a backward graph")
        return [entity for graph in graphs for entity in graph.entities if entity.attrs.get("role") == "recomputed"]

    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        again = self._recomputed_nodes(compared.record)
        words = f"computed again: {', '.join(each.label for each in again)}" if again else "nothing is computed again"
        return (Explanation(words, "backward", tuple(each.id for each in again)),)


def _as_lists(value: Any) -> Any:
    """Nested lists of floats. Raises AnswerError for anything else."""
    if isinstance(value, list | tuple):
        return [_as_lists(each) for each in value]
    if isinstance(value, str) and _NOT_FINITE.fullmatch(value):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerError("give numbers, such as 2.5 or [1, 2]")
    return float(value)
