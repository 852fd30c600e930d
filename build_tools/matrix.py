"""Run the tests with several versions of torch, each in an environment of its own: `make matrix`.

    .venv/bin/python -m build_tools.matrix [--keep] [VERSION ...] [-- PYTEST ARGUMENTS]

Environments are made in build/matrix, one at a time, and removed after their tests unless --keep is given: with CUDA's
libraries each takes some 6 GB. The report of a version is build/matrix/VERSION.txt; its end lists the tests that were
left out, with the reason of each, and says what passed. Tests in browsers, of notebooks and of benchmarks are not run:
they see torch only through what the others test.
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
    """Run the tests with one version. Returns pytest's last line, or what went wrong before."""
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
    """Make an environment with our pins, less those that belong to another torch. Says whether that worked."""
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
    """The environment of this process, without a constraint on pip and without modules from elsewhere."""
    return {**os.environ, "PIP_CONSTRAINT": os.devnull, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":
    raise SystemExit(main())
