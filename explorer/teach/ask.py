"""The kinds of questions, and `--ask breaks,shape:h` as questions."""

from __future__ import annotations

from typing import Final

from compiler.record.plain_text import did_you_mean
from explorer.teach.backward_questions import Gradient, Leaves, Recomputed, Saved
from explorer.teach.capture_questions import (
    Breaks,
    Changed,
    Dtype,
    Graphs,
    Inputs,
    Operations,
    Plain,
    Recompiles,
    Shape,
)
from explorer.teach.code_questions import Becomes, Fusion, Kernels, Traffic
from explorer.teach.question import Question

QUESTIONS: Final[dict[str, type[Question]]] = {
    kind.kind: kind
    for kind in (
        Breaks, Graphs, Plain, Inputs, Operations, Shape, Dtype, Recompiles, Changed, Leaves, Gradient, Saved,
        Recomputed, Becomes, Fusion, Kernels, Traffic,
    )
}  # fmt: skip
"""Every kind of question, by its name in `--ask`, in the order of the pipeline."""


def questions_of(text: str) -> tuple[Question, ...]:
    """The questions of `--ask`. Raises ValueError for a kind or subject that does not exist."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise ValueError(f"--ask needs a question: {', '.join(QUESTIONS)}")
    return tuple(_question_of(word) for word in dict.fromkeys(words))


def _question_of(word: str) -> Question:
    kind, _, subject = word.partition(":")
    if kind not in QUESTIONS:
        meant = did_you_mean(kind, QUESTIONS) or f"; there are: {', '.join(QUESTIONS)}"
        raise ValueError(f"--ask {word}: there is no question {kind!r}{meant}")
    try:
        return QUESTIONS[kind](subject.strip())
    except ValueError as error:
        raise ValueError(f"--ask {word}: {error}") from None
