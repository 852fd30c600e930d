"""`tcompile check` and `tcompile diff`: budgets, reports for CI, two commits, and errors of one line."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import torch

import tcompile
from compiler.capture import sources
from explorer import cli
from explorer.budget.commit_diff import lines_behind
from explorer.budget.compare import Change, Report
from explorer.budget.metrics import metrics_of
from explorer.budget.reports import report_text
from explorer.run.answers import read_page
from tcompile.pytest_plugin import TcompileBudget
from tests.explorer.test_cli import wrong

ROOT = Path(cli.__file__).parents[1]

CODE = """\
import torch


def model(x):
    return torch.relu(x @ x).softmax(-1)
"""
SLOW = """\
from shop.nets import model as net
from ..nets import model


def slow(x):
    return model(net(x)).sum().item() * x
"""
TRACED = """\
import logging, sys

trace = logging.getLogger("torch.__trace")
trace.setLevel(logging.DEBUG)
trace.propagate = False  # as torch does


def test_it():
    trace.debug("")
    logging.getLogger("mine").warning("")
    raise ValueError(sorted({"torch", "explorer"} & {*sys.modules}))
"""
WORSE = CODE.replace("    return torch.relu", "    print(x.sum().item())\n    return torch.relu")
WORDS = ["model.py:model", "--input", "rand(8, 8)"]
_TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
_LOCATION = {
    "type": "object",
    "required": ["artifactLocation", "region"],
    "properties": {
        "artifactLocation": {"type": "object", "required": ["uri"], "properties": {"uri": {"pattern": r"^[^\\ ]+$"}}},
        "region": {"type": "object", "properties": {"startLine": {"type": "integer", "minimum": 1}}},
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "tool": {"properties": {"driver": {"required": ["name", "rules"]}}, "required": ["driver"]},
                    "results": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "required": ["message", "ruleId", "locations", "partialFingerprints"],
                            "properties": {
                                "message": _TEXT,
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "locations": {"items": {"properties": {"physicalLocation": _LOCATION}}},
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What SARIF 2.1.0 and code scanning ask of a log."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with the model, and a second commit that makes it worse; the baseline is of the first."""
    path = tmp_path_factory.mktemp("repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr(sys, "path", list(sys.path))
        for name in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{name}_NAME", "a")
            patch.setenv(f"GIT_{name}_EMAIL", "a@b.c")
        patch.delenv("GITHUB_ACTIONS", raising=False)
        subprocess.run(["git", "init", "-q"], check=True)
        for text in (CODE, WORSE):
            Path("model.py").write_text(text)
            subprocess.run(["git", "add", "model.py"], check=True)
            subprocess.run(["git", "commit", "-qm", "model"], check=True)
        Path("model.py").write_text(CODE)
        assert cli.main(["check", *WORDS, "--baseline", "budget.json", "--update"]) == 0
        yield path


def test_equal_code_is_within_the_budget(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = json.loads(Path("budget.json").read_text())["checks"]["model.py:model"]
    assert [entry["metrics"][name] for name in ("breaks", "recompilations", "graphs", "host_syncs")] == [0, 0, 1, 0]
    assert entry["metrics"]["kernels"] > 0
    assert entry["metrics"]["bytes_moved"] > 0
    assert cli.main(["check", *WORDS, "--baseline", "budget.json"]) == 0
    assert capsys.readouterr().out == "model.py:model: within the budget\n"


def test_regression_is_reported_at_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").write_text(WORSE)
    reports = ["--markdown", "s.md", "--junit", "j.xml", "--sarif", "s.sarif", "--github", "--html", "p.html"]
    assert cli.main(["check", *WORDS, "--baseline", "budget.json", *reports]) == 1
    shown = capsys.readouterr().out
    assert "model.py:5  `x.sum().item()` asks for the number in a tensor" in shown
    assert "::warning file=model.py,line=5,title=tcompile%2C model.py%3Amodel%3A graph breaks::" in shown
    assert "| graph breaks | 0 | 2 | 0 | ✗ more |" in Path("s.md").read_text()
    suite = ElementTree.parse("j.xml").getroot()[0]
    assert int(suite.get("failures", 0)) == len(suite.findall("testcase/failure")) >= 3
    log = json.loads(Path("s.sarif").read_text())
    jsonschema.validate(log, SARIF)
    lines = {
        (each["ruleId"], place["physicalLocation"]["region"]["startLine"])
        for each in log["runs"][0]["results"]
        for place in each["locations"]
    }
    assert {("breaks", 5), ("host_syncs", 5)} <= lines
    assert Path("p.html").stat().st_size > 10_000


def test_only_files_of_the_user_are_annotated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("wide.py").write_text("from torch import nn\n\nmodel = nn.Sequential(nn.Linear(8, 8), nn.Dropout())\n")
    words = ["wide.py:model", "--input", "rand(8, 8)", "--stages", "captured", "--all-code", "--github"]
    assert cli.main(["check", *words, "--at-most", "guards=0", "--sarif", "s.sarif"]) == 1
    shown = capsys.readouterr().out
    assert "nn/modules/" in shown.partition("::")[0]
    assert set(re.findall(r"file=(.*?),", shown)) <= {"wide.py"}
    results = json.loads(Path("s.sarif").read_text())["runs"][0]["results"]
    places = [each["physicalLocation"]["artifactLocation"]["uri"] for item in results for each in item["locations"]]
    assert set(places) == {"wide.py"}


def test_a_place_in_a_package_is_moved_to_the_users_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, own = tmp_path / "site-packages", tmp_path / "own_code.py"
    packages.mkdir()
    (packages / "packed.py").write_text("import torch\n\n\ndef shown(x):\n    print()\n    return x.sin().tolist()\n")
    own.write_text("import packed\n\n\ndef f(x):\n    return packed.shown(x + 1)\n")
    monkeypatch.setattr(sources, "_installed_roots", lambda: (str(packages),))
    for path in (packages, tmp_path):
        monkeypatch.syspath_prepend(path)
    record = tcompile.explore(importlib.import_module("own_code").f, torch.ones(2), stages=("captured",)).record
    found = {metric.name: metric for metric in metrics_of(record, all_code=True)}
    assert {(place.file, place.line) for place in found["breaks"].places} == {("own_code.py", 5)}


def test_budget_and_diff_count_the_recompilations_that_torch_counts() -> None:
    weight = torch.rand(4, 4, requires_grad=True)
    once, thrice = (tcompile.explore(in_blocks, torch.rand(2, 4), weight, n, stages="captured") for n in (1, 3))
    assert [len(run.record.recompiles) for run in (once, thrice)] == [0, 1]
    found = {each.name: each for each in metrics_of(thrice.record)}["recompilations"]
    assert [("two compilations, and no more" in place.message) for place in found.places] == [True]
    diff = once.diff(thrice)
    assert re.search(r"^recompilations +0 +1$", lines_behind(diff), re.MULTILINE)
    assert "recompilations: 0 -> 1" in diff.capture


@pytest.mark.parametrize(("after", "shown"), [(4401.0, "4,400 B  4,401 B  4,400 B"), (8192.0, "4.3 KiB  8.0 KiB")])
def test_bytes_are_exact_where_rounding_hides_a_difference(after: float, shown: str) -> None:
    change = Change("saved_bytes", "regressed", 4400.0, after, 4400.0, "bytes")
    assert shown in report_text(Report("model", (change,)))


def test_limits_and_json_in_a_package(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "shop/parts/slow.py:slow", "--input", "rand(8, 8)", "--stages", "captured"]
    for name, text in (("", ""), ("parts", ""), ("nets", CODE), ("parts/slow", SLOW)):
        path = Path(f"shop/{name}.py") if text else Path("shop", name, "__init__.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert cli.main([*words, "--at-most", "breaks=1,host_syncs=1"]) == 0
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 1  # without limits: no breaks
    page = read_page(capsys.readouterr().out)
    found: dict[str, Any] = {item["id"]: item for item in page.items}
    assert (page.facts["holds"], found["breaks"]["verdict"]) == (False, "regressed")
    assert [found["breaks"]["new"][0][name] for name in ("file", "line")] == ["shop/parts/slow.py", 6]


def test_checks_that_are_not_possible_write_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("gpu.py").write_text('import torch\n\nmodel = torch.nn.Linear(4, 4, device="cuda")\n')
    Path("asks.py").write_text("def f(x):\n    return x * float(input())\n")
    old = json.loads(Path("budget.json").read_text()) | {"torch": "2.11.0"}
    Path("old.json").write_text(json.dumps(old))
    Path("broken.json").write_text('{"torch": 3}')
    before = sorted(Path().iterdir())
    report = ["--junit", "no.xml", "--sarif", "no.sarif"]
    errors = [
        wrong(capsys, "check", *words, *report)
        for words in (
            [*WORDS, "--baseline", "none.json"],
            [*WORDS, "--baseline", "old.json"],
            [*WORDS, "--baseline", "broken.json"],
            [*WORDS, "--baseline", "broken.json", "--update"],
            [*WORDS, "--name", "slow", "--baseline", "budget.json"],
            ["model.py:model", "--input", "rand(9, 9)", "--baseline", "budget.json"],
            ["gpu.py:model", "--input", "rand(4)"],
            ["asks.py:f", "--input", "rand(4)"],
            [*WORDS, "--at-most", "kernel=3"],
            [*WORDS, "--at-most", "kernels=-1"],
            [*WORDS, "--update"],
        )
    ]
    said = ("no baseline", "made with torch 2.11.0", "is no baseline", "is not overwritten", "has no slow",
            "other arguments",
            "needs a GPU", "asks for input (asks.py:2)", "did you mean 'kernels'", "from 0 on",
            "--baseline PATH")  # fmt: skip
    assert [words for words, error in zip(said, errors, strict=True) if words not in error] == []
    assert "needs a GPU" in wrong(capsys, "repro", "gpu.py:model", "--input", "rand(4)")
    assert sorted(Path().iterdir()) == before


def test_two_commits_are_compared_without_a_checkout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.py").write_text("not committed")
    words = ["diff", "--at", "HEAD~1", "--at", "HEAD", "model.py:model", "--input", "rand(8, 8)"]
    assert cli.main([*words, "--stages", "captured", "-o", "diff.html"]) == 0
    shown = capsys.readouterr().out
    assert "+ model.py:5  print(x.sum().item())" in shown
    assert "graph breaks" in shown
    assert "model at HEAD~1" in shown
    assert Path("diff.html").stat().st_size > 10_000
    assert Path("model.py").read_text() == "not committed"
    assert len(subprocess.run(["git", "worktree", "list"], capture_output=True, check=True).stdout.splitlines()) == 1
    assert "git knows no commit 'nowhere'" in wrong(capsys, "diff", "--at", "nowhere", "model.py:model")


def test_fixture_checks_a_budget_and_plugin_hides_the_trace(folder: Path) -> None:
    Path("test_trace.py").write_text(TRACED)
    plain = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [sys.executable, "-m", "pytest", "-p", "tcompile.pytest_plugin", "test_trace.py"]
    shown = subprocess.run(words, env=plain, capture_output=True, text=True, check=False).stdout
    assert "ValueError: []" in shown
    assert "WARNING  mine:" in shown
    assert "torch.__trace:" not in shown
    baseline, x = Path("tests.json").absolute(), torch.rand(8)
    TcompileBudget("test_it", baseline, True)(kept, x, stages="captured")
    TcompileBudget("test_it", baseline, False)(kept, x, stages="captured")
    for name, fn, words in (("test_it", broken, "graph breaks"), ("other", kept, "has no other, but test_it")):
        with pytest.raises(pytest.fail.Exception, match=words):
            TcompileBudget(name, baseline, False)(fn, x, stages="captured")
    assert list(json.loads(baseline.read_text())["checks"]) == ["test_it"]


def in_blocks(x: torch.Tensor, weight: torch.Tensor, blocks: int) -> torch.Tensor:
    for _ in range(blocks):
        x = block(x, weight)
        torch._dynamo.graph_break()
    return x


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight)


def kept(x: torch.Tensor) -> torch.Tensor:
    return x.relu()


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x.relu()


@pytest.mark.parametrize(
    ("code", "where", "advice"),
    [
        ("def f(x):\n    return x + 1\n\nsys.exit(0)\n", "script.py:6", "when imported: a script's last lines belong"),
        ("def f(x):\n    return x\n\ndef main():\n    sys.exit(0)\n\nmain()\n", "script.py:9", "when imported: a"),
        ("def f(x):\n    sys.exit(0)\n", "script.py:4", "in the call: explore a call that returns"),
    ],
)
def test_code_that_ends_the_program_is_no_pass(
    code: str, where: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.py"
    path.write_text(f"import sys\n\n{code}")
    assert cli.main(["check", f"{path}:f", "--input", "rand(4)", "--at-most", "breaks=0"]) == 1
    shown = capsys.readouterr().err
    assert f"{where} ended the program by SystemExit(0) {advice}" in shown
    assert "Traceback" not in shown
