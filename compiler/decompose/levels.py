"""The decomposition levels, from the torch functions that the user called to prims."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imports torch, which tables of a loaded record do not need
    from compiler.torch_api.decomposition_tables import TableName

LEVELS: tuple[str, ...] = ("torch", "ATen", "core ATen", "Inductor", "prims")
TABLES: tuple[TableName, ...] = ("core ATen", "Inductor", "prims")
"""Levels made by a decomposition table. Each is traced from ATen, as compilers do, not from the level above: Inductor's
table keeps some operators that core ATen's decomposes.
"""

ABOUT: dict[str, str] = {
    "torch": "the functions that were called",
    "ATen": "what autograd sees below them: composite operators (CompositeImplicitAutograd) are taken apart in C++",
    "core ATen": "torch._decomp.core_aten_decompositions(): the set that torch.export and other compilers aim at",
    "Inductor": "torch._inductor.decomposition.select_decomp_table(): what TorchInductor lowers",
    "prims": "all that torch._decomp registers, torch._refs among it: prims where there are, ATen for the rest",
}
_ALSO = {"captured": "torch", "core": "core ATen", "coreaten": "core ATen", "inductor's": "Inductor", "prim": "prims"}


def level_named(name: str) -> str:
    """The level with this name, case-insensitive: `core aten`, `core`, `inductor`. Raises ValueError if unknown."""
    known = {level.lower(): level for level in LEVELS} | _ALSO
    wanted = name.strip().lower().replace("_", " ")
    level = known.get(wanted) or known.get(wanted.replace(" ", ""))
    if level is None:
        raise ValueError(f"there is no level {name!r}; the levels are: {', '.join(LEVELS)}")
    return level
