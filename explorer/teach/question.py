"""What a question is: it asks, reads an answer, finds the truth in a record, compares, and explains the difference."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from compiler.record import MACHINE_STAGES, Artifact, Record
from compiler.record.plain_text import did_you_mean
from explorer.teach.listing import Listing

Form = Literal["lines", "groups", "number", "text"]
"""How the widget asks: lines to click, lines to sort into kernels, a number, or a line of text."""

Verdict = Literal["right", "wrong", "unanswered", "unreadable", "not graded"]

NONE = frozenset({"none", "no", "nothing", "nowhere", "-"})
LONGEST_ANSWER = 2_000
"""Maximum characters of an answer that are read."""
_NUMBER = re.compile(r"(?P<number>\d[\d,_ ]*(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)\s*\.?")
_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1, "kib": 1024, "mib": 1024**2, "kb": 1000, "mb": 1000**2}


class AnswerError(ValueError):
    """An answer can't be read; the message says how to write it."""


class NotGradableError(ValueError):
    """A record lacks what a question asks about; the message says why, to a learner."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence about the truth, and the stage and entities that show it."""

    words: str
    stage: str = ""
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of one question. `given` and `found` are the learner's answer and the truth, as text.

    `found` is "" if nothing could be graded; `words` then say why.
    """

    question: str
    verdict: Verdict
    given: str
    found: str = ""
    words: str = ""
    explanations: tuple[Explanation, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a question is graded from: the record of the code that the listing shows."""

    record: Record
    listing: Listing


@dataclass(frozen=True)
class Compared(Facts):
    """An answer (None if there is none) beside the truth."""

    given: Any
    found: Any


@dataclass(frozen=True)
class Question(ABC):
    """A question about what torch.compile makes of some code. `subject` says about what: a variable, a stage, a kind.

    A subclass is one kind of question. `kind` is its name in `--ask`, `stage` the stage that answers it, and `subjects`
    the allowed subjects: None if any name is allowed.
    """

    subject: str = ""

    kind: ClassVar[str]
    form: ClassVar[Form]
    stage: ClassVar[str]
    subjects: ClassVar[tuple[str, ...] | None] = ()
    needs_subject: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the subject. Raises ValueError."""
        if self.needs_subject and not self.subject:
            raise ValueError(f"{self.kind} needs a name, as in {self.kind}:x")
        if self.subjects is not None and self.subject and self.subject not in self.subjects:
            known = ", ".join(f"{self.kind}:{each}" for each in self.subjects) or f"{self.kind} alone"
            meant = did_you_mean(self.subject, self.subjects)
            raise ValueError(f"{self.kind}:{self.subject} is no question{meant}; there is {known}")

    @property
    def name(self) -> str:
        """The question as `--ask` spells it: `shape:h`."""
        return f"{self.kind}:{self.subject}" if self.subject else self.kind

    @property
    def counts_bytes(self) -> bool:
        """Whether the answer is a number of bytes."""
        return False

    @abstractmethod
    def ask(self) -> str:
        """The question in words."""

    @abstractmethod
    def hint(self) -> str:
        """How to write an answer."""

    def parse(self, text: str, listing: Listing) -> Any:
        """Read an answer about a listing. Raises AnswerError."""
        if self.form in ("lines", "groups"):
            try:
                text = listing.at_statements(text)
            except ValueError as error:
                raise AnswerError(str(error)) from None
        return self.read(text)

    @abstractmethod
    def read(self, text: str) -> Any:
        """Read an answer; line numbers are those of statements. Raises AnswerError."""

    @abstractmethod
    def find(self, facts: Facts) -> Any:
        """Find the truth. Raises NotGradableError."""

    @abstractmethod
    def show(self, answer: Any) -> str:
        """Write an answer or the truth as text, which `read` reads."""

    @abstractmethod
    def explain(self, compared: Compared) -> tuple[Explanation, ...]:
        """Explain the truth, what the answer missed first."""

    def agree(self, given: Any, found: Any) -> bool:
        """Whether an answer is right."""
        return bool(given == found)

    def grade(self, text: str, record: Record, listing: Listing) -> Grade:
        """Compare an answer with a record. Nothing is raised: what can't be graded says why."""
        text = text.strip()[:LONGEST_ANSWER]
        given = None
        try:
            given = self.parse(text, listing) if text else None
        except AnswerError as error:
            return Grade(self.name, "unreadable", text, words=f"this answer can't be read: {error}")
        try:
            found = self.find(Facts(record, listing))
        except NotGradableError as error:
            return Grade(self.name, "not graded", text, words=str(error))
        verdict: Verdict = "unanswered" if not text else "right" if self.agree(given, found) else "wrong"
        explanations = self.explain(Compared(record, listing, given, found))
        return Grade(self.name, verdict, text, self.show(found), explanations=explanations)


@dataclass(frozen=True)
class NumberQuestion(Question, ABC):
    """A question whose answer is a whole number."""

    form: ClassVar[Form] = "number"

    def hint(self) -> str:
        return "a number of bytes, such as 512 or 2 KiB" if self.counts_bytes else "a number"

    def read(self, text: str) -> int:
        if text.lower() in NONE:
            return 0
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise AnswerError("give a number, such as 2")
        unit = match["unit"].lower()
        if unit in ("kib", "mib", "kb", "mb") and not self.counts_bytes:
            raise AnswerError("give a number without a unit")
        number = float(re.sub(r"[,_ ]", "", match["number"])) * _UNITS.get(unit, 1)
        if number != int(number):
            raise AnswerError("give a whole number")
        return int(number)

    def show(self, answer: int) -> str:
        return f"{answer:,} bytes" if self.counts_bytes else str(answer)


@dataclass(frozen=True)
class NamesQuestion(Question, ABC):
    """A question whose answer is a set of names; their order and case do not matter."""

    form: ClassVar[Form] = "text"

    def hint(self) -> str:
        return "names with commas between them, or none"

    def read(self, text: str) -> frozenset[str]:
        if text.lower() in NONE:
            return frozenset()
        names = [each.strip(" `'\"[](){}").lower() for each in re.split(r"[,;\s]+", text)]
        found = frozenset(base_name(name) for name in names if name and name != "and")
        if not found:
            raise AnswerError("give names with commas between them, or none")
        return found

    def show(self, answer: frozenset[str]) -> str:
        return ", ".join(sorted(answer)) or "none"


def base_name(name: str) -> str:
    """The variable in an expression such as `options['double']`."""
    return name.partition("[")[0]


def line_numbers(text: str) -> frozenset[int]:
    """The line numbers in an answer. Raises AnswerError."""
    if re.sub(r"lines?|and|[\d\s,;+&]", "", text.lower()) or not re.search(r"\d", text):
        raise AnswerError("give line numbers, such as 4 or 4, 7")
    return frozenset(map(int, re.findall(r"\d+", text)))


def artifacts_of(record: Record, stage: str, title: str) -> tuple[Artifact, ...]:
    """The artifacts of a stage. Raises NotGradableError with the reason if there are none."""
    found = record.of_stage(stage)
    if not found:
        raise NotGradableError(why_absent(record, stage, title))
    return found


def why_absent(record: Record, stage: str, title: str) -> str:
    """Why a record lacks a stage, for a learner."""
    before = ("captured",) if stage not in MACHINE_STAGES else ("kernels",)
    reasons = [problem for name in (stage, *before) for problem in record.problems if problem.stage == name]
    if reasons:
        hint = f" What to do: {reasons[0].hint}." if reasons[0].hint else ""
        return f"this can't be graded, because {title} can't be seen here: {reasons[0].reason}.{hint}"
    if not record.frames:
        return "this can't be graded, because the cell compiled nothing: call a function or a model in it"
    stages = ", ".join(record.options.stages or ())
    asked = f": only {stages} was asked for" if stages else ""
    bare = re.sub("^(an?|the) ", "", title)
    return f"this can't be graded, because this run has no {bare}{asked}"
