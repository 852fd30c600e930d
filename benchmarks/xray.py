"""The x-ray on its twelve programs: fixes, promises kept by the patched programs, results with other inputs, and times.

    python -m benchmarks.xray                          all programs
    python -m benchmarks.xray moe speech               some, also files with a function `program`
    python -m benchmarks.xray --backend inductor       the patched programs compiled by Inductor (slow without a GPU)
    python -m benchmarks.xray --seeds 3                fewer random inputs
    python -m benchmarks.xray --json moe               one row of JSON for each program
    python -m benchmarks.xray --again moe              no x-ray: the patches of the last run, on the random inputs

For each program: sites with a verified fix; whether the patched program, run by torch.compile alone in a fresh process,
breaks as often as promised; whether it gives what the program gave, with results, gradients, output and attributes
compared for each seed, and the same for each fix alone, run eagerly. Times: finding the sites / a captured-stage
exploration, trying fixes / a full exploration for each tried candidate. Writes the patched programs to
benchmarks/results/xray/. Exits with code 1 if a promise is not kept or a result differs.
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
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from compiler.capture.sources import is_installed
from compiler.engine import explore
from compiler.record.options import Options
from compiler.torch_api.pytrees import tree_leaves
from compiler.xray import fixes
from compiler.xray.cause_fixes import CauseTrials
from compiler.xray.fixes import WORKING, Trials
from compiler.xray.outcomes import Outcome, compare_outcomes, run_and_hear
from compiler.xray.patch import edited_files
from explorer.run.run import Run
from explorer.run.xray import TRY_SECONDS, XRayed
from tests.compiler.xray.programs import FOLDER, NAMES
from tests.compiler.xray.test_fixes import patched

ROOT = Path(__file__).resolve().parent.parent
PATCHED = Path(__file__).parent / "results" / "xray"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs, or paths of files with a function `program`")
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=TRY_SECONDS, help="time for trying the fixes of a program")
    parser.add_argument("--json", action="store_true", help="print one row of JSON for each program")
    parser.add_argument("--again", action="store_true", help="check the patches of the last run")
    parser.add_argument("--check", metavar="FILE", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.check:
        print(json.dumps(_check(Path(arguments.programs[0]), [*map(Path, arguments.check)], arguments)))
        return 0
    PATCHED.mkdir(parents=True, exist_ok=True)
    rows = [_row(_file(name), arguments) for name in arguments.programs or NAMES]
    if not arguments.again:
        fixed, sites = (sum(row[key] for row in rows) for key in ("fixed", "sites"))
        kept = sum(row["kept"] for row in rows)
        print(f"{fixed} of {sites} sites have a verified fix; {kept} of {len(rows)} patched programs break as promised")
    differing = [row["name"] for row in rows if row["differences"]]
    print(f"programs with other results: {', '.join(differing) or 'none'}")
    return 0 if all(row["kept"] for row in rows) and not differing else 1


def _file(name: str) -> Path:
    return Path(name) if name.endswith(".py") else FOLDER / f"{name}.py"


def _row(file: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """X-ray one program, and check its patched version in a fresh process."""
    name = file.stem
    if arguments.again:
        targets = sorted(PATCHED.glob(f"{name}.py")) + sorted(PATCHED.glob(f"{name}.*.py"))
        checked = _check_in_fresh_process(file, targets, arguments)
        print(f"{name:14} {len(targets) - 1} fixes alone and all together;", *checked["differences"], sep="\n    ")
        return {"name": name, "kept": True, "differences": checked["differences"]}
    _explore(file, Options(stages=("captured",), backend="eager"))
    captured_seconds, done = _explore(file, Options(stages=("captured",), backend="eager"))
    full_seconds, _ = _explore(file, Options())
    candidates = _count_candidates()
    with _silent():
        found = Run(done.record, call=done.call).xray()
        seconds_to_find = found.found.seconds
        start = time.perf_counter()
        found.try_fixes(arguments.seconds)
        seconds_to_try = time.perf_counter() - start
    targets = _write_patched(file, found)
    checked = _check_in_fresh_process(file, targets, arguments)
    promised = found.found.cost_after.breaks if found.found.cost_after else None
    row = {
        "name": name,
        "sites": len(found.sites),
        "fixed": sum(fix.state in WORKING for fix in found.fixes),
        "left": len(found.left),
        "promised": promised,
        "breaks": checked["breaks"],
        "kept": checked["breaks"] == promised,
        "differences": checked["differences"],
        "finding": seconds_to_find / captured_seconds,
        "trying": seconds_to_try / max(candidates[0], 1) / full_seconds,
        "candidates": candidates[0],
        "captured_seconds": captured_seconds,
        "full_seconds": full_seconds,
        "seconds_to_find": seconds_to_find,
        "seconds_to_try": seconds_to_try,
        "states": {site.id: fix.state for site, fix in zip(found.sites, found.fixes, strict=True)},
        "causes": {cause.id: cause.fix.state for cause in found.causes if cause.fix},
        "fixes_alone": len(targets) - 1,
        "seeds": arguments.seeds,
    }
    if arguments.json:
        print(json.dumps(row), flush=True)
        return row
    print(
        f"{name:14} {row['fixed']:2} of {row['sites']:2} fixed, {row['left']} left; breaks {promised} promised, "
        f"{row['breaks']} counted; finding {row['finding']:.1f} x captured ({captured_seconds:.1f} s), trying "
        f"{row['candidates']} candidates, each {row['trying']:.2f} x full ({full_seconds:.1f} s); "
        f"{len(targets) - 1} fixes alone and all together on {arguments.seeds} seeds",
        *checked["differences"], sep="\n    ", flush=True,
    )  # fmt: skip
    return row


def _write_patched(file: Path, found: XRayed) -> list[Path]:
    """Write the patched program, and the program with each working fix alone; return the files."""
    lines, text = file.read_text().splitlines(keepends=True), str(found.patch())
    texts = {file.name: patched(text, lines) if text else "".join(lines)}
    trials = Trials(found._search_once())
    for number, fix in enumerate(found.fixes, 1):
        if fix.state in WORKING:
            for edited in edited_files(trials.change_of_fixes([fix]), trials.search):
                texts[f"{file.stem}.{number}.py"] = edited.after
    for old in [PATCHED / file.name, *PATCHED.glob(f"{file.stem}.*.py")]:
        old.unlink(missing_ok=True)
    for name, new in texts.items():
        (PATCHED / name).write_text(new)
    return [PATCHED / name for name in texts]


def _explore(file: Path, options: Options) -> tuple[float, Any]:
    fn, calls = _program(file, None)
    start = time.perf_counter()
    with _silent():
        done = explore(fn, options=options, calls=calls)
    return time.perf_counter() - start, done


def _count_candidates() -> list[int]:
    """A list of one number: how often a candidate was tried; it grows while fixes are tried."""
    count = [0]

    def counting(original: Any) -> Any:
        def count_and_try(*args: Any) -> Any:
            count[0] += 1
            return original(*args)

        return count_and_try

    for owner, name in ((fixes.Trial, "try_suggestions"), (CauseTrials, "_try")):
        setattr(owner, name, counting(vars(owner)[name]))
    return count


def _check_in_fresh_process(file: Path, targets: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    options = [f"--backend={arguments.backend}", f"--seeds={arguments.seeds}", "--check", *map(str, targets)]
    command = [sys.executable, "-m", "benchmarks.xray", str(file), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"breaks": None, "differences": [done.stderr.strip().splitlines()[-1]]}
    return json.loads(done.stdout.splitlines()[-1])


def _check(file: Path, targets: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """Breaks of the first target, the patched program, and the differences of all results from the unchanged program's.

    The first target is compiled; the others, with one fix each, run eagerly.
    """
    breaks = _breaks(targets[0])
    differences = []
    for seed in range(arguments.seeds):
        before, again = (_outcome(file, seed, "") for _ in range(2))
        for target in targets:
            backend = arguments.backend if target is targets[0] else ""
            after = _outcome(target, seed, backend)
            why, when = compare_outcomes(before, again, after)
            if backend and (why or when):  # compiling alone may change a result too: None as a gradient becomes zeros
                compiled, once_more = (_outcome(file, seed, backend) for _ in range(2))
                why, when = compare_outcomes(compiled, once_more, after)
            if why or when:
                differences.append(f"{target.name}, seed {seed}: {why or when}")
    return {"breaks": breaks, "differences": differences}


def _breaks(file: Path) -> int:
    """Number of lines at which torch's own log reports a graph break when it compiles the calls of a program."""
    fn, calls = _program(file, None)
    compiled, listener = torch.compile(fn, backend="eager"), _Listener()
    with _silent():
        torch._logging.set_logs(graph_breaks=True)
        for name in ("symbolic_convert", "convert_frame"):
            logging.getLogger(f"torch._dynamo.{name}.__graph_breaks").addHandler(listener)
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
        text = record.getMessage()
        self.lines.update(re.findall(r"Graph break in user code at (.*)", text))
        if "results in a skip" in text:  # of a whole frame, which in a library is no part of the user's graphs
            found = re.findall(r'File "(.*)", line (\d+)', text)[-1:]
            self.lines.update(f"{path}:{line}" for path, line in found if not is_installed(path))


def _outcome(file: Path, seed: int, backend: str) -> Outcome:
    """What the calls of a program do. Options of TorchDynamo that a patched program sets are reset after it."""
    options = torch._dynamo.config.get_config_copy()
    try:
        fn, calls = _program(file, seed)
        torch._dynamo.reset()
        run = torch.compile(fn, backend=backend) if backend else fn
        return run_and_hear([partial(run, *call) for call in calls], [("self", fn), ("calls", calls)])
    finally:
        for name, value in options.items():
            setattr(torch._dynamo.config, name, value)


def _program(file: Path, seed: int | None) -> tuple[Any, Any]:
    """The function and the arguments of a program's calls; with a seed, float arguments are filled with it."""
    module = ModuleType(f"xray_program_{file.stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    fn, calls = module.program()
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
