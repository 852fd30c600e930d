"""Inductor's generated kernels: what it would ask of Triton for them, and their launch.

A generated kernel is a module of Python: a function under `@triton.jit`, under a decorator of
torch._inductor.runtime.triton_heuristics that knows which configurations to try. Its source is executed here as
Inductor would, and stopped at the call of `triton.compile`; nothing is compiled, and no GPU is asked.
"""

from __future__ import annotations

import inspect
import linecache
import math
import os
import statistics
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
"""The module of Inductor's that generated kernels call functions of, while they are compiled."""


DECORATORS = frozenset({
    "cooperative_reduction", "fixed_config", "foreach", "persistent_reduction", "pointwise", "reduction", "split_scan",
    "template", "user_autotune",
})  # fmt: skip
"""The functions of triton_heuristics that generated kernels are decorated with."""


def hint_names() -> frozenset[str]:
    """`ReductionHint.INNER`, …: enumeration members that a decorator's arguments may name."""
    kinds = [kind for kind in vars(hints).values() if isinstance(kind, type) and issubclass(kind, Enum)]
    return frozenset(f"{kind.__name__}.{member.name}" for kind in kinds for member in kind)


class KernelSourceError(ValueError):
    """A source without a kernel of Inductor's, or one that its heuristics refuse, and why."""


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One call of `triton.compile` for a kernel.

    `arguments` is the Python expression of `(signature, constants, attributes)`, those of triton.compiler.ASTSource:
    it may name data types of `triton.language`. `programs` counts the programs of one launch, 0 where sizes are
    symbolic. `config` is the configuration asked for, `configs` all that Inductor would try, in its order.
    """

    config: dict[str, int]
    configs: tuple[dict[str, int], ...]
    arguments: str
    options: dict[str, Any]
    programs: int


class _Asked(BaseException):
    """Unwinds Inductor at its call of triton.compile; as an Exception it would be logged."""

    def __init__(self, source: Any, options: dict[str, Any]) -> None:
        self.source = source
        self.options = options


@contextmanager
def reading_kernels(gpu: AbstractContextManager[None]) -> Iterator[None]:
    """Let Inductor's heuristics answer for a GPU in the block, without a cache of tuning."""
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
    """What Inductor would ask of Triton for kernel `name` in its configuration number `config`.

    To be called inside `reading_kernels`. `sizes` holds what the launch grid depends on and is known ("xnumel").
    Executes the source. Raises KernelSourceError.
    """
    kernel = execute_heuristics(name, source)
    if not 0 <= config < len(kernel.configs):
        raise KernelSourceError(f"there is no configuration {config}: Inductor would try {len(kernel.configs)}")
    chosen = kernel.configs[config]
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
    """The source's kernel as a new CachingAutotuner. Raises KernelSourceError."""
    kernel = _define(name, source)
    if not isinstance(kernel, heuristics.CachingAutotuner):
        raise KernelSourceError(f"it defines no kernel {name!r} under a decorator of triton_heuristics")
    return kernel


def jit_function(name: str, source: str) -> Any:
    """The source's function under `@triton.jit`, new each time. Raises KernelSourceError."""
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
        except Exception as error:  # whatever a source that a user has edited raises
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
    """All configurations, in place of the one that was fastest before (check_autotune_cache)."""
    return configs, None, {}


def _numbers(config: Any) -> dict[str, int]:
    """The integers of a configuration; its other values are switches of a backend."""
    every = heuristics.config_to_dict(config)
    return {name: int(value) for name, value in every.items() if isinstance(value, int)}


def _programs(kernel: Any, config: Any, sizes: Mapping[str, int]) -> int:
    """The number of programs of one launch, 0 where that is not known before."""
    try:
        return math.prod(grid_of(kernel, config, sizes))
    except (NameError, KeyError, AssertionError, TypeError):  # a size that is not known before the launch
        return 0


def largest_blocks() -> Mapping[str, int]:
    """The largest block of Inductor's code in each dimension (XBLOCK, …), in elements."""
    return {f"{name}BLOCK": size for name, size in hints.TRITON_MAX_BLOCK.items()}


def declared_constants(kernel: Any) -> frozenset[str]:
    """The arguments that a user's kernel declares as `tl.constexpr`: a launch does not pass them.

    Before torch 2.12 only the function itself says so.
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
    """A kernel of Inductor's in one configuration. Raises KernelSourceError."""
    with replace_attribute(heuristics, "check_autotune_cache", lambda _: all_configurations):
        kernel = execute_heuristics(name, source)
    kernel.configs = [kernel.configs[config]]
    return kernel


class Plain:
    """A plain `@triton.jit` function with Inductor's launch method. Raises KernelSourceError."""

    def __init__(self, name: str, source: str, config: Mapping[str, int], grid: tuple[int, int, int]) -> None:
        self._function, self._config, self._grid = jit_function(name, source), config, grid

    def run(self, *arguments: Any, **_stream: int) -> None:
        """One launch, on torch's current stream."""
        self._function[self._grid](*arguments, **self._config)


def launch(kernel: Any, arguments: Sequence[Any]) -> None:
    """One launch, finished when this returns. Raises what CUDA reports."""
    kernel.run(*arguments, stream=torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()


def times(kernel: Any, arguments: Sequence[Any]) -> tuple[float, float, float]:
    """Median and quartiles of a launch's duration in seconds, with cold caches.

    triton.testing.do_bench.
    """
    from triton.testing import do_bench

    stream = torch.cuda.current_stream().cuda_stream
    every = do_bench(lambda: kernel.run(*arguments, stream=stream), return_mode="all")
    low, middle, high = statistics.quantiles([milliseconds / 1e3 for milliseconds in every], n=4)
    return middle, low, high
