"""The questions about one piece of code, with the answers and grades of a learner, as documents and as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from compiler.record import Record
from explorer.reading.stages import stage_words
from explorer.render.document import Code, Fold, Items, Link, Only, Parts, Section, Tag, Text, Words
from explorer.render.text import document_text
from explorer.teach.listing import Listing
from explorer.teach.question import Grade, Question

VERDICTS = {
    "right": "right",
    "wrong": "not as found",
    "unanswered": "not answered",
    "unreadable": "can't be read",
    "not graded": "not graded",
}


@dataclass(frozen=True)
class Sheet:
    """Questions about a listing. `title` is shown above; `shows_code` is whether the learner sees the listing here.

    `hints` are folded, the first before the second.
    """

    title: str
    listing: Listing
    questions: tuple[Question, ...]
    answers: Mapping[str, str] = field(default_factory=dict)
    grades: tuple[Grade, ...] = ()
    shows_code: bool = False
    remark: str = ""
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        return document_text(grade_document(self) if self.grades else question_document(self))

    def with_answers(self, answers: Mapping[str, str]) -> Sheet:
        known = {question.name: str(answers.get(question.name, "")) for question in self.questions}
        return replace(self, answers=known)

    def with_remark(self, remark: str) -> Sheet:
        return replace(self, remark=remark)

    def grade_answers(self, record: Record) -> Sheet:
        """Grade all answers against a record."""
        grades = (each.grade(self.answers.get(each.name, ""), record, self.listing) for each in self.questions)
        return replace(self, grades=tuple(grades))

    def leave_ungraded(self, why: str) -> Sheet:
        """Grade nothing, for a reason; the answers are kept."""
        grades = (Grade(each.name, "not graded", self.answers.get(each.name, ""), words=why) for each in self.questions)
        return replace(self, grades=tuple(grades))

    @property
    def right(self) -> int:
        """Number of right answers."""
        return sum(grade.verdict == "right" for grade in self.grades)

    @property
    def score(self) -> str:
        """`2 of 3 right`, with what was not graded."""
        counted = [grade for grade in self.grades if grade.verdict != "not graded"]
        left = len(self.grades) - len(counted)
        if not counted:
            return "Nothing could be graded; the answers are kept"
        return f"{self.right} of {len(counted)} right" + (f", {left} not graded" if left else "")


def question_document(sheet: Sheet) -> list[Parts]:
    """The questions alone: for a terminal, and for a page on which nobody can answer."""
    items = tuple(f"{each.ask()} ({each.hint()})" for each in sheet.questions)
    head = Text(f"Predict: {sheet.title}" if sheet.title else "Predict", "lead")
    return [head, *(_code(sheet) if sheet.shows_code else ()), Items(items, bullet="? "), *_hints(sheet)]


def grade_document(sheet: Sheet) -> list[Parts]:
    """The answers beside what was found, and what explains each difference."""
    word = "Predicted" if any(sheet.answers.values()) else "Predict"
    head = f"{word}: {sheet.title}" if sheet.title else word
    questions = {question.name: question for question in sheet.questions}
    parts = [_graded_parts(questions[grade.question], grade) for grade in sheet.grades]
    score = [Text(sheet.score, "lead")] if any(sheet.answers.values()) else []
    note = [Text(sheet.remark, "warning")] if sheet.remark else []
    return [Text(head, "lead"), *(_code(sheet) if sheet.shows_code else ()), *parts, *score, *note, *_hints(sheet)]


def _hints(sheet: Sheet) -> Iterator[Fold]:
    return (Fold("Hint", (Text(hint),)) for hint in sheet.hints)


def _graded_parts(question: Question, grade: Grade) -> Parts:
    said: Words = ("you: ", Tag(grade.given, "strong"), "  ") if grade.given else ""
    found: Words = ("found: ", Tag(grade.found, "strong")) if grade.found else grade.words
    told = tuple(_explanation_words(each.words, each.stage) for each in grade.explanations)
    mark = Tag(VERDICTS[grade.verdict], "strong")
    if grade.verdict == "unanswered":  # so that a page does not spoil the exercise for its reader
        truth: tuple[Parts, ...] = (Text(found), Items(told, bullet="- "))
        return Section((Fold("What torch.compile does", truth),), question.ask())
    words = (*_pieces(said), *_pieces(found), "  ", mark)
    return Section((Text(words), Items(told, bullet="- ")), question.ask())


def _pieces(words: Words) -> tuple[Any, ...]:
    return words if isinstance(words, tuple) else (words,)


def _explanation_words(words: str, stage: str) -> Words:
    return (f"{words} → ", Link(stage_words(stage).title, open=stage)) if stage else words


def _code(sheet: Sheet) -> tuple[Parts, ...]:
    """The listing with its line numbers; all of it in text too, where code is usually cut."""
    listing = sheet.listing
    width = len(str(listing.shown[-1]))
    lines = tuple(f"{number:>{width}}  {listing.lines[number - 1]}" for number in listing.shown)
    whole = tuple(Text((Tag(line, "code"),), "line") for line in lines)
    return Only(("text",), (Section(whole),)), Only(("html",), (Code(lines),))


def form_data(sheet: Sheet) -> dict[str, Any]:
    """The sheet as plain JSON for the widget."""
    listing = sheet.listing
    return {
        "title": sheet.title,
        "showsCode": sheet.shows_code,
        "lines": [[number, listing.lines[number - 1]] for number in listing.shown],
        "computing": list(listing.computing),
        "hints": list(sheet.hints),
        "questions": [
            {"name": each.name, "form": each.form, "ask": each.ask(), "hint": each.hint()} for each in sheet.questions
        ],
    }


def grades_data(sheet: Sheet) -> dict[str, Any]:
    """The grades as plain JSON for the widget."""
    return {"score": sheet.score, "remark": sheet.remark, "grades": [grade_data(grade) for grade in sheet.grades]}


def grade_data(grade: Grade) -> dict[str, Any]:
    """A grade as plain JSON."""
    data: dict[str, Any] = msgspec.to_builtins(grade)
    titles = {each.stage: stage_words(each.stage).title for each in grade.explanations if each.stage}
    return {**data, "mark": VERDICTS[grade.verdict], "titles": titles}
