"""The set-up: pinned versions, and scripts that report missing programs and how to install them."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import stat
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXECUTABLES = (".ci/run", "binder/postBuild", "build_tools/find_python", "build_tools/install_packages")
POSIX = ("bash", "env", "id", "cat", "dirname")


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(line) for line in [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]]


def pins() -> dict[str, str]:
    lines = [line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    return {canonicalize_name(name): version for name, _, version in lines}


def unpinned(requirement: Requirement, seen: set[str]) -> Iterator[str]:
    """The names of installed dependencies that neither we nor the requiring package pin."""
    name = canonicalize_name(requirement.name)
    if name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
        return
    seen.add(name)
    if name not in pins() and not any(part.operator == "==" for part in requirement.specifier):
        yield name
    for line in importlib.metadata.requires(name) or ():
        yield from unpinned(Requirement(line), seen)


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_make_pins_every_installed_package(requirement: Requirement) -> None:
    assert not list(unpinned(requirement, set()))


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_a_pinned_version_is_one_the_project_accepts(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", EXECUTABLES)
def test_scripts_are_executable_and_stop_on_failure(name: str) -> None:
    path = ROOT / name
    assert path.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", path], check=True)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder for the whole PATH: a shell and little else, no package manager."""
    for name in POSIX:
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def add_program(folder: Path, name: str, script: str = "exit 0") -> None:
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


def run_script(name: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(path / "bash"), str(ROOT / "build_tools" / name)]
    return subprocess.run(command, env={"PATH": str(path), **variables}, capture_output=True, text=True, check=False)


def test_too_old_python_is_skipped(bare: Path) -> None:
    add_program(bare, "python3", "exit 1")
    (bare / "python3.11").symlink_to(sys.executable)
    assert run_script("find_python", bare).stdout.strip() == str(bare / "python3.11")


def test_missing_python_message_names_version_and_package(bare: Path) -> None:
    add_program(bare, "python3", "exit 1")
    done = run_script("find_python", bare)
    assert done.returncode == 1
    assert "needs Python 3.11" in done.stderr
    assert "apt-get install python3-venv" in done.stderr


def test_requested_python_is_not_replaced(bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    done = run_script("find_python", bare, PYTHON="python2")
    assert done.returncode == 1
    assert "PYTHON=python2 is not a Python from 3.11" in done.stderr


def test_missing_programs_skip_tests_with_a_hint(bare: Path) -> None:
    add_program(bare, "g++")
    done = run_script("require_programs", bare)
    assert done.returncode == 0
    assert "apt-get install graphviz" in done.stderr
    assert "apt-get install chromium" in done.stderr
    assert "g++" not in done.stderr


def test_in_ci_a_missing_program_is_an_error(bare: Path) -> None:
    for name in ("dot", "chromium", "g++"):
        add_program(bare, name)
    done = run_script("require_programs", bare, CI="true")
    assert done.returncode == 1
    assert "nothing is left out" in done.stderr


def test_missing_programs_are_installed_where_that_is_allowed(bare: Path) -> None:
    """Uses a fake root user and a fake package manager that records its arguments."""
    add_program(bare, "id", "echo 0")
    add_program(bare, "apt-get", f'echo "$@" >> "{bare}/asked"')
    add_program(bare, "chromium")
    run_script("require_programs", bare)
    asked = (bare / "asked").read_text().splitlines()
    assert asked[0].startswith("update")
    assert {"graphviz", "g++"} <= set(asked[1].split())
    assert "chromium" not in asked[1].split()


@pytest.mark.skipif(not (ROOT / ".venv/ready").exists(), reason="the environment was not made by `make`")
def test_make_lab_serves_the_first_notebook_locally(free_port: int) -> None:
    command = ["make", "-C", str(ROOT), "lab", f"PORT={free_port}"]
    headless = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with subprocess.Popen(command, env=headless, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as lab:
        try:
            assert lab.stdout is not None
            address = next(line for line in lab.stdout if "/lab/tree/notebooks/01_first_look.ipynb?token=" in line)
            url = address[address.index("http") :].strip()
            assert url.startswith(f"http://127.0.0.1:{free_port}/")
            assert "<title>JupyterLab</title>" in fetch(url)
        finally:
            lab.terminate()


def fetch(url: str) -> str:
    """The page at a URL; retries, because Jupyter prints its URL shortly before it listens there."""
    for _ in range(100):
        with suppress(urllib.error.URLError), urllib.request.urlopen(url, timeout=60) as answer:
            return answer.read().decode()
        time.sleep(0.1)
    pytest.fail(f"nothing answers at {url}")
