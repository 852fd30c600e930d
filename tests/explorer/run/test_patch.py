"""Patches: diffs that git and patch take, with every other byte of the user's file as it was; chosen fixes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import tcompile
from explorer.run.patch import Patch
from explorer.run.run import Run
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

COUNTED = """\
import torch


def f(x):
    n = 0
    while x.norm() > 1:
        x = x / 2
        n += 1
    return x
"""


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def wrapper_entries() -> int:
    """Number of cache entries of the code that torch wraps each decorated function in; they count for all of these."""
    wrapper = torch._dynamo.external_utils.wrap_inline(imported).__code__
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(wrapper))


def x_rayed(path: Path, **options: Any) -> XRayed:
    options = {"stages": "captured", "backend": "eager"} | options
    return tcompile.explore(imported(path).f, 2 * torch.ones(4), **options).xray()


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


def test_fix_that_the_backend_cannot_compile_is_refused_and_what_is_left_is_told(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED)
    found = x_rayed(path, backend="inductor", target="cpu")
    whole, chosen = found.patch(), found.patch(sites=[1])
    assert whole.files == ()
    assert "# No working fix for 1 site; the cards in run.xray() say why.\n" in whole.promise
    assert "# 1 site left: counted.py:6.\n" in whole.promise
    assert found.fixes[0].words.startswith("with it, torch cannot compile while_loop with a number of Python's")
    assert not chosen.is_verified
    assert chosen.promise[1].startswith("# NOT VERIFIED: tried together, torch cannot compile while_loop")


def test_patch_tells_which_causes_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "counted.py"
    path.write_text(COUNTED)
    whole = x_rayed(path).patch()
    assert "torch.while_loop" in whole
    assert whole.promise[-2] == "# No site is left.\n"
    assert whole.promise[-1].startswith("# Changes for 1 cause of recompilation: counted.py:8. ")


def test_patch_without_a_working_change_tells_what_is_left(tmp_path: Path) -> None:
    calls = [(torch.ones(4),), (torch.ones(4, dtype=torch.float64),)]
    run = tcompile.explore(double, calls=calls, stages="captured", backend="eager")
    told = "# Left, without a change that was tried and works: 1 cause of recompilation: test_patch.py:"
    assert run.patch().startswith(told)
    loaded = tcompile.load(run.save(tmp_path / "run.json"))
    assert isinstance(loaded, Run)
    assert loaded.patch() == run.patch()
    assert run.record.xray is not None
    assert run.record.xray.patch == ""


def test_fixes_of_one_line_are_one_edit(tmp_path: Path) -> None:
    path = tmp_path / "one_line.py"
    path.write_text("def f(x):\n    m, s = x.mean().item(), x.std().item()\n    return (x - m) / (s + 1)\n")
    whole = x_rayed(path).patch()
    assert "+    m, s = x.mean().detach(), x.std().detach()\n" in whole
    assert whole.promise[-1] == "# No site is left.\n"
