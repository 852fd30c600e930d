"""`tcompile caches` on a stand-in for torch, which costs no compilation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from explorer.cli import main
from explorer.entry.cache_trials import TRIALS, Trial, TrialError, run_trials, trial_document
from explorer.render.text import document_text

TORCH = """
import json, os
from pathlib import Path
def log(name, at):
    values = json.dumps({"name": "dynamo", "ph": name, "ts": at, "args": {"compile_id": "0/0"}})
    head = json.dumps({"chromium_event": {}, "frame_id": 0, "frame_compile_id": 0, "attempt": 0})
    return "V0102 03:04:05.500000 7 torch/_dynamo/utils.py:12] " + head + chr(10) + chr(9) + values + chr(10)
compiles = "COMPILES_NOTHING" not in os.environ
if compiles:
    _dynamo = True
    Path(os.environ["TORCH_TRACE"], f"{os.getpid()}.log").write_text(log("B", 0) + log("E", 10**6))
class compiler:
    loaded = None
    def load_cache_artifacts(data): compiler.loaded = (compiler.loaded or b"") + data
    def save_cache_artifacts(): return (b"artifacts" if compiles else 1 / 0), None
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


def test_each_process_that_compiled_has_artifacts_of_its_own(program: Path) -> None:
    worker, launcher = program, program.with_name("launcher.py")
    launcher.write_text(
        "import os, subprocess, sys\nenvironment = dict(os.environ)\n"
        "os.environ['COMPILES_NOTHING'] = ''\nimport torch\n"
        f"for _ in range(2): subprocess.run([sys.executable, {str(worker)!r}], env=environment, check=True)\n"
    )
    trials = run_trials([sys.executable, str(launcher)])
    assert [trial.note for trial in trials[:2]] == ["saved artifacts of 18 B", ""]
    lines = (program.parent / "log").read_text().splitlines()
    assert [line.split()[0] for line in lines[4:6]] == ["b'artifactsartifacts'"] * 2


def test_no_verdict_on_a_program_with_a_cache_folder_of_its_own(
    program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text("import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/team/cache'\nimport torch")
    assert main(["caches", "--", sys.executable, str(program)]) == 0
    told = capsys.readouterr()
    assert "sets TORCHINDUCTOR_CACHE_DIR itself: it read and wrote /team/cache" in " ".join(told.out.split())
    assert "of a cold run" not in told.out
    assert told.err.count("tcompile caches: ") == 1


def test_failures_of_saving_and_of_later_runs_are_told(program: Path) -> None:
    once = "import os, sys, torch\nif not os.environ.get('TCOMPILE_CACHES_SAVE'): sys.exit('x' * 5000 + ' ran before')"
    program.write_text(once)
    with pytest.raises(TrialError, match=r"it must be able to run five times\. Its last line: x+"):
        run_trials([sys.executable, str(program)])
    program.write_text("import torch\ntorch.compiler.save_cache_artifacts = lambda: 1 / 0")
    assert "artifacts could not be saved: ZeroDivisionError" in run_trials([sys.executable, str(program)])[0].note
    program.write_text("print('nothing is compiled')")
    assert len(run_trials([sys.executable, str(program)])) == 1


def test_program_that_fails_ends_the_trials(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.write_text("raise SystemExit('no data')")
    with pytest.raises(TrialError, match=r"exit code 1\. Its last line: no data"):
        run_trials([sys.executable, str(program)])
    assert main(["caches", "--", sys.executable, str(program)]) == 2
    assert "no data" in capsys.readouterr().err
    assert main(["caches"]) == 2


@pytest.mark.parametrize(
    ("lookups", "compiling", "told"),
    [
        ({}, (0.1, 0.1), "start noticeably faster. Neither the FX graph cache nor AOTAutograd's cache was asked."),
        ({"miss": 2}, (0.1, 0.1), "No cache makes this program start noticeably faster."),
        ({}, (3.0, 0.1), "1.0 s less. Neither the FX graph cache nor AOTAutograd's cache was asked: what is saved"),
        ({"miss": 2}, (3.0, 0.1), "warm local caches: 1.0 s less."),
    ],
)
def test_a_cache_is_credited_with_time_of_torch_compile_alone(
    lookups: dict[str, int], compiling: tuple[float, float], told: str
) -> None:
    cold, warm = (
        Trial(name, seconds, spent, lookups, ())
        for name, seconds, spent in zip(TRIALS[:2], (4.0, 3.0), compiling, strict=True)
    )
    lead = document_text(trial_document((cold, warm))).partition("\n\n")[0]
    assert told in " ".join(lead.split())
    assert ("was asked" in lead) == (not lookups)
