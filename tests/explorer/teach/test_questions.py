"""Reading answers and asking: what is understood, what is refused, and what can't be graded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from compiler.record import Record
from compiler.record.options import Options
from explorer.run.frontend import STATIC
from explorer.teach.ask import QUESTIONS, questions_of
from explorer.teach.listing import Listing
from explorer.teach.page import saved_form
from explorer.teach.question import AnswerError, Grade
from explorer.teach.sheet import Sheet
from tests.explorer.small_record import SOURCE, small_record

CODE = """\
def f(x):
    y = torch.add(
        x,
        1,
    )
    if y.sum() > 0:
        y = -y
    return y

f(x)
"""
LISTING = Listing(CODE)
READABLE: list[tuple[str, str, object]] = [
    ("breaks", "lines 2 and 7", frozenset({2, 7})),
    ("breaks", "4", frozenset({2})),  # a line inside of a statement
    ("breaks", "None", frozenset()),
    ("graphs", "1,024", 1024),
    ("graphs", "none", 0),
    ("saved:bytes", "2 KiB", 2048),
    ("bytes", "64 kB", 64_000),
    ("fusion", "2+7, 6+7+8", frozenset(map(frozenset, [(2, 7), (6, 7), (6, 8), (7, 8)]))),
    ("shape", "torch.Size([8, 64])", ("8", "64")),
    ("shape", "8 × s0", ("8", "s0")),
    ("shape", "scalar", ()),
    ("dtype", "torch.bfloat16", "bfloat16"),
    ("dtype", "f32", "float32"),
    ("gradient:x", "tensor([1., -2])", [1.0, -2.0]),
    ("gradient:x", "none", None),
    ("leaves", "`w`, a.bias", frozenset({"w", "a.bias"})),
    ("becomes:gelu", "mul, erf; add()", frozenset({"mul", "erf", "add"})),
    ("shape", "n x 4", ("n", "4")),
    ("gradient:x", "[nan, -inf]", [float("nan"), float("-inf")]),
    ("changed", "options['double'], n", frozenset({"options", "n"})),
]
UNREADABLE = [
    ("breaks", "the print"), ("breaks", "99"), ("breaks", "?"), ("graphs", "a few"), ("graphs", "1.5"),
    ("graphs", "2 KiB"), ("fusion", "2"), ("fusion", "2+99"), ("shape", "8; rm"), ("dtype", "float3"),
    ("gradient:x", "x + 1"), ("gradient:x", "[" * 500), ("gradient:x", "'1'"), ("leaves", ", ,"),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "text", "answer"), READABLE)
def test_answers_are_read(ask: str, text: str, answer: object) -> None:
    (question,) = questions_of(ask)
    assert question.show(question.parse(text, LISTING)) == question.show(answer)
    assert question.agree(question.parse(question.show(answer), LISTING), answer)


@pytest.mark.parametrize(("ask", "text"), UNREADABLE)
def test_unreadable_answers_say_how_to_write_them(ask: str, text: str) -> None:
    (question,) = questions_of(ask)
    with pytest.raises(AnswerError):
        question.parse(text, LISTING)
    grade = question.grade(text, small_record(), LISTING)
    assert (grade.verdict, grade.given, grade.found) == ("unreadable", text, "")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ("brakes", "did you mean 'breaks'"),
        ("", "--ask needs a question"),
        ("graphs:x", "graphs:x is no question; there is graphs alone"),
        ("kernels:backwards", "did you mean 'backward'"),
        ("becomes", "becomes needs a name, as in becomes:x"),
    ],
)
def test_unknown_questions_name_the_nearest(ask: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        questions_of(ask)


def test_listing_knows_its_statements() -> None:
    assert LISTING.computing == (2, 6, 7)
    assert LISTING.lines_that_assign("y") == {2, 3, 4, 5, 7}
    assert LISTING.statement_at(5) == 2
    assert LISTING.statement_at(10) == 10


@pytest.mark.parametrize("kind", QUESTIONS)
def test_nothing_compiled_is_not_graded(kind: str) -> None:
    """A record of nothing has no answer to any question, and says so."""
    (question,) = questions_of("becomes:relu" if kind == "becomes" else kind)
    assert question.ask().endswith("?")
    assert question.hint()
    grade = question.grade("none", Record("f", Options()), LISTING)
    assert grade.verdict in ("not graded", "unreadable")
    assert question.grade("", Record("f", Options()), LISTING).words.startswith("this can't be graded, because ")


def test_differences_name_the_stage_that_explains_them() -> None:
    record = small_record()
    listing = Listing(SOURCE)
    for ask in ("breaks", "graphs", "ops", "kernels", "shape"):
        (question,) = questions_of(ask)
        grade = question.grade("7" if ask != "breaks" else "1", record, listing)
        assert grade.verdict in ("wrong", "not graded"), grade
        if grade.verdict == "wrong":
            assert all(each.stage for each in grade.explanations), grade


@pytest.mark.needs("node")
def test_saved_page_grades_as_a_kernel_does(tmp_path: Path) -> None:
    """Each answer against each truth of the same question; answers that can't be read are refused."""
    questions = {ask: questions_of(ask)[0] for ask, _ in UNREADABLE} | {
        ask: questions_of(ask)[0] for ask, _, _ in READABLE
    }
    forms, answers, expected = [], [], []
    for ask, _, truth in READABLE:
        found = questions[ask].show(truth)
        sheet = Sheet("", LISTING, (questions[ask],), grades=(Grade(ask, "unanswered", "", found),))
        for text in [text for each, text, _ in READABLE if each == ask] + [
            text for each, text in UNREADABLE if each == ask
        ]:
            is_bad = (ask, text) in UNREADABLE
            forms.append(saved_form(sheet))
            answers.append({ask: text})
            right = not is_bad and questions[ask].agree(questions[ask].parse(text, LISTING), truth)
            expected.append("unreadable" if is_bad else "right" if right else "wrong")
    (tmp_path / "cases.json").write_text(json.dumps([forms, answers]))
    script = f"""
        import {{ readFileSync }} from "node:fs";
        import {{ gradeAnswers, unreadableAnswers }} from "{STATIC / "predict_answers.js"}";
        const [forms, answers] = JSON.parse(readFileSync("cases.json", "utf-8"));
        const verdict = (form, given) => Object.keys(unreadableAnswers(form, given)).length
          ? "unreadable" : gradeAnswers(form, given).grades[0].verdict;
        console.log(JSON.stringify(forms.map((form, index) => verdict(form, answers[index]))));
    """
    (tmp_path / "grade.mjs").write_text(script)
    told = subprocess.run(["node", "grade.mjs"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert list(zip(answers, json.loads(told), strict=True)) == list(zip(answers, expected, strict=True))
