"""`observe`: everything that torch.compile does in a block of code of this process, as a job."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from compiler.logs.events import Log
from explorer.run.job import Job

_LARGE = 16 * 2**20


@contextmanager
def observe(title: str = "observed") -> Iterator[Job]:
    """Observe what torch.compile does in a block of code, as a `Job`.

    >>> with tcompile.observe() as job:
    ...     train(model, batches)
    >>> print(job)

    The code runs as without this: with its caches, its settings and its exceptions. Torch writes its structured trace,
    as with TORCH_TRACE, which takes some time for each compilation. All threads are observed. The job is filled when
    the block ends, also by an exception. Blocks may be nested.
    """
    from compiler.torch_api.own_trace import written_trace

    job = Job.of_logs(title, ())
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", prefix="tcompile_") as file:
        try:
            with written_trace(file):
                yield job
        finally:
            file.flush()
            job.__dict__.update(Job.of_logs(title, (_log(title, file),)).__dict__)


def _log(title: str, file: IO[str]) -> Log:
    """The log in a file, which may be closed afterwards. The map of a large one keeps a file descriptor open."""
    if file.seek(0, 2) > _LARGE:
        return Log((title,), (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ),))
    file.seek(0)
    return Log((title,), (file.read().encode(),))
