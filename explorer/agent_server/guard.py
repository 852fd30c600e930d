"""Run one command with limits of time and memory, and leave no process of it behind.

    python -I -S guard.py SECONDS BYTES COMMAND…

It uses the standard library alone, and is started by its path. The command starts at once. Its standard input is the
first line of the guard's; the time counts from then on. The guard's standard input is held by whoever wants the result:
when that ends, for whatever reason, the command is killed with all its descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

OUT_OF_TIME, OUT_OF_MEMORY, ABANDONED = 124, 125, 126
_PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


class _Process(NamedTuple):
    parent: int
    bytes: int


def main() -> int:
    """Run the command. Return its exit status, or one of OUT_OF_TIME, OUT_OF_MEMORY, ABANDONED."""
    seconds, most_bytes, command = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if _PROC.is_dir():  # then orphans become children of this process, and are found
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ABANDONED))
    child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        return _pass_line(child) or _watch(child, time.monotonic() + seconds, most_bytes)
    finally:
        _kill_descendants(child.pid)


def _pass_line(child: subprocess.Popen[bytes]) -> int:
    """Wait for a line on standard input, and give it to the child; if there is none, an exit status."""
    line = b""
    while not line.endswith(b"\n"):
        if select.select([0], [], [], 1.0)[0]:
            read = os.read(0, 65_536)
            if not read:
                return ABANDONED
            line += read
        elif child.poll() is not None:
            break
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # the child has ended: _watch tells how
        child.stdin.write(line)
    return 0


def _watch(child: subprocess.Popen[bytes], deadline: float, most_bytes: int) -> int:
    """Wait until the child ends, or must end."""
    pause = 0.01
    while True:
        pause = min(pause * 1.5, 0.1)
        is_over, _, _ = select.select([0], [], [], pause)
        if is_over and not os.read(0, 1):
            return ABANDONED
        if (status := child.poll()) is not None:
            return status if status >= 0 else 128 - status
        if time.monotonic() > deadline:
            return OUT_OF_TIME
        running = _processes()
        ours = {each: running[each].bytes for each in _descendants(running, child.pid)}
        if sum(ours.values()) > most_bytes and sum(map(_own_bytes, ours, ours.values())) > most_bytes:
            return OUT_OF_MEMORY


def _own_bytes(process: int, resident: int) -> int:
    """Resident memory, with memory that forks share counted once in all; where Linux does not say, as it is."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(process) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return resident


def _kill_descendants(child: int) -> None:
    """Kill the child's group and all descendants, until none is left; what they start meanwhile is found again."""
    for _ in range(200):
        left = [each for each in _descendants(_processes(), child) if _is_alive(each)]
        for each in left:
            _kill(each)
        with contextlib.suppress(OSError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.01)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGKILL)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _descendants(running: Mapping[int, _Process], child: int) -> set[int]:
    """The processes below this one, and the child."""
    found, new = set[int](), {os.getpid()}
    while new:
        found |= new
        new = {each for each, process in running.items() if process.parent in new and each not in found}
    return ({child} & set(running) | found) - {os.getpid()}


def _processes() -> dict[int, _Process]:
    """Parent and resident memory of each process of this machine."""
    return dict(_of_proc()) if _PROC.is_dir() else dict(_of_ps())


def _of_proc() -> Iterable[tuple[int, _Process]]:
    page = os.sysconf("SC_PAGE_SIZE")
    for name in os.listdir(_PROC):  # noqa: PTH208 - twenty times a second
        if name.isdecimal():
            try:
                fields = (_PROC / name / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            yield int(name), _Process(int(fields[1]), int(fields[21]) * page)


def _of_ps() -> Iterable[tuple[int, _Process]]:
    shown = subprocess.run(("ps", "-axo", "pid=,ppid=,rss="), capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        process, parent, kilobytes = map(int, line.split())
        yield process, _Process(parent, kilobytes * 1024)


if __name__ == "__main__":
    sys.exit(main())
