"""What TorchDynamo holds for a function: compiled code, outcomes of its latest compilations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch
from torch._dynamo.convert_frame import input_codes, output_codes
from torch._dynamo.eval_frame import _debug_get_cache_entry_list, innermost_backend
from torch._dynamo.external_utils import wrap_inline
from torch._dynamo.utils import get_compilation_metrics

RESUME = "torch_dynamo_resume_in_"


@dataclass(frozen=True)
class FunctionState:
    """The state of one code object.

    `compiled` counts compiled versions that are in use; `with_graph` and `broken` count those that have a graph, and
    that end in a graph break. `metrics` are torch's metrics of its latest compilations, oldest first: torch keeps those
    of the last 64 of the process. With `is_shared`, other modules have this code: `was_seen` and `metrics` may be
    theirs.
    """

    code: CodeType
    was_seen: bool
    compiled: int = 0
    with_graph: int = 0
    broken: int = 0
    metrics: tuple[Mapping[str, Any], ...] = field(default=())
    is_shared: bool = False


def code_of(function: Callable[..., Any]) -> CodeType | None:
    """The code that torch.compile sees when a function, a module or a compiled one of either is called."""
    inner = getattr(function, "_orig_mod", function)
    if isinstance(inner, torch.nn.Module):
        inner = inner.forward
    seen: set[int] = set()
    while (original := getattr(inner, "_torchdynamo_orig_callable", None)) is not None and id(inner) not in seen:
        seen.add(id(inner))
        inner = original
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__code__"):
        inner = getattr(type(inner), "__call__", None)  # noqa: B004 - the method itself
    code = getattr(inner, "__code__", None)
    return code if isinstance(code, CodeType) else None


def function_states() -> list[FunctionState]:
    """The states of all code objects that were compiled, or of which a compilation was tried, since the last reset."""
    own = _metrics_by_code()
    found = [_state(code, own) for code in _codes() if code not in output_codes]
    return [state for state in found if state.compiled or state.metrics]


def state_of(function: Callable[..., Any], code: CodeType) -> FunctionState:
    """The state of a function with this code.

    Modules share the code of their class, or of torch: of a compiled module, only versions with its own backend count.
    """
    state = _state(code, _metrics_by_code())
    own = {id(backend) for backend in _backends(function)} if isinstance(function, torch.nn.Module) else set()
    if not own:
        return state
    shared = (code, wrap_inline(lambda: None).__code__, torch.nn.Module._call_impl.__code__)
    entries = [each for one in shared for each in _debug_get_cache_entry_list(one) if id(each.backend) in own]
    return _with_entries(replace(state, is_shared=True), entries)


def _backends(module: torch.nn.Module) -> list[object]:
    """The backends that a module is compiled with, by `torch.compile(module)` or `module.compile()`."""
    compiled = getattr(module, "_compiled_call_impl", None)
    cells = [
        cell.cell_contents for cell in getattr(compiled, "__closure__", None) or () if callable(cell.cell_contents)
    ]
    context = getattr(module, "dynamo_ctx", None)
    return [innermost_backend(each) for each in (*cells, getattr(context, "callback", None)) if each is not None]


def resume_states(code: CodeType) -> list[FunctionState]:
    """The states of the parts of a function after its graph breaks."""
    own = _metrics_by_code()
    name = f"{RESUME}{code.co_name.removeprefix(RESUME)}_at_"
    rest = [each for each in _codes() if each.co_filename == code.co_filename and each.co_name.startswith(name)]
    return [_state(each, own) for each in rest if each not in output_codes]


def _codes() -> Iterator[CodeType]:
    for reference in input_codes.seen:
        if (code := reference()) is not None:
            yield code


Place = tuple[str, str, int]


def _metrics_by_code() -> dict[Place, list[Mapping[str, Any]]]:
    """Torch's metrics by file, name and first line. At the recompile limit torch names the frame only by its number."""
    found: dict[Place, list[Mapping[str, Any]]] = {}
    frames: dict[str, Place] = {}
    for each in get_compilation_metrics():
        metrics = {name: getattr(each, name) for name in _WANTED}
        frame = (each.compile_id or "").rpartition("/")[0]
        if each.co_name is not None:
            frames[frame] = (each.co_filename or "", each.co_name, each.co_firstlineno or 0)
        if each.is_forward is not False and frame in frames:
            found.setdefault(frames[frame], []).append(metrics)
    return found


_WANTED = ("compile_id", "fail_type", "fail_reason", "recompile_reason", "restart_reasons", "config_suppress_errors")


def _state(code: CodeType, metrics: Mapping[Place, list[Mapping[str, Any]]]) -> FunctionState:
    own = tuple(metrics.get((code.co_filename, code.co_name, code.co_firstlineno), ()))
    return _with_entries(FunctionState(code, code in input_codes, metrics=own), _debug_get_cache_entry_list(code))


def _with_entries(state: FunctionState, entries: Sequence[Any]) -> FunctionState:
    names = [entry.code.co_names for entry in entries]
    return replace(
        state,
        compiled=len(entries),
        with_graph=sum(any(name.startswith("__compiled_fn") for name in each) for each in names),
        broken=sum(any(name.startswith("__resume_at") for name in each) for each in names),
    )
