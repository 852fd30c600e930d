"""The suite's arithmetic, its table and its file; the tests of `compiler.timing` cover the measuring itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.suite import CASES, Suite
from benchmarks.suite_models import WORKLOADS
from benchmarks.suite_table import geometric_mean, speed_up, summary


def case(model: str, name: str, eager: float, own: float | None) -> dict[str, Any]:
    candidates = [
        {"name": "eager", "seconds": eager, "compile_seconds": None, "peak_bytes": 200},
        {"name": "inductor", "seconds": own, "compile_seconds": 12.5, "peak_bytes": 100},
    ]
    return {"model": model, "case": name, "candidates": candidates, "independent": [{"ratio": 1.04}, {"ratio": 0.9}]}


def test_speedup_is_eager_time_over_candidate_time() -> None:
    assert speed_up(case("MLP", CASES[0], 3.0, 1.5), "inductor") == 2
    assert speed_up(case("MLP", CASES[0], 3.0, None), "inductor") is None


def test_geometric_mean_of_inverse_ratios_is_one() -> None:
    assert geometric_mean([4.0, 0.25]) == pytest.approx(1)
    assert geometric_mean([]) is None


def test_summary_has_model_rows_case_columns_and_means() -> None:
    cases = [case("MLP", CASES[0], 1.0, 2.0), case("BERT", CASES[0], 2.0, 1.0), case("BERT", CASES[3], 3.0, None)]
    lines = summary({"cases": cases}).splitlines()
    assert lines[0] == "| Speed-up of inductor over eager | inference fp32 | training AMP |"
    assert "| MLP | 0.50 |  |" in lines
    assert "| BERT | 2.00 |  |" in lines
    assert "| **geometric mean** | 1.00 |  |" in lines
    assert "| MLP | 12.5 |  |" in lines
    assert "| MLP | 0.50 |  |" in lines
    assert "3 of 6 medians within 5 %" in lines[-3]


def test_results_keep_model_order_and_are_not_repeated(tmp_path: Path) -> None:
    kept = Suite(tmp_path / "new" / "suite.json")
    kept.add(case("BERT", CASES[1], 1.0, 1.0), {"gpu": "H200"})
    kept.add(case("MLP", CASES[1], 1.0, 1.0), {"gpu": "H200"})
    written = json.loads(kept.path.read_text())
    assert [one["model"] for one in written["cases"]] == ["MLP", "BERT"]
    assert written["machine"] == {"gpu": "H200"}
    assert kept.has("BERT", CASES[1])
    assert not kept.has("BERT", CASES[0])


def test_repeated_case_keeps_both_measurements(tmp_path: Path) -> None:
    kept = Suite(tmp_path / "suite.json")
    kept.add({**case("MLP", CASES[0], 1.0, 2.0), "measurement": {"noise": []}}, {})
    noisy = {"noise": ["inductor varied by 20%: read its time as ±10%"]}
    kept.add({**case("MLP", CASES[0], 1.02, 2.5), "measurement": noisy}, {})
    (one,) = json.loads(kept.path.read_text())["cases"]
    assert [(each["name"], round(each["ratio"], 2), len(each["noise"])) for each in one["again"]] == [
        ("eager", 1.02, 0),
        ("inductor", 1.25, 1),
    ]
    assert summary({"cases": [one]}).splitlines()[-1] == "Beyond 5 % in a second run with no note of noise: 0"


def test_failing_case_does_not_stop_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(_: str, model: str, name: str, *__: str, **___: Any) -> dict[str, Any]:
        if model == "MLP":
            raise suite.ProcessError("out of memory")
        return {"case": case(model, name, 2.0, 1.0), "machine": {}}

    monkeypatch.setattr(suite, "measured", measured)
    suite.main(["--models", "MLP,BERT", "--cases", CASES[0], "--out", str(tmp_path / "suite.json")])
    told = capsys.readouterr().out
    assert "MLP, inference fp32: out of memory" in told
    assert "| BERT | 2.00 |" in told


def test_the_suite_has_at_least_twelve_models() -> None:
    assert len(WORKLOADS) >= 12
    assert all(workload.about for workload in WORKLOADS.values())
