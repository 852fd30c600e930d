"""Planted faults that `tcompile repro` has to show again in one small file: in models, Inductor, and a broken backend.

Inductor breaks relu and log1p itself if its settings for tests say so. Our backend is copied, and one line of the copy
is changed. Most run without gradients, which compiles half. A file counts as reproduced if it shows the fault in a
fresh process in another folder, and does not name the model's file.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from explorer import cli

ROOT = Path(__file__).resolve().parents[1]
REPRODUCED_BAR, SHARE_BAR = 23, 0.15
SECONDS = 180

_HEAD = "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n"
_INIT = (
    "        super().__init__()\n        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)\n"
    "        self.norm = nn.LayerNorm(32)\n\n    def forward(self, x):\n"
)
_STEPS = (
    "h = self.first(x)", "h = self.norm(h)", "h = h * torch.sigmoid(h)", "h = h + torch.tanh(h).roll(1, -1)",
    "h = h / (1 + h.abs())", "h = torch.softmax(h, -1) * h", "h = self.norm(h).sin()", "y = self.second(h)",
    "y = y - y.mean(-1, keepdim=True)", "y = y.cos() + x", "y = y.cumsum(-1)", "y = y * 0.5 + y.square()",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A statement planted among those of a model at a place, the id that is asked for, and the options."""

    plant: str
    asked: str = "wrong number"
    options: tuple[str, ...] = ()
    patch: tuple[str, str, str] | None = None
    at: int = 6

    def text(self) -> str:
        """The model's file."""
        lines = [*_STEPS[: self.at], *self.plant.split("; "), *_STEPS[self.at :], "return y"]
        return _HEAD + _INIT + "".join(f"        {line}\n" for line in lines if line) + "\n\nmodel = Model()\n"


def _broken_relu(how: str, *more: str) -> tuple[str, ...]:
    return ("--options", f"cpp.inject_relu_bug_TESTING_ONLY={how}", *more)


_INFERENCE = "--no-grad"
_LOG1P = ("--options", "cpp.inject_log1p_bug_TESTING_ONLY=accuracy", _INFERENCE)
_POINTWISE, _EMIT = "compiler/backend/lower/pointwise.py", "compiler/backend/cpp/emit.py"
_OWN = ("--backend", "tcompile", _INFERENCE)
_RELU = 'lambda x: operation("maximum", x, number(0, x))'
FAULTS: dict[str, Fault] = {
    "break_print": Fault("print(1)", "graph break"),
    "break_item": Fault("h = h * h.sum().item()", "graph break"),
    "break_branch": Fault("h = h if h.sum() > 0 else -h", "graph break"),
    "break_explicit": Fault("torch._dynamo.graph_break()", "graph break"),
    "break_numbers": Fault("h = h * sum(h.sum(-1).tolist())", "graph break"),
    "break_early": Fault("x = x * float(x.max())", "graph break", at=0),
    "relu_wrong": Fault("h = torch.relu(h)", options=_broken_relu("accuracy")),
    "relu_wrong_early": Fault("h = torch.relu(h)", options=_broken_relu("accuracy"), at=1),
    "relu_wrong_late": Fault("y = torch.relu(y)", options=_broken_relu("accuracy", _INFERENCE), at=11),
    "log1p_wrong": Fault("h = torch.log1p(h.abs())", options=_LOG1P),
    "log1p_wrong_late": Fault("y = torch.log1p(y.square())", options=_LOG1P, at=10),
    "relu_crash": Fault("h = torch.relu(h)", "failure", _broken_relu("compile_error", _INFERENCE)),
    "relu_crash_late": Fault("y = torch.relu(y)", "failure", _broken_relu("compile_error", _INFERENCE), at=11),
    "relu_raises": Fault("h = torch.relu(h)", "failure", _broken_relu("runtime_error", _INFERENCE)),
    "relu_raises_late": Fault("y = torch.relu(y)", "failure", _broken_relu("runtime_error", _INFERENCE), at=10),
    "kernel_sort": Fault("h = h.sort(-1).values", "sort", (_INFERENCE,)),
    "kernel_first": Fault("", "kernel", (_INFERENCE,)),
    "kernel_cumprod": Fault("y = y.cumprod(-1)", "cumprod", (_INFERENCE,), at=11),
    "slow": Fault("", "0/0", (_INFERENCE,)),
    "slow_scatter": Fault("h = torch.zeros_like(h).scatter_add(1, h.argsort(-1), h)", "0/0", (_INFERENCE,)),
    "own_relu": Fault("h = torch.relu(h)", options=_OWN, patch=(_POINTWISE, _RELU, _RELU.replace("0, x", "1, x"))),
    "own_sigmoid": Fault("", options=_OWN, patch=(_POINTWISE, 'operation("neg", x))))', "x)))")),
    "own_clamp": Fault("h = h.clamp(min=-0.1)", options=_OWN,
                       patch=(_POINTWISE, '("min", "maximum")', '("min", "minimum")')),
    "own_relu_late": Fault("y = torch.relu(y)", options=_OWN, at=11,
                           patch=(_POINTWISE, _RELU, 'lambda x: operation("minimum", x, number(0, x))')),
    "own_crash": Fault("h = torch.relu(h)", "failure", _OWN, (_POINTWISE, _RELU, "lambda x: 1 // 0")),
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: whether the file shows it in a fresh process, and its share of the original."""

    name: str
    is_shown: bool
    share: float
    seconds: float
    words: str


@contextmanager
def _folder_of(fault: Fault) -> Iterator[tuple[Path, Path]]:
    """A folder with the model's file, and the folder with tcompile: a copy with a changed line if one is asked for."""
    with tempfile.TemporaryDirectory(prefix="planted_") as name:
        folder = Path(name)
        (folder / "planted_model.py").write_text(fault.text())
        if fault.patch is None:
            yield folder, ROOT
            return
        for package in ("compiler", "explorer", "tcompile"):
            shutil.copytree(ROOT / package, folder / "copy" / package, ignore=shutil.ignore_patterns("__pycache__"))
        file, old, new = fault.patch
        path = folder / "copy" / file
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{file} has {text.count(old)} times {old!r}, where one is to be changed")
        path.write_text(text.replace(old, new))
        yield folder, folder / "copy"


def _repro(words: Sequence[str], folder: Path, home: Path, seconds: float = 900) -> str:
    """What `tcompile repro` prints: a fork of this process for this tcompile, a new Python for a changed one."""
    written = folder / "printed"
    with written.open("wb") as stream:
        if home != ROOT:
            command = [sys.executable, "-m", "tcompile", "repro", *words]
            environment = os.environ | {"PYTHONPATH": str(home), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
            subprocess.run(
                command, cwd=folder, env=environment, stdout=stream, stderr=stream, timeout=seconds, check=False
            )
        elif not (child := os.fork()):
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            os.chdir(folder)
            os._exit(cli.main(["repro", *words]))
        else:
            os.waitpid(child, 0)
    return written.read_text(errors="replace")


def reproduce(name: str) -> Outcome:
    """Write the repro of one planted fault; it counts if it shows the fault in a fresh process, without the model."""
    fault, start = FAULTS[name], time.monotonic()
    with _folder_of(fault) as (folder, home):
        words = ["planted_model.py:model", "--input", "randn(4, 16)", *fault.options, "--seconds", str(SECONDS)]
        printed = _repro([*words, "-o", "repro.py", fault.asked], folder, home)
        found = re.search(r": (\d+) of (\d+) (\w+), .*; (.*)", printed)
        seconds = time.monotonic() - start
        if found is None:
            return Outcome(name, False, 1.0, seconds, (printed.strip().splitlines() or ["no output"])[-1][:200])
        is_shown = (
            found[4] == "confirmed in a fresh process" and "import planted" not in (folder / "repro.py").read_text()
        )
        share = int(found[1]) / max(int(found[2]), 1)
        return Outcome(name, is_shown, share, seconds, f"{found[1]} of {found[2]} {found[3]}")


def repros(names: Sequence[str]) -> bool:
    """Reproduce the planted faults; return whether the bars are reached, in proportion for some of them."""
    found = []
    for name in names or FAULTS:
        each = reproduce(name)
        found.append(each)
        verdict = "shown" if each.is_shown else "NOT shown"
        print(f"{name:18} {verdict:9} {each.share:4.0%}  {each.seconds:5.0f} s  {each.words}", flush=True)
    shown = [each for each in found if each.is_shown]
    share = statistics.median(each.share for each in shown) if shown else 1.0
    print(f"repros: {len(shown)} of {len(found)} reproduced in a fresh process, bar {REPRODUCED_BAR} of {len(FAULTS)}; "
          f"median {share:.0%} of the original, bar {SHARE_BAR:.0%}")  # fmt: skip
    return len(shown) >= len(found) * REPRODUCED_BAR / len(FAULTS) and share <= SHARE_BAR
