"""C++ to a shared library, by the compiler that is found; and kernels as functions of Python.

Each kernel gets an entry that Python calls as it calls its own built-in functions, at a sixth of what ctypes takes. The
little of Python's stable binary interface that this needs is declared here, so that no headers are needed.

The compiler runs in a process of its own from the moment the code is written, so that the backward is compiled beside
the forward while the rest of the work goes on; the first call waits for it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from compiler.backend.emit_cpp import Code, Function
from compiler.backend.ir import BackendError

_FLAGS = (
    "-std=c++17", "-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic", "-fopenmp", "-shared", "-fPIC", "-fwrapv",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-strict-aliasing", "-w",
)  # fmt: skip
_SHOWN_LINES = 20
_INTERFACE = """
struct PyObject;
extern "C" void *PyLong_AsVoidPtr(PyObject *), *PyEval_SaveThread(), PyEval_RestoreThread(void *);
extern "C" long PyLong_AsLong(PyObject *);
extern "C" PyObject *PyLong_FromLong(long);
"""
_METH_FASTCALL = 0x80


@cache
def compiler() -> tuple[str, ...]:
    """The command of the C++ compiler, word by word: the variable CXX's ("ccache g++"), else g++ or clang++ where they
    are found. Empty where there is none. A command in CXX that is not found is warned of.
    """
    named = os.environ.get("CXX", "").strip()
    for command in filter(None, (named, "g++", "clang++")):
        program, *rest = shlex.split(command)
        if found := shutil.which(program):
            return found, *rest
        if command is named:
            warnings.warn(f"CXX names {named!r}, and there is no program {program!r}", stacklevel=2)
    return ()


@cache
def has_vector_math() -> bool:
    """Whether this machine's C library has math functions for vectors: glibc 2.35 or later on x86-64."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or "clang" in " ".join(compiler()):
        return False
    try:
        return hasattr(ctypes.CDLL("libmvec.so.1"), "_ZGVbN4v_tanhf")
    except OSError:
        return False


def command_for(program: Sequence[str], source: Path, library: Path) -> list[str]:
    """How a compiler makes a shared library of generated code."""
    native = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    vector = ["-lmvec"] if has_vector_math() else []
    return [*program, *_FLAGS, *native, str(source), "-o", str(library), *vector, "-lm"]


@dataclass(slots=True)
class Build:
    """A library that is being compiled."""

    code: Code
    folder: tempfile.TemporaryDirectory[str]
    process: subprocess.Popen[str]
    errors: str | None = None

    @staticmethod
    def start(code: Code) -> Build:
        """Start the compiler. Raises BackendError where there is none."""
        if not (program := compiler()):
            raise BackendError("no C++ compiler")
        folder = tempfile.TemporaryDirectory(prefix="tcompile-", ignore_cleanup_errors=True)
        source = Path(folder.name, "kernels.cpp")
        source.write_text(code.text + entries(code))
        command = command_for(program, source, Path(folder.name, "kernels.so"))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return Build(code, folder, process)

    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The kernels by name, once the compiler is done. Raises BackendError with its message if it failed."""
        if self.errors is None:  # a call after one that failed
            _, self.errors = self.process.communicate()
        if status := self.process.returncode:
            said = "\n".join(self.errors.splitlines()[:_SHOWN_LINES])
            raise BackendError(f"the C++ compiler did not take the generated code (exit status {status}):\n{said}")
        library = ctypes.CDLL(f"{self.folder.name}/kernels.so")
        self.folder.cleanup()
        return {function.name: _builtin(library, function.name) for function in self.code.functions}


def entries(code: Code) -> str:
    """What makes kernels callable from Python, in C++. While a kernel runs other threads of Python do, too."""
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
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("entry", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


def _builtin(library: ctypes.CDLL, name: str) -> Callable[..., int]:
    """A kernel as a function of Python, that keeps what it needs alive."""
    entry = ctypes.cast(getattr(library, f"python_{name}"), ctypes.c_void_p)
    definition = _Definition(name.encode(), entry, _METH_FASTCALL, None)
    made: Callable[..., int] = _made(ctypes.byref(definition), (library, definition), None)
    return made


_made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Definition), ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)
