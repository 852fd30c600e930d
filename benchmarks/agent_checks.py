"""Injected regressions that `tcompile check` has to find, checks of equal code that must not alarm, the workflow."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

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


def workflow(_: Sequence[str]) -> bool:
    """Run the steps of the workflow in the documentation in a shell, as a runner of actions would."""
    page = (ROOT / "docs/jobs/ci.md").read_text()
    models = re.search(r"```python\n(# models\.py\n.*?)```", page, re.DOTALL)
    steps = re.search(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert models is not None
    assert steps is not None
    jobs = yaml.safe_load(steps[1])["jobs"]
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join((str(_bin_with_tcompile(Path(folder))), os.environ["PATH"]))
        repository = Path(folder, "repository")
        repository.mkdir()
        (repository / "models.py").write_text(models[1])
        environment = {
            **os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "GITHUB_ACTIONS": "true", "GITHUB_BASE_REF": "main",
            "GITHUB_STEP_SUMMARY": str(Path(folder, "summary.md")),
        }  # fmt: skip
        (Path(folder) / "summary.md").touch()
        prepare = (
            "git init -q -b main && tcompile check models.py:Classifier --input 'randn(8, 16)' --baseline budget.json "
            "--update && git add . && git -c user.name=a -c user.email=a@b.c commit -qm first && "
            "git update-ref refs/remotes/origin/main HEAD"
        )
        commands = [prepare, *(step["run"] for step in jobs["budget"]["steps"] if "run" in step)]
        codes = []
        for command in commands:
            if not command.startswith("pip"):
                done = subprocess.run(
                    ["bash", "-eo", "pipefail", "-c", command], cwd=repository, env=environment, check=False
                )
                codes.append(done.returncode)
        made = sorted(each.name for each in repository.iterdir() if each.suffix in (".html", ".xml", ".sarif"))
        summary = Path(folder, "summary.md").read_text()
    print(f"workflow: exit codes {codes}, files {', '.join(made)}")
    return codes == [0] * len(codes) and made == ["diff.html", "junit.xml", "tcompile.sarif"] and "|" in summary


def _bin_with_tcompile(folder: Path) -> Path:
    """A folder with the command `tcompile` of this checkout."""
    target = folder / "bin"
    target.mkdir()
    script = target / "tcompile"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tcompile "$@"\n')
    script.chmod(0o755)
    return target
