"""The parent's side of the interpreter process: start it, send launches, and always stop it.

A separate process is needed because Triton reads TRITON_INTERPRET on import, and because a faulty kernel must not crash
the user's Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch

from compiler.process import kill_group, start_in_own_group
from compiler.triton_interpreter import arena
from compiler.triton_interpreter.launch import KernelError, Outcome, Request

ROOT = Path(__file__).parents[__name__.count(".")]
"""The folder on sys.path with our outermost package: `compiler` in a clone, `tcompile` when installed."""
START_SECONDS = 120.0
LAUNCH_SECONDS = 60.0

_MAIN = f"import sys; sys.path.insert(0, sys.argv[1]); from {__package__}.worker import main; main()"


class InterpreterError(RuntimeError):
    """The interpreter process could not be started, did not accept a request, or ended."""


class Interpreter:
    """Runs kernels on CPU tensors in a process that starts when needed; a context manager.

    `seconds` is the time limit of one launch. On exit the process is ended and its files are deleted.
    """

    def __init__(self, seconds: float = LAUNCH_SECONDS) -> None:
        self.seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tcompile-")
        self._paths: dict[str, Path] = {}
        self._connection: Connection
        self._is_ready = False

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self.stop()
        finally:
            self._folder.cleanup()

    def start(self) -> None:
        """Start the process unless it is running, without waiting until it is ready."""
        if self._process is not None:
            return
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = environment["TRITON_CACHE_DIR"] = str(self._path("cache"))
        self._connection, theirs = Pipe()
        command = [sys.executable, "-c", _MAIN, str(ROOT), str(theirs.fileno())]
        with theirs, self._path("errors").open("wb") as errors:
            self._process = start_in_own_group(command, env=environment, stderr=errors, pass_fds=[theirs.fileno()])
        self._is_ready = False

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            kill_group(process)
            self._connection.close()

    def run(
        self, source: str, name: str, arguments: Sequence[Any], config: int | None = None, most: int | None = None
    ) -> Outcome:
        """Launch the kernel `name` of an Inductor source, and change its tensors in place.

        `arguments` are the launch arguments, in order: CPU tensors, numbers, None. `config` is the index of a
        configuration; by default block sizes are chosen for few programs. At most `most` programs run. The outcome has
        the kernel's error, if any. Raises InterpreterError.
        """
        return self._launch(source, name, arguments, config=config, most=most)

    def run_plain(
        self,
        source: str,
        name: str,
        arguments: Sequence[Any],
        types: Mapping[str, str],
        blocks: Mapping[str, int],
        grid: tuple[int, int, int],
    ) -> Outcome:
        """Launch all programs of a plain `@triton.jit` function. Raises InterpreterError.

        `types` has Triton's type of each parameter, in order: "constexpr" for those in `blocks`.
        """
        return self._launch(source, name, arguments, types=dict(types), blocks=dict(blocks), grid=grid)

    def _launch(self, source: str, name: str, arguments: Sequence[Any], **how: Any) -> Outcome:
        tensors = {str(index): value for index, value in enumerate(arguments) if isinstance(value, torch.Tensor)}
        places = arena.place_tensors(tensors)
        path = self._path("memory")
        memory = arena.map_tensors(path, tensors, places)
        given = [places.get(str(index), value) for index, value in enumerate(arguments)]
        answer = self._ask(Request(self._write(source), name, str(path), memory.numel(), given, **how))
        path.unlink()
        if answer is None:
            return Outcome(error=KernelError("error", f"it took longer than {self.seconds:g} s in the interpreter"))
        arena.copy_back(memory, tensors, places)
        return answer

    def _ask(self, request: Request) -> Outcome | None:
        """Send a request, and return the answer; on a timeout, end the process and return None."""
        try:
            content = msgspec.msgpack.encode(request)
        except TypeError as error:
            raise InterpreterError(f"its arguments can't be passed on: {error}") from error
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self.start()
        if not self._is_ready and self._receive(START_SECONDS) is None:
            self.stop()
            raise InterpreterError(f"the interpreter's process was not ready after {START_SECONDS:g} s")
        self._is_ready = True
        self._connection.send_bytes(content)
        if (answer := self._receive(self.seconds)) is None:
            self.stop()
            return None
        return msgspec.msgpack.decode(answer, type=Outcome)

    def _receive(self, seconds: float) -> bytes | None:
        """The process's next message; None on a timeout. Raises InterpreterError if the process has ended."""
        try:
            return self._connection.recv_bytes() if self._connection.poll(seconds) else None
        except (EOFError, ConnectionError):
            said = self._path("errors").read_text(errors="replace").strip().splitlines()
            self.stop()
            last = said[-1] if said else "it said nothing"
            raise InterpreterError(f"the interpreter's process ended: {last}") from None

    def _write(self, source: str) -> str:
        """Write the source to a file, and return its path: Triton reads a function's lines from its file."""
        if source not in self._paths:
            self._paths[source] = self._path(f"kernel_{len(self._paths)}.py")
            self._paths[source].write_text(source, encoding="utf-8")
        return str(self._paths[source])

    def _path(self, name: str) -> Path:
        return Path(self._folder.name, name)
