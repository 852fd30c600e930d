"""run.replay() and run.tables.steps: forward, back, to the break, as text."""

from __future__ import annotations

import pytest
import torch

from explorer import explore
from explorer.findings.replay import Replay
from explorer.run.run import Run
from tests.compiler.capture.test_bytecode import loops_and_breaks


@pytest.fixture(scope="module")
def run() -> Run:
    return explore(loops_and_breaks, torch.ones(4), torch.ones(4), step=True, stages="bytecode,captured")


def test_replay_stops_before_the_break(run: Run) -> None:
    state = run.replay().before_break(0)
    assert state.step.opcode in ("CALL", "CALL_KW")
    assert state.step.line == run.record.breaks[0].line
    assert "'one'" in state.stack
    assert state.locals["z"] == "Tensor z float32[4]"
    assert any("= call_function mul(" in node for node in state.nodes)
    assert state.step.ended


def test_forward_and_back_come_to_the_same_state(run: Run) -> None:
    replay = run.replay()
    states = [replay.at(index) for index in range(40)]
    assert [replay.at(0), *(replay.forward() for _ in range(39))] == states
    assert [replay.back() for _ in range(39)] == states[-2::-1]
    assert replay.back(1000).index == 0
    assert replay.forward(10**6).index == len(replay) - 1


def test_arguments_are_shown_as_read_once_they_are_read() -> None:
    def add(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.add(x, x * 2) + n

    replay = explore(add, torch.ones(3), 5, step=True, stages="captured").replay()
    states = [replay.at(index) for index in range(len(replay))]
    assert states[0].locals == {"x": "not read yet: L['x']", "n": "not read yet: L['n']"}
    assert states[-1].locals == {"x": "Tensor l_x_ float32[3]", "n": "5"}
    (both,) = (state for state in states if state.step.opcode == "CALL")
    assert both.stack[-2:] == ("Tensor l_x_ float32[3]", "Tensor mul float32[3]")


def test_replay_state_is_printable(run: Run) -> None:
    text = str(run.replay().before_break(0))
    assert "stack, top first:\n  'one'" in text
    assert "graph: " in text
    assert "guards: " in text
    assert f":{run.record.breaks[0].line} in loops_and_breaks" in text


def test_steps_table_has_a_row_per_step(run: Run) -> None:
    table = run.tables.steps
    assert len(table) == len(run.record.steps)
    assert table["nodes"].str.contains("mul").any()
    assert table["frame"].tolist()[0] == "0/0"


def test_invalid_positions_are_refused(run: Run) -> None:
    with pytest.raises(IndexError, match="there is no step"):
        run.replay().at(len(run.record.steps))
    with pytest.raises(IndexError, match="there is no graph break 99"):
        run.replay().before_break(99)
    with pytest.raises(ValueError, match="--step"):
        Replay(run.record.with_fields(steps=()))
    assert Run(run.record.with_fields(steps=())).tables.steps.empty
