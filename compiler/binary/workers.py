"""Processes that compile kernels in parallel, for one call or for as long as there is work.

Each is a new Python process: not a fork of the user's process, which may have threads, and not multiprocessing's spawn,
which would import the user's `__main__`. It leads a process group, so that compilers it has started end with it.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import IO

from compiler.binary.jobs import Job, Output, read, write
from compiler.process import kill_group, start_in_own_group
from compiler.torch_api.triton_kernels import HELPERS

_NOT_FOR_WORKERS = ("TRITON_CACHE_DIR", "TRITON_INTERPRET", "TRITON_STORE_BINARY_ONLY", "TRITON_KERNEL_OVERRIDE")
_FOR_WORKERS = {
    "CUDA_VISIBLE_DEVICES": "",  # no GPU is used, and none should be initialized
    "TRITON_DISABLE_LINE_INFO": "0",
    "TRITON_DUMP_PTXAS_LOG": "1",  # the log has registers and spills
    "TRITON_KERNEL_DUMP": "0",
}


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def outputs(jobs: Mapping[str, Job], workers: int) -> Generator[tuple[str, Output], None, None]:
    """Yield each job's key and output, in order of completion, from at most `workers` processes.

    No process is left at the end. A caller that may stop early should close the generator (`contextlib.closing`), as a
    propagating exception keeps generators alive. Raises OSError if no process can be started.
    """
    crew = Crew(workers)
    try:
        keys = {crew.submit(job): key for key, job in jobs.items()}
        for future in as_completed(keys):
            yield keys[future], future.result()
    finally:
        crew.stop()


class Crew:
    """Persistent workers, each with a thread that gives it jobs.

    They end after `idle` seconds without work, and with this process; the next job starts new workers.
    """

    def __init__(self, most: int, idle: float = 60.0) -> None:
        self.most, self.idle = most, idle
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._workers: list[_Worker] = []
        self._own = threading.local()
        self._timer: threading.Timer | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._jobs = 0

    def submit(self, job: Job) -> Future[Output]:
        """Compile a kernel in parallel with others. The future raises OSError if no process can be started."""
        with self._lock:
            if self._threads is None:
                atexit.register(self.stop)
                self._threads = ThreadPoolExecutor(self.most, "tcompile")
                self._own = threading.local()
                self._folder = tempfile.TemporaryDirectory(prefix="tcompile-", ignore_cleanup_errors=True)
            if self._timer is not None:
                self._timer.cancel()
            self._jobs += 1
            made = self._threads.submit(self._run, job)
        made.add_done_callback(lambda _: self._count_down())
        return made

    @property
    def is_awake(self) -> bool:
        """Whether workers are running: there are jobs, or there were some less than `idle` seconds ago."""
        return self._threads is not None

    def stop(self) -> None:
        """End the worker processes."""
        atexit.unregister(self.stop)
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            threads, self._threads = self._threads, None
            workers, self._workers = self._workers, []
            folder, self._folder = self._folder, None
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        if folder is not None:
            folder.cleanup()

    def _count_down(self) -> None:
        """Record that a job is done; after the last one, a timer ends the workers."""
        with self._lock:
            self._jobs -= 1
            if self._jobs or self._threads is None:
                return
            self._timer = threading.Timer(self.idle, self.stop)
            self._timer.daemon = True
            self._timer.start()

    def _run(self, job: Job) -> Output:
        worker = getattr(self._own, "worker", None) or self._start_worker()
        worker.give(job)
        output = worker.result()
        if output is None:
            self._own.worker = None
            return Output(error=worker.post_mortem())
        return output

    def _start_worker(self) -> _Worker:
        """Start the worker process of the current thread."""
        with self._lock:
            if self._folder is None:
                raise CancelledError("the workers were stopped")
            self._own.worker = worker = _Worker(Path(tempfile.mkdtemp(dir=self._folder.name)))
            self._workers.append(worker)
        return worker


class _Worker:
    """One process, with a private folder for its files."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self._process = start_in_own_group(
                [sys.executable, "-P", "-m", f"{__package__}.worker", HELPERS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(folder),
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._jobs: IO[bytes] = self._process.stdin
        self._outputs: IO[bytes] = self._process.stdout

    def give(self, job: Job) -> None:
        with suppress(BrokenPipeError):  # it has died, which `result` reports
            write(self._jobs, job)

    def result(self) -> Output | None:
        """The output of the current job; None if the process died."""
        return read(self._outputs, Output)

    def kill(self) -> None:
        """Kill the process, and the processes that it has started."""
        kill_group(self._process)
        for pipe in (self._jobs, self._outputs):
            with suppress(BrokenPipeError):
                pipe.close()

    def post_mortem(self) -> str:
        """Describe how the process ended, with its last output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self.kill()
        return f"the compiler's process {_how_it_ended(self._process.returncode)}{self._last_words()}"

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n") if self._log.exists() else []
        said = [line for line in lines if line.strip()][-3:]
        return ": " + "\n".join(said) if said else ""


def _how_it_ended(code: int) -> str:
    """`died of SIGSEGV`, or `ended with status 1`."""
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _environment(folder: Path) -> dict[str, str]:
    """The user's environment with a private TMPDIR, our module path, and Triton's logs enabled."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_WORKERS}
    home = str(Path(__file__).parents[__name__.count(".")])
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    module_path = os.pathsep.join(dict.fromkeys((*paths, home)))
    return kept | _FOR_WORKERS | {"TMPDIR": str(folder), "PYTHONPATH": module_path}
