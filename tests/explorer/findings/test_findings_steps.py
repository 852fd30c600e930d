"""The content of the view of TorchDynamo's steps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Problem, Record
from explorer.findings import with_findings
from explorer.findings.replay import Replay
from explorer.findings.steps import frame_title, steps_finding
from explorer.run.payload import Payload
from tests.compiler.capture.test_bytecode import loops_and_breaks

STATE_MODULE = Path(__file__).parents[3] / "explorer" / "static" / "steps_state.js"
STATES = """
import { readFileSync } from "node:fs";
import { Reading } from %s;
const { data, wanted } = JSON.parse(readFileSync(0, "utf8"));
const readings = data.readings.map((_, number) => new Reading(data, number));
console.log(JSON.stringify(wanted.map((number) => {
  const reading = readings.find((each) => each.place(number) >= 0);
  const at = reading.place(number);
  const { stack, locals, nodes, guards } = reading.state(at);
  return { ...reading.step(at), stack, locals: Object.fromEntries(locals), nodes, guards };
})));
"""


SAME = torch.nn.Identity()


def scaled(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x * 2
    return x


def reads_on_and_on(x: torch.Tensor) -> Any:
    """Inlined calls, loops, a closure, a comprehension, two graph breaks."""
    shift = 3

    def shifted(y: torch.Tensor) -> torch.Tensor:
        return y + shift

    kept = [shifted(scaled(SAME(x), number)) for number in range(4)]
    print("one")  # noqa: T201
    with torch.no_grad():
        total = sum(kept[1:], kept[0])
    torch._dynamo.graph_break()
    for each in kept:
        total = total + each
    return total.sin(), kept


@pytest.fixture(scope="module")
def record() -> Record:
    options = parse_options(stages=("bytecode", "captured"), step=True)
    return explore(reads_on_and_on, (torch.ones(4),), options=options).record


@pytest.fixture(scope="module")
def branching() -> Record:
    options = parse_options(stages=("bytecode", "captured"))
    return explore(loops_and_breaks, (torch.ones(4), torch.ones(4)), options=options).record


# Steps


@pytest.mark.needs("node")
def test_view_states_match_the_replay(record: Record) -> None:
    """Checks every seventh step, which covers each frame, attempt and depth, against the state of `run.replay()`."""
    finding = steps_finding(record)
    assert finding is not None
    wanted = [*range(0, len(record.steps), 7), len(record.steps) - 1]
    script = STATES % json.dumps(STATE_MODULE.as_uri())
    given = json.dumps({"data": finding.data, "wanted": wanted})
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    replay = Replay(record)
    shown = json.loads(done.stdout)
    assert len(shown) == len(wanted)
    for index, there in zip(wanted, shown, strict=True):
        state = replay.at(index)
        assert there["stack"] == list(state.stack)
        assert there["locals"] == state.locals
        assert there["nodes"] == list(state.nodes)
        assert there["guards"] == list(state.guards)
        step = state.step
        assert (there["function"], there["opcode"], there["line"]) == (step.function, step.opcode, step.line)
        assert (there["depth"], there["first"], there["ended"]) == (step.depth, step.first, step.ended)


def test_every_break_has_a_step_and_restart_reason(record: Record) -> None:
    finding = steps_finding(record)
    assert finding is not None
    assert [step for step, _ in finding.data["breaks"]] == [
        Replay(record).before_break(number).index for number in range(len(record.breaks))
    ]
    again = [reading for reading in finding.data["readings"] if reading["attempt"] == 2]
    assert [reading["why"] for reading in again] == ["the graph has to end before the instruction that broke it."] * 2


def test_outline_links_to_the_traced_lines(record: Record) -> None:
    artifact = with_findings(record)["steps"]
    rows = artifact.text.splitlines()
    assert rows[0] == "frame 0/0, attempt 1"
    inlined = rows.index(next(row for row in rows if row.strip().startswith("scaled ")))
    assert any("for _ in range(times):" in row for row in rows[inlined : inlined + 4])
    assert any("+ mul = call_function mul(" in row for row in rows)
    (loop,) = {
        name
        for number, names in artifact.lines.items()
        for name in names
        if "x = x * 2" in rows[number - 1] and name.startswith("steps.0/0.1.")
    }
    entity = artifact.entity(loop)
    (origin,) = entity.origins
    assert next(each for each in record.entities() if each.id == origin).label == "x = x * 2"


def test_ribbon_counts_steps_and_opens_a_view(record: Record) -> None:
    stage = next(stage for stage in Payload(record).manifest()["stages"] if stage["name"] == "steps")
    assert (stage["count"], stage["unit"]) == (len(record.steps), "steps")
    assert [(item["opens"], item["view"]) for item in stage["artifacts"]] == [("view", "steps")]


def test_truncated_steps_are_reported_in_the_view(record: Record) -> None:
    short = record.with_fields(
        problems=(Problem("steps", "these are the first 9 instructions", "explore with step=256"),)
    )
    finding = steps_finding(short)
    assert finding is not None
    assert finding.data["cut"] == "these are the first 9 instructions: explore with step=256"


def test_record_without_stepper_has_no_steps(branching: Record) -> None:
    assert steps_finding(branching) is None


# Frames


def test_resume_function_is_titled_by_its_line(branching: Record) -> None:
    titles = [frame_title(branching, frame.id) for frame in branching.frames]
    lines = [found.line for found in branching.breaks]
    assert titles[0] == "loops_and_breaks (0/0)"
    assert titles[1] == f"loops_and_breaks, from line {lines[0]} on (1/0)"


def test_bytecode_opens_as_text(branching: Record) -> None:
    stage = next(stage for stage in Payload(branching).manifest()["stages"] if stage["name"] == "bytecode")
    compiled = [frame.id for frame in branching.frames if frame.outcome == "compiled"]
    assert len(compiled) == 3
    assert [item["id"] for item in stage["artifacts"]] == [
        f"bytecode[{frame}{side}]" for frame in compiled for side in ("", " modified", " as Python")
    ]
    assert {(item["view"], item["opens"]) for item in stage["artifacts"]} == {("", "")}
