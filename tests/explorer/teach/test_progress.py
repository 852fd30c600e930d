"""A learner's progress on disk: kept, bounded, not trusted, never overwritten if it can't be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compiler.record import Record
from compiler.record.options import Options
from explorer.teach.ask import questions_of
from explorer.teach.listing import Listing
from explorer.teach.progress import FILE, Progress
from explorer.teach.sheet import Sheet

CODE = "def f(x):\n    y = x + 1\n    return y\n"


def sheet(**answers: str) -> Sheet:
    asked = Sheet("first", Listing(CODE), questions_of("breaks,graphs")).with_answers(answers)
    return asked.grade_answers(Record("f", Options()))


def test_answers_are_kept_and_read_again(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    assert progress.keep("one", sheet(breaks="2")) == ""
    progress.keep("one", sheet(breaks="none", graphs="1"))
    entry = Progress(tmp_path).entries()["one"]
    assert (dict(entry.answers), entry.tries) == ({"breaks": "none", "graphs": "1"}, 2)
    assert entry.verdicts == {"breaks": "not graded", "graphs": "not graded"}
    assert not entry.is_done
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"tcompile_progress":1,"entries":{"a":{"title":5}}}',
     b'{"tcompile_progress":1,"entries":{}}' + b" " * (1 << 20)],
    ids=["empty", "object", "list", "bytes", "deep", "types", "large"],
)  # fmt: skip
def test_unreadable_file_is_kept_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    progress = Progress(tmp_path)
    assert progress.entries() == {}
    assert path.read_bytes() == content  # reading changes nothing
    note = progress.keep("one", sheet(graphs="1"))
    (aside,) = (other for other in tmp_path.iterdir() if other != path)
    assert aside.name in note
    assert aside.read_bytes() == content
    assert set(progress.entries()) == {"one"}


def test_folder_that_refuses_writing_loses_no_answer(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "missing")
    assert "not kept" in progress.keep("one", sheet(graphs="1"))


def test_progress_is_exported(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.keep("one", sheet(breaks="=1+1", graphs="1"))
    rows = progress.export(tmp_path / "me.csv").read_text().splitlines()
    assert rows[0] == "exercise,title,question,answer,verdict,tries,time"
    assert rows[1].startswith("one,first,breaks,'=1+1,unreadable,1,")
    assert json.loads(progress.export(tmp_path / "me.json").read_text())["entries"]["one"]["tries"] == 1
    with pytest.raises(ValueError, match=r"\.csv"):
        progress.export(tmp_path / "me.xlsx")
