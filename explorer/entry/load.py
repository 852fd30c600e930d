"""`load`: a saved run, or the logs of a job, from a file."""

from __future__ import annotations

from pathlib import Path

from explorer.run import files
from explorer.run.job import Job
from explorer.run.run import Run


def load(path: str | Path) -> Run | Job:
    """Read a saved run, or the logs of a job, without executing anything in them.

    >>> run = tcompile.load("run.html")
    >>> print(run.cards)
    >>> job = tcompile.load("trace_dir")

    A run is saved as `.json` or `.html`. Logs are those of TORCH_TRACE: a file, a directory with a log for each rank,
    or an archive of one. A loaded run has no value. To compile its kernels, which executes code from the file, call
    `run.trust()`. Raises RecordError with the invalid field, LogError for what is no log, OSError if the file can't be
    read.
    """
    return Run(files.read(path)) if files.is_record(path) else Job.load(path)
