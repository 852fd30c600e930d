"""Patches: diffs that git and patch take, with every other byte of the user's file as it was; chosen fixes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tcompile
from explorer.run.patch import Patch
from explorer.run.xray import XRayed

TWO = """\
import torch  # the library

HELP = '''a text
\twith "tabs"
'''


@torch.no_grad()
def f(x):
    y = x * x.sum().item()    # scale
    z = y / x.max().item()  # normalise
    return z
"""
MENDED = TWO.replace("x.sum().item()", "x.sum().detach()").replace("x.max().item()", "x.max().detach()")
ACCENTED = "# -*- coding: latin-1 -*-\n# caf\u00e9\n"
WORSE = """\
def f(x):
    k = x.sum().item()
    m = k + 1
    if m > 2:
        x = x * 2
    return x
"""


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrapper_entries() -> int:
    """Number of cache entries of the code that torch wraps each decorated function in; they count for all of these."""
    wrapper = torch._dynamo.external_utils.wrap_inline(imported).__code__
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(wrapper))


def x_rayed(path: Path) -> XRayed:
    return tcompile.explore(imported(path).f, torch.ones(4), stages="captured", backend="eager").xray()


@pytest.mark.parametrize(
    ("before", "after", "encoding"),
    [
        (TWO.replace("    ", "\t").replace("\n", "\r\n"),
         MENDED.replace("    ", "\t").replace("\n", "\r\n"), "utf-8-sig"),
        (ACCENTED + TWO.removesuffix("    return z\n") + "    return z * x.min().item()",
         ACCENTED + MENDED.removesuffix("    return z\n") + "    return z * x.min().detach()", "latin-1"),
        (TWO.replace("# the library", "# \u00e9\x0c\u2028 of torch"),
         MENDED.replace("# the library", "# \u00e9\x0c\u2028 of torch"), "utf-8"),
    ],
    ids=["carriage returns, tabs and a mark", "latin-1, no newline at the end", "odd characters"],
)  # fmt: skip
def test_git_and_patch_apply_the_diff_and_keep_all_other_bytes(
    before: str, after: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a folder" / "model.py"
    path.parent.mkdir()
    path.write_bytes(before.encode(encoding))
    patch = x_rayed(path).patch()
    assert path.read_bytes() == before.encode(encoding)
    (tmp_path / "fix.patch").write_bytes(patch.encoded())
    for command in (["git", "apply"], ["patch", "--binary", "-p1", "-i"]):
        if shutil.which(command[0]):
            path.write_bytes(before.encode(encoding))
            subprocess.run([*command, "fix.patch"], check=True, cwd=tmp_path, capture_output=True)
            assert path.read_bytes() == after.encode(encoding)


def test_chosen_fixes_are_tried_and_promised(tmp_path: Path) -> None:
    path = tmp_path / "chosen.py"
    path.write_text(TWO)
    before = wrapper_entries()
    found = x_rayed(path)
    whole, second = found.patch(), found.patch(sites=[2])
    assert whole.promise == (
        "# Fixes for 2 of 2 sites: chosen.py:10, chosen.py:11.\n",
        "# Tried together: results, gradients, output and attributes are the same, also on random inputs.\n",
        "# Lines in torch's log of graph breaks: 2 before, 0 after.\n",
        "# No site is left.\n",
    )
    assert (whole.is_verified, second.is_verified) == (True, True)
    assert second.promise[-1] == "# 1 site left: chosen.py:10.\n"
    assert "+    z = y / x.max().detach()  # normalise" in second
    assert "+    y" not in second
    assert found.patch(sites=["site[2]", 1]) is whole
    with pytest.raises(ValueError, match=r"there is no site 3: they are numbered from 1 to 2, as on the cards"):
        found.patch(sites=[3])
    assert found.patch(sites=[]) == ""
    assert isinstance(found.patch(sites=[]), Patch)
    assert wrapper_entries() == before


def test_patch_that_does_not_work_says_so(tmp_path: Path) -> None:
    path = tmp_path / "worse.py"
    path.write_text(WORSE)
    found = x_rayed(path).try_fixes()
    moving = next(fix for fix in found.fixes if fix.state == "moves the break")
    patch = found.patch(sites=[moving.site])
    assert not patch.is_verified
    assert any(line.startswith("# NOT VERIFIED: tried together, line 4 breaks") for line in patch.promise)
