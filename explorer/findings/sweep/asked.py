"""Validate the arguments of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from compiler.record.options import OptionError, Options
from compiler.timing.candidates import candidate_names, own_candidate
from compiler.timing.sweep import Axes


def axes_of(
    batch: int | Iterable[int],
    dtype: torch.dtype | str | Iterable[torch.dtype | str],
    dims: Mapping[str, int | Sequence[int]] | None,
    inputs: Callable[[int], Any] | None,
) -> Axes:
    """Axes of a sweep; an axis that is not swept keeps the call's value. Raises OptionError for invalid arguments."""
    sizes = _each(batch)
    wrong = next((size for size in sizes if isinstance(size, bool) or not isinstance(size, int) or size < 1), None)
    if wrong is not None:
        raise OptionError(f"batch={wrong!r}: a size is a whole number, at least 1")
    if (dims is not None or inputs is not None) and not sizes:
        raise OptionError("dims=… and inputs=… say what takes a size: give sizes too, as in batch=[1, 8, 64]")
    if dims is not None and inputs is not None:
        raise OptionError("dims=… changes the call's inputs, inputs=… makes others: give one of them")
    dtypes = tuple(map(_dtype, _each(dtype)))
    return Axes(tuple(sorted(set(sizes))) or (None,), tuple(dict.fromkeys(dtypes)) or (None,), dims, inputs)


def candidates_of(mode: Any, options: Options) -> list[Any]:
    """Candidates to compare with eager: the ones named by `mode`, else the run's own backend and mode.

    Raises OptionError if `mode` names no candidate and the run was not compiled.
    """
    named = candidate_names(mode)
    if named:
        return named
    cells = own_candidate(options)
    if cells is None:
        raise OptionError("this run was not compiled: say with mode=… what to compare with eager, as in mode='default'")
    return [cells]


def _each(asked: Any) -> tuple[Any, ...]:
    """The given values as a tuple; a single value becomes a tuple of one."""
    return tuple(asked) if isinstance(asked, Iterable) and not isinstance(asked, str) else (asked,)


def _dtype(asked: Any) -> torch.dtype:
    """Convert a floating dtype or its name to a torch.dtype. Raises OptionError."""
    found = getattr(torch, asked, None) if isinstance(asked, str) else asked
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise OptionError(f"dtype={asked!r}: floating-point dtypes can be swept, such as torch.float32, torch.bfloat16")
    return found
