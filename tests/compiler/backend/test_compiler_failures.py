"""A C++ compiler that fails: the reference interpreter runs, one warning says why, and a later call compiles."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from compiler.backend import backend, tcompile
from compiler.backend.cpp.emit import Code, Function
from compiler.backend.ir import CompilerUnavailableError
from compiler.backend.runtime import build_cpp
from compiler.backend.runtime.elf import missing_bytes
from compiler.binary import cpp_compiler
from compiler.torch_api.compilations import restore_dispatch_modes

pytestmark = pytest.mark.skipif(not build_cpp.compiler(), reason="needs a C++ compiler")

REAL = build_cpp.compiler()[0] if build_cpp.compiler() else ""
LAST = 'for last; do case "$before" in -o) out="$last";; esac; before="$last"; done'
COMPILERS = {
    "says nothing": ("exit 1", "exit status 1 and no message.*CXX"),
    "is killed": ("kill -9 $$", "ended by SIGKILL; memory may have run out"),
    "is interrupted": ("kill -2 $$", "ended by SIGINT"),
    "is not what it seems": ("exit 0", "wrote no library"),
    "is an old one": ("echo \"g++: error: unrecognized option '-fwrapv'\" >&2; exit 1", "exit status 1.*unrecognized"),
    "has a full disk": (
        'echo "kernels.cpp:3:1: fatal error: error writing to a.s: No space left on device" >&2; exit 1', "is full",
    ),
    "writes the half of it": (f'"{REAL}" "$@"; {LAST}; truncate -s 9000 "$out"', "bytes are missing at its end"),
    "writes nothing into it": (f'{LAST}; : > "$out"', "it is no shared library"),
    "writes for another machine": (
        f'"{REAL}" "$@"; {LAST}; printf "\\267" | dd of="$out" bs=1 seek=18 conv=notrunc', "can't be loaded",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def warned_anew() -> None:
    """Each test gets its warnings, even if another test had the same."""
    backend._say_once.cache_clear()
    torch.compiler.reset()


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Use a shell script as the C++ compiler."""

    def name(script: str) -> None:
        path = tmp_path / "c++"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))

    return name


def training(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x).sum()


def gradient(fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = torch.arange(6.0, requires_grad=True)
    fn(x).backward()
    assert x.grad is not None
    return x.grad


def check_recovery(run: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the next calls are correct, silent, and use compiled code in the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(gradient(run), gradient(training))
    monkeypatch.setattr(backend, "interpret", None)
    torch.testing.assert_close(gradient(run), gradient(training))


@pytest.mark.parametrize("name", COMPILERS)
def test_failures_fall_back_until_fixed(
    name: str, broken: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script, message = COMPILERS[name]
    broken(script)
    run = torch.compile(training, backend=tcompile)
    with pytest.warns(UserWarning, match=rf"(?s)reference interpreter.*{message}") as warned:
        torch.testing.assert_close(gradient(run), gradient(training))
    assert len([one for one in warned if "tcompile" in str(one.message)]) == 1
    monkeypatch.delenv("CXX")
    check_recovery(run, monkeypatch)


@pytest.mark.parametrize("command", ['g++ "', "no-such-compiler"])
def test_wrong_cxx_falls_back_to_another_compiler(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", command)
    cpp_compiler._warn_of_variable.cache_clear()
    run = torch.compile(training, backend=tcompile)
    with pytest.warns(UserWarning, match="CXX names"):
        torch.testing.assert_close(gradient(run), gradient(training))
    check_recovery(run, monkeypatch)


def test_compiler_installed_later_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(build_cpp, "compiler", tuple)
        run = torch.compile(training, backend=tcompile)
        with pytest.warns(UserWarning, match=r"no C\+\+ compiler was found; install g\+\+"):
            torch.testing.assert_close(gradient(run), gradient(training))
    check_recovery(run, monkeypatch)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_disk_errors_fall_back(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    run = torch.compile(training, backend=tcompile)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fail)
        with pytest.warns(UserWarning, match=os.strerror(number)):
            torch.testing.assert_close(gradient(run), gradient(training))
    check_recovery(run, monkeypatch)


NOEXEC = """
import os, subprocess, torch
from compiler.backend import tcompile
subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec", "none", os.environ["TMPDIR"]], check=True)
run = torch.compile(lambda x: x.sin() * 2, backend=tcompile)
torch.testing.assert_close(run(torch.ones(3)), torch.ones(3).sin() * 2)
torch.testing.assert_close(run(torch.ones(3)), torch.ones(3).sin() * 2)
"""


def test_noexec_temp_folder_falls_back(tmp_path: Path) -> None:
    unshare = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs user namespaces, to mount a folder")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [*unshare, sys.executable, "-c", NOEXEC]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("start Python with TMPDIR set to one from which programs may run") == 1


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.9999])
def test_truncated_library_is_detected(share: float, tmp_path: Path) -> None:
    library = Path(
        next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    )
    assert missing_bytes(library) == 0
    part = tmp_path / "part.so"
    part.write_bytes(library.read_bytes()[: int(library.stat().st_size * share)])
    assert missing_bytes(part) == library.stat().st_size - part.stat().st_size


ONE = Code('extern "C" int one(int threads) { return 1; }', (Function("one", "one", (), (), True),))


@pytest.fixture
def slow_compiler(broken: Callable[[str], None], tmp_path: Path) -> Iterator[Path]:
    """A compiler that waits for a file, and works once that exists. Returns the file's path."""
    file = tmp_path / "go on"
    broken(f'sh -c \'until [ -e "{file}" ]; do sleep 0.01; done\' "{tmp_path}" && exec "{REAL}" "$@"')
    yield file
    file.touch()


def children(mark: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended, but may still be a zombie
            if str(mark) in " ".join(each.cmdline()):
                found.append(each)
    return found


def wait_for_builds() -> None:
    """Each has a temporary folder, which its thread removes after the compiler has ended."""
    for begun in list(build_cpp._RUNNING):
        begun.join()


def test_interrupt_stops_the_compiler_which_can_restart(slow_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_builds()
    temporary = slow_compiler.parent / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = build_cpp.Build(ONE)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        made.functions()
    assert children(slow_compiler.parent) == []
    wait_for_builds()
    assert list(temporary.iterdir()) == []
    slow_compiler.touch()
    assert made.functions()["one"](1) == 1


def test_compilers_run_in_their_own_process_group(slow_compiler: Path) -> None:
    made = build_cpp.Build(ONE)
    while not (found := children(slow_compiler.parent)):
        time.sleep(0.01)
    assert {os.getpgid(child.pid) for child in found}.isdisjoint({os.getpgrp()})
    slow_compiler.touch()
    assert made.functions()["one"](1) == 1


def test_error_kills_started_compilers(slow_compiler: Path) -> None:
    def fail() -> None:
        build_cpp.Build(ONE)
        while not children(slow_compiler.parent):
            time.sleep(0.01)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), build_cpp.stop_on_error():
        fail()
    assert children(slow_compiler.parent) == []


def test_repeated_failures_are_not_tried_at_each_call(
    broken: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken("sleep 1; exit 1")
    tries: list[float] = []
    begin = build_cpp.Build._begin
    monkeypatch.setattr(build_cpp.Build, "_begin", lambda self: (tries.append(time.monotonic()), begin(self))[1])
    run = torch.compile(lambda x: x.sin() * 2, backend=tcompile)
    with pytest.warns(UserWarning, match="exit status 1"):
        run(torch.ones(3))
    for _ in range(20):
        run(torch.ones(3))
    assert len(tries) == 2
    with pytest.raises(CompilerUnavailableError):
        build_cpp.Build(ONE).functions()


def test_an_interrupt_leaves_no_dispatch_mode() -> None:
    @restore_dispatch_modes()
    def interrupted() -> None:
        FakeTensorMode().__enter__()  # as if it hit torch before the block that leaves the mode
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert type(torch.ones(2)) is torch.Tensor
