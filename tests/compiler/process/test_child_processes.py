"""Of a program that is ended, whether for its time or by an interrupt, no child process is left, zombies included."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from compiler.process import run_in_own_group

PATIENT = [sys.executable, "-c", "import time; time.sleep(600)"]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


# The traceback that `raised` holds keeps the process object: to collect that would take the zombie away.


def test_no_child_is_left_after_a_timeout() -> None:
    before = children()
    with pytest.raises(subprocess.TimeoutExpired) as raised:
        run_in_own_group(PATIENT, timeout=0.2)
    assert children() == before
    assert raised.value.cmd == PATIENT


def test_no_child_is_left_after_an_interrupt() -> None:
    before = children()

    def interrupt() -> None:
        while not children() - before:
            time.sleep(0.02)
        time.sleep(0.3)  # until it is waited for
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt) as raised:
        run_in_own_group(PATIENT)
    assert children() == before
    assert raised.traceback
