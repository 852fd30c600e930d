"""Mutated logs: what can be read is shown, else one clear line; `benchmarks/log_fuzz.py` tries thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.log_fuzz import outcome
from compiler.logs.files import read_logs

JOBS = Path(__file__).parents[3] / "notebooks/data/jobs"
SEEDS = range(60)


@pytest.mark.parametrize("name", ["storm", "ranks"])
def test_mutated_log_is_shown_or_refused(name: str, tmp_path: Path) -> None:
    text = bytes(read_logs(JOBS / f"{name}.tar.gz")[0].texts[0])
    found = {seed: outcome(text, seed, tmp_path) for seed in SEEDS[name == "ranks" :: 2]}
    assert {seed: reason for seed, reason in found.items() if reason not in ("shown", "refused")} == {}
    assert "shown" in found.values()
