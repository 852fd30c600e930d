"""Compare texts with golden files next to the test. `UPDATE_GOLDEN=1 pytest …` writes the files: read the diff."""

from __future__ import annotations

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text(), f"{path.name} differs; if that is meant: UPDATE_GOLDEN=1"
