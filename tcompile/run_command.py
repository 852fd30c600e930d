"""`tcompile run`: run a command with a structured trace, follow what it compiles, and write a page of it.

The command has the terminal, the files, the caches and the signals that it would have without this. This module imports
little before the command has started, so that the command does not wait.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.logs.follow import Follower

USAGE = """\
usage: tcompile run [-o PAGE.html] [--trace DIR] [--] COMMAND [ARGUMENT ...]

Run a command, and write a page with everything that torch.compile did in it.

examples:
  tcompile run -- python train.py --epochs 1
  tcompile run -o job.html -- torchrun --nproc-per-node 2 train.py
  tcompile run -- pytest tests

options:
  -o, --output PAGE.html  where to write the page (job.html in the directory of the trace)
  --trace DIR             directory of the trace (TORCH_TRACE if set, else a new temporary one)
  -h, --help              show this

The exit code is that of the command. `tcompile show DIR` and `tcompile report DIR` read the trace again later.
"""
_LONGEST_TITLE = 120
WRONG_USE, NOT_EXECUTABLE, NOT_FOUND = 2, 126, 127
_LOOK_EVERY = 0.25
_SHOWN_AFTER = 1.0
"""Seconds: how often the trace is looked at, and after how long a compilation is shown."""
_READ_EACH_SECOND = 50_000
"""Bytes of events whose records a page has that was not asked for, for each second of the program: some 1.5 % of it."""
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGCONT")
_FROM_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent, to all processes in the foreground."""
_REACHES_ALL_IN = 0.05
_SAME_SIGNAL = 0.3
"""Seconds in which a signal to a group reaches all its processes, and in which a second one counts as the same."""


@dataclass(frozen=True)
class Asked:
    """The command to run, where its page goes, and the directory of its trace ("" if not given)."""

    command: tuple[str, ...]
    output: str = ""
    trace: str = ""


def main(words: Sequence[str]) -> int:
    """Run the command that `words` name, and return its exit code."""
    if words and words[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    try:
        asked = _parse(words)
    except ValueError as error:
        return _complain(f"{error} (tcompile run --help tells more)", WRONG_USE)
    given = asked.trace or os.environ.get("TORCH_TRACE", "")
    folder = Path(given) if given else Path(tempfile.mkdtemp(prefix="tcompile_"))
    before = frozenset(folder.glob("*.log"))
    environment = {**os.environ, "TORCH_TRACE": str(folder)}
    watch, started = _Watch(folder, before), time.monotonic()
    try:
        code = _run(list(asked.command), environment, watch)
    except OSError as error:
        if not given:
            shutil.rmtree(folder)
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        return _complain(f"{asked.command[0]}: {error.strerror}", code)
    try:
        _finish(asked, watch, time.monotonic() - started, is_own=not given)
    except Exception:  # noqa: BLE001  the exit code stays that of the command
        traceback.print_exc()
        _complain(f"the page was not written, by the error above; the trace is in {folder}", code)
    return _end_like(code)


def _parse(words: Sequence[str]) -> Asked:
    """Read the options before the command. Raises ValueError."""
    left, found = list(words), {"output": "", "trace": ""}
    names = {"-o": "output", "--output": "output", "--trace": "trace"}
    while left and left[0].startswith("-") and left[0] != "--":
        flag, equals, value = left.pop(0).partition("=")
        if flag not in names:
            raise ValueError(f"no option {flag}")
        if not equals and not left:
            raise ValueError(f"{flag} needs a value")
        found[names[flag]] = value if equals else left.pop(0)
    left = left[1:] if left[:1] == ["--"] else left
    if not left:
        raise ValueError("a command to run is missing")
    if found["output"] and not found["output"].lower().endswith((".html", ".htm")):
        raise ValueError(f"{found['output']!r} does not end in .html")
    if found["output"] and not Path(found["output"]).absolute().parent.is_dir():
        raise ValueError(f"there is no folder {str(Path(found['output']).parent)!r}")
    return Asked(tuple(left), **found)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"tcompile run: {message}\n")
    return code


# The command and its signals


def _run(command: list[str], environment: dict[str, str], watch: _Watch) -> int:
    """Run a command in the same process group and return its code, negative if a signal ended it. Raises OSError."""
    if not hasattr(signal, "sigtimedwait"):
        return _run_without_waiting_for_signals(command, environment, watch)
    caught = {number for name in _PASSED_ON if signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN}
    caught.add(signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, caught)
    witness = _Witness(caught)
    try:
        as_usual = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores them
        child = os.posix_spawnp(command[0], command, environment, setsigmask=before, setsigdef=as_usual)
        watch.start()
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            received = signal.sigtimedwait(caught, _LOOK_EVERY)
            if received is not None and received.si_signo != signal.SIGCHLD:
                _pass_on(received, child, witness)
            watch.look()
    finally:
        witness.end()
        while signal.sigtimedwait(caught, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    watch.stop()
    return os.waitstatus_to_exitcode(ended[1])


def _pass_on(received: Any, child: int, witness: _Witness) -> None:
    """Send a signal to the command, unless it was sent to the whole group. Stop with the command."""
    number = received.si_signo
    was_sent_to_all = witness.got(number) or received.si_code == _FROM_KERNEL
    if not was_sent_to_all or os.getpgid(child) != os.getpgrp():
        os.kill(child, number)
    if number == signal.SIGTSTP:
        os.kill(os.getpid(), signal.SIGSTOP)


class _Witness:
    """A process of this group in which signals stay pending: those were sent to the command, too.

    A terminal, a scheduler or a service manager sends a signal to all processes. Many programs end at once at the
    second SIGINT or SIGTERM, so the command must not get such a signal again. The process ends with this one.
    """

    def __init__(self, signals: Collection[int]) -> None:
        self._signals = signals
        self._last: dict[int, float] = {}
        self._program = shutil.which("cat") if sys.platform == "linux" else None
        self._process = self._pipe = 0
        self._start()

    def _start(self) -> None:
        if self._program is not None:
            reading, self._pipe = os.pipe()
            as_input = [(os.POSIX_SPAWN_DUP2, reading, 0)]
            self._process = os.posix_spawn(
                self._program, ["cat"], {}, file_actions=as_input, setsigmask=self._signals
            )  # fmt: skip
            os.close(reading)

    def got(self, number: int) -> bool:
        """Whether the process got this signal just now."""
        if self._process == 0:
            return False
        time.sleep(_REACHES_ALL_IN)
        status = Path(f"/proc/{self._process}/status").read_text()
        pending = int(status.partition("\nShdPnd:")[2].split()[0], 16)
        if pending >> (number - 1) & 1:
            self._last[number] = time.monotonic()
            self.end()
            self._start()
        return time.monotonic() - self._last.get(number, -_SAME_SIGNAL) < _SAME_SIGNAL

    def end(self) -> None:
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            os.close(self._pipe)


def _run_without_waiting_for_signals(command: Sequence[str], environment: dict[str, str], watch: _Watch) -> int:
    """Run a command where no signal can be waited for (macOS, Windows): Ctrl-C reaches it through the terminal."""
    child = subprocess.Popen(command, env=environment)
    before = {signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None)}
    before[signal.SIGTERM] = signal.signal(signal.SIGTERM, lambda number, _: child.send_signal(number))
    try:
        watch.start()
        while (code := child.poll()) is None:
            time.sleep(_LOOK_EVERY)
            watch.look()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    watch.stop()
    return code


def _end_like(code: int) -> int:
    """Return the command's exit code. If a signal ended it, end by the same signal."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    if hasattr(signal, "pthread_sigmask"):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return 128 - code


# The status line


class _Watch:
    """One status line at the right edge of the terminal, while something is compiled; nothing without a terminal.

    The cursor stays where the program left it, so that what the program prints is not moved.
    """

    def __init__(self, folder: Path, before: frozenset[Path]) -> None:
        self.folder, self.before = folder, before
        self._follower: Follower | None = None
        self._shown = 0
        self._words = ""

    def start(self) -> None:
        """Load what is needed later, while the command runs."""
        threading.Thread(target=self._load, daemon=True).start()

    def _load(self) -> None:
        """Import what the page needs once something is compiled.

        The thread keeps its priority: on a busy machine, the page would wait for a thread with a low one.
        """
        while not self.has_traces():
            time.sleep(_LOOK_EVERY)
        if sys.stderr.isatty():
            from compiler.logs.follow import Follower

            self._follower = Follower(self.folder, self.before)
        from explorer.run import job_page

        job_page.html_of("", ())  # packs the script of the page

    def has_traces(self) -> bool:
        """Whether the program has written a trace."""
        return any(path not in self.before for path in self.folder.glob("*.log"))

    def look(self) -> None:
        if self._follower is None:
            return
        running, now = self._follower.look(), time.monotonic()
        self._show(running.words(now) if running is not None and now - running.since >= _SHOWN_AFTER else "")

    def stop(self) -> None:
        self._show("")

    def _show(self, words: str) -> None:
        if words == self._words:
            return
        width = shutil.get_terminal_size().columns
        clipped = words if len(words) < width else f"{words[: max(width - 2, 0)]}…"
        room = max(len(clipped), self._shown)
        text = f"\x1b7\x1b[{max(width - room, 0) + 1}G\x1b[K\x1b[2m{clipped.rjust(room)}\x1b[0m\x1b8"
        os.write(sys.stderr.fileno(), text.encode(errors="replace"))
        self._words, self._shown = words, len(clipped)


# The page


def _finish(asked: Asked, watch: _Watch, seconds: float, *, is_own: bool) -> None:
    """Write the page, and say where it and the trace are: in a terminal, and wherever nobody else can know.

    `seconds` is how long the program ran: a page that was not asked for takes a small part of it.
    """
    folder = watch.folder
    if watch.has_traces():
        words = _write_page(asked, watch, seconds)
    else:
        words = "torch.compile compiled nothing, or the program chose a TORCH_TRACE of its own"
    if is_own and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    if sys.stderr.isatty() or is_own or not asked.output:
        sys.stderr.write(f"{_new_line()}tcompile: {words}\n")


def _new_line() -> str:
    """In a terminal, spaces that begin a new line unless the program has ended its last one."""
    return f"{' ' * (shutil.get_terminal_size().columns - 1)}\r" if sys.stderr.isatty() else ""


def _write_page(asked: Asked, watch: _Watch, seconds: float) -> str:
    """Write the page, and return a summary."""
    try:
        from explorer.run import job_page

        output = Path(asked.output) if asked.output else watch.folder / "job.html"
        most_read = None if asked.output else int(seconds * _READ_EACH_SECOND)
        return job_page.write_page_of_traces(watch.folder, watch.before, output, _title(asked.command), most_read)
    except KeyboardInterrupt:
        return f"interrupted; tcompile report {watch.folder} writes the page"
    except (OSError, ValueError) as error:
        return f"the page was not written: {error}; the trace is in {watch.folder}"


def _title(command: Sequence[str]) -> str:
    """The command as the title of a page, without the folders of absolute paths."""
    words = shlex.join(Path(word).name if word.startswith("/") and Path(word).is_file() else word for word in command)
    return words if len(words) <= _LONGEST_TITLE else f"{words[:_LONGEST_TITLE]}…"
