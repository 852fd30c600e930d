"""The map of a program: functions of the call tree, and which of their lines are in graphs, before and with fixes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

import tcompile
from compiler.record import LineTime, Record
from explorer.findings.frame_map import frame_map_finding
from explorer.render.document import Chart
from explorer.render.static import document_html
from explorer.run.payload import Payload
from tests.explorer.findings.test_frame_map import explored, in_a_cell

X = torch.arange(4.0)
LOOP = """def g(x):
    y = x.sin()
    print("y")
    return y

def f(x):
    z = g(x)
    for k in range(2):
        z = z * z.sum().item()
        torch._dynamo.graph_break()
    return z
"""


def chart(record: Record) -> Chart:
    finding = frame_map_finding(record)
    assert finding is not None
    found = finding.document[0]
    assert isinstance(found, Chart)
    return found


def bars(record: Record) -> list[tuple[Any, ...]]:
    """The map as text: function, as it is, and with all fixes if there are any."""
    return [(row.cells[0], *row.cells[2:]) for row in chart(record).table.rows[1:]]


@functools.cache
def looped() -> Record:
    return explored(in_a_cell(LOOP), X)


@functools.cache
def mended() -> Record:
    """A program with two breaks, after an x-ray that found a fix for each."""
    source = LOOP.replace("        torch._dynamo.graph_break()\n", "")
    run = tcompile.explore(in_a_cell(source), X, stages="captured")
    run.xray().try_fixes()
    return run.record


def test_break_cuts_its_callers_and_evicts_a_loop() -> None:
    assert bars(looped()) == [("f", "A░│░░░░│░░"), ("  g", "A░│░")]
    names = [(each["name"], each["depth"], each["from"], each["to"]) for each in chart(looped()).data["functions"]]
    assert names == [("f", 0, 0, 10), ("g", 1, 0, 4)]


def test_recursive_function_is_shown_once() -> None:
    body = "    y = x.sin()\n    if n:\n        y = f(y, n - 1)\n    torch._dynamo.graph_break()\n    return y.cos()\n"
    assert [name for name, _ in bars(explored(in_a_cell(f"def f(x, n=3):\n{body}"), X))] == ["f"]


def test_function_that_is_never_compiled_is_plain() -> None:
    inner = "@torch._dynamo.disable\ndef g(x):\n    return x * 2\n"
    source = f"{inner}\ndef f(x):\n    y = x.sin()\n    y = g(y)\n    return y.cos()\n"
    assert bars(explored(in_a_cell(source), X)) == [("f", "A░│B")]


def test_all_fixes_make_one_graph() -> None:
    assert bars(mended()) == [("f", "A░│░░░░│░", "AAAAAAA"), ("  g", "A░│░", "AAA")]
    states = chart(mended()).data["states"]
    assert [state["title"] for state in states] == ["as it is", "1 of 2 fixes", "all 2 fixes"]
    assert states[2]["words"][0] == "1 graph, 0 breaks, 0 lines in plain Python."
    assert Payload(mended()).manifest()["first"] == ["frame_map"]


def test_each_state_is_a_capture() -> None:
    xray = mended().xray
    assert xray is not None
    assert [(state.count, len(state.breaks)) for state in xray.states] == [(1, 1), (2, 0)]
    broken = {found.line for found in xray.states[0].breaks}
    assert broken == {site.line for site in xray.sites if "item" in site.span.code}
    words = [state["words"][0] for state in chart(mended()).data["states"]]
    assert ["3 breaks at 2 places" in words[0], "1 break," in words[1], "0 breaks" in words[2]] == [True] * 3
    loaded = Record.from_json(mended().to_json())
    assert chart(loaded).data == chart(mended()).data
    without = mended().with_fields(xray=replace(xray, states=()))
    (state,) = chart(without).data["states"]
    assert state["words"][-1] == "This record has no capture of the program with fixes."


def test_fix_lifts_only_the_loop_of_its_own_break() -> None:
    first, second = chart(mended()).data["states"][:2]
    cells = chart(mended()).data["cells"]
    gaps = [at for at, cell in enumerate(cells) if "gap" in cell]
    assert [(first["cells"][at], second["cells"][at]) for at in gaps] == [(1, -1), (1, 1)]
    assert second["cells"].count(0) == first["cells"].count(0) - 2


def test_untried_fixes_are_no_states() -> None:
    xray = mended().xray
    assert xray is not None
    record = mended().with_fields(xray=replace(xray, fixes=(), left=None, states=()))
    (state,) = chart(record).data["states"]
    assert state["words"][-1] == "`run.xray().try_fixes()` adds the program with fixes."


def test_times_are_those_of_lines_and_breaks() -> None:
    record = looped()
    source = record.of_stage("source")[0].id
    times = (LineTime(f"{source}.L2", "compiled", "forward", 3e-6, 3e-6),)
    first, *others = record.breaks
    record = record.with_fields(line_times=times, breaks=(replace(first, lost_seconds=5e-6), *others))
    cells = chart(record).data["cells"]
    assert cells[0]["seconds"] == 3e-6
    assert next(cell["seconds"] for cell in cells if "gap" in cell) == 5e-6
    assert "costs 5.0 µs a call" in next(cell["gap"] for cell in cells if "gap" in cell)


def test_static_html_has_the_map_with_aligned_bars() -> None:
    finding = frame_map_finding(mended())
    assert finding is not None
    html = document_html(finding.document)
    assert "\n  g       cell:1  A░│░       AAA\n" in f"{html}\n".replace("</pre>", "\n")
