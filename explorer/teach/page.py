"""Predictions as one self-contained page, on which a browser grades the answers: no Python, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from explorer.reading.shapes import DTYPES_CALLED
from explorer.run import frontend
from explorer.run.page import html_page
from explorer.teach.question import AnswerError, Grade, NamesQuestion, Question
from explorer.teach.sheet import Sheet, form_data, grade_data


def predictions_page(title: str, sheets: Sequence[Sheet]) -> str:
    """The page of sheets that were graded without answers, so that they have what was found."""
    forms = base64.b64encode(msgspec.json.encode([saved_form(sheet) for sheet in sheets])).decode()
    block = f'<script type="application/x-tcompile" id="tc-forms">{forms}</script>'
    return html_page(title, frontend.predict_css(), (frontend.predict_page_script(),), block)


def saved_form(sheet: Sheet) -> dict[str, Any]:
    """A graded sheet as plain JSON, with what the browser needs to read and grade answers."""
    form, listing = form_data(sheet), sheet.listing
    questions = zip(form["questions"], sheet.questions, sheet.grades, strict=True)
    return form | {
        "showsCode": True,
        "isSaved": True,
        "statements": {str(line): listing.statement_at(line) for line in listing.shown},
        "dtypes": DTYPES_CALLED,
        "questions": [data | _saved_question(question, grade) for data, question, grade in questions],
    }


def _saved_question(question: Question, grade: Grade) -> dict[str, Any]:
    truth = grade_data(_readable(question, grade))
    for explanation in truth["explanations"]:
        explanation["stage"] = ""  # a page of questions has no stages to open
    names = isinstance(question, NamesQuestion)
    reading = question.form if question.form != "text" else "names" if names else question.kind
    return {"reading": reading, "counts": question.counts_bytes, "truth": truth}


def _readable(question: Question, grade: Grade) -> Grade:
    """The grade, unless its truth can't be typed: then nothing can be graded."""
    try:
        is_readable = not grade.found or question.show(question.read(grade.found)) == grade.found
    except AnswerError:
        is_readable = False
    why = f"this can't be graded on a page: it is {grade.found}"
    return grade if is_readable else replace(grade, found="", verdict="not graded", words=why)
