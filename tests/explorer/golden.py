"""Texts that a test compares with a file beside it. `UPDATE_GOLDEN=1 pytest …` writes the files: read the diff."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text(), f"{path.name} differs; if that is meant: UPDATE_GOLDEN=1"
