"""The interpreter process: answers each launch request on its connection with an outcome.

Started by `compiler.triton_interpreter.process` with TRITON_INTERPRET=1. Text that a kernel prints is part of the
outcome.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import torch

from compiler.triton_interpreter import arena, launch
from compiler.triton_interpreter.bounds import Bounds, Memory, OutOfBoundsError
from compiler.triton_interpreter.interpreter import install, run_programs
from compiler.triton_interpreter.launch import KernelError, Outcome, Request
from compiler.triton_interpreter.libdevice import NoEquivalentError

_SIZED = {"Grid1D", "Grid2D", "Grid3D", "Grid2DWithYZOverflow"}
"""Grid types computed from block sizes: for these, block sizes can be chosen freely."""


def main() -> None:
    """Answer requests until the connection is closed."""
    torch.set_num_threads(1)
    install()
    connection = Connection(int(sys.argv[2]))
    connection.send_bytes(b"ready")
    with contextlib.suppress(EOFError):
        while True:
            request = msgspec.msgpack.decode(connection.recv_bytes(), type=Request)
            connection.send_bytes(msgspec.msgpack.encode(_answer(request)))


def _answer(request: Request) -> Outcome:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            outcome = _launch(request)
        except Exception as error:  # noqa: BLE001 - the outcome reports any error of a kernel
            outcome = Outcome(error=_kernel_error(error, request.path))
    return replace(outcome, printed=printed.getvalue())


def _launch(request: Request) -> Outcome:
    kernel = _defined_kernel(request.path, request.name)
    memory = arena.map_file(Path(request.memory), request.size)
    values = [value.tensor_in(memory) if isinstance(value, arena.Placed) else value for value in request.arguments]
    if request.types is not None:  # a plain @triton.jit function, without an Inductor decorator
        names = [name for name, kind in request.types.items() if kind != "constexpr"]
        config, kinds, function, grid = request.blocks, request.types, kernel, request.grid
    else:
        config = _configurations(kernel)[request.config or 0]
        names, function = _launch_arguments(kernel, config), kernel.fn
        kinds = {name: str(kind) for name, kind in kernel.triton_meta["signature"].items()}
    if len(names) != len(values):
        raise TypeError(f"the kernel takes {len(names)} arguments ({', '.join(names)}), {len(values)} are passed")
    arguments = dict(zip(names, values, strict=True))
    if request.types is None:
        from compiler.torch_api.triton_kernels import grid_of, largest_blocks  # after Triton was patched

        if request.config is None and kernel.inductor_meta.get("grid_type") in _SIZED:
            config = launch.tile(config, _numels(arguments), largest_blocks())
        chosen = kernel.configs[request.config or 0]
        warps = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
        grid = grid_of(kernel, warps | config, arguments)
        arguments = {name: value for name, value in arguments.items() if name in function.arg_names}
    bounds = _bounds(request.arguments, names, memory)
    return Outcome(config, grid, run_programs(function, {**arguments, **config}, kinds, grid, bounds, request.most))


@cache
def _defined_kernel(path: str, name: str) -> Any:
    """Execute a source file, and return its kernel. Raises errors of the source, also SyntaxError."""
    module = types.ModuleType(name)
    module.__file__ = path
    exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec", dont_inherit=True), vars(module))
    if not hasattr(module, name):
        raise NameError(f"the source defines no kernel named {name!r}")
    return getattr(module, name)


def _configurations(kernel: Any) -> list[dict[str, Any]]:
    """Autotuning configs chosen by Inductor, in order, with the `tl.constexpr` values of the user's call."""
    from compiler.torch_api.triton_kernels import declared_constants  # after Triton was patched

    declared = declared_constants(kernel)
    given = {name: value for name, value in kernel.triton_meta["constants"].items() if name in declared}
    return [given | config.kwargs for config in kernel.configs]


def _launch_arguments(kernel: Any, config: Mapping[str, Any]) -> list[str]:
    """The names of the launch arguments, in order; grid arguments, if any, come last."""
    own = [name for name in kernel.fn.arg_names if name not in config and name not in ("num_warps", "num_stages")]
    return [*own, *kernel.inductor_meta.get("extra_launcher_args", ())]


def _bounds(arguments: Sequence[Any], names: Sequence[str], memory: torch.Tensor) -> Bounds:
    """The memory that a launch may access. Memory shared by several arguments has all their names."""
    owners: dict[arena.Region, list[str]] = {}
    for name, placed in zip(names, arguments, strict=True):
        if isinstance(placed, arena.Placed):
            owners.setdefault(placed.region, []).append(name)
    base = memory.data_ptr()
    regions = ((base + region.start, region.size, "/".join(of)) for region, of in owners.items())
    return Bounds([Memory(name, start, start + size) for start, size, name in regions])


def _numels(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Elements by dimension: "XBLOCK" from xnumel, "R0_BLOCK" from r0_numel."""
    return {
        f"{name.removesuffix('numel').upper()}BLOCK": value
        for name, value in arguments.items()
        if name.endswith("numel") and isinstance(value, int)
    }


def _kernel_error(error: Exception, path: str) -> KernelError:
    """Describe an error, with the innermost line of the kernel's source in its traceback."""
    kind: launch.ErrorKind = "missing" if isinstance(error, NotImplementedError) else "error"
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return KernelError("syntax", error.msg, error.lineno or 0)
    if isinstance(error, OutOfBoundsError | NoEquivalentError):
        kind, message = "bounds" if isinstance(error, OutOfBoundsError) else kind, str(error)
    elif isinstance(error, AssertionError):  # tl.device_assert, tl.static_assert
        message = ": ".join(filter(None, ("an assertion of the kernel failed", str(error))))
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == path]
    return KernelError(kind, message, lines[-1] if lines else 0)
