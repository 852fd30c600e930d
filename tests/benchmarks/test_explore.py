"""The benchmark's own arithmetic: bars, ratios, shares, and the figures from a kernel's messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.cell import Heard
from benchmarks.explore import captured_at, compared, in_turns, shares
from benchmarks.figures import Figure
from benchmarks.fresh import ProcessError, cold, measured
from compiler.record import Artifact, Entity, Record
from compiler.record.options import Options


@pytest.mark.parametrize(
    ("value", "bar", "at_least", "met"),
    [
        (0.15, 0.15, False, True),
        (0.16, 0.15, False, False),
        (50, 50, True, True),
        (49, 50, True, False),
        (1, None, False, None),
    ],
)
def test_a_bar_is_met_or_missed(value: float, bar: float | None, at_least: bool, met: bool | None) -> None:
    assert Figure("figure", value, "s", bar, at_least).met is met


def test_line_shows_figure_and_bar() -> None:
    assert "0.2" in Figure("ratio", 0.2, "", 0.15).line()
    assert "bar ≤ 0.15" in Figure("ratio", 0.2, "", 0.15).line()
    assert "MISSED" in Figure("ratio", 0.2, "", 0.15).line()
    assert Figure("pages", 1234.5, "kB").line().split() == ["pages", "1,234", "kB"]


def test_results_are_json_with_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    path = figures.write("ratio", [Figure("ratio", 0.2, "", 0.15)], "load 1", "load 2")
    found = json.loads(path.read_text())
    assert found["load"] == ["load 1", "load 2"]
    assert found["figures"][0] | {"value": 0.2, "bar": 0.15, "met": False} == found["figures"][0]


def test_ratio_uses_medians() -> None:
    ours = [{"seconds": seconds, "cpu_seconds": seconds} for seconds in (1.0, 2.0, 9.0)]
    theirs = [{"seconds": seconds, "cpu_seconds": 2 * seconds} for seconds in (4.0, 10.0, 100.0)]
    figure = compared("ratio", ours, theirs, 0.15)
    assert figure.value == 0.2
    assert figure.runs == (0.25, 0.2, 0.09)
    assert "CPU 2.0 s ÷ 20.0 s = 0.10" in figure.note


def test_ratio_of_interleaved_runs_is_the_median_round() -> None:
    found = {"plain": {"cpu_seconds": [1.0, 2.0, 4.0]}, "recorded": {"cpu_seconds": [1.5, 2.2, 4.0]}}
    figure = in_turns("ratio", found, "recorded", 1.1)
    assert figure.runs == (1.5, 1.1, 1.0)
    assert (figure.value, figure.met) == (1.1, True)
    assert "quartiles 1.05 to 1.30; CPU 2.20 s ÷ 2.00 s" in figure.note


def entity(identity: str, kind: str, *origins: str) -> Entity:
    return Entity(identity, kind, identity, origins=origins)


def test_shares_count_compute_nodes_that_reach_a_line() -> None:
    source = Artifact("source[cell]", "source", "cell", "python", "x\n", entities=(entity("source[cell].L1", "line"),))
    captured = (entity("c.a", "call", "source[cell].L1"), entity("c.b", "call"), entity("c.x", "placeholder"))
    forward = (entity("f.a", "call", "c.a"), entity("f.b", "call", "c.b", "c.a"), entity("f.c", "call", "c.b"))
    artifacts = (
        source,
        Artifact("captured[0/0]", "captured", "", "python", "", entities=captured),
        Artifact("forward[0/0]", "forward", "", "python", "", entities=forward),
    )
    assert shares(Record("", Options(), artifacts=artifacts)) == {"captured": (1, 2), "forward": (2, 3)}


def test_captured_time_is_from_the_largest_graph() -> None:
    sizes = [
        ("captured[0/0]", 5, 1.0),
        ("captured[1/0]", 500, 4.0),
        ("captured[2/0]", 7, 60.0),
        ("joint[1/0]", 900, 9.0),
    ]
    assert captured_at([{"artifact": a, "entities": n, "at": at} for a, n, at in sizes]) == 4.0


def test_widget_messages_are_counted_once_as_sent() -> None:
    heard = Heard()
    state = {"manifest": {"stages": []}, "parts": [[None, "captured[0/0]", "entities", "d1"]]}
    heard.take({"msg_type": "comm_open", "content": {"data": {"state": state}}, "buffers": [b"1234"]}, 2.0)
    heard.take({"msg_type": "stream", "content": {"text": "not the widget's"}}, 2.5)
    again = {"parts": [[None, "captured[0/0]", "entities", "d2"], [None, "captured[1/0]", "entities", "d3"]]}
    heard.take(
        {"msg_type": "comm_msg", "content": {"data": {"state": again}}, "buffers": [b"123456", b"123456789"]}, 3.0
    )
    assert heard.captured() == 3.0
    assert heard.held() == len(json.dumps({"manifest": {"stages": []}})) + 6 + 9
    assert heard.sent > heard.held() + 4


def test_nothing_captured_gives_none() -> None:
    assert Heard().captured() is None


def test_failed_process_reports_name_and_reason() -> None:
    with pytest.raises(ProcessError, match=r"(?s)benchmarks.one_process explore no-such-model.*invalid choice"):
        measured("benchmarks.one_process", "explore", "no-such-model")


def test_cold_runs_use_separate_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_LOGS", "dynamo")
    with cold() as first, cold() as second:
        assert "TORCH_LOGS" not in first
        for name in ("TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            assert first[name] != second[name]
