"""Our backend's tests run on poisoned memory; some inspect the programs for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compiler.backend import backend
from compiler.backend.ir import Program
from compiler.backend.passes.context import Context
from tests.compiler.backend.poison import poisoned
from tests.compiler.backend.random_programs import as_for_a_gpu


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    with poisoned():
        yield


@pytest.fixture
def gpu_programs() -> Iterator[list[Program]]:
    """Collect the compiled programs: compiled for a GPU, and run by the interpreter, which overwrites like a launch."""
    programs: list[Program] = []

    def interpreted(program: Program, _: Context) -> Callable[[list[Any]], Sequence[Any]]:
        programs.append(program)
        return backend.interpret_program(program)

    with as_for_a_gpu(interpreted):
        yield programs
