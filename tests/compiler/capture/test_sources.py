"""Source artifacts: the right lines, numbered as in the file, with machine-independent names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compiler.capture.sources import (
    GAP,
    WHOLE_FILE_LINES,
    SourceBook,
    _installed_roots,
    importable_path,
    is_cell,
    is_installed,
)


def test_a_short_file_is_shown_whole() -> None:
    book = SourceBook()
    book.line(__file__, 3)
    (artifact,) = book.artifacts()
    assert artifact.text == Path(__file__).read_text()
    assert artifact.lines == {3: (f"{artifact.id}.L3",)}


def test_long_file_is_cut_to_the_functions_used() -> None:
    functional = torch.nn.functional
    first = inspect.getsourcelines(functional.layer_norm)[1]
    source, _ = inspect.getsourcelines(functional.layer_norm)
    book = SourceBook()
    identity = book.line(functional.__file__, first + len(source) - 1)
    (artifact,) = book.artifacts()
    rows = artifact.text.split("\n")
    numbers = artifact.attrs["numbers"]
    assert rows[0] == GAP
    assert numbers[0] == 0
    assert [row for row, number in zip(rows, numbers, strict=False) if number] == [line.rstrip("\n") for line in source]
    assert identity in {found for ids in artifact.lines.values() for found in ids}


def test_methods_keep_their_class_header_and_decorators() -> None:
    book = SourceBook()
    method = torch.nn.Module.register_full_backward_hook
    lines, first = inspect.getsourcelines(method)
    book.line(torch.nn.modules.module.__file__, first + len(lines) - 1)
    (artifact,) = book.artifacts()
    assert "class Module:" in artifact.text
    assert "def register_full_backward_hook(" in artifact.text
    assert "def forward(" not in artifact.text


def test_long_files_show_all_decorators(tmp_path: Path) -> None:
    method = ["    @staticmethod", "    @functools.cache", "    def last(x):", "        return x", ""]
    file = tmp_path / "long.py"
    file.write_text("\n".join(["class Model:", *["    value = 1"] * WHOLE_FILE_LINES, "", *method]))
    book = SourceBook()
    book.line(str(file), WHOLE_FILE_LINES + 6)
    (artifact,) = book.artifacts()
    assert artifact.text.split("\n") == ["class Model:", GAP, *method]


def test_names_are_short_and_distinct() -> None:
    book = SourceBook()
    assert book.name(torch.nn.functional.__file__) == "torch/nn/functional.py"
    assert book.name("/tmp/ipykernel_12/345.py") == "cell"
    assert book.name("/tmp/ipykernel_12/678.py") == "cell 2"


@pytest.fixture
def roots_read_anew() -> Iterator[None]:
    """Look up what is installed again, in this test and after it."""
    cached = (is_installed, _installed_roots)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("roots_read_anew")
def test_torch_in_a_clone_counts_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.capture.sources._installed_roots", tuple)
    assert is_installed(torch.nn.functional.__file__)
    assert not is_installed(functools.__file__)


@pytest.mark.usefixtures("roots_read_anew")
def test_packages_on_the_path_count_as_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(folder)
    assert is_installed(str(folder / "package.py"))
    assert not is_installed(str(tmp_path / "script.py"))


def test_cells_and_installed_files_are_recognized() -> None:
    assert is_cell("/tmp/ipykernel_4242/1234567.py")
    assert is_cell("<ipython-input-3-abcdef>")
    assert not is_cell(__file__)
    assert is_installed(torch.__file__)
    assert is_installed(functools.__file__)
    assert not is_installed(__file__)
    assert importable_path(torch.__file__) == "torch/__init__.py"
