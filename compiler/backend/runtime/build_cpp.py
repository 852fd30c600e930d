"""Compile C++ to a shared library, and wrap its kernels as built-in functions of Python.

Calling a built-in function takes a sixth of the time of a ctypes call. The few functions of Python's stable ABI that
the wrappers call are declared here, so that Python's headers are not needed.

The compiler starts in a separate process as soon as the code is generated. Other work continues meanwhile; the first
call waits for the library. A thread starts the compiler, loads the library and removes the files: a KeyboardInterrupt,
which is raised in the main thread only, can't interrupt these steps.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakSet

from compiler.backend.cpp.emit import Code, Function
from compiler.backend.ir import BackendError, CompilerUnavailableError
from compiler.backend.runtime.elf import missing_bytes
from compiler.binary.cpp_compiler import command_for, compiler, has_vector_math
from compiler.process import kill_group, start_in_own_group

__all__ = ["Build", "command_for", "compiler", "entries", "has_vector_math", "stop_on_error"]

_SHOWN_LINES = 20
_REJECTION = re.compile(r"kernels\.cpp:\d+(:\d+)?: error: ")
"""Error message of g++ and clang++ for invalid code. Other failures, such as a full disk, are a "fatal error"."""
_INTERFACE = """
struct PyObject;
extern "C" void *PyLong_AsVoidPtr(PyObject *), *PyEval_SaveThread(), PyEval_RestoreThread(void *);
extern "C" long PyLong_AsLong(PyObject *);
extern "C" PyObject *PyLong_FromLong(long);
"""
_METH_FASTCALL = 0x80


class Build:
    """A library whose compilation starts when this object is created.

    If the compiler was interrupted or failed, the next request for the functions compiles again. Code that the
    compiler rejected is not compiled again.
    """

    def __init__(self, code: Code) -> None:
        self.code = code
        self._compilation: _Compilation | None = None
        if (begun := _BEGUN.get()) is not None:
            begun.append(self)
        self._begin()

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Wait for the compiler, and return the kernels by name.

        Raises BackendError if the compiler rejects the code (with its message), CompilerUnavailableError if it fails.
        """
        compilation = self._compilation
        if compilation is None or compilation.is_lost():
            compilation = self._begin()
        try:
            library = compilation.library.result()
        except BackendError:
            raise
        except BaseException:  # also KeyboardInterrupt
            self.stop()
            raise
        return {function.name: _builtin(library, function.name) for function in self.code.functions}

    def stop(self) -> None:
        """Stop the compiler if it runs. The next request for the functions starts it again."""
        compilation, self._compilation = self._compilation, None
        if compilation is not None:
            compilation.stop()

    def _begin(self) -> _Compilation:
        compilation = _Compilation(self.code, compiler())
        try:
            self._compilation = compilation
            _RUNNING.add(compilation)
            compilation.start()
        except BaseException:
            self.stop()
            raise
        return compilation


_BEGUN: ContextVar[list[Build] | None] = ContextVar("begun", default=None)


@contextmanager
def stop_on_error() -> Iterator[None]:
    """If the block ends in an error or an interrupt, stop the compilations that it started."""
    begun: list[Build] = []
    token = _BEGUN.set(begun)
    try:
        yield
    except BaseException:
        for build in begun:
            build.stop()
        raise
    finally:
        _BEGUN.reset(token)


class _Compilation(threading.Thread):
    """One run of the C++ compiler, in a temporary folder that is removed once the library is loaded."""

    def __init__(self, code: Code, program: Sequence[str]) -> None:
        super().__init__(name="tcompile C++", daemon=True)
        self.code, self.program = code, program
        self.library: Future[ctypes.CDLL] = Future()
        self._process: subprocess.Popen[str] | None = None
        self._is_stopped = False

    def run(self) -> None:
        try:
            self.library.set_result(self._load())
        except OSError as error:
            self.library.set_exception(CompilerUnavailableError(_os_error_words(error)))
        except Exception as error:  # noqa: BLE001 - the thread that waits raises it
            self.library.set_exception(error)
        finally:
            _RUNNING.discard(self)

    def is_lost(self) -> bool:
        """Whether this compilation can never finish: in a forked process, its thread does not exist."""
        return not self.is_alive() and not self.library.done()

    def stop(self) -> None:
        """Kill the compiler and its child processes."""
        self._is_stopped = True
        if self._process is not None:
            kill_group(self._process)
        if self.is_alive():
            self.join()

    def _load(self) -> ctypes.CDLL:
        """Compile and load the library. Raises OSError, CompilerUnavailableError, BackendError."""
        if not self.program:
            raise CompilerUnavailableError("no C++ compiler was found; install g++, or name one in the variable CXX")
        with tempfile.TemporaryDirectory(prefix="tcompile-", ignore_cleanup_errors=True) as folder:
            source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
            source.write_text(self.code.text + entries(self.code), encoding="utf-8")
            environment = {**os.environ, "TMPDIR": folder, "LC_ALL": "C"}
            command = command_for(self.program, source, library)
            self._process = start_in_own_group(command, stderr=subprocess.PIPE, text=True, env=environment)
            if self._is_stopped:
                kill_group(self._process)
            try:
                _, messages = self._process.communicate()
            finally:
                kill_group(self._process)
            if status := self._process.returncode:
                raise _compiler_error(self.program, status, messages.replace(f"{folder}/", ""))
            return _load(self.program, library)


_RUNNING: WeakSet[_Compilation] = WeakSet()


@atexit.register
def _stop_all() -> None:
    for compilation in list(_RUNNING):
        compilation.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_RUNNING.clear)  # they belong to the parent process


def _compiler_error(program: Sequence[str], status: int, messages: str) -> Exception:
    """The error for a failed compilation: rejected code, or a failure of the compiler or the machine."""
    said = "\n".join(messages.strip().splitlines()[:_SHOWN_LINES])
    command = shlex.join(program)
    if os.strerror(errno.ENOSPC) in messages:
        return CompilerUnavailableError(_os_error_words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    if status > 0 and _REJECTION.search(messages):
        return BackendError(f"the C++ compiler rejected the generated code (exit status {status}):\n{said}")
    if status < 0:
        why = "; memory may have run out" if status == -signal.SIGKILL else ""
        name = {number.value: number.name for number in signal.Signals}.get(-status, f"signal {-status}")
        return CompilerUnavailableError(f"the C++ compiler ({command}) was ended by {name}{why}")
    said = f"with this message:\n{said}" if said else "and no message"
    advice = "check the variable CXX, and the space that is free in the temporary folder"
    return CompilerUnavailableError(f"the C++ compiler ({command}) ended with exit status {status} {said}\n{advice}")


def _load(program: Sequence[str], library: Path) -> ctypes.CDLL:
    """Load a library; check first that it is complete, as a truncated one crashes. Raises CompilerUnavailableError."""
    wrote = f"the C++ compiler ({shlex.join(program)}) wrote"
    if not library.exists():
        raise CompilerUnavailableError(f"{wrote} no library; check the variable CXX")
    if missing := missing_bytes(library):
        why = "bytes are missing at its end" if missing > 0 else "it is no shared library"
        advice = f"check the variable CXX, and the space that is free in {tempfile.gettempdir()}"
        raise CompilerUnavailableError(f"{wrote} a broken library: {why}; {advice}")
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        why = str(error).replace(f"{library}: ", "")
        raise CompilerUnavailableError(
            f"the compiled library can't be loaded from {tempfile.gettempdir()}: {why}. If that folder is mounted "
            "noexec, start Python with TMPDIR set to one from which programs may run"
        ) from error


def _os_error_words(error: OSError) -> str:
    """The message for an OSError during compilation, with advice."""
    where = f"the temporary folder {tempfile.tempdir or ''}".strip()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where} is full ({error.strerror}); free space in it"
    return f"the C++ compiler could not be run in {where}: {error}"


def entries(code: Code) -> str:
    """C++ entry points that make kernels callable from Python. They release the GIL while a kernel runs."""
    return _INTERFACE + "\n".join(map(_entry, code.functions)) + "\n"


def _entry(function: Function) -> str:
    pointers, symbols = len(function.buffers), len(function.symbols)
    taken = ["PyLong_AsVoidPtr"] * pointers + ["PyLong_AsLong"] * (symbols + 1)
    types = ["void *"] * pointers + ["long"] * symbols + ["int"]
    lines = [f"auto a{number} = {take}(args[{number}]);" for number, take in enumerate(taken)]
    given = ", ".join(f"a{number}" for number in range(len(taken)))
    return "\n    ".join([
        f'extern "C" PyObject *python_{function.name}(PyObject *, PyObject *const *args, long) {{',
        *lines,
        "void *state = PyEval_SaveThread();",
        f"int found = reinterpret_cast<int (*)({', '.join(types)})>(&{function.name})({given});",
        "PyEval_RestoreThread(state);",
        "return PyLong_FromLong(found);\n}",
    ])  # fmt: skip


class _Definition(ctypes.Structure):
    """Python's struct PyMethodDef: name, function, flags, docstring."""

    _fields_ = tuple(zip("nefd", (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p), strict=True))


def _builtin(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    """A kernel as a built-in function, which keeps the library and the function's definition alive."""
    entry = ctypes.cast(getattr(library, f"python_{name}"), ctypes.c_void_p)
    definition = _Definition(name.encode(), entry, _METH_FASTCALL, None)
    function: Callable[..., int] = _new_function(ctypes.byref(definition), (library, definition), None)
    return function


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Definition), ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
