"""A `python` that starts in no time: each program is a fork of one process that has imported torch and explored once.

`forked_python(folder)` starts that process and writes programs `python` and `tcompile` into a folder. `python` takes
`-c` and `-m`. They behave like the real ones: arguments, environment, folder, standard streams, signals, exit status.
With a GPU they are the real ones, because a fork can't use CUDA if its parent did.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAM = '#!/bin/sh\nexec "{python}" -S -E "{file}" "{address}" {words} "$@"\n'
REAL_PROGRAM = '#!/bin/sh\nexec "{python}" {words} "$@"\n'


@contextmanager
def forked_python(folder: Path) -> Iterator[Path]:
    """Serve until the block ends. Gives the path of `python`, in the folder."""
    import subprocess

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
    root = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", f"from tests.forked_python import serve; serve({address!r})"]
    with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield folder / "python"
        finally:
            process.terminate()


def serve(address: str) -> None:
    """Fork for each connection; the forks run the programs that were asked for, and end."""
    import gc

    import ipykernel.kernelapp
    import pandas as pd
    import torch

    import tcompile
    from explorer.entry import magics
    from tests.brief_measurements import measure_briefly

    measure_briefly()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP hangs in a fork of a process whose threads it has started
    tcompile.explore(torch.nn.Softmax(-1), torch.ones(8, 64))
    torch.compiler.reset()
    gc.collect()
    gc.freeze()
    del ipykernel, pd, magics  # only their import is needed
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

    received, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    asked = json.loads(received)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
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
        asked = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
        socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
        status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
