"""A prediction: questions about code that has not run, the run that answers them, and the grades."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compiler.record import Record
from explorer.run.run import Run
from explorer.teach.progress import Progress
from explorer.teach.question import LONGEST_ANSWER, AnswerError
from explorer.teach.sheet import Sheet


@dataclass(frozen=True)
class Outcome:
    """What running the code gave: the run to show, the record to grade from, and why it failed ("" if it did not)."""

    run: Run | None
    record: Record | None
    failure: str = ""


class Prediction:
    """The questions about some code; `compare` runs the code, unless it has run, and grades the answers.

    `explore` runs the code. `key` names the exercise in the learner's progress.
    """

    def __init__(self, sheet: Sheet, explore: Callable[[], Outcome], key: str, progress: Progress) -> None:
        self.sheet = sheet.with_answers(_kept_answers(progress, key))
        self._explore, self._key, self._progress = explore, key, progress
        self.outcome: Outcome | None = None

    @property
    def run(self) -> Run | None:
        """The run, once the answers were compared."""
        return self.outcome.run if self.outcome else None

    @property
    def has_to_run(self) -> bool:
        """Whether the next comparison runs the code: it has not run yet, or it failed."""
        return self.outcome is None or bool(self.outcome.failure)

    def unreadable(self, answers: Mapping[str, str]) -> dict[str, str]:
        """Answers that can't be read, each with how to write it. Nothing is run, so nothing is given away."""
        found = {}
        for question in self.sheet.questions:
            text = str(answers.get(question.name, "")).strip()[:LONGEST_ANSWER]
            try:
                if text:
                    question.parse(text, self.sheet.listing)
            except AnswerError as error:
                found[question.name] = str(error)
        return found

    def compare(self, answers: Mapping[str, str]) -> Sheet:
        """Grade answers against what torch.compile does; keep them in the progress if there are any."""
        self.sheet = self.sheet.with_answers(answers)
        if self.outcome is None or self.has_to_run:
            self.outcome = self._explore()
        record, failure = self.outcome.record, self.outcome.failure
        if failure:
            self.sheet = self.sheet.leave_ungraded(f"nothing can be graded, because the code fails: {failure}")
        elif record is not None:
            self.sheet = self.sheet.grade_answers(record)
        if any(self.sheet.answers.values()):
            self.sheet = self.sheet.with_remark(self._progress.keep(self._key, self.sheet))
        return self.sheet


def _kept_answers(progress: Progress, key: str) -> Mapping[str, str]:
    entry = progress.entries().get(key)
    return entry.answers if entry else {}
