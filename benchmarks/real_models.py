"""Real models with real graph breaks and recompilations: what an exploration finds, and the effect of its advice.

python -m benchmarks.real_models                 every study, each in a separate process
python -m benchmarks.real_models mixtral --cards one of them, with its cards; before and after each change
python -m benchmarks.real_models --xray          sites of each study as it is, and the counts after the x-ray's patch

Each study is a notebook cell, run by `%%tcompile` in IPython as a user would. `--compare` runs the same cell under
torch.compile alone, and compares the lines of breaks and recompilations with those that TORCH_LOGS names.
Models have random weights and few layers. It needs transformers, torchvision, diffusers and timm.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.real_model_cells import STUDIES, Study, Variant

TRY_SECONDS = 300.0
"""Default time for trying fixes: on a machine with other work, these models need more than `try_fixes` takes."""
_BREAK = re.compile(r"Graph break in user code at (\S+):(\d+)")
_RECOMPILE = re.compile(r"Recompiling function (\S+) in (\S+):(\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", nargs="?", choices=sorted(STUDIES))
    parser.add_argument("--cards", action="store_true", help="print the cards too")
    parser.add_argument("--compare", action="store_true", help="compare with the logs of torch.compile alone")
    parser.add_argument("--all-stages", action="store_true", help="explore down to the kernels, not the capture alone")
    parser.add_argument("--xray", action="store_true", help="x-ray each study as it is, and apply the patch")
    parser.add_argument("--seconds", type=float, default=TRY_SECONDS, help="time for trying fixes, with --xray")
    asked = parser.parse_args()
    if asked.study:
        study = STUDIES[asked.study]
        for row in x_rayed(study, asked.seconds) if asked.xray else explored(study, asked):
            print(json.dumps(row), flush=True)
        return
    for name in STUDIES:
        for row in in_process(name, asked):
            print(row, flush=True)


def in_process(name: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one study, from a separate process, because of its peak memory and compilation caches."""
    flags = [f"--{flag}" for flag in ("compare", "all-stages", "xray") if getattr(asked, flag.replace("-", "_"))]
    command = [sys.executable, "-m", "benchmarks.real_models", name, *flags, f"--seconds={asked.seconds}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"study"')]


def explored(study: Study, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per variant: counts, CPU seconds, peak memory so far in MiB."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    quiet(shell, "%load_ext tcompile")
    before = None
    for variant in study.variants:
        quiet(shell, study.setup)
        stages = "" if asked.all_stages else " --stages captured"
        with configured(variant):
            quiet(shell, variant.setup)
            started = time.process_time()
            quiet(shell, f"%%tcompile{stages} {variant.line}\n{variant.cell or study.cell}")
            seconds = time.process_time() - started
            run = shell.user_ns["_tc"]
            row = {"study": study.name, "variant": variant.name, **numbers(run), "cpu_seconds": round(seconds, 1)}
            row["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            if asked.compare:
                row["logs_agree"] = agrees(run, logged(shell, study, variant))
        if asked.cards:
            print(run.cards if before is None else before.diff(run).capture, end="\n\n")
        before = before or run
        yield row


def x_rayed(study: Study, seconds: float) -> Iterator[dict[str, Any]]:
    """Two rows: the sites and causes of a study as it is; also its fixes, and the counts of the patched cells.

    The patched cells run as they are in the patch, with the settings and the overrides of package functions in them.
    Progress goes to the standard error stream.
    """
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    quiet(shell, "%load_ext tcompile")
    quiet(shell, study.setup, store_history=True)
    magic = f"%%tcompile --stages captured {study.line}\n"
    quiet(shell, magic + study.cell, store_history=True)
    run = shell.user_ns["_tc"]
    started, cpu_started = time.perf_counter(), time.process_time()
    xray = run.xray(lambda words: print(f"{time.perf_counter() - started:.0f} s: {words}", file=sys.stderr, flush=True))
    row = {"study": study.name, "before": numbers(run), "sites": len(xray.sites), "causes": len(xray.causes),
           "captures": xray.found.captures, "seconds_of_search": round(xray.found.seconds, 1),
           "problems": xray.found.problems}  # fmt: skip
    yield row
    patch = xray.try_fixes(seconds).patch()
    row |= {
        "states": {site.id: f"{site.file}:{site.line} {site.kind}: {fix.state}, {fix.words}"
                   for site, fix in zip(xray.sites, xray.fixes, strict=True)},
        "together": sum(fix.together for fix in xray.fixes),
        "left": [f"{site.file}:{site.line} {site.kind}" for site in xray.left],
        "causes_found": [f"{cause.file}:{cause.line} {cause.kind}: {cause.fix}" for cause in xray.causes],
        "left_problems": xray.found.left_problems, "seconds_in_all": round(time.perf_counter() - started, 1),
        "cpu_seconds_in_all": round(time.process_time() - cpu_started, 1),
    }  # fmt: skip
    after = {file.before.rstrip(): file.after for file in patch.files if file.is_cell}
    quiet(shell, "%reset -f\n%load_ext tcompile\nimport torch; torch.compiler.reset()")
    quiet(shell, after.get(study.setup.rstrip(), study.setup))
    quiet(shell, after.get((magic + study.cell).rstrip(), magic + study.cell))
    yield row | {"patch": str(patch), "after": numbers(shell.user_ns["_tc"])}


def numbers(run: Any) -> dict[str, Any]:
    breaks = run.record.breaks
    return {
        "frames": len(run.record.frames),
        "graphs": len(run.record.of_stage("captured")),
        "breaks": len(breaks),
        "break_sites": len({(found.file, found.line, found.kind) for found in breaks}),
        "recompiles": len(run.record.recompiles),
        "guards": len(run.record.guards),
        "problems": len(run.record.problems),
    }


def quiet(shell: Any, code: str, *, store_history: bool = False) -> None:
    """Run a cell without its output. Raises what it raises."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        result = shell.run_cell(code, store_history=store_history)
    result.raise_error()


@contextmanager
def configured(variant: Variant) -> Iterator[None]:
    """Set the settings of a variant, and restore them afterwards."""
    import torch._dynamo.config as config

    with config.patch(**variant.settings):
        yield


def logged(shell: Any, study: Study, variant: Variant) -> set[str]:
    """Lines of breaks and recompilations in the logs of torch.compile, without any exploration."""
    import torch

    heard: list[str] = []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    torch.compiler.reset()
    quiet(shell, f"{study.setup}\n{variant.setup}")
    torch._logging.set_logs(graph_breaks=True, recompiles=True)
    logging.getLogger("torch").handlers.clear()
    names = ("torch._dynamo.symbolic_convert.__graph_breaks", "torch._dynamo.guards.__recompiles")
    handler = Hearing()
    for name in names:
        logging.getLogger(name).addHandler(handler)
    try:
        quiet(shell, study.bare(variant))
    finally:
        for name in names:
            logging.getLogger(name).removeHandler(handler)
        torch._logging.set_logs()
    breaks = (f"break {short_name(found[1])}:{found[2]}" for text in heard for found in _BREAK.finditer(text))
    recompiles = (
        f"recompile {short_name(found[2])}:{found[3]}" for text in heard for found in _RECOMPILE.finditer(text)
    )
    return {*breaks, *recompiles}


def agrees(run: Any, heard: set[str]) -> str:
    """Return "yes", or the entries that only one side has."""
    breaks = {f"break {short_name(found.chain[-1].file)}:{found.chain[-1].line}" for found in run.record.breaks}
    recompiles = {f"recompile {short_name(found.file)}:{found.line}" for found in run.record.recompiles}
    ours = breaks | recompiles
    if ours == heard:
        return "yes"
    return f"only here: {sorted(ours - heard)}; only in the logs: {sorted(heard - ours)}"


def short_name(file: str) -> str:
    """A file's name without its folder; a cell's file has another name without an exploration."""
    last = Path(file).name
    return "cell" if "ipython" in file or last.startswith("<") or last.isdigit() else last


if __name__ == "__main__":
    main()
