"""The widget's Python half: its messages, their timing, and the selection in both directions."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from anywidget._util import enable_custom_widget_manager_once

from compiler.record import Artifact, Record
from compiler.record.options import Options
from explorer import explore
from explorer.entry import outputs
from explorer.run import frontend
from explorer.run import widget as widget_module
from explorer.run.compiling import KernelCompiler
from explorer.run.payload import Payload
from explorer.run.run import Run
from explorer.run.widget import LARGE, Explorer
from tests.explorer.explored import mlp_record
from tests.explorer.small_record import small_record

Sent = list[tuple[dict[str, Any], list[bytes]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """The custom messages sent by widgets."""
    messages: Sent = []
    monkeypatch.setattr(Explorer, "send", lambda _, content, buffers=None: messages.append((content, buffers or [])))
    return messages


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(widget_module.time, "monotonic", lambda: now[0])
    return now


def names(made: Explorer) -> list[tuple[str, str]]:
    """The artifact and the name of each part that was last sent without a request."""
    return [(artifact, name) for _, artifact, name, _ in made.parts]


def long_record() -> Record:
    noise = random.Random(0).randbytes(LARGE).hex()
    return Record("", Options(), artifacts=(Artifact("kernels[0/0]", "kernels", "kernels", "python", noise),))


def test_new_widget_has_manifest_and_small_parts() -> None:
    record = mlp_record()
    made = Explorer(record)
    compiler = KernelCompiler(record)
    payload = Payload(record, pending=compiler.pending_stages(), makes=compiler.makes())
    assert made.manifest == payload.manifest()
    assert made.parts == [(part.data, part.artifact, part.name, part.digest) for part in payload.parts()]


def test_large_text_is_sent_on_request(sent: Sent) -> None:
    made = Explorer(long_record())
    assert names(made) == [("kernels[0/0]", "entities")]
    made._handle_custom_msg({"type": "want", "artifact": "kernels[0/0]", "part": "text"}, [])
    [(message, [data])] = sent
    part = Payload(long_record()).parts_of("kernels[0/0]")["text"]
    assert message == {"type": "part", "key": ("kernels[0/0]", "text", part.digest)}
    assert data == part.data


@pytest.mark.parametrize(
    "message",
    [
        {"type": "want", "artifact": "gone[0/0]", "part": "text"},
        {"type": "want", "artifact": "kernels[0/0]", "part": "gone"},
        {"type": "hello"},
    ],
)
def test_request_for_a_missing_part_is_ignored(sent: Sent, message: dict[str, str]) -> None:
    made = Explorer(long_record())
    made._on_message(made, message, [])
    assert sent == []


def test_update_sends_only_new_parts(clock: list[float]) -> None:
    record = small_record()
    made = Explorer(replace(record, artifacts=record.artifacts[:1], decisions=()))
    clock[0] += 60
    made.update(replace(record, artifacts=record.artifacts[:2], decisions=()))
    made.update(replace(record, artifacts=record.artifacts[:3], decisions=()))
    new = record.artifacts[2].id
    assert names(made) == [(new, "entities"), (new, "text")]
    assert [len(stage["artifacts"]) for stage in made.manifest["stages"] if stage["name"] == record.artifacts[2].stage]


def test_early_parts_are_kept_for_a_late_frontend(clock: list[float]) -> None:
    record = replace(small_record(), breaks=(), guards=(), recompiles=())
    made = Explorer(replace(record, artifacts=record.artifacts[:1], decisions=()))
    clock[0] += 1
    made.update(replace(record, artifacts=record.artifacts[:2], decisions=()))
    sent = {artifact for artifact, _ in names(made)}
    assert [artifact.id in sent for artifact in record.artifacts[:3]] == [True, True, False]


def test_running_says_which_stage_and_for_how_long(clock: list[float]) -> None:
    record = small_record()
    made = Explorer(record, running="captured")
    clock[0] += 2
    made.update(record, running="captured")
    assert made.running == {"stage": "captured", "title": "Captured", "elapsed": 2.0}
    made.update(record, running="tile_loops")
    assert made.running == {"stage": "tile_loops", "title": "Tile loops", "elapsed": 0.0}
    made.update(record)
    assert made.running == {}


def test_frontend_that_missed_an_update_gets_the_state(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[set[str]] = []
    record = small_record()
    made = Explorer(replace(record, artifacts=record.artifacts[:1], decisions=()), running="captured")
    known = made.version
    monkeypatch.setattr(Explorer, "send_state", lambda _, key=None: states.append(set(key)))  # the last one is lost
    made.update(record)
    made._on_message(made, {"type": "version"}, [])
    [(message, _)] = sent
    assert message == {"type": "version", "version": made.version}
    assert made.version > known
    states.clear()
    made._on_message(made, {"type": "state"}, [])
    assert states == [{"manifest", "running", "compiling", "version"}]


def test_each_update_is_one_message_and_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[set[str]] = []
    made = Explorer(small_record(), running="captured")
    monkeypatch.setattr(Explorer, "send_state", lambda _, key=None: states.append(set(key)))
    first = made.version
    made.update(small_record())
    made.hear_progress("measuring")
    made._on_progress(made._payload.record, {"done": 1, "total": 2})
    assert made.version == first + 3
    assert [state - {"manifest", "parts"} for state in states] == [
        {"version", "running"},
        {"version", "running"},
        {"version", "compiling"},
    ]


def test_selection_is_synchronized_with_python() -> None:
    made = Explorer(small_record())
    heard: list[list[str]] = []
    made.observe(lambda change: heard.append(change["new"]), names="selection")
    made.set_state({"selection": ["forward[0/0].mm"]})
    made.selection = ["source[cell].L2"]
    assert heard == [["forward[0/0].mm"], ["source[cell].L2"]]


def test_script_is_the_bundled_frontend() -> None:
    made = Explorer(small_record())
    assert made._esm == frontend.widget_module()
    assert made._css == frontend.css()


def test_cell_without_captures_has_a_final_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    def sorted_rows(rows: list[int]) -> list[int]:
        return sorted(rows)

    shown: list[Any] = []
    monkeypatch.setattr(outputs, "display", lambda content, **_: shown.append(content))
    run = explore(sorted_rows, [2, 1], stages=("captured",))
    output = outputs.NotebookOutput()
    output.end(run)
    assert isinstance(shown[-1], Explorer)
    assert shown[-1] is output.widget
    assert "breaks" in [stage["name"] for stage in output.widget.manifest["stages"]]


def test_older_widgets_of_a_cell_close_once() -> None:
    shown, run, closed = outputs.ShownWidgets(), Run(small_record()), list[int]()
    for number, execution in enumerate((1, 1, 2, 3)):  # a loop in a cell may explore more than once
        shown.close_older("cell", execution)
        shown.add("cell", execution, run, SimpleNamespace(close=partial(closed.append, number)))
        assert closed == [[], [], [0, 1], [0, 1, 2]][number]


def test_colab_loads_its_custom_widget_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a stand-in for Colab's module, which blocks widgets that are not its own unless it is asked."""
    asked: list[bool] = []
    colab = SimpleNamespace(
        enable_custom_widget_manager=lambda: asked.append(True), _widgets=SimpleNamespace(_installed_url="manager.js")
    )
    monkeypatch.setitem(sys.modules, "google.colab.output", colab)
    enable_custom_widget_manager_once.cache_clear()  # a process asks once
    data, metadata = Explorer(small_record())._repr_mimebundle_()
    [view] = [name for name in data if "widget-view" in name]
    assert asked == [True]
    assert metadata[view]["colab"]["custom_widget_manager"]["url"] == "manager.js"
