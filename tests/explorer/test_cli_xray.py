"""`tcompile xray`: cards, the diff, files that are written after a question and with a backup, one-line errors."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compiler.xray.patch import EditedFile
from explorer import cli
from explorer.entry import write_files
from explorer.run import files
from explorer.run.answers import read_page
from tests.explorer.test_cli import wrong

CODE = "import torch\n\n\ndef f(x):\n    y = x / x.sum().item()  # scale\n    return y + 1\n\n\ncount = 3\n"
MENDED = CODE.replace("x.sum().item()", "x.sum().detach()")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "model.py"
    path.write_text(CODE)
    path.chmod(0o754)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


def x_ray(*options: str) -> int:
    return cli.main(["xray", "model.py:f", "--input", "rand(4)", "--backend", "eager", *options])


def test_xray_prints_cards_and_a_diff_and_saves(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert x_ray("-o", "page.html", "--json", "run.json", "--patch", "fix.patch") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("1 site; ")
    assert "Tried: verified." in shown
    assert "# No site is left.\n--- a/model.py\n+++ b/model.py\n" in shown
    for name in ("page.html", "run.json"):
        record = files.read(name)
        assert record.xray is not None
        assert record.xray.patch.rstrip() in shown
    assert model.read_text() == CODE
    subprocess.run(["git", "apply", "fix.patch"], check=True, cwd=model.parent)
    assert model.read_text() == MENDED


def test_diagnosis_is_json_alone_and_its_patch_applies(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model.py:f", "--call", "rand(4)", "--backend", "eager", "--json"]
    assert cli.main(["diagnose", *words, "--patch", "fix.patch"]) == 0
    page = read_page(capsys.readouterr().out)
    first = page.items[0]
    assert [first[name] for name in ("kind", "file", "line", "gb_id", "state")] == [
        "graph break", "model.py", 5, "GB0124", "verified",
    ]  # fmt: skip
    assert Path("fix.patch").read_text() == page.facts["patch"]
    subprocess.run(["git", "apply", "fix.patch"], check=True, cwd=model.parent)
    assert "x.sum().detach()" in model.read_text()


def test_patch_of_a_diagnosis_is_in_the_encoding_of_the_file(model: Path) -> None:
    code = CODE.replace("# scale", "# échelle")
    model.write_bytes(f"# -*- coding: latin-1 -*-\n{code}".encode("latin-1"))
    assert cli.main(["diagnose", "model.py:f", "--call", "rand(4)", "--backend", "eager", "--patch", "fix.patch"]) == 0
    assert "é".encode("latin-1") in Path("fix.patch").read_bytes()
    subprocess.run(["git", "apply", "fix.patch"], check=True, cwd=model.parent)
    assert "x.sum().detach()  # échelle" in model.read_bytes().decode("latin-1")


def test_write_changes_the_file_and_keeps_a_backup(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model.parent / "model.py.orig").write_text("an older one")
    assert x_ray("--write", "--yes") == 0
    backup = model.parent / "model.py.orig2"
    assert (model.read_text(), backup.read_text()) == (MENDED, CODE)
    assert [path.stat().st_mode & 0o777 for path in (model, backup)] == [0o754, 0o754]
    assert capsys.readouterr().out.endswith(f"wrote model.py; as it was: {backup}\n")
    assert sorted(path.name for path in model.parent.glob("*.*")) == ["model.py", "model.py.orig", "model.py.orig2"]


def asked(monkeypatch: pytest.MonkeyPatch, answer: Callable[[], str]) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda _prompt="": answer())


def test_write_asks_first(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked(monkeypatch, lambda: "")
    assert x_ray("--write") == 0
    assert capsys.readouterr().out.endswith("Nothing was written.\n")
    assert model.read_text() == CODE


def test_file_that_changed_meanwhile_is_left_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(monkeypatch, lambda: (model.write_text(CODE + "# more\n"), "y")[1])
    assert x_ray("--write") == 2
    error = "tcompile: model.py has changed since it was read: nothing was written. X-ray it again\n"
    assert capsys.readouterr().err == error
    assert model.read_text() == CODE + "# more\n"
    assert not list(model.parent.glob("*.orig*"))


def test_all_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = []
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("before")
        edited.append(EditedFile(str(tmp_path / name), name, "before", "after", "utf-8", b"before"))

    def fails_once(path: Path, data: bytes) -> Path:
        if path.name == "b.py":
            raise OSError("no space left")
        return files.replace_file(path, data)

    monkeypatch.setattr(write_files, "replace_file", fails_once)
    with pytest.raises(OSError, match="no space left"):
        write_files.write_files(edited)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.py": "before", "b.py": "before"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:f"], "there is no file 'nowhere.py'"),
        (["model.py"], "'model.py' names no function or model"),
        (["model.py:g"], "model.py has no 'g'"),
        (["model.py:count"], "'count' in model.py is of type int, not a function or a model"),
        (["model.py:f"], "f(x) can't be called with 0 inputs"),
        (["model.py:f", "--write"], "--write asks before it changes files, and there is nobody to ask here: add --yes"),
        (["model.py:f", "--sites-only", "--write", "--yes"], "--sites-only tries no fixes"),
        (["model.py:f", "--fix", "1,a"], "'1,a' is no list of numbers, such as 1,3"),
        (
            ["model.py:f", "--input", "rand(4)", "--backend", "eager", "--fix", "2"],
            "there is no site 2: they are 1 to 1",
        ),
        (["model.py:f", "--patch", "fix.txt"], "'fix.txt' does not end in .patch or .diff"),
        (["model.py:f", "-o", "page.json"], "'page.json' does not end in .html"),
    ],
)
def test_wrong_use_is_one_line(
    model: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in wrong(capsys, "xray", *arguments)
    assert model.read_text() == CODE
