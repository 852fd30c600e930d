"""The stepper: records every instruction that Dynamo reads, within a limit, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._guards import GuardsSet

from compiler.capture.bytecode import GeneratedNames
from compiler.capture.sources import SourceBook
from compiler.capture.steps import recorded_steps
from compiler.engine import Exploration, explore
from compiler.option_checks import parse_options
from compiler.record import Guard, Problem, Record, Step
from compiler.record.options import OptionError
from tests.compiler.capture.test_bytecode import CALLS, loops_and_breaks


def record_of(fn: Any, args: Any, *, step: bool) -> Record:
    return explore(fn, args, options=parse_options(stages=("bytecode", "captured"), step=step)).record


def guard_of(guard: Guard) -> tuple[object, ...]:
    """The name of a guard, without the process-wide counter in torch's name for its copy of the builtins."""
    return (guard.id, guard.kind, guard.words, guard.argument, guard.file, guard.line)


@pytest.fixture(scope="module")
def stepped() -> Record:
    return record_of(loops_and_breaks, (torch.ones(4), torch.ones(4)), step=True)


@pytest.mark.parametrize(("fn", "inputs"), CALLS)
def test_the_stepper_changes_nothing(fn: Any, inputs: Any) -> None:
    plain, stepped = (record_of(fn, inputs(), step=step) for step in (False, True))
    assert stepped.steps
    assert plain.steps == ()
    assert [each for each in stepped.artifacts if each.stage != "source"] == [
        each for each in plain.artifacts if each.stage != "source"
    ]
    assert [guard_of(each) for each in stepped.guards] == [guard_of(each) for each in plain.guards]
    assert stepped.breaks == plain.breaks
    assert [replace(each, guard_seconds=None) for each in stepped.frames] == [
        replace(each, guard_seconds=None) for each in plain.frames
    ]


def test_every_graph_node_is_added_by_a_step(stepped: Record) -> None:
    last = max(step.attempt for step in stepped.steps if step.frame == "1/0")
    added = [node for step in stepped.steps if (step.frame, step.attempt) == ("1/0", last) for node in step.nodes]
    calls = [node for node in added if " = call_" in node]
    captured = [
        entity for entity in stepped["captured[1/0]"].entities if entity.attrs.get("op", "").startswith("call_")
    ]
    assert captured
    assert len(calls) == len(captured)
    assert any(step.guards for step in stepped.steps)


def test_steps_link_to_the_bytecode_of_their_frame(stepped: Record) -> None:
    opcodes = {entity.attrs["offset"]: entity.attrs["opcode"] for entity in stepped["bytecode[1/0]"].entities}
    own = [step for step in stepped.steps if step.frame == "1/0" and step.depth == 0]
    assert {step.opcode for step in own} >= {"FOR_ITER", "BINARY_OP", "STORE_FAST"}
    assert all(opcodes[step.offset] == step.opcode for step in own)


def test_memory_limit_is_reported_with_a_hint() -> None:
    kept: list[tuple[tuple[Step, ...], Problem | None]] = []
    recording = recorded_steps(
        lambda *found: kept.append(found), frame_id=str, book=SourceBook(), names=GeneratedNames(), most=10_000
    )
    torch._dynamo.reset()
    with recording:
        torch.compile(lambda x: [x + number for number in range(9)], backend="eager")(torch.ones(2))
    ((steps, problem),) = kept
    assert 5 <= len(steps) <= 12
    assert problem is not None
    assert problem.stage == "steps"
    assert f"the first {len(steps)} instructions" in problem.reason
    assert "step=" in problem.hint
    assert max(len(text) for step in steps for text in (*step.pushed, *step.nodes, *step.guards)) <= 80


def test_every_traced_line_is_in_the_sources(stepped: Record) -> None:
    lines = {entity.id for artifact in stepped.of_stage("source") for entity in artifact.entities}
    assert all(f"source[{step.file}].L{step.line}" in lines for step in stepped.steps if step.line > 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_stepper_patches_are_removed(error: type[BaseException]) -> None:
    before = (InstructionTranslatorBase.step, GuardsSet.add)

    def backend(module: Any, inputs: Any) -> Any:
        raise error("stop")

    with pytest.raises(error), Exploration(parse_options(step=True, backend="eager")) as exploration:  # noqa: PT012
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        raise error("stop")
    assert (InstructionTranslatorBase.step, GuardsSet.add) == before
    assert exploration.record.steps


def test_record_with_steps_round_trips_through_json(stepped: Record) -> None:
    assert Record.from_json(stepped.to_json()) == stepped


def test_step_option_is_a_flag_or_a_size() -> None:
    assert parse_options(step=256).step == 256
    for wrong in ("yes", -1):
        with pytest.raises(OptionError, match="True, False or how many MiB"):
            parse_options(step=wrong)
