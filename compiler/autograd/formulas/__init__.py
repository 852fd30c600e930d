"""The rules of differentiation that we can write down: a table by the name of the backward node."""

from __future__ import annotations

from compiler.autograd.formulas import layers, pointwise, products, reductions, shapes
from compiler.autograd.formulas.rule import Local, Rule, Slot

__all__ = ["NOT_IN_TABLE", "RULES", "Local", "Rule", "Slot", "rule_of"]

NOT_IN_TABLE = "formula not in the table"

RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **products.RULES,
    **reductions.RULES,
    **shapes.RULES,
    **layers.RULES,
}


def rule_of(node: str) -> Rule | None:
    """The rule for a backward node by its name (`MulBackward0`), or None."""
    return RULES.get(node)
