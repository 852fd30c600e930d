"""The interpreter's process: one launch a line from stdin, one outcome a line to stdout.

Started by `compiler.triton_interpreter.process` with TRITON_INTERPRET=1. What a kernel prints is caught and handed
back.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import types
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import torch

from compiler.triton_interpreter import arena, launch
from compiler.triton_interpreter.bounds import Bounds, Memory, OutOfBoundsError
from compiler.triton_interpreter.launch import KernelError, Outcome
from compiler.triton_interpreter.libdevice import NoEquivalentError

_SIZED = {"Grid1D", "Grid2D", "Grid3D", "Grid2DWithYZOverflow"}
"""Grids whose number of programs follows from block sizes, so that these can be chosen."""


class _Kernels:
    """Kernels by source, defined once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}

    def __call__(self, path: str, name: str) -> Any:
        source = Path(path).read_text(encoding="utf-8")
        key = (source, name)
        if key not in self._known:
            module = types.ModuleType(name)
            interpreter().define_kernel(module, source, path)
            if not hasattr(module, name):
                raise NameError(f"the source defines no kernel named {name!r}")
            self._known[key] = getattr(module, name)
        return self._known[key]


def interpreter() -> Any:
    """The module that patches Triton, imported when it is needed: Triton takes a second."""
    from compiler.triton_interpreter import interpreter as patched

    return patched


def inductor() -> Any:
    """What Inductor says of its kernels, imported after Triton was told to interpret."""
    from compiler.torch_api import triton_kernels

    return triton_kernels


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(1)
    interpreter().install()
    kernels = _Kernels()
    _say(answers, {"ready": True})
    for line in sys.stdin:
        _say(answers, asdict(_answer(json.loads(line), kernels)))


def _say(answers: TextIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _answer(request: Mapping[str, Any], kernels: _Kernels) -> Outcome:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            return _launch(request, kernels, printed)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is its user's to see
            return Outcome(printed=printed.getvalue(), error=_kernel_error(error, request["source"]))


def _launch(request: Mapping[str, Any], kernels: _Kernels, printed: io.StringIO) -> Outcome:
    kernel = kernels(request["source"], request["name"])
    memory = arena.map_file(Path(request["memory"]), request["size"])
    values = [_value(described, memory) for described in request["arguments"]]
    if "types" in request:
        return _launched_plain(request, kernel, values, memory)
    config = interpreter().configurations(kernel)[request["config"] or 0]
    names = interpreter().launch_arguments(kernel, config)
    if len(names) != len(values):
        raise TypeError(f"the kernel takes {len(names)} arguments ({', '.join(names)}), {len(values)} are passed")
    arguments = dict(zip(names, values, strict=True))
    if request["config"] is None and kernel.inductor_meta.get("grid_type") in _SIZED:
        config = launch.tile(config, _numels(arguments), inductor().largest_blocks())
    grid = inductor().grid_of(kernel, config, arguments)
    own = {name: value for name, value in arguments.items() if name in kernel.fn.arg_names}
    ran = interpreter().run_programs(
        kernel.fn, {**own, **config}, interpreter().signature_of(kernel), grid,
        _bounds(request["arguments"], names, memory), request["most"] or -1,
    )  # fmt: skip
    return Outcome(config, grid, ran, printed.getvalue())


def _launched_plain(request: Mapping[str, Any], kernel: Any, values: list[Any], memory: torch.Tensor) -> Outcome:
    """A function with nothing of Inductor's around it."""
    names = [name for name, kind in request["types"].items() if kind != "constexpr"]
    arguments = {**dict(zip(names, values, strict=True)), **request["blocks"]}
    grid = tuple(request["grid"])
    bounds = _bounds(request["arguments"], names, memory)
    ran = interpreter().run_programs(kernel, arguments, request["types"], grid, bounds, -1)
    return Outcome(request["blocks"], grid, ran)


def _value(described: Any, memory: torch.Tensor) -> Any:
    return arena.Placed.of(described).within(memory) if isinstance(described, dict) else described


def _bounds(described: list[Any], names: list[str], memory: torch.Tensor) -> Bounds:
    """The memory of each tensor; one that several arguments share has the names of all."""
    owners: dict[tuple[int, int], list[str]] = {}
    for name, one in zip(names, described, strict=True):
        if isinstance(one, dict):
            _, start, size = one["region"]
            owners.setdefault((start, size), []).append(name)
    base = memory.data_ptr()
    return Bounds([Memory("/".join(of), base + start, base + start + size) for (start, size), of in owners.items()])


def _numels(arguments: Mapping[str, Any]) -> dict[str, int]:
    """Elements by dimension: xnumel is that of XBLOCK, r0_numel that of R0_BLOCK."""
    return {
        f"{name.removesuffix('numel').upper()}BLOCK": value
        for name, value in arguments.items()
        if name.endswith("numel") and isinstance(value, int)
    }


def _kernel_error(error: Exception, path: str) -> KernelError:
    if isinstance(error, SyntaxError):
        return KernelError("syntax", error.msg, error.lineno or 0)
    message = str(error) if isinstance(error, OutOfBoundsError | NoEquivalentError) else _error_name(error)
    return KernelError(_kind(error), message, _line(error, path))


def _kind(error: Exception) -> launch.ErrorKind:
    if isinstance(error, OutOfBoundsError):
        return "bounds"
    return "missing" if isinstance(error, NotImplementedError) else "error"


def _error_name(error: Exception) -> str:
    if isinstance(error, AssertionError):  # tl.device_assert, tl.static_assert
        return f"an assertion of the kernel failed: {error}" if str(error) else "an assertion of the kernel failed"
    return f"{type(error).__name__}: {error}"


def _line(error: Exception, path: str) -> int:
    """The innermost line of the kernel's own source that the error passed through."""
    found, traceback = 0, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == path:
            found = traceback.tb_lineno
        traceback = traceback.tb_next
    return found
