"""Sites in installed packages: overrides in the user's own code that were tried, or the text of an issue."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tcompile
from compiler.capture.sources import _installed_roots, is_installed
from explorer.run.xray import XRayed

LIBRARY = '''\
import functools, statistics, typing
import torch
from torch import nn
from torch.nn import functional as F
SCALE = 1

def helper(x):
    return x / x.abs().max().item()


def decorated(fn):
    return functools.wraps(fn)(lambda *args: fn(*args))


class Norm(nn.Module):
    def forward(self, x: typing.Any, scale: int = SCALE) -> typing.Any:
        """Normalise, and
        scale.
        """
        return F.relu(x) / x.sum().item()  # as it was


class Base(nn.Module):
    def forward(self, x):
        return x + 1


class Closed(Base):
    def forward(self, x):
        y = super().forward(x)
        torch._dynamo.graph_break()
        return y * 2


class Gate(nn.Module):
    @decorated
    def forward(self, x: typing.Any, *rest: typing.Any):
        return x.relu() * statistics.median(x.detach().tolist())


class Long(nn.Module):
    @decorated
    def forward(self, x):
        return x.relu() * 2
'''
USER = """\
import torch
from alien import Closed, Gate, Long, Norm, helper
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x):
        return helper(self.norm(x)) + 1


class Upstream(nn.Module):
    def __init__(self):
        super().__init__()
        self.closed = Closed()

    def forward(self, x):
        return self.closed(x)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return self.gate(x) + 1


def extend(x, long=Long()):
    for _ in range(3):
        y = long(x)
        if y.sum() < 0:
            break
        x = torch.cat([x, y[:1]])
    return x
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with the user's file `own_model.py` and an installed package `alien`."""
    folder = tmp_path_factory.mktemp("user")
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "alien.py").write_text(LIBRARY)
    (folder / "own_model.py").write_text(USER)
    cached = (is_installed, _installed_roots)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.syspath_prepend(packages)
        patched.syspath_prepend(folder)
        for function in cached:
            function.cache_clear()
        yield folder
    for function in cached:
        function.cache_clear()


def x_rayed(name: str) -> XRayed:
    module = importlib.import_module("own_model")
    return tcompile.explore(getattr(module, name)(), torch.rand(4), stages="captured", backend="eager").xray()


CHECK = """
import statistics, sys, torch
sys.path.append("site-packages")
import own_model
from torch._dynamo.testing import CompileCounter
count = CompileCounter()
x = torch.rand(4)
norm = x.relu() / x.sum()
models = {own_model.Model(): norm / norm.abs().max() + 1, own_model.Gated(): x * statistics.median(x.tolist()) + 1}
for model, expected in models.items():
    torch.testing.assert_close(torch.compile(model, backend=count)(x), expected)
print(count.frame_count)
"""


def test_package_code_is_overridden_in_the_users_file(folder: Path, python: Path, tmp_path: Path) -> None:
    found, gated = x_rayed("Model").try_fixes(), x_rayed("Gated")
    assert [site.file for site in found.sites] == ["alien.py", "alien.py"]
    assert [fix.state for fix in found.fixes] == ["verified", "verified"]
    assert found.left == ()
    assert found.reports == ()
    (edited,), (wrapped,) = found.patch().files, gated.patch().files
    assert edited.name == "own_model.py"
    assert "alien.Norm.forward = _norm_forward" in edited.after
    assert "alien.helper = _helper\nhelper = _helper" in edited.after
    assert "torch._dynamo.config" not in edited.after
    assert "inspect.unwrap(alien.Gate.forward).__code__ = _gate_forward.__code__" in wrapped.after
    copy = shutil.copytree(folder, tmp_path / "copy")
    for name, patch in (("first", found.patch()), ("second", gated.patch())):
        (copy / name).write_bytes(patch.encoded())
        subprocess.run(["git", "apply", "-C0", "--recount", name], check=True, cwd=copy)
    assert (copy / "site-packages/alien.py").read_text() == LIBRARY
    done = subprocess.run([python, "-c", CHECK], capture_output=True, text=True, check=False, cwd=copy)
    assert done.stdout == "2\n", done.stderr + (copy / "own_model.py").read_text()


def test_recompilations_in_wrapped_package_code_are_of_the_users_call(folder: Path) -> None:
    model = importlib.import_module("alien").Long()
    calls = [(torch.rand(2, 5),), (torch.rand(2, 6),)]
    (cause,) = tcompile.explore(model, calls=calls, stages="captured", backend="eager").xray().try_fixes().causes
    assert cause.file.endswith("test_library.py")
    assert (cause.kind, cause.argument, cause.count) == ("shape", "args[1]", 1)
    assert cause.fix is not None
    assert (cause.fix.state, cause.fix.before, cause.fix.after) == ("verified", 2, 1)
    extend = importlib.import_module("own_model").extend
    (grown,) = tcompile.explore(extend, torch.rand(4), stages="captured", backend="eager").xray().causes
    assert (grown.file, grown.kind, grown.span.code) == ("own_model.py", "shape", "x = torch.cat([x, y[:1]])")


def test_package_code_that_is_not_overridden_has_a_report(folder: Path) -> None:
    found = x_rayed("Upstream")
    assert found.patch().files == ()
    (report,) = found.reports
    assert report.startswith("torch.compile breaks the graph in forward (alien.py:31)\n")
    assert "    torch._dynamo.graph_break()\n" in report
    assert f"Versions: torch {torch.__version__}, alien, Python " in report
    assert "own_model.py:21" in report
    assert "This is upstream" in str(found)
