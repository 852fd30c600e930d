"""The x-ray on its twelve programs: fixes, promises kept by the patched programs, results with other inputs, and times.

    python -m benchmarks.xray                          all programs
    python -m benchmarks.xray moe speech               some
    python -m benchmarks.xray --backend inductor       the patched programs compiled by Inductor (slow without a GPU)
    python -m benchmarks.xray --seeds 3                fewer random inputs

For each program: sites with a verified fix; whether the patched program, run by torch.compile alone in a fresh process,
breaks as often as promised; whether it gives what the program gave, with results, gradients, output and attributes
compared for each seed. Times: finding the sites / a captured-stage exploration, trying fixes / a full exploration for
each tried candidate. Writes the patched programs to benchmarks/results/xray/. Exits with code 1 if a promise is not
kept or a result differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import random
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compiler.engine import explore
from compiler.record.options import Options
from compiler.torch_api.pytrees import tree_leaves
from compiler.xray import fixes
from compiler.xray.fixes import Outcome, compare_outcomes, run_and_hear
from explorer.run.run import Run
from tests.compiler.xray.programs import FOLDER, NAMES, module
from tests.compiler.xray.test_fixes import patched

ROOT = Path(__file__).resolve().parent.parent
PATCHED = Path(__file__).parent / "results" / "xray"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs, or paths of files with a function `program`")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--check", metavar="FILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps(_check(Path(arguments.programs[0]), Path(arguments.check), arguments)))
        return 0
    PATCHED.mkdir(parents=True, exist_ok=True)
    rows = [_row(name, arguments) for name in arguments.programs or NAMES]
    fixed, sites = (sum(row[key] for row in rows) for key in ("fixed", "sites"))
    kept = sum(row["kept"] for row in rows)
    print(f"{fixed} of {sites} sites have a verified fix; {kept} of {len(rows)} patched programs break as promised;")
    differing = [row["name"] for row in rows if row["differences"]]
    print(f"programs with other results: {', '.join(differing) or 'none'}")
    return 0 if kept == len(rows) and not differing else 1


def _row(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """X-ray one program, and check its patched version in a fresh process."""
    file = FOLDER / f"{name}.py"
    _explore(name, Options(stages=("captured",), backend="eager"))
    captured_seconds, done = _explore(name, Options(stages=("captured",), backend="eager"))
    full_seconds, _ = _explore(name, Options())
    candidates = _count_candidates()
    with _silent():
        found = Run(done.record, call=done.call).xray()
        seconds_to_find = found.found.seconds
        start = time.perf_counter()
        found.try_fixes()
        seconds_to_try = time.perf_counter() - start
    target = PATCHED / f"{name}.py"
    lines = file.read_text().splitlines(keepends=True)
    target.write_text(patched(found.patch(), lines) if found.patch() else "".join(lines))
    checked = _check_in_fresh_process(file, target, arguments)
    promised = found.found.cost_after.breaks if found.found.cost_after else None
    row = {
        "name": name,
        "sites": len(found.sites),
        "fixed": sum(fix.state in ("verified", "changes when a side effect happens") for fix in found.fixes),
        "left": len(found.left),
        "promised": promised,
        "breaks": checked["breaks"],
        "kept": checked["breaks"] == promised,
        "differences": checked["differences"],
        "finding": seconds_to_find / captured_seconds,
        "trying": seconds_to_try / max(candidates[0], 1) / full_seconds,
        "candidates": candidates[0],
    }
    print(
        f"{name:14} {row['fixed']:2} of {row['sites']:2} fixed, {row['left']} left; breaks {promised} promised, "
        f"{row['breaks']} counted; finding {row['finding']:.1f} x captured ({captured_seconds:.1f} s), trying "
        f"{row['candidates']} candidates, each {row['trying']:.2f} x full ({full_seconds:.1f} s)",
        *checked["differences"], sep="\n    ", flush=True,
    )  # fmt: skip
    return row


def _explore(name: str, options: Options) -> tuple[float, Any]:
    fn, calls = module(name).program()
    start = time.perf_counter()
    with _silent():
        done = explore(fn, options=options, calls=calls)
    return time.perf_counter() - start, done


def _count_candidates() -> list[int]:
    """A list of one number: how often a candidate was tried; it grows while fixes are tried."""
    count, original = [0], fixes.Trial.try_suggestions

    def counting(*args: Any) -> Any:
        count[0] += 1
        return original(*args)

    fixes.Trial.try_suggestions = counting  # type: ignore[method-assign,assignment]
    return count


def _check_in_fresh_process(file: Path, target: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    options = [f"--backend={arguments.backend}", f"--seeds={arguments.seeds}", f"--check={target}"]
    command = [sys.executable, "-m", "benchmarks.xray", str(file), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"breaks": None, "differences": [done.stderr.strip().splitlines()[-1]]}
    return json.loads(done.stdout.splitlines()[-1])


def _check(file: Path, target: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Breaks of the patched program, and the differences of its results from those of the program as it is."""
    breaks = _breaks(target)
    differences = []
    for seed in range(arguments.seeds):
        before, again = (_outcome(file, seed, "") for _ in range(2))
        after = _outcome(target, seed, arguments.backend)
        why, when = compare_outcomes(before, again, after)
        if why or when:  # compiling alone may change a result too: a gradient that is None may become zeros
            before, again = (_outcome(file, seed, arguments.backend) for _ in range(2))
            why, when = compare_outcomes(before, again, after)
        if why or when:
            differences.append(f"seed {seed}: {why or when}")
    return {"breaks": breaks, "differences": differences}


def _breaks(file: Path) -> int:
    """Number of lines at which torch's own log reports a graph break when it compiles the calls of a program."""
    fn, calls = _program(file, None)
    compiled, listener = torch.compile(fn, backend="eager"), _Listener()
    with _silent():
        torch._logging.set_logs(graph_breaks=True)
        logging.getLogger("torch._dynamo.symbolic_convert.__graph_breaks").addHandler(listener)
        for call in calls:
            compiled(*call)
        torch._logging.set_logs()
    return len(listener.lines)


class _Listener(logging.Handler):
    """Collects the lines that break from torch's log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.update(re.findall(r"Graph break in user code at (.*)", record.getMessage()))


def _outcome(file: Path, seed: int, backend: str) -> Outcome:
    fn, calls = _program(file, seed)
    torch._dynamo.reset()
    run = torch.compile(fn, backend=backend) if backend else fn
    return run_and_hear(lambda: [run(*call) for call in calls], [("self", fn), ("calls", calls)])


def _program(file: Path, seed: int | None) -> tuple[Any, Any]:
    """The function and the arguments of a program's calls; with a seed, float arguments are filled with it."""
    names: dict[str, Any] = {"__name__": file.stem}
    exec(compile(file.read_text(), str(file), "exec"), names)
    fn, calls = names["program"]()
    if seed is not None:
        for leaf in tree_leaves(calls):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.is_leaf and not leaf.requires_grad:
                leaf.copy_(torch.randn(leaf.shape, generator=torch.Generator().manual_seed(seed)))
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
    return fn, calls


@contextlib.contextmanager
def _silent() -> Any:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


if __name__ == "__main__":
    sys.exit(main())
