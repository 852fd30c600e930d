"""A torch that is newer than those that tcompile is made for gets one line."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from compiler.torch_api.supported import MADE_FOR, warn_of_newer_torch

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def forgetful() -> None:
    warn_of_newer_torch.cache_clear()


def test_newer_torch_is_told_once_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tcompile"):
        warn_of_newer_torch("9.1.0+cpu")
        warn_of_newer_torch("9.1.0+cpu")
    [record] = caplog.records
    message = record.getMessage()
    assert message == (
        f"tcompile is made for torch {MADE_FOR[0]} to {MADE_FOR[-1]}; with torch 9.1.0+cpu some stages may be missing"
    )


@pytest.mark.parametrize("version", [*MADE_FOR, f"{MADE_FOR[-1]}.9", "2.13.0+cpu", "2.14.1"])
def test_tested_torch_gets_no_warning(version: str, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_newer_torch(version)
    assert not caplog.records


def test_oldest_tested_torch_is_the_oldest_allowed() -> None:
    assert re.search(rf'"torch>={re.escape(MADE_FOR[0])}"', (ROOT / "pyproject.toml").read_text())
