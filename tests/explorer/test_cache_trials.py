"""`tcompile caches` on a stand-in for torch, which costs no compilation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from explorer.cli import main
from explorer.entry.cache_trials import TrialError, run_trials

TORCH = """
from pathlib import Path
class compiler:
    loaded = None
    def load_cache_artifacts(data): compiler.loaded = data
    def save_cache_artifacts(): return b"artifacts", None
"""
PROGRAM = """
import os, sys, torch
with open({log!r}, "a") as file:
    loader = type(torch.__spec__.loader).__name__
    print(torch.compiler.loaded, os.environ.get("TORCH_CACHING_PRECOMPILE"), loader, os.environ["OWN"], file=file)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(TORCH)
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['OWN'] = '1'\n")
    (tmp_path / "program.py").write_text(PROGRAM.format(log=str(tmp_path / "log")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "program.py"


def test_artifacts_are_loaded_in_third_run(program: Path) -> None:
    trials = run_trials([sys.executable, str(program)])
    assert [trial.name for trial in trials] == ["cold", "warm local caches", "loaded artifacts", "precompile, warm"]
    lines = (program.parent / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["None", "None", "b'artifacts'", "None", "None"]
    assert [line.split()[1] for line in lines] == ["None", "None", "None", "1", "1"]
    assert {tuple(line.split()[2:]) for line in lines} == {("SourceFileLoader", "1")}
    assert "saved artifacts of 9 B" in trials[0].note


def test_program_that_fails_ends_the_trials(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text("raise SystemExit('no data')")
    with pytest.raises(TrialError, match="exit code 1: no data"):
        run_trials([sys.executable, str(program)])
    assert main(["caches", "--", sys.executable, str(program)]) == 2
    assert "no data" in capsys.readouterr().err
    assert main(["caches"]) == 2
