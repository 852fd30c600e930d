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
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from compiler.process import kill_group, start_in_own_group
from compiler.repro.program import BREAK, Repro
from compiler.torch_api.cpu_isa import instruction_sets_work

MOST_SECONDS = 120.0
MOST_MEMORY = 16 << 30
"""Limits of one program, in seconds and in bytes of address space."""
ENDLESS = "crash: it does not end"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a program shows: the names of its faults, and a sentence about them."""

    faults: tuple[str, ...]
    detail: str = ""


class Runner:
    """A warm process that runs repro files, one at a time; it is replaced if it dies or takes too long."""

    def __init__(self, seconds: float = MOST_SECONDS, *, compiles: bool = True) -> None:
        """`compiles` is whether the programs need Inductor."""
        self._seconds, self._compiles = seconds, compiles
        self._process: subprocess.Popen[Any] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="tcompile_repro_")
        self._log = Path(self._folder.name) / "log"
        self._number = 0
        self._known: dict[tuple[str, str], Shown] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        self._folder.cleanup()

    def run(
        self, repro: Repro, *, guarded: bool = False, builds: bool = True, arguments: Mapping[str, Any] | None = None
    ) -> Shown:
        """What a program shows; it is run once.

        With `guarded`, it must change nothing outside its process. Without `builds`, Inductor only writes its code, so
        what takes a build is not seen. `arguments` replace those of torch.compile.
        """
        text = replace(repro, shows="", about="").text()
        asked = {"what": "run", "guarded": guarded, "builds": builds, "compile": arguments}
        key = (text, json.dumps(asked, default=repr))
        if key not in self._known:
            self._known[key] = self._ask(asked, text)
        return self._known[key]

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
            return Shown((ENDLESS,), f"it did not end within {self._seconds:.0f} s")
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
        words = _death_words(code)
        return Shown((words,), words.removeprefix("crash: "))

    def _start_process(self) -> subprocess.Popen[Any]:
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = start_in_own_group(
                    [sys.executable, "-P", "-m", f"{__package__}.child", str(MOST_MEMORY)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                    env=child_environment(self._folder.name, compiles=self._compiles),
                )  # fmt: skip
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            kill_group(self._process)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def confirm(path: Path, shows: str, seconds: float = 3 * MOST_SECONDS) -> bool:
    """Whether the file shows its fault in a fresh process with empty caches, which takes longer than a warm one."""
    with tempfile.TemporaryDirectory(prefix="tcompile_repro_") as folder:
        environment = child_environment(folder, compiles=not shows.startswith(BREAK)) | {
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
            return shows == ENDLESS
        finally:
            kill_group(process)
    if process.returncode not in (0, 1):
        return shows == _death_words(process.returncode)
    return process.returncode == 1 and f"shows the same: {shows}" in (output or "")


def _death_words(code: int) -> str:
    how = signal.Signals(-code).name if code < 0 else f"status {code}"
    return f"crash: the process died of {how}"


def child_environment(cache: str, *, compiles: bool) -> dict[str, str]:
    """The environment with this process's module path and a folder for Inductor's caches.

    The user's caches are not used: a file that was cut off there would show as a fault of the program. A process that
    `compiles` need not probe instruction sets again, which takes several builds.
    """
    home = str(Path(__file__).parents[__name__.count(".")])
    paths = [str(Path(path).resolve()) for path in sys.path if path]
    made = {"PYTHONPATH": os.pathsep.join(dict.fromkeys((home, *paths))), "TORCHINDUCTOR_CACHE_DIR": cache}
    is_probed = compiles and instruction_sets_work()
    return dict(os.environ) | made | ({"TORCHINDUCTOR_VEC_ISA_OK": "1"} if is_probed else {})
