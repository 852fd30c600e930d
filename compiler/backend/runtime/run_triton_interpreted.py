"""Run a program's Triton kernels on CPU tensors in Triton's interpreter: slow; for tests and inspection.

Kernels run in a separate process (`compiler.triton_interpreter.process`), which the first kernel starts. The rest of
the program runs in the reference interpreter.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from functools import cache
from typing import Any

from compiler.backend.cpp.emit import Function
from compiler.backend.ir import BackendError, Kernel, Program
from compiler.backend.ir.reference_interpreter import State
from compiler.backend.passes.context import Context
from compiler.backend.triton.emit import TritonCode, TritonFunction, emit, signature
from compiler.triton_interpreter.process import Interpreter


def launcher(program: Program, ctx: Context) -> Callable[[State, Kernel], None]:
    """A function that runs one of the program's kernels in Triton's interpreter."""
    code = emit(program, ctx)
    functions = {function.kernel: function for function in code.functions}
    return lambda state, kernel: _launch(state, kernel, code, functions[kernel.name])


def _launch(state: State, kernel: Kernel, code: TritonCode, function: TritonFunction) -> None:
    arguments = launch_arguments(state, kernel, function)
    blocks = function.configs[0].blocks
    grid = function.programs(state.size, blocks)
    if 0 in grid:
        return
    types = signature(state.program, function)
    found = _interpreter().run_plain(code.text, function.name, arguments, types, blocks, grid)
    if (error := found.error) and "index out of range" in error.message:
        raise IndexError(f"index out of range in {function.kernel}")
    if error:
        raise BackendError(f"{function.name}, line {error.line}: {error.message}")


def launch_arguments(state: State, kernel: Kernel, function: Function | TritonFunction) -> list[Any]:
    """Arguments of a kernel's function in a run: its buffers, then symbolic sizes. Allocates the outputs."""
    tensors = {name: state.memory[name] for name in kernel.reads} | {name: state.target(name) for name in kernel.writes}
    return [*(tensors[name] for name in function.buffers), *(state.sizes[name] for name in function.symbols)]


@cache
def _interpreter() -> Interpreter:
    """The interpreter process, shared by all programs until Python exits."""
    interpreter = Interpreter()
    atexit.register(interpreter.__exit__)
    return interpreter
