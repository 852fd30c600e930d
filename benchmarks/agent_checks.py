"""Injected regressions that `tcompile check` has to find, checks of equal code that must not alarm, the workflow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import yaml

ROOT = Path(__file__).resolve().parents[1]
CODE = """\
import torch
from torch import nn


def scale(x):
    return x * 0.5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 8)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = scale(h)
        y = self.second(h)
        return torch.softmax(y, -1)


model = Model()
"""
REGRESSIONS: dict[str, tuple[str, str, str, str]] = {
    # name: (metric that has to regress, old text, new text, options)
    "item": ("breaks", "h = scale(h)", "h = h * h.sum().item()", ""),
    "print": ("breaks", "h = scale(h)", "h = scale(h)\n        print(h.shape)", ""),
    "branch": ("breaks", "h = scale(h)", "h = scale(h) if h.sum() > 0 else h", ""),
    "graph_break": ("graphs", "h = scale(h)", "torch._dynamo.graph_break()\n        h = scale(h)", ""),
    "tolist": ("host_syncs", "h = scale(h)", "h = h * sum(h.sum(-1).tolist())", ""),
    "float": ("host_syncs", "h = scale(h)", "h = h * float(h.max())", ""),
    "to_cpu": ("host_syncs", "y = self.second(h)", "y = self.second(h).cpu()", ""),
    "size_checked": ("recompilations", "h = scale(h)", "h = scale(h) if x.shape[0] % 2 else h", "--calls"),
    "sort": ("kernels", "h = scale(h)", "h = scale(h.sort(-1).values)", ""),
    "cumsum": ("kernels", "h = scale(h)", "h = scale(h).cumsum(0)", ""),
    "third_matmul": ("extern_calls", "h = scale(h)", "h = scale(h) @ self.first.weight @ self.first.weight.T", ""),
    "extra_matmul": ("extern_calls", "y = self.second(h)", "y = self.second(h) + h @ h.T @ self.second(h)", ""),
    "transposed_copy": ("bytes_moved", "h = scale(h)", "h = scale(h).repeat(1, 4)[:, :32]", ""),
    "wider": ("bytes_moved", "(16, 32)", "(16, 64)", ""),
    "double": ("peak_memory", "h = scale(h)", "h = scale(h.double()).cumsum(0).float()", ""),
    "concatenated": ("peak_memory", "h = scale(h)", "h = torch.cat([h] * 8, -1).sort(-1).values[:, :32]", ""),
    "saves_more": ("saved_bytes", "h = scale(h)", "h = (h.sin() @ self.first.weight).cos() @ self.first.weight.T", ""),
    "saves_exp": ("saved_bytes", "y = self.second(h)", "y = self.second(h)\n        y = y @ (y.T @ y)", ""),
    "more_guards": ("guards", "h = scale(h)", "h = scale(h) * STATE['a'] + STATE['b']", ""),
    "no_cudagraph": ("cudagraph_refusals", "y = self.second(h)", "x.add_(1)\n        y = self.second(h)", "--mode"),
}
EDITS = {
    "wider": ("(32, 8)", "(64, 8)"),
    "more_guards": ("model = Model()", "STATE = {'a': 1, 'b': 2}\nmodel = Model()"),
}
OPTIONS = {
    "": ["--input", "randn(8, 16)"],
    "--calls": ["--call", "randn(8, 16)", "--call", "randn(9, 16)", "--call", "randn(10, 16)"],
    "--mode": ["--input", "randn(8, 16)", "--mode", "reduce-overhead", "--no-grad"],
}
"""Words after `tcompile check`, by the option that a regression needs."""


def _check(words: Sequence[str]) -> tuple[int, str]:
    """Run `tcompile check` in this process; its exit code and its output."""
    import io

    from explorer import cli

    written = io.StringIO()
    with contextlib.redirect_stdout(written), contextlib.redirect_stderr(io.StringIO()):
        code = cli.main(["check", "model.py:model", *words, "--baseline", "budget.json"])
    return code, written.getvalue()


def regressions(names: Sequence[str]) -> bool:
    """Inject regressions one by one; whether each is found by the metric that it makes worse."""
    from explorer.run.answers import read_page

    chosen = [name for name in REGRESSIONS if not names or name in names]
    found = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for key, words in OPTIONS.items():
            Path("model.py").write_text(CODE)
            _check([*words, "--name", f"call{key}", "--update"])
        for name in chosen:
            metric, old, new, key = REGRESSIONS[name]
            text = CODE.replace(old, new)
            Path("model.py").write_text(text.replace(*EDITS.get(name, ("", ""))) if name in EDITS else text)
            code, written = _check([*OPTIONS[key], "--name", f"call{key}", "--json"])
            items = {item["metric"]: item for item in read_page(written).items} if written else {}
            is_found = code == 1 and items.get(metric, {}).get("verdict") == "regressed"
            found += is_found
            worse = [each for each, item in items.items() if item["verdict"] == "regressed"]
            print(f"{name:16} {metric:18} {'found' if is_found else 'MISSED'} {', '.join(worse)}", flush=True)
    print(f"{found} of {len(chosen)} injected regressions found")
    return found == len(chosen)


def alarms(names: Sequence[str]) -> bool:
    """Check equal code fifty times, twice with measured times; whether none of the checks alarms."""
    count = int(names[0]) if names else 50
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("model.py").write_text(CODE)
        timed = ["--target", "cpu", "--time=default"]
        for key, words in OPTIONS.items():
            _check([*words, "--name", f"call{key}", "--update"])
        _check([*OPTIONS[""], *timed, "--name", "timed", "--update"])
        start = time.perf_counter()
        for number in range(count):
            key = list(OPTIONS)[number % len(OPTIONS)]
            words = (
                [*OPTIONS[""], *timed, "--name", "timed"]
                if number % 10 == 9
                else [*OPTIONS[key], "--name", f"call{key}"]
            )
            code, written = _check(words)
            wrong += code != 0
            if code:
                print(written)
    print(f"\n{wrong} false alarms in {count} checks of equal code ({time.perf_counter() - start:.0f} s)")
    return not wrong


WORSE = ("return torch", "print(x.sum().item())\n        return torch")
"""The edit of the pull request that the workflow has to report."""


def workflow(_: Sequence[str]) -> bool:
    """Run the steps of the workflow in the documentation in a shell, as a runner of actions would.

    First for a pull request that changes nothing, then for one that makes the model worse.
    """
    page = (ROOT / "docs/jobs/ci.md").read_text()
    models = re.search(r"```python\n(# models\.py\n.*?)```", page, re.DOTALL)
    steps = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert models is not None
    assert steps is not None
    commands = [step["run"] for step in yaml.safe_load(steps[1])["jobs"]["budget"]["steps"] if "run" in step]
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join((str(_bin_with_tcompile(Path(folder))), os.environ["PATH"]))
        repository = Path(folder, "repository")
        repository.mkdir()
        (repository / "models.py").write_text(models[1])
        environment = {
            **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true", "GITHUB_BASE_REF": "main",
            "GITHUB_STEP_SUMMARY": str(Path(folder, "summary.md")),
        }  # fmt: skip
        git = "git add . && git -c user.name=a -c user.email=a@b.c commit -qm"
        prepare = (
            "git init -q -b main && tcompile check models.py:Classifier --input 'randn(8, 16)' --baseline budget.json "
            f"--update && {git} first && git update-ref refs/remotes/origin/main HEAD"
        )
        _run_steps([prepare], repository, environment)
        same = _run_steps(commands, repository, environment)
        is_quiet = same.codes == [0, 0] and not same.annotations and not same.failures and not same.results
        print(f"nothing changed: {same}")
        (repository / "models.py").write_text(models[1].replace(*WORSE))
        line = 1 + models[1].partition(WORSE[0])[0].count("\n")
        _run_steps([f"{git} worse"], repository, environment)
        worse = _run_steps(commands, repository, environment)
        print(f"made worse: {worse}")
    is_told = worse.codes == [1, 0] and f"::warning file=models.py,line={line}," in worse.annotations
    is_told &= worse.failures >= 2 and ("breaks", line) in worse.results and "| graph breaks | 0 | 2 |" in worse.summary
    return is_quiet and is_told and min(same.page_bytes, worse.page_bytes) > 10_000


@dataclass(frozen=True)
class Steps:
    """What the steps of a job made: exit codes, annotations, failures in JUnit XML, results in SARIF by line."""

    codes: list[int]
    annotations: str
    failures: int
    results: list[tuple[str, int]]
    summary: str
    page_bytes: int

    def __str__(self) -> str:
        lines = self.annotations.count("::warning"), self.annotations.count("::error")
        return (
            f"exit codes {self.codes}, annotations {lines[0]} warnings and {lines[1]} errors, {self.failures} failures "
            f"in JUnit XML, {len(self.results)} results in SARIF, a page of the diff of {self.page_bytes / 1e3:.0f} kB"
        )


def _run_steps(commands: Sequence[str], repository: Path, environment: dict[str, str]) -> Steps:
    """Run each step that does not install; one that fails does not end the job, as with `if: always()`."""
    summary = Path(environment["GITHUB_STEP_SUMMARY"])
    summary.write_text("")
    codes, shown = [], ""
    for command in commands:
        if not command.startswith("pip"):
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", command], cwd=repository, env=environment, check=False,
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            codes.append(done.returncode)
            shown += done.stdout
    junit, sarif, page = (repository / name for name in ("junit.xml", "tcompile.sarif", "diff.html"))
    results = json.loads(sarif.read_text())["runs"][0]["results"] if sarif.exists() else []
    places = [(found["ruleId"], found["locations"][0]["physicalLocation"]["region"]["startLine"]) for found in results]
    failures = len(ElementTree.parse(junit).getroot().findall(".//failure")) if junit.exists() else 0
    annotations = "\n".join(line for line in shown.splitlines() if line.startswith("::"))
    return Steps(codes, annotations, failures, places, summary.read_text(), page.stat().st_size if page.exists() else 0)


def _bin_with_tcompile(folder: Path) -> Path:
    """A folder with the command `tcompile` of this checkout."""
    target = folder / "bin"
    target.mkdir()
    script = target / "tcompile"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tcompile "$@"\n')
    script.chmod(0o755)
    return target
