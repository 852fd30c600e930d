"""Time a call at other sizes and dtypes, eager and compiled.

Each point is a call on fresh copies. Inputs are truncated to a size or repeat their own rows, so that labels and
indices stay in range. Modules and floating-point inputs are cast. The user's own tensors and modules do not change.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from compiler.calls.call import Call
from compiler.calls.copies import Copy, copy_call
from compiler.record.options import OptionError, Options
from compiler.timing.candidate_times import Measured, Plan, Progress, Tell, measure
from compiler.timing.one_process import check_one_process
from compiler.torch_api.fx import dtype_name
from compiler.torch_api.pytrees import tree_leaves, tree_map

Dims = Mapping[str, int | Sequence[int]]
"""Dimensions with the swept size, by argument name."""
MakeInputs = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a sweep. None in `sizes` and `dtypes` stands for the call's own size and dtype."""

    sizes: tuple[int | None, ...] = (None,)
    dtypes: tuple[torch.dtype | None, ...] = (None,)
    dims: Dims | None = None
    inputs: MakeInputs | None = None

    def points(self) -> list[tuple[int | None, torch.dtype | None]]:
        """All points, by dtype, then by size."""
        return [(size, dtype) for dtype, size in product(self.dtypes, self.sizes)]


@dataclass(frozen=True, slots=True)
class Point:
    """One size and dtype, with the measurements, or the reason why there are none."""

    size: int | None
    dtype: torch.dtype | None
    found: Measured | None = None
    problem: str = ""


def sweep_call(call: Call, options: Options, plan: Plan, axes: Axes, tell: Tell | None = None) -> Iterator[Point]:
    """Measure each point and yield it. An interrupt ends the sweep, and the current point has partial results.

    Raises OptionError for invalid axes, and in a job of ranks, before anything is measured.
    """
    check_one_process(call)
    changed = scaled_dims(call, axes)
    points = axes.points()
    for number, (size, dtype) in enumerate(points, 1):
        point = Point(size, dtype)
        try:
            found = measure(
                _call_at(call, point, axes, changed), options, plan, _tell_with_point(tell, point, number, len(points))
            )
        except KeyboardInterrupt:
            return
        except Exception as error:
            if isinstance(error, OptionError) and number == 1:
                raise
            yield replace(point, problem=f"{type(error).__name__}: {error}")
            continue
        yield replace(point, found=found)
        if found.measurement.interrupted:
            return


def place(size: int | None, dtype: torch.dtype | None, name: str = "size") -> str:
    """A point as text: `size 8, bfloat16`."""
    return ", ".join([*([f"{name} {size}"] if size is not None else []), *([dtype_name(dtype)] if dtype else [])])


def _tell_with_point(tell: Tell | None, point: Point, number: int, total: int) -> Tell | None:
    """A progress callback that adds the point's name."""
    if tell is None:
        return None
    where = f"point {number} of {total}" + (f" ({told})" if (told := place(point.size, point.dtype)) else "")

    def at_point(progress: Progress) -> None:
        tell(replace(progress, candidate=f"{where}, {progress.candidate}"))

    return at_point


# Sizes


def scaled_dims(call: Call, axes: Axes) -> dict[int, tuple[int, ...]]:
    """Dimensions to resize, by the index of a tensor among the call's inputs.

    Without `dims`: dimension 0 of all tensors with as many rows as the first tensor. Raises OptionError if there are
    none.
    """
    if axes.sizes == (None,) or axes.inputs is not None:
        return {}
    leaves = _leaves(call.args, call.kwargs)
    if axes.dims is not None:
        return _named_dims(call, axes.dims)
    sized = {index: leaf.shape[0] for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()}
    if not sized:
        raise OptionError("batch=…: the call has no tensor with a dimension to change; inputs=… makes inputs of a size")
    first = next(iter(sized.values()))
    return {index: (0,) for index, size in sized.items() if size == first}


def _named_dims(call: Call, dims: Dims) -> dict[int, tuple[int, ...]]:
    """Dimensions that the user named in `dims=`. Raises OptionError for an unknown argument or dimension."""
    named = _arguments(call)
    found: dict[int, tuple[int, ...]] = {}
    at = {id(leaf): index for index, leaf in enumerate(_leaves(call.args, call.kwargs))}
    for name, wanted in dims.items():
        if name not in named:
            raise OptionError(
                f"dims={{{name!r}: …}}: the call has no such argument; it has {', '.join(named) or 'none'}"
            )
        chosen = (wanted,) if isinstance(wanted, int) else tuple(wanted)
        tensors = [leaf for leaf in tree_leaves(named[name]) if isinstance(leaf, Tensor)]
        if not tensors or any(not -leaf.dim() <= dim < leaf.dim() for leaf in tensors for dim in chosen):
            shapes = ", ".join(str(list(leaf.shape)) for leaf in tensors) or "no tensor"
            raise OptionError(f"dims={{{name!r}: {wanted}}}: there is no such dimension in {shapes}")
        found |= {at[id(leaf)]: chosen for leaf in tensors}
    return found


def _arguments(call: Call) -> dict[str, Any]:
    """Arguments of the call by parameter name."""
    function = call.fn.forward if isinstance(call.fn, nn.Module) else call.fn
    bound = inspect.signature(function).bind(*call.args, **call.kwargs)
    variable = {name for name, found in bound.signature.parameters.items() if found.kind is found.VAR_KEYWORD}
    passed = {name: value for name, value in bound.arguments.items() if name not in variable}
    return passed | {key: value for name in variable for key, value in bound.arguments.get(name, {}).items()}


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    return list(tree_leaves((tuple(args), dict(kwargs))))


def _call_at(call: Call, point: Point, axes: Axes, changed: Mapping[int, tuple[int, ...]]) -> Call:
    """The call with the point's size and dtype, on fresh copies."""
    copy = copy_call(call)
    args, kwargs = _inputs(copy, point.size, axes, changed)
    if point.dtype is not None:
        for module in copy.modules:
            module.to(point.dtype)
        args, kwargs = tree_map(lambda leaf: _cast(leaf, point.dtype), (args, kwargs))
    return replace(call, fn=copy.fn, compiled=copy.fn, args=args, kwargs=kwargs)


def _inputs(
    copy: Copy, size: int | None, axes: Axes, changed: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs = tuple(copy.args), dict(copy.kwargs)
    if size is None:
        return args, kwargs
    if axes.inputs is not None:
        return _as_arguments(axes.inputs(size))
    dims = {id(leaf): changed.get(index, ()) for index, leaf in enumerate(_leaves(args, kwargs))}

    def at_size(leaf: Any) -> Any:
        return resize(leaf, dims.get(id(leaf), ()), size) if isinstance(leaf, Tensor) else leaf

    found: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(at_size, (args, kwargs))
    return found


def _as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Args and kwargs from the result of `inputs=`: a dict of keywords, a tuple of arguments, or a single argument."""
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def resize(tensor: Tensor, dims: Iterable[int], size: int) -> Tensor:
    """Resize these dimensions of a tensor to `size` by truncation or repetition. Raises OptionError if one is empty."""
    made = tensor.detach()
    for dim in dims:
        if made.shape[dim] == 0:
            raise OptionError("batch=…: an input has no rows that could be repeated; inputs=… makes inputs of a size")
        made = made.index_select(dim, torch.arange(size, device=made.device) % made.shape[dim])
    if tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last):
        made = made.contiguous(memory_format=torch.channels_last)
    return made.requires_grad_(tensor.requires_grad)


def _cast(leaf: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dtype == dtype:
        return leaf
    return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
