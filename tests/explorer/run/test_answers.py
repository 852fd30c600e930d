"""Answers for programs: pages, cursors, bounds, edits as diffs, and the published schemas."""

from __future__ import annotations

import gzip
import json
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import tcompile
from build_tools import write_schemas
from compiler.numerics.undeclared_writes import undeclared_writes
from compiler.record import Record, Site, Span, Suggestion, XRay
from explorer.findings.diagnosis import diagnose
from explorer.findings.edit_diff import edit_diff
from explorer.run.answers import MOST_BYTES, Answer, AnswerError, answer_json, read_page
from explorer.run.record_answers import diagnosis_answer, facts_answer, record_answer, stage_answer
from tests.explorer.run.test_saved_before import SAVED
from tests.explorer.small_record import small_record


def pages(answer: Answer, **limits: int) -> list[Any]:
    """All pages of an answer, each as it is read back."""
    found, cursor = [], ""
    while True:
        text = answer_json(answer, cursor=cursor, **limits)
        assert len(text.encode()) <= limits.get("most_bytes", MOST_BYTES)
        found.append(read_page(text))
        if found[-1].next_cursor is None:
            return found
        cursor = found[-1].next_cursor


def test_pages_have_all_items_once_and_are_bounded() -> None:
    items = [{"id": str(number), "text": "é" * (number * 7 % 900)} for number in range(200)]
    answer = Answer("numbers", "many", {"of": "all"}, items)
    assert [item for page in pages(answer) for item in page.items] == items
    assert [len(page.items) for page in pages(answer, limit=90, most_bytes=10**6)] == [90, 90, 20]
    (whole,) = (read_page(answer_json(answer, most_bytes=None)),)
    assert (whole.total, len(whole.items), whole.cut) == (200, 200, {})


@pytest.mark.parametrize("value", ["x" * 10**6, ["\n" * 99] * 9999, {str(number): number for number in range(9999)}])
def test_huge_items_are_cut_and_say_so(value: Any) -> None:
    answer = Answer("huge", "t" * 50_000, {"patch": value}, [{"id": "a", "edit": value}, {"id": "b", "edit": value}])
    for page in pages(answer):
        assert [item["id"] for item in page.items] in (["a"], ["b"])
        assert page.cut


def test_wrong_cursors_and_limits_are_errors() -> None:
    answer = Answer("numbers", "", {}, [{"id": "a"}, {"id": "b"}])
    cursor = read_page(answer_json(answer, limit=1)).next_cursor or ""
    with pytest.raises(AnswerError, match="has changed"):
        answer_json(replace(answer, items=[{"id": "b"}, {"id": "a"}]), cursor=cursor)
    for wrong in ("x", "9.abc", "1", f"{'9' * 5000}.a", "-1.a"):
        with pytest.raises(AnswerError, match="no cursor"):
            answer_json(answer, cursor=wrong)
    with pytest.raises(AnswerError, match="at least 1 item"):
        answer_json(answer, limit=0)
    for text in ("", "[]", '{"schema": 1}', answer_json(answer).replace('"schema":1', '"schema":7')):
        with pytest.raises(AnswerError):
            read_page(text)


@pytest.mark.needs("g++")
def test_wrong_number_in_half_precision_gets_a_tried_setting() -> None:
    """Eager mode overflows in float16 between two operations that Inductor fuses in float32."""

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x.half() * 1000 * 1000 / 1000).float()

    run = tcompile.explore(scaled, torch.full((8, 8), 2.0), target="cpu", check=True)
    found = [each for each in run.diagnose().findings if each.kind == "wrong number"]
    assert found
    assert {each.state for each in found} == {"verified"}
    assert found[0].snippet == ("torch.compile(…, options={'emulate_precision_casts': True})",)


def test_wrong_numbers_name_their_cause() -> None:
    @torch.library.custom_op("cause::shift", mutates_args=())
    def shift(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    shift.register_fake(torch.empty_like)

    def add_shift(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        return y + shift(y)

    def asks(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y * 2 if torch.compiler.is_compiling() else y

    run = tcompile.explore(asks, torch.ones(4), backend="eager", check=True)
    (finding,) = (each for each in run.diagnose().findings if each.kind == "wrong number")
    assert finding.span is not None
    assert "is_compiling()" in finding.span.code
    captured = tcompile.explore(add_shift, torch.ones(4), stages="captured").kept["0/0"].eager
    assert captured is not None
    assert [name for _, name in undeclared_writes(captured, (torch.ones(4),))] == ["x"]


def test_answers_and_older_records_follow_the_published_schemas() -> None:
    page_schema, record_schema = (json.loads(path.read_text()) for path in sorted(write_schemas.FOLDER.iterdir()))
    finding = jsonschema.Draft202012Validator({**page_schema, "$ref": "#/$defs/Diagnostic"})
    for path in SAVED.glob("*.json.gz"):
        record = Record.from_json(gzip.decompress(path.read_bytes()))
        jsonschema.validate(json.loads(record.to_json()), record_schema)
        found = diagnosis_answer(diagnose(record))
        artifacts = record.of_stage("kernels")
        for answer in (record_answer(record), facts_answer(record, "guards"), stage_answer(record, artifacts), found):
            for page in pages(answer):
                jsonschema.validate(asdict(page), page_schema)
        for item in pages(found)[0].items:
            finding.validate(item)


def test_published_schemas_only_grow() -> None:
    """Answers are as published; a record may have more. `python -m build_tools.write_schemas` writes both."""
    for file, schema in write_schemas.schemas().items():
        published = json.loads((write_schemas.FOLDER / file).read_text())
        now = json.loads(write_schemas.text_of(schema))
        for name, each in published["$defs"].items():
            assert each["properties"].keys() <= now["$defs"][name]["properties"].keys(), name
        assert file.startswith("record") or published["$defs"].keys() == now["$defs"].keys()


CODE = "import torch\n\n\ndef f(x):\n    y = x.item()\n    return y + 1\n"


def broken(*suggestions: Suggestion) -> Record:
    """A record of `CODE` with one site in line 5."""
    record = small_record()
    source = replace(
        record["source"], title="my model.py", text=CODE, attrs={"installed": False}, lines={}, entities=()
    )
    span = Span("my model.py", 5, 5, 8, 16, "f", "x.item()")
    site = Site("site[1]", "my model.py", 5, span, "item", "asks for a number", "", (span,), suggestions=suggestions)
    return record.with_fields(artifacts=(source,), xray=XRay((site,)))


def test_edits_of_a_record_apply_to_the_file(tmp_path: Path) -> None:
    new = Suggestion(
        "", "my model.py", 5, 5, "    y = x.sum()\n    y = g(y)", settings=("torch.manual_seed(0)",),
        definitions=("def g(x):\n    return x",),
    )  # fmt: skip
    (found,) = (each for each in diagnose(broken(new)).findings if each.kind == "graph break")
    assert (found.file, found.line, found.state, found.evidence[0].basis) == ("my model.py", 5, "untried", "recorded")
    (tmp_path / "my model.py").write_text(CODE)
    subprocess.run(["git", "apply", "-"], input=found.edit, text=True, cwd=tmp_path, check=True)
    after = (tmp_path / "my model.py").read_text()
    added = "torch.manual_seed(0)\n\n\ndef g(x):\n    return x\n"
    assert after == CODE.replace("torch\n", f"torch\n{added}").replace("x.item()", "x.sum()\n    y = g(y)")


def test_ids_of_findings_stay_when_lines_move() -> None:
    record = broken()
    moved = json.loads(record.to_json().replace('"line":5', '"line":9'))
    ids = [[each.id for each in diagnose(each).findings] for each in (record, Record.from_json(json.dumps(moved)))]
    assert ids[0] == ids[1]


def test_edit_without_recorded_lines_is_words_only() -> None:
    record = broken()
    assert edit_diff(record, [Suggestion("", "my model.py", 70, 71, "pass")], {}) == ""
    assert edit_diff(record, [Suggestion("only words")], {}) == ""
    assert edit_diff(record, [], {}) == ""
