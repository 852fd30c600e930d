"""Run repro files in other processes: many in one that stays warm, and the last one in a fresh one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from compiler.process import kill_group, start_in_own_group

MOST_SECONDS = 120.0
MOST_MEMORY = 16 << 30
"""Limits of one program, in seconds and in bytes of address space."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a program shows: the names of its faults, and a sentence about them."""

    faults: tuple[str, ...]
    detail: str = ""


class Runner:
    """A warm process that runs repro files, one at a time; it is replaced if it dies or takes too long."""

    def __init__(self, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[Any] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tcompile_repro_")
        self._log = Path(self._folder.name) / "log"
        self._number = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, text: str, *, guarded: bool = False, arguments: Mapping[str, Any] | None = None) -> Shown:
        """What the program with this text shows.

        With `guarded`, it must change nothing outside its process. `arguments` replace those of torch.compile.
        """
        return self._ask({"what": "run", "guarded": guarded, "compile": arguments}, text)

    def ask(self, what: str, text: str, **details: Any) -> str:
        """Another question about a program: "bisect" or "passes"; the answer in words."""
        return self._ask({"what": what, **details}, text).detail

    def _ask(self, asked: dict[str, Any], text: str) -> Shown:
        self._number += 1
        path = Path(self._folder.name) / f"repro_{self._number}.py"
        path.write_text(text)
        process = self._start_process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked | {"path": str(path)}) + "\n")
            process.stdin.flush()
            line = self._line_of(process)
        except BrokenPipeError:
            line = ""
        if line is None:
            self._end()
            return Shown(("crash: it does not end",), f"it did not end within {self._seconds:.0f} s")
        if not line:
            return self._post_mortem(process)
        answer = json.loads(line)
        return Shown(tuple(answer["shown"]), answer["detail"])

    def _line_of(self, process: subprocess.Popen[Any]) -> str | None:
        """The next line of the process; "" if it has ended, None if it takes too long."""
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], self._seconds)
        return process.stdout.readline() if ready else None

    def _post_mortem(self, process: subprocess.Popen[Any]) -> Shown:
        code = process.wait()
        self._end()
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        return Shown((f"crash: the process died of {how}",), f"the process died of {how}")

    def _start_process(self) -> subprocess.Popen[Any]:
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = start_in_own_group(
                    [sys.executable, "-P", "-m", f"{__package__}.child", str(MOST_MEMORY)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=child_environment(),
                )  # fmt: skip
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def confirm(path: Path, seconds: float = 3 * MOST_SECONDS) -> bool:
    """Whether the file shows its fault in a fresh process with empty caches, which takes longer than a warm one."""
    with tempfile.TemporaryDirectory(prefix="tcompile_repro_") as folder:
        environment = child_environment() | {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # for one file, that takes longer than it saves
        }
        process = start_in_own_group(
            [sys.executable, str(path.resolve())], stderr=subprocess.DEVNULL, env=environment, cwd=folder,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            kill_group(process)
    return process.returncode < 0 or (process.returncode == 1 and "shows the same: " in (output or ""))


def child_environment() -> dict[str, str]:
    """The environment with this process's module path, so that a child imports the same packages."""
    home = str(Path(__file__).parents[__name__.count(".")])
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(dict.fromkeys((home, *paths)))}
