"""The interpreter's process, from the side that asks: started, asked, and stopped whatever happens.

Triton reads TRITON_INTERPRET when it is imported, and a kernel gone wrong must not take the user's Python with it.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from compiler.process import kill_group, start_in_own_group
from compiler.triton_interpreter import arena
from compiler.triton_interpreter.launch import KernelError, Outcome

ROOT = Path(__file__).parents[__name__.count(".")]
"""The folder on Python's path that holds our outermost package: `compiler` in a clone, `tcompile` when installed."""
START_SECONDS = 120.0
LAUNCH_SECONDS = 60.0

_MAIN = f"import sys; sys.path.insert(0, sys.argv[1]); from {__package__}.worker import main; main()"


class InterpreterError(RuntimeError):
    """The interpreter's process could not be started, or ended."""


class Interpreter:
    """Runs kernels on CPU tensors in a process that starts when needed; a context manager.

    `seconds` is the longest that one launch may take. On exit the process is gone and so are its files.
    """

    def __init__(self, seconds: float = LAUNCH_SECONDS) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._sources: dict[str, Path] = {}
        self._unread = b""
        self._is_ready = False

    def __enter__(self) -> Interpreter:
        self._folder = tempfile.TemporaryDirectory(prefix="tcompile-")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            assert self._folder is not None
            self._folder.cleanup()

    def start(self) -> None:
        """Start the process, unless it runs; it gets ready while the caller goes on."""
        if self._process is not None:
            return
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = environment["TRITON_CACHE_DIR"] = str(self._path("cache"))
        with self._path("errors").open("wb") as errors:
            self._process = start_in_own_group(
                [sys.executable, "-c", _MAIN, str(ROOT)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._unread = b""
        self._is_ready = False

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            kill_group(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def run(
        self,
        source: str,
        name: str,
        arguments: Sequence[Any],
        config: int | None = None,
        most: int | None = None,
    ) -> Outcome:
        """Launch the kernel `name` of Inductor's source, and change its tensors in place.

        `arguments` are those of the launch, in order: CPU tensors, numbers, None. `config` is the number of a
        configuration; by default block sizes are chosen so that there are few programs. At most `most` of them
        run. What the kernel does wrong is in the outcome. Raises InterpreterError.
        """
        return self._launch(source, name, arguments, {"config": config, "most": most})

    def run_plain(
        self,
        source: str,
        name: str,
        arguments: Sequence[Any],
        types: Mapping[str, str],
        blocks: Mapping[str, int],
        grid: tuple[int, int, int],
    ) -> Outcome:
        """Launch all programs of a plain `@triton.jit` function.

        `types` gives Triton's type of each argument, in order, "constexpr" of those in `blocks`.
        """
        asked = {"types": dict(types), "blocks": dict(blocks), "grid": grid}
        return self._launch(source, name, arguments, asked)

    def _launch(self, source: str, name: str, arguments: Sequence[Any], asked: Mapping[str, Any]) -> Outcome:
        tensors = {str(index): value for index, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
        places = arena.place_tensors(tensors)
        memory_path = self._path("memory")
        with memory_path.open("wb") as file:
            file.truncate(arena.size_of(places))  # gaps are holes
        memory = arena.map_file(memory_path, arena.size_of(places))
        arena.copy_in(memory, tensors, places)
        answer = self._ask({
            "source": str(self._source(source)), "name": name, "memory": str(memory_path), "size": memory.numel(),
            "arguments": [
                places[str(index)].described() if isinstance(value, torch.Tensor) else value
                for index, value in enumerate(arguments)
            ],
            **asked,
        })  # fmt: skip
        memory_path.unlink()
        if answer is None:
            return Outcome(error=KernelError("error", f"it took longer than {self.seconds:g} s in the interpreter"))
        arena.copy_back(memory, tensors, places)
        error = answer.pop("error")
        return Outcome(**{**answer, "grid": tuple(answer["grid"])}, error=KernelError(**error) if error else None)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The process's answer; None after the time is up, when the process has been ended."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.start()
        if not self._is_ready:
            self._is_ready = self._read(START_SECONDS) is not None
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        answer = self._read(self.seconds)
        if answer is None:
            self.stop()
        return answer

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """One line of the process's answers, None after the time limit. Raises InterpreterError."""
        assert self._process is not None
        assert self._process.stdout is not None
        stdout, end = self._process.stdout, time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                read = os.read(stdout.fileno(), 1 << 16)
                if not read:
                    raise InterpreterError(self._last_words())
                self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        said = self._path("errors").read_text(errors="replace").strip().splitlines()
        self.stop()
        return f"the interpreter's process ended: {said[-1] if said else 'it said nothing'}"

    def _source(self, source: str) -> Path:
        """A file with the source: Triton reads a function's lines from its file."""
        if source not in self._sources:
            path = self._path(f"kernel_{len(self._sources)}.py")
            path.write_text(source, encoding="utf-8")
            self._sources[source] = path
        return self._sources[source]

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise InterpreterError("Interpreter is for use inside `with Interpreter() as interpreter:`")
        return Path(self._folder.name) / name
