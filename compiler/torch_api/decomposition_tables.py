"""torch's decomposition tables, and facts about operators from torch's registries.

core ATen: `torch._decomp.core_aten_decompositions`. Inductor: `torch._inductor.decomposition.select_decomp_table`.
Prims: all decompositions registered with `torch._decomp`, which include references of `torch._refs` (written in prims),
and a few references that torch does not register (`torch._prims.context.TorchRefsMode` finds them by name).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Literal, TypeAlias, TypeGuard

import torch
import torch._inductor.decomposition as inductor_decomposition
import torch._prims
import torch._refs
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload

TableName = Literal["core ATen", "Inductor", "prims"]
Operator: TypeAlias = OpOverload
Table = Mapping[OpOverload, Callable[..., Any]]

_aten = torch.ops.aten
_WITHOUT_REGISTRATION: dict[OpOverload, Callable[..., Any]] = {
    _aten.as_strided.default: torch._refs.as_strided,
    _aten.full_like.default: torch._refs.full_like,
    _aten.scalar_tensor.default: torch._refs.scalar_tensor,
    _aten.empty_permuted.default: torch._refs.empty_permuted,
}
_EXCLUDED_LINE = re.compile(r"\s*(?P<op>aten\.[\w.]+),(?:\s*#\s*(?P<why>.+))?")


@cache
def table(name: TableName) -> Table:
    """A decomposition table, operator overload -> function. Do not change it.

    Inductor's decompositions of max_pool2d and max_pool3d use `torch._inductor.lowering` without importing it: import
    it before calling them.
    """
    if name == "core ATen":
        return _overloads_only(core_aten_decompositions())
    if name == "Inductor":
        return _overloads_only(inductor_decomposition.select_decomp_table())
    return _WITHOUT_REGISTRATION | _overloads_only(decomposition_table)


def _overloads_only(found: Mapping[Any, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    return {op: function for op, function in found.items() if is_operator(op)}


def is_operator(op: Any) -> TypeGuard[OpOverload]:
    """Whether `op` is an operator overload of torch's dispatcher."""
    return isinstance(op, OpOverload)


def is_composite(op: Any) -> bool:
    """Whether an operator is CompositeImplicitAutograd: it calls other operators, above autograd."""
    return is_operator(op) and _has_kernel(op.name(), "CompositeImplicitAutograd")


def _has_kernel(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


def composite_of(function: Callable[..., Any]) -> OpOverload | None:
    """The operator whose composite C++ kernel a table entry calls; None for other entries."""
    kernel = function.keywords.get("kernel") if isinstance(function, partial) else None
    return kernel if isinstance(kernel, OpOverload) else None


def is_core(op: OpOverload) -> bool:
    """Whether `op` has the tag of the core ATen operator set."""
    return torch.Tag.core in op.tags


def is_random(op: Any) -> bool:
    """Whether `op` may draw random numbers. True for attention, even without dropout."""
    return is_operator(op) and torch.Tag.nondeterministic_seeded in op.tags


def is_mutable(op: Any) -> bool:
    """Whether `op` mutates one of its arguments."""
    return is_operator(op) and bool(op._schema.is_mutable)


@cache
def excluded_by_inductor() -> dict[OpOverload, str]:
    """Operators that Inductor excludes from its table, each with torch's comment on why, or ""."""
    comments = dict(_exclusion_comments())
    found: dict[Any, str] = {}
    for excluded in inductor_decomposition.decomps_to_exclude:
        why = comments.get(str(excluded), "")
        names = [] if isinstance(excluded, OpOverload) else excluded.overloads()
        overloads = [getattr(excluded, name) for name in names] or [excluded]
        found.update(dict.fromkeys(overloads, why))
    return found


def _exclusion_comments() -> Iterator[tuple[str, str]]:
    """The excluded operators and their comments; a comment on its own line applies to the lines after it."""
    _, _, after = inspect.getsource(inductor_decomposition).partition("decomps_to_exclude")
    heading = ""
    for line in after.partition("\n]")[0].splitlines():
        if line.lstrip().startswith("#"):
            heading = line.lstrip("# ").strip()
        elif match := _EXCLUDED_LINE.match(line):
            yield match["op"], match["why"] or heading


def _lowerings() -> Any:
    """Inductor's lowering module, imported lazily: the import takes half a second."""
    import torch._inductor.lowering as lowering_of

    return lowering_of


def find_lowering(op: OpOverload) -> Callable[..., Any] | None:
    """Inductor's lowering of an operator, unwrapped, or None."""
    known = _lowerings().lowerings
    found = known.get(op) or known.get(op.overloadpacket)
    return inspect.unwrap(found) if found is not None else None


def falls_back(function: Callable[..., Any]) -> bool:
    """Whether a lowering is a plain fallback to the ATen kernel."""
    return function.__qualname__.startswith("fallback_handler.")


def may_fall_back(op: OpOverload) -> bool:
    """Whether Inductor's lowering falls back to the ATen kernel, always or for some arguments."""
    return op in _lowerings().fallbacks


def has_template(function: Callable[..., Any]) -> bool:
    """Whether a lowering chooses between templates and the ATen kernel (torch/_inductor/kernel)."""
    return function.__module__.startswith("torch._inductor.kernel")


def all_overloads() -> tuple[str, ...]:
    """The qualified names of all operator overloads of this process (`aten::add.Tensor`)."""
    return tuple(torch._C._dispatch_get_all_op_names())


def overloads_with_kernel(key: str) -> frozenset[str]:
    """The qualified names of the overloads that have a kernel for a dispatch key."""
    return frozenset(name for name in all_overloads() if _has_kernel(name, key))


def aten_overloads() -> Iterator[tuple[str, OpOverload]]:
    """ATen's overloads that Python can call, by qualified name, TorchScript-only ones (`aten::len.t`) included."""
    for qualified in all_overloads():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(_aten, name, None) if namespace == "aten" else None
        op = getattr(packet, overload or "default", None)
        if is_operator(op):
            yield qualified, op


def prims() -> tuple[str, ...]:
    """The names of torch's public prims."""
    return tuple(torch._prims.__all__)


def references() -> tuple[str, ...]:
    """The names of the public references in `torch._refs`, without its submodules."""
    return tuple(torch._refs.__all__)


def lowered_overloads() -> Iterator[OpOverload]:
    """The overloads that Inductor has a lowering for."""
    return (op for op in _lowerings().lowerings if is_operator(op))


def fallback_overloads() -> Iterator[OpOverload]:
    """The overloads that Inductor's lowering may send to the ATen kernel."""
    return (op for op in _lowerings().fallbacks if is_operator(op))


def only_falls_back(op: OpOverload) -> bool:
    """Whether Inductor always lowers an overload to the ATen kernel."""
    return (function := find_lowering(op)) is not None and falls_back(function)
