"""`run.diagnose()`: the findings of a run, with an x-ray and tried fixes, and paths relative to the current folder."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compiler.capture.sources import importable_path, is_installed
from compiler.record import Record
from compiler.targets import is_virtual
from explorer.findings.diagnosis import CALL, Diagnosis, diagnose
from explorer.run.wrong_numbers import locate_wrong_numbers

if TYPE_CHECKING:
    from explorer.run.run import Run


ROUND_AS_EAGER: Final = {"emulate_precision_casts": True}
"""Settings of Inductor under which a kernel rounds each intermediate result to its dtype."""


def diagnose_run(run: Run, *, try_fixes: bool, command: str = "") -> Diagnosis:
    """Diagnose a run. With `try_fixes`, its call is x-rayed first if it breaks or recompiles."""
    record = run.record
    if try_fixes and run.call is not None and (record.breaks or record.recompiles or not record.of_stage("captured")):
        run.xray().try_fixes()
    paths = local_paths(run.record)
    found = diagnose(run.record, paths, command)
    if not try_fixes or run.call is None or not any(each.kind == "wrong number" for each in found.findings):
        return found
    return _try_rounding_as_eager(run, locate_wrong_numbers(run, found, paths), command)


def _try_rounding_as_eager(run: Run, found: Diagnosis, command: str) -> Diagnosis:
    """Try to round intermediate results as eager mode does, where numbers in half precision differ.

    Within a kernel, Inductor keeps them in float32. The findings of wrong numbers get the outcome.
    """
    record, options = run.record, run.record.options
    is_plain = options.backend == "inductor" and options.mode == "default"
    if not is_plain or run.call is None or not _computes_in_half(record):
        return found
    from compiler.engine import explore_again  # it imports torch

    target = "cpu" if is_virtual(record.target) else options.target
    asked = {**options.options, **ROUND_AS_EAGER}
    checks = explore_again(
        run.call, replace(options, options=asked, target=target, check=True, time=False, stages=())
    ).record.checks
    left = sum(check.verdict == "differs" for check in checks)
    holds = bool(checks) and not left
    outcome: dict[str, Any] = {
        "fix": "Round intermediate results as eager mode does. Inductor keeps them in float32 within a kernel, which "
        "is more accurate, and differs where eager mode overflows or cancels. Kernels may become slower.",
        "snippet": (f"torch.compile(…, options={asked!r})",),
        "state": "verified" if holds else "tried",
        "state_words": "Compiled so, all results agree with eager mode."
        if holds
        else f"Compiled so, {left} of {len(checks)} comparisons still differ.",
        "next": f"{CALL}tcompile diagnose {command}".rstrip() if holds else "",
    }
    changed = (replace(each, **outcome) if each.kind == "wrong number" else each for each in found.findings)
    return replace(found, findings=tuple(changed))


def _computes_in_half(record: Record) -> bool:
    entities = (entity for artifact in record.of_stage("captured") for entity in artifact.entities)
    return any(entity.attrs.get("dtype") in ("float16", "bfloat16") for entity in entities)


def local_paths(record: Record) -> dict[str, str]:
    """Paths of the user's files relative to the current folder, by their names in the record.

    Only modules that are loaded in this process have a path; a file elsewhere keeps its name.
    """
    here = Path.cwd()
    wanted = {each.title for each in record.of_stage("source") if not each.attrs.get("installed")}
    loaded = {str(file) for module in tuple(sys.modules.values()) if (file := getattr(module, "__file__", None))}
    found: dict[str, str] = {}
    for file in loaded:
        if not is_installed(file) and (name := importable_path(file)) in wanted and name not in found:
            path = Path(file).resolve()
            found[name] = path.relative_to(here).as_posix() if path.is_relative_to(here) else name
    return found
