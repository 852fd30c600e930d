"""A `python` that starts in no time: each program is a fork of one process that has imported torch and explored once.

`forked_python(folder)` starts that process and writes programs `python` and `tcompile` into a folder. `python` takes
`-c` and `-m`. They behave like the real ones: arguments, environment, folder, standard streams, signals, exit status.
With a GPU they are the real ones, because a fork can't use CUDA if its parent did. `forked_interpreters()` does the
same for the processes in which Triton's interpreter runs: they are forks of one that has imported its modules.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

PROGRAM = '#!/bin/sh\nexec "{python}" -S -E "{file}" "{address}" {words} "$@"\n'
REAL_PROGRAM = '#!/bin/sh\nexec "{python}" {words} "$@"\n'
PASSED = "TCOMPILE_TEST_PASSED_FILES"
"""The variable with the numbers of the open files that a client passes on, beside its standard streams."""


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """Serve until the block ends. Gives the path of `python`, in the folder."""
    import torch

    address, has_gpu = str(folder / "socket"), torch.cuda.is_available()
    for name, words in (("python", ""), ("tcompile", "-m tcompile")):
        text = (REAL_PROGRAM if has_gpu else PROGRAM).format(
            python=sys.executable, file=__file__, address=address, words=words
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    if has_gpu:
        yield folder / "python"
        return
    with _server(address, "_prepare_explorer"):
        yield folder / "python"


@contextmanager
def forked_interpreters() -> Iterator[None]:
    """In the block, Triton's interpreter runs in forks of one process, which the first of them starts."""
    import tempfile

    from compiler.triton_interpreter import process

    original = process.start_in_own_group
    with tempfile.TemporaryDirectory(prefix="tcompile-interpreters-") as folder, ExitStack() as stack:
        address = f"{folder}/socket"

        def start_fork(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
            if not Path(address).exists():
                stack.enter_context(_server(address, "_prepare_interpreter", TRITON_INTERPRET="1"))
            options["env"] = {**options["env"], PASSED: " ".join(map(str, options["pass_fds"]))}
            return original([command[0], "-S", "-E", __file__, address, *command[1:]], **options)

        process.start_in_own_group = start_fork
        try:
            yield
        finally:
            process.start_in_own_group = original


@contextmanager
def _server(address: str, prepare: str, **variables: str) -> Iterator[None]:
    """Serve at a socket until the block ends, from a process that has called this module's function `prepare`."""
    import subprocess

    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root, **variables}
    code = f"from tests import forked_python; forked_python.serve({address!r}, forked_python.{prepare})"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
        finally:
            process.terminate()


def serve(address: str, prepare: Callable[[], None]) -> None:
    """Fork for each connection; the forks run the programs that were asked for, and end."""
    import gc

    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP hangs in a fork of a process whose threads it has started
    prepare()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.write(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            if not os.fork():
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.exit(_run_program(connection, threads))


def _prepare_explorer() -> None:
    """Import what a kernel needs, and explore once."""
    import ipykernel.kernelapp
    import pandas as pd

    from explorer.entry import magics
    from tests.brief_measurements import measure_briefly

    measure_briefly()
    explore_once()
    del ipykernel, pd, magics  # only their import is needed


def explore_once() -> None:
    """Let PyTorch import all modules that an exploration needs."""
    import torch

    import tcompile

    tcompile.explore(torch.nn.Softmax(-1), torch.ones(8, 64))
    torch.compiler.reset()


def _prepare_interpreter() -> None:
    from compiler.torch_api import triton_kernels
    from compiler.triton_interpreter import worker

    del triton_kernels, worker  # only their import is needed


def _reap(*_: object) -> None:
    """Collect the exit statuses of forks that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _run_program(connection: socket.socket, threads: int) -> int:
    """Become the program that a client asks for; its exit status is sent when all else has ended."""
    import atexit
    import tempfile
    import threading
    import traceback

    import torch

    received, files, _, _ = socket.recv_fds(connection, 1 << 20, 8)
    asked = json.loads(received)
    connection = socket.socket(fileno=_moved_up(connection.detach()))
    for number, file in zip(asked["files"], list(map(_moved_up, files)), strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", threads)))
    tempfile.tempdir = None  # it may have another TMPDIR
    sys.path[0] = asked["folder"]
    status = [1]
    atexit.register(lambda: connection.sendall(bytes(status)))
    threading.Thread(target=_obey, args=(connection,), daemon=True).start()
    try:
        _run(*asked["words"])
        status[0] = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
        else:
            status[0] = end.code or 0
    except BaseException:  # noqa: BLE001  as at the top of any program
        traceback.print_exc()
    return status[0]


def _moved_up(file: int) -> int:
    """An open file under a number that no client's file has."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(file)
    return moved


def _run(kind: str, program: str, *arguments: str) -> None:
    """Run `-c CODE` or `-m MODULE` as the main program."""
    import runpy
    import types

    if kind == "-m":
        sys.argv = [program, *arguments]
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))


def _obey(connection: socket.socket) -> None:
    """Raise the signals that the client gets, in this process; end with the client."""
    while number := connection.recv(1):
        os.kill(os.getpid(), number[0])
    os.kill(os.getpid(), signal.SIGKILL)


def ask(address: str, words: Sequence[str]) -> int:
    """Run a program in a fork of the server, with this process's streams. Returns its exit status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        files = [0, 1, 2, *map(int, os.environ.pop(PASSED, "").split())]
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "files": files}  # noqa: PTH109
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
        socket.send_fds(connection, [json.dumps(asked).encode()], files)
        status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
