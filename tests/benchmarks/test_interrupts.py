"""Interrupts at random moments in a real kernel; `python -m benchmarks.interrupts MODE` tries thirty per mode."""

from __future__ import annotations

import pytest

from benchmarks.interrupts import interrupted
from compiler.backend.runtime import build_cpp


@pytest.mark.skipif(not build_cpp.compiler(), reason="needs a C++ compiler")
def test_interrupted_first_calls_leave_nothing() -> None:
    found = list(interrupted("compile", 3, seed=3))
    assert [moment for moment in found if moment.wrong] == []
    assert {moment.ended for moment in found} >= {"KeyboardInterrupt"}
