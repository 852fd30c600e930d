"""Inductor's generated kernels: the arguments of their `triton.compile` calls, and their launch.

A generated kernel is a Python module: a function under `@triton.jit`, and a decorator of
torch._inductor.runtime.triton_heuristics with the configurations to try. To read a kernel, its source is executed as
in Inductor up to the call of `triton.compile`: nothing is compiled, and no GPU is needed.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch._inductor.runtime.hints as hints
import torch._inductor.runtime.triton_helpers as triton_helpers
import torch._inductor.runtime.triton_heuristics as heuristics
import triton
import triton.language as tl

from compiler.torch_api.patching import replace_attribute, replace_attributes, set_environment

__all__ = ["triton_helpers"]

HELPERS = triton_helpers.__name__
"""The Inductor module of helper functions that generated kernels call."""


DECORATORS = frozenset({
    "cooperative_reduction", "fixed_config", "foreach", "persistent_reduction", "pointwise", "reduction", "split_scan",
    "template", "user_autotune",
})  # fmt: skip
"""The decorators of generated kernels in triton_heuristics."""


def hint_names() -> frozenset[str]:
    """The enum members that a decorator's arguments may name: `ReductionHint.INNER`, …"""
    kinds = [kind for kind in vars(hints).values() if isinstance(kind, type) and issubclass(kind, Enum)]
    return frozenset(f"{kind.__name__}.{member.name}" for kind in kinds for member in kind)


class KernelSourceError(ValueError):
    """A source has no Inductor kernel, or Inductor's heuristics reject it; the message says why."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One call of `triton.compile` for a kernel.

    `arguments` is `(signature, constants, attributes)` of triton.compiler.ASTSource as a Python expression, which may
    name dtypes of `triton.language`. `programs` counts the programs of one launch, 0 if sizes are symbolic. `config` is
    the requested configuration, `configs` are all that Inductor would try, in its order.
    """

    config: dict[str, int]
    configs: tuple[dict[str, int], ...]
    arguments: str
    options: dict[str, Any]
    programs: int


class _Asked(BaseException):
    """Unwinds Inductor at its call of triton.compile; a BaseException, as Inductor would log an Exception."""

    def __init__(self, source: Any, options: dict[str, Any]) -> None:
        self.source = source
        self.options = options


@contextmanager
def reading_kernels(gpu: AbstractContextManager[None]) -> Iterator[None]:
    """Run Inductor's heuristics for a GPU in the block, without its autotuning cache."""
    with (
        gpu,
        set_environment(TRITON_CACHE_DIR=os.devnull, TRITON_INTERPRET="0"),
        replace_attributes(
            [
                (triton_helpers, "set_driver_to_gpu", lambda _: lambda: None),
                (heuristics, "check_autotune_cache", lambda _: all_configurations),
                (triton, "compile", lambda _: _ask),
            ]
        ),
    ):
        yield


def compile_request(name: str, source: str, sizes: Mapping[str, int], config: int) -> CompileRequest:
    """Inductor's call of triton.compile for kernel `name` in the configuration with index `config`.

    Call it inside `reading_kernels`. `sizes` are the known sizes that determine the launch grid ("xnumel"). Executes
    the source. Raises KernelSourceError.
    """
    kernel = execute_heuristics(name, source)
    chosen = _configuration(kernel, config)
    try:
        kernel._precompile_config(chosen)
    except _Asked as asked:
        ast_source = asked.source
        return CompileRequest(
            config=_numbers(chosen),
            configs=tuple(map(_numbers, kernel.configs)),
            arguments=repr((ast_source.signature, ast_source.constants, ast_source.attrs)),
            options=asked.options,
            programs=_programs(kernel, chosen, sizes),
        )
    raise KernelSourceError("Inductor did not call triton.compile for it")


def execute_heuristics(name: str, source: str) -> Any:
    """Execute a source, and return its kernel as a new CachingAutotuner. Raises KernelSourceError."""
    kernel = _define(name, source)
    if not isinstance(kernel, heuristics.CachingAutotuner):
        raise KernelSourceError(f"it defines no kernel {name!r} under a decorator of triton_heuristics")
    return kernel


def jit_function(name: str, source: str) -> Any:
    """Execute a source, and return its new `@triton.jit` function. Raises KernelSourceError."""
    kernel = _define(name, source)
    if not isinstance(kernel, triton.JITFunction):
        raise KernelSourceError(f"it defines no kernel {name!r} under @triton.jit")
    return kernel


def _define(name: str, source: str) -> Any:
    file = f"{name}.py"
    namespace: dict[str, Any] = {"__name__": name, "__file__": file}
    with _readable(file, source):
        try:
            exec(compile(source, file, "exec"), namespace)
        except Exception as error:  # a source edited by the user may raise anything
            raise KernelSourceError(f"{type(error).__name__}: {error}") from error
    return namespace.get(name)


@contextmanager
def _readable(file: str, source: str) -> Iterator[None]:
    """Let `triton.jit` read the source of a function that has no file on disk."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        yield
    finally:
        linecache.cache.pop(file, None)


def _ask(source: Any, *, options: dict[str, Any], **_others: Any) -> Any:
    raise _Asked(source, options)


def all_configurations(configs: list[Any], *_facts: Any, **_more_facts: Any) -> tuple[list[Any], None, dict[str, Any]]:
    """Return all configurations instead of the cached fastest one (replaces check_autotune_cache)."""
    return configs, None, {}


def _numbers(config: Any) -> dict[str, int]:
    """The integer values of a configuration; other values are backend switches."""
    every = heuristics.config_to_dict(config)
    return {name: int(value) for name, value in every.items() if isinstance(value, int)}


def _programs(kernel: Any, config: Any, sizes: Mapping[str, int]) -> int:
    """The number of programs of one launch; 0 if it is unknown before the launch."""
    try:
        return math.prod(grid_of(kernel, config, sizes))
    except (NameError, KeyError, AssertionError, TypeError):  # a size that is not known before the launch
        return 0


def largest_blocks() -> Mapping[str, int]:
    """Inductor's largest block size in each dimension (XBLOCK, …), in elements."""
    return {f"{name}BLOCK": size for name, size in hints.TRITON_MAX_BLOCK.items()}


def declared_constants(kernel: Any) -> frozenset[str]:
    """The `tl.constexpr` parameters of a user's kernel, which a launch does not pass.

    Before torch 2.12, only the function's annotations declare them.
    """
    declared = kernel.inductor_meta.get("declared_constexpr_names")
    if declared is None and kernel.custom_kernel:
        kinds = inspect.get_annotations(kernel.fn.fn)
        declared = [name for name, kind in kinds.items() if kind in (tl.constexpr, "tl.constexpr")]
    return frozenset(declared or ())


def grid_of(kernel: Any, config: Any, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
    """The number of programs of a launch in each dimension, by Inductor's own formula."""
    expression = heuristics.GridExpr.from_meta(kernel.inductor_meta, config)
    x, y, z = expression.eval_slow(dict(arguments))
    return int(x), int(y), int(z)


def load_kernel(name: str, source: str, config: int) -> Any:
    """Load an Inductor kernel with one configuration. Raises KernelSourceError."""
    with replace_attribute(heuristics, "check_autotune_cache", lambda _: all_configurations):
        kernel = execute_heuristics(name, source)
    kernel.configs = [_configuration(kernel, config)]
    return kernel


def _configuration(kernel: Any, index: int) -> Any:
    if not 0 <= index < len(kernel.configs):
        raise KernelSourceError(f"there is no configuration {index}: Inductor would try {len(kernel.configs)}")
    return kernel.configs[index]


class Plain:
    """A plain `@triton.jit` function with the launch method of Inductor's kernels. Raises KernelSourceError."""

    def __init__(self, name: str, source: str, config: Mapping[str, int], grid: tuple[int, int, int]) -> None:
        self._function, self._config, self._grid = jit_function(name, source), config, grid

    def run(self, *arguments: Any, **_stream: int) -> None:
        """Launch the function once on torch's current stream."""
        self._function[self._grid](*arguments, **self._config)


def launch(kernel: Any, arguments: Sequence[Any]) -> None:
    """Launch a kernel once, and wait for it. Raises CUDA errors."""
    kernel.run(*arguments, stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def launch_seconds(kernel: Any, arguments: Sequence[Any]) -> list[float]:
    """Seconds of each timed launch, with cold caches, by triton.testing.do_bench: one if it takes 0.1 s or longer."""
    from triton.testing import do_bench

    stream = torch.cuda.current_stream().cuda_stream
    every = do_bench(lambda: kernel.run(*arguments, stream=stream), return_mode="all")
    return [milliseconds / 1e3 for milliseconds in every]
