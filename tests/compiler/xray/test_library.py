"""Sites in installed packages: overrides in the user's own code that were tried, or the text of an issue."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tcompile
from compiler.capture.sources import _installed_roots, is_installed
from explorer.run.xray import XRayed

LIBRARY = '''\
import torch
from torch import nn
from torch.nn import functional as F


def helper(x):
    return x / x.abs().max().item()


def decorated(fn):
    return fn


class Norm(nn.Module):
    def forward(self, x):
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
'''
USER = """\
import torch
from alien import Closed, Norm, helper
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
import torch, own_model, alien
from torch._dynamo.testing import CompileCounter
count = CompileCounter()
x = torch.rand(4)
model = own_model.Model()
expected = (x.relu() / x.sum())
torch.testing.assert_close(torch.compile(model, backend=count)(x), expected / expected.abs().max() + 1)
print(count.frame_count)
"""


def test_package_code_is_overridden_in_the_users_file(folder: Path, tmp_path: Path) -> None:
    found = x_rayed("Model")
    patch = found.patch()
    assert [site.file for site in found.sites] == ["alien.py", "alien.py"]
    assert [fix.state for fix in found.fixes] == ["verified", "verified"]
    assert found.left == ()
    assert found.reports == ()
    (edited,) = patch.files
    assert edited.name == "own_model.py"
    assert "alien.Norm.forward = _norm_forward" in edited.after
    assert "alien.helper = _helper\nhelper = _helper" in edited.after
    assert "torch._dynamo.config" not in edited.after
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "fix.patch").write_bytes(patch.encoded())
    subprocess.run(["git", "apply", "fix.patch"], check=True, cwd=copy)
    assert (copy / "site-packages/alien.py").read_text() == LIBRARY
    path = {"PYTHONPATH": f"{copy}:{copy}/site-packages"}
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=True, env=path, cwd=copy)
    assert done.stdout == "1\n"


def test_package_code_that_is_not_overridden_has_a_report(folder: Path) -> None:
    found = x_rayed("Upstream")
    assert found.patch() == ""
    (report,) = found.reports
    assert report.startswith("torch.compile breaks the graph in forward (alien.py:30)\n")
    assert "    torch._dynamo.graph_break()\n" in report
    assert f"Versions: torch {torch.__version__}, alien, Python " in report
    assert "own_model.py:21" in report
    assert "This is upstream" in str(found)
