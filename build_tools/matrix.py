"""Run the tests with several versions of torch, each in its own environment: `make matrix`.

    .venv/bin/python -m build_tools.matrix [--keep] [VERSION ...] [-- PYTEST ARGUMENTS]

Environments are created in build/matrix, one at a time, and removed after their tests unless --keep is given: with
CUDA's libraries each takes about 6 GB. The report of a version is build/matrix/VERSION.txt; it ends with the skipped
tests, their reasons, and the result. Tests of browsers, notebooks and benchmarks do not run: they use torch only
through code that the other tests cover.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from compiler.torch_api.supported import MADE_FOR

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build/matrix"
TESTS = ("tests/compiler", "tests/explorer")
OPTIONS = ("-q", "-rs", "-p", "no:cacheprovider", "--numprocesses", "2", "--dist", "loadfile", "--no-loadscope-reorder")
_UNPINNED = re.compile(r"(torch|triton|setuptools|nvidia-|cuda-)", re.IGNORECASE)
_RESULT = re.compile(r"^=*\s*((?:\d+ \w+, )*\d+ \w+) in .*$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {' '.join(MADE_FOR)}")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:split])
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = {version: _run_tests(version, words[split + 1 :], args.keep) for version in args.versions or MADE_FOR}
    print(*(f"torch {version}: {result}" for version, result in results.items()), sep="\n")
    return 0 if all("failed" not in result and "passed" in result for result in results.values()) else 1


def _run_tests(version: str, arguments: list[str], keep: bool) -> str:
    """Run the tests with one version. Returns pytest's last line, or an error message."""
    home, report = FOLDER / version, FOLDER / f"{version}.txt"
    python = home / "bin/python"
    with report.open("w") as log:
        if not python.exists() and not _make_environment(home, version, log):
            return f"no environment; see {report}"
        pytest = [python, "-m", "pytest", *OPTIONS, *(arguments or TESTS)]
        subprocess.run(pytest, cwd=ROOT, env=_environment(), stdout=log, stderr=log, check=False)
    if not keep:
        shutil.rmtree(home)
    return ([match[1] for match in _RESULT.finditer(report.read_text())] or [f"no result; see {report}"])[-1]


def _make_environment(home: Path, version: str, log: object) -> bool:
    """Create an environment with our pins, except packages that depend on the torch version. Returns whether it
    succeeded.
    """
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not _UNPINNED.match(line)]
    constraints = FOLDER / "constraints.txt"
    constraints.write_text("\n".join([*pins, f"torch=={version}.*"]) + "\n")
    install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--constraint", constraints]
    return all(
        subprocess.run(command, cwd=ROOT, env=_environment(), stdout=log, stderr=log, check=False).returncode == 0
        for command in (
            [sys.executable, "-m", "venv", home],
            [*install, "torch", "hatchling"],
            [*install, "--no-build-isolation", "--editable", ".[notebooks,test]"],
        )
    )


def _environment() -> dict[str, str]:
    """Environment variables of this process, with pip's constraint cleared and PYTHONPATH set to this checkout."""
    return {**os.environ, "PIP_CONSTRAINT": os.devnull, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    raise SystemExit(main())
