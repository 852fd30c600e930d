"""Random programs of up to 30 operations, as machine code, interpreted, and as Triton code: all agree with eager mode.

`random_programs.py` defines their operations; `benchmarks/backend_fuzz.py` runs many more of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compiler.backend import backend
from tests.compiler.backend.random_programs import (
    AGREES,
    NAMES,
    WIDE,
    Case,
    Step,
    as_for_a_gpu,
    case_of,
    check,
    valid,
)

numbers = st.integers(0, 98)
usual, wide = (
    st.lists(st.tuples(st.sampled_from(names), numbers, numbers, st.integers(0, 31)), min_size=8, max_size=30)
    for names in (NAMES, WIDE)
)
kinds = st.sampled_from([{}, {}, {"gradients": True}, {"shared": True}, {"dynamic": True}])
fixed = {"deadline": None, "derandomize": True, "database": None, "suppress_health_check": list(HealthCheck)}


def held_against_eager(steps: list[Step], kind: dict[str, bool], options: dict[str, Any]) -> None:
    case = Case(steps, options=options, **kind)
    for grow in case.grows:
        given = [x + 0 if x.requires_grad else x for x in case.given(grow)]
        case = Case(valid(case.steps, given), options=options, **kind)
    check(case)


@settings(max_examples=6, **fixed)
@given(steps=wide, kind=kinds)
def test_machine_code_matches_eager(steps: list[Step], kind: dict[str, bool]) -> None:
    held_against_eager(steps, kind, {})


@pytest.mark.parametrize("code", ["interpret", "triton"])
@settings(max_examples=8, **fixed)
@given(steps=usual, kind=kinds)
def test_interpreted_code_matches_eager(code: str, steps: list[Step], kind: dict[str, bool]) -> None:
    held_against_eager(steps, kind, {"interpret": True} if code == "interpret" else {"code": "triton"})


@pytest.mark.parametrize(("seed", "gradients"), [(29, False), (86, False), (573, True), (705, True), (816, True)])
def test_gpu_passes_match_eager(seed: int, *, gradients: bool) -> None:
    """Compile for a GPU and run in Triton's interpreter. These programs were once wrong, or failed to compile."""
    with as_for_a_gpu():
        check(replace(case_of(seed), gradients=gradients))


def test_guard_added_by_lowering_specializes_a_size() -> None:
    """The guard makes the symbolic number of rows 2: before the fix, some loops used the symbol and some the number."""
    steps = [("nearest", 6, 93, 24), ("bfloat16", 27, 84, 18), ("bits", 34, 45, 26), ("median", 26, 71, 16),
             ("roll", 15, 33, 2), ("not", 36, 95, 20), ("mul", 20, 42, 25), ("softmax", 2, 71, 16)]  # fmt: skip
    assert check(Case(steps, dynamic=True)) == AGREES


def test_softmax_added_to_its_own_input() -> None:
    """Before the fix, code generation did not terminate."""
    with as_for_a_gpu():
        check(case_of(40001, names=WIDE))


@pytest.mark.parametrize("seed", range(8))
def test_memory_saving_order_matches_eager(seed: int) -> None:
    """The order is forced here, with the buffers that kernels overwrite on a GPU."""
    with as_for_a_gpu(lambda program, _ctx: backend.interpret_program(program)):
        check(case_of(seed, options={"reorder_percent": 10_000}))
