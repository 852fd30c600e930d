"""The texts of this folder's tests, in the files of golden/."""

from __future__ import annotations

from pathlib import Path

from tests import golden

FOLDER = Path(__file__).parent / "golden"


def assert_golden(name: str, text: str) -> None:
    golden.assert_golden(FOLDER / name, text)
