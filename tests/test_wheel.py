"""A wheel built from the repository is complete: installed alone, it works without the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = ("compiler", "explorer", "pyproject.toml", "README.md")
PROGRAM = """
import torch


def smooth(x):
    return torch.softmax(x * 2, -1)
"""
IN_PYTHON = """
import compiler, explorer, torch
from smooth import smooth

run = explorer.explore(smooth, torch.randn(8, 64))
run.save("from_python.html")
print(compiler.__file__, explorer.__file__, sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that leftovers of an earlier build stay out."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    built = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", built, source)
    [path] = built.iterdir()
    return path


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts folder of a new environment with the wheel and this environment's packages."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    bin_folder = home / "bin"
    installer = [sys.executable, "-m", "pip", "--python", bin_folder / "python", "install"]
    run(*installer, "--no-deps", "--no-index", wheel)
    # A .pth file adds its folders to the path, but .pth files in them are ignored: an editable clone stays hidden.
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "present.pth").write_text(sysconfig.get_path("purelib"))
    return bin_folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "smooth.py").write_text(PROGRAM)
    return folder


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program without the clone on Python's path. Returns its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_contains_every_package_file(wheel: Path) -> None:
    tracked = run("git", "ls-files", "compiler", "explorer", cwd=ROOT).split()
    with zipfile.ZipFile(wheel) as archive:
        assert set(tracked) <= set(archive.namelist())


def test_only_our_two_packages_are_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"compiler", "explorer"}


def test_command_prints_its_help(scripts: Path, elsewhere: Path) -> None:
    text = run(scripts / "tcompile", "--help", cwd=elsewhere)
    assert "explore" in text
    assert "show" in text


def test_the_command_explores_and_shows(scripts: Path, elsewhere: Path) -> None:
    target = ("smooth.py:smooth", "--input", "randn(8,64)", "--html", "out.html", "--json", "out.json")
    run(scripts / "tcompile", "explore", *target, cwd=elsewhere)
    assert "triton_per_fused" in run(scripts / "tcompile", "show", "out.json", cwd=elsewhere)
    assert_is_a_page(elsewhere / "out.html")


def test_python_explores_and_saves(scripts: Path, elsewhere: Path) -> None:
    (elsewhere / "in_python.py").write_text(IN_PYTHON)
    files = run(scripts / "python", "in_python.py", cwd=elsewhere).split()
    assert all(Path(file).is_relative_to(scripts.parent) for file in files)
    assert_is_a_page(elsewhere / "from_python.html")


def assert_is_a_page(path: Path) -> None:
    """Check that the front end is in the page; tests/browser checks that it works."""
    page = path.read_text()
    assert "Content-Security-Policy" in page
    for style in (ROOT / "explorer/static").glob("*.css"):
        assert style.read_text().split("{")[0].split("*/")[-1].strip() in page
