"""Run a command of `tcompile` as a child process with limits, and read its answer.

A server keeps one process waiting that has imported torch and tcompile, and runs the next command (tcompile.preloaded).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from explorer.agent_server import guard
from explorer.run.answers import AnswerError, Page, read_page

if TYPE_CHECKING:
    from anyio.abc import ByteReceiveStream, Process

MOST_OUTPUT: Final = 64_000_000
KEPT_ERRORS: Final = 4_000
_SECONDS_TO_END = 10.0
_WITHOUT_TORCH = ("show", "diff")
"""Commands that read records and start without torch: the process that waits stays for others."""
_UNITS: Final = {
    "s": 1.0, "min": 60.0, "h": 3600.0,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
}  # fmt: skip
_TIMES: Final = ("s", "min", "h")
_SIZES: Final = ("kB", "MB", "GB", "KiB", "MiB", "GiB")


class ToolError(Exception):
    """Raised if a tool has no answer. The message is one line in our words; `printed` is text of the user's program."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


@dataclass(frozen=True)
class Limits:
    """What one command may use: seconds of time, and bytes of resident memory in all of its processes."""

    seconds: float = 300.0
    bytes: int = 8 * 2**30


def parse_quantity(text: str, units: Sequence[str]) -> float:
    """A positive number with its unit, in seconds or bytes: "90s", "8GiB". Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", text.strip())
    if match is None or match[2].lower() not in {unit.lower() for unit in units} or not float(match[1]):
        raise ValueError(f"{text!r} is no number with a unit: {', '.join(f'5{unit}' for unit in units)}")
    return float(match[1]) * _UNITS[match[2].lower()]


def parse_time(text: str) -> float:
    """Seconds: "90s", "5min"."""
    return parse_quantity(text, _TIMES)


def parse_size(text: str) -> int:
    """Bytes: "500MB", "8GiB"."""
    return int(parse_quantity(text, _SIZES))


@dataclass
class Commands:
    """Runs commands of `tcompile`. `python` are the words that start Python; -P keeps the folder out of its imports."""

    limits: Limits
    python: tuple[str, ...] = (sys.executable, "-P")
    keeps_one: bool = field(default=False, init=False)
    waiting: Process | None = field(default=None, init=False)

    @contextlib.asynccontextmanager
    async def keep_one_waiting(self) -> AsyncIterator[None]:
        """Keep a process waiting in the block, for the next command; at the end of the block it is ended."""
        self.keeps_one, self.waiting = True, await self._start()
        try:
            yield
        finally:
            self.keeps_one, waiting, self.waiting = False, self.waiting, None
            if waiting is not None:
                await _end(waiting)

    async def answer(self, words: Sequence[str], folder: Path) -> Page:
        """Run `tcompile WORDS --json` in a folder, and read the whole answer.

        Raises ToolError if there is none: the command is wrong, the user's code raised, or a limit was reached.
        """
        status, output, printed = await self._run([*words, "--json", "--max-bytes=0"], folder)
        if status in (0, 1) and output:  # 1: a check that does not hold has an answer too
            with contextlib.suppress(AnswerError):  # or the user's code wrote to its standard output
                return read_page(output)
        raise self._failure(status, printed)

    async def run(self, words: Sequence[str], folder: Path) -> None:
        """Run `tcompile WORDS` for what it writes. Raises ToolError."""
        status, _, printed = await self._run(words, folder)
        if status:
            raise self._failure(status, printed)

    async def _run(self, words: Sequence[str], folder: Path) -> tuple[int, bytes, str]:
        async with self._run_job(list(words), folder) as process:
            output, printed = await _read_both(process)
            if len(output) > MOST_OUTPUT:
                raise ToolError(f"the answer has more than {MOST_OUTPUT // 10**6} MB; ask for one stage or compilation")
            return await process.wait(), output, printed

    @contextlib.asynccontextmanager
    async def _run_job(self, words: list[str], folder: Path) -> AsyncIterator[Process]:
        """The process of a command; it is ended at the end of the block, and if the block is cancelled."""
        import anyio

        is_light = words[0] in _WITHOUT_TORCH
        job = {} if is_light else {"folder": str(folder), "words": words}
        with anyio.CancelScope(shield=True):
            process = await (self._start("tcompile", *words, folder=folder) if is_light else self._take())
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError, anyio.BrokenResourceError):  # it has ended: its status tells how
                await process.stdin.send(json.dumps(job).encode() + b"\n")
            yield process
        finally:
            await _end(process)
            with anyio.CancelScope(shield=True):
                await self._start_next()

    async def _take(self) -> Process:
        """The process that waits for a job, or a new one."""
        taken, self.waiting = self.waiting, None
        if taken is not None and taken.returncode is not None:  # it was killed while it waited
            await _end(taken)
            taken = None
        return taken or await self._start()

    async def _start_next(self) -> None:
        """Let the next process import, now that it takes no processor time from a command."""
        if self.keeps_one and self.waiting is None:
            self.waiting = await self._start()

    async def _start(self, *module: str, folder: Path | None = None) -> Process:
        """Start a module with its arguments under the guard, by default one that waits for a job."""
        import anyio

        limits = (str(self.limits.seconds), str(self.limits.bytes))
        command = [*self.python, "-m", *(module or ("tcompile.preloaded",))]
        return await anyio.open_process(
            [sys.executable, "-I", "-S", guard.__file__, *limits, *command], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder, env=_environment(os.environ),
            start_new_session=True,
        )  # fmt: skip

    def _failure(self, status: int, printed: str) -> ToolError:
        lines = printed.rstrip().splitlines()
        if status == guard.OUT_OF_TIME:
            return ToolError(
                f"It ran longer than {self.limits.seconds:g} s, and was ended with all of its processes. "
                "`tcompile mcp --timeout` sets the limit.", printed,
            )  # fmt: skip
        if status == guard.OUT_OF_MEMORY:
            return ToolError(
                f"It used more than {self.limits.bytes / 2**30:.3g} GiB of memory, and was ended with all of its "
                "processes. `tcompile mcp --memory` sets the limit.", printed,
            )  # fmt: skip
        if status == 2 and lines and "tcompile: " in lines[-1]:  # after a prompt on the same line
            return ToolError(lines[-1].rpartition("tcompile: ")[2])
        if status == 1 and lines:
            return ToolError("The code raised an exception.", printed)
        return ToolError(f"The code ended its process without an answer (exit status {status}).", printed)


async def _end(process: Process) -> None:
    """End a guarded process, and all that it runs."""
    import anyio

    assert process.stdin is not None
    with anyio.CancelScope(shield=True), contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()  # the guard ends all that runs
    with anyio.move_on_after(_SECONDS_TO_END, shield=True):
        await process.wait()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with anyio.CancelScope(shield=True):
        await process.aclose()


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of commands: they import this tcompile, and leave no bytecode beside the user's files."""
    spec = find_spec("tcompile")
    own = str(Path(spec.origin).resolve().parents[1]) if spec is not None and spec.origin else ""
    paths = filter(None, (own, inherited.get("PYTHONPATH", "")))
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


async def _read_both(process: Process) -> tuple[bytes, str]:
    """Standard output, up to just above the limit, and the end of standard error."""
    import anyio

    found: dict[str, bytes] = {}

    async def read(name: str, stream: ByteReceiveStream) -> None:
        found[name] = await (_read_all(stream) if name == "output" else _read_end(stream))
        if len(found[name]) > MOST_OUTPUT:
            group.cancel_scope.cancel()

    assert process.stdout is not None
    assert process.stderr is not None
    async with anyio.create_task_group() as group:
        group.start_soon(read, "output", process.stdout)
        group.start_soon(read, "errors", process.stderr)
    return found["output"], found.get("errors", b"").decode(errors="replace")


async def _read_all(stream: ByteReceiveStream) -> bytes:
    found = bytearray()
    async for chunk in stream:
        found += chunk
        if len(found) > MOST_OUTPUT:
            break
    return bytes(found)


async def _read_end(stream: ByteReceiveStream) -> bytes:
    end = b""
    async for chunk in stream:
        end = (end + chunk)[-KEPT_ERRORS:]
    return end
