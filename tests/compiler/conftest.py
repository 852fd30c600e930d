"""Fixtures for tests of compiled kernels."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compiler.hand_written import workers


@pytest.fixture
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that compiling kernels leaves no process, file, variable or setting behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment, driver, gpu_there = _environment(), _driver(), torch.cuda.is_available()
    yield
    assert not workers()
    assert not list(tmp_path.glob("tcompile-*"))
    assert _environment() == environment
    assert torch.cuda.is_available() == gpu_there
    assert _driver() is driver


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def _driver() -> Any:
    from triton.runtime import driver

    return driver._active
