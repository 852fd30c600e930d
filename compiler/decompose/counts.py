"""Number of operators of this torch, counted from the registries of this process.

Published numbers are quoted for comparison: "PyTorch has 1200+ operators, and 2000+ if you consider various overloads
for each operator", to be reduced to "about ~250" prims or "about ~750 canonical operators" of ATen
(https://pytorch.org/get-started/pytorch-2-x/, PrimTorch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compiler.torch_api import decomposition_tables as tables


@dataclass(frozen=True, slots=True)
class Total:
    """A count of operators: overloads (`aten::add.Tensor`) and operator names (`aten::add`).

    `what` names the set. `quoted` is the published number, "" if there is none. `method` describes the counting.
    """

    what: str
    overloads: int
    names: int
    quoted: str
    method: str


def totals() -> tuple[Total, ...]:
    """All counts: of registered operators, composite ones, decomposition tables, prims, and Inductor's lowerings."""
    return (*_registered_totals(), *_composites(), *_tables(), *_prims(), *_inductor())


def _total(what: str, overloads: Iterable[str], method: str, quoted: str = "") -> Total:
    found = set(overloads)
    return Total(what, len(found), len({_base(name) for name in found}), quoted, method)


def _base(name: str) -> str:
    """Operator name without overload: `aten::add` for `aten::add.Tensor`, `aten.add` for `aten.add.Tensor`."""
    if "::" in name:
        return name.partition(".")[0]
    return name.rpartition(".")[0]


def _registered_totals() -> Iterator[Total]:
    every = tables.all_overloads()
    names = "torch._C._dispatch_get_all_op_names()"
    aten, ops = [name for name in every if name.startswith("aten::")], list(tables.aten_overloads())
    yield _total("registered, all namespaces", every, names)
    yield _total("registered in aten", aten, f"those of {names} that begin with aten::", "2000+ overloads, 1200+ names")
    yield _total("aten, changing no argument", (name for name, op in ops if not tables.is_mutable(op)),
                 "aten overloads whose schema is not mutable: no add_, no out=", "~750 canonical")  # fmt: skip
    core = [name for name, op in ops if tables.is_core(op)]
    yield _total("core ATen", core, "aten overloads with torch.Tag.core in their tags")


def _composites() -> Iterator[Total]:
    kinds = (
        ("composite, taken apart in C++ below autograd", "CompositeImplicitAutograd"),
        ("one kernel for every device, derivative of its own", "CompositeExplicitAutograd"),
    )
    for what, key in kinds:
        found = [name for name in tables.overloads_with_kernel(key) if name.startswith("aten::")]
        yield _total(f"aten, {what}", found,
                     f"torch._C._dispatch_has_kernel_for_dispatch_key(name, {key!r})")  # fmt: skip


def _tables() -> Iterator[Total]:
    methods: dict[tables.TableName, tuple[str, str]] = {
        "core ATen": ("in core ATen's decomposition table", "torch._decomp.core_aten_decompositions()"),
        "Inductor": ("in Inductor's decomposition table", "torch._inductor.decomposition.select_decomp_table()"),
        "prims": ("with a decomposition or reference", "torch._decomp.decomposition_table, and torch._refs by name"),
    }
    for name, (what, method) in methods.items():
        yield _total(what, map(str, tables.table(name)), f"entries of {method}")


def _prims() -> Iterator[Total]:
    registered = [name for name in tables.all_overloads() if name.startswith("prims::")]
    published = [f"prims::{name}" for name in tables.prims()]
    references = [f"refs::{name}" for name in tables.references()]
    yield _total("prims, published", published, "names in torch._prims.__all__", "~250")
    yield _total("prims, registered", registered, "overloads in namespace prims, Inductor's own among them", "~250")
    yield _total("references", references, "names in torch._refs.__all__; its nn, linalg, fft and special have more")


def _inductor() -> Iterator[Total]:
    ops, in_table = list(tables.lowered_overloads()), set(map(str, tables.table("Inductor")))
    lowered = set(map(str, ops))
    yield _total("Inductor lowers", lowered, "keys of torch._inductor.lowering.lowerings")
    yield _total("Inductor lowers, without decomposition", lowered - in_table, "of these, not in its table")
    yield _total("Inductor only calls ATen's kernel", map(str, filter(tables.only_falls_back, ops)),
                 "of these, where the lowering is a fallback_handler")  # fmt: skip
    yield _total("Inductor may call ATen's kernel", map(str, tables.fallback_overloads()),
                 "those in torch._inductor.lowering.fallbacks")  # fmt: skip
    yield _total("taken out of Inductor's table", map(str, tables.excluded_by_inductor()),
                 "those in torch._inductor.decomposition.decomps_to_exclude")  # fmt: skip
