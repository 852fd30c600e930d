"""`run.diagnose()`: the findings of a run, with an x-ray and tried fixes, and paths relative to the current folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from compiler.capture.sources import importable_path, is_installed
from compiler.record import Record
from explorer.findings.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    from explorer.run.run import Run


def diagnose_run(run: Run, *, try_fixes: bool, command: str = "") -> Diagnosis:
    """Diagnose a run. With `try_fixes`, its call is x-rayed first if it breaks or recompiles."""
    record = run.record
    if try_fixes and run.call is not None and (record.breaks or record.recompiles or not record.of_stage("captured")):
        run.xray().try_fixes()
    return diagnose(run.record, local_paths(run.record), command)


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
