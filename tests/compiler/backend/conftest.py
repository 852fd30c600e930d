"""Our backend's tests run on poisoned memory; some see the programs that are made for a GPU."""

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
    """Those that are compiled: as for a GPU, and run by the interpreter, which writes over what a launch does."""
    programs: list[Program] = []

    def interpreted(program: Program, _: Context) -> Callable[[list[Any]], Sequence[Any]]:
        programs.append(program)
        return backend.interpret_program(program)

    with as_for_a_gpu(interpreted):
        yield programs
