"""Differentiation rules, in a table by the name of the backward node."""

from __future__ import annotations

from compiler.autograd.formulas import layers, pointwise, products, reductions, shapes, twice
from compiler.autograd.formulas.rule import Local, Rule, Slot

__all__ = ["IN_WORDS", "NOT_IN_TABLE", "RULES", "Local", "Rule", "Slot", "rule_of"]

NOT_IN_TABLE = "formula not in the table"

RULES: dict[str, Rule] = {
    **pointwise.RULES,
    **products.RULES,
    **reductions.RULES,
    **shapes.RULES,
    **layers.RULES,
    **twice.RULES,
}


def _unknown(_: Local, __: object) -> None:
    """Return None: the node does not expose the values that the formula needs."""


IN_WORDS: dict[str, Rule] = {
    "CopySlices": Rule(
        "CopySlices", "passes to what was kept, and by the rule of the write to what was written",
        "self, with a view of it written to in place",
        (
            Slot("self", "grad where nothing was written; what the write's own rule says where it was", _unknown),
            Slot("written", "what the write's own rule says of grad, where it was written", _unknown),
        ),
    ),
    "MkldnnRnnLayerBackward0": Rule(
        "MkldnnRnnLayerBackward0", "backpropagation through time", "an LSTM layer over all time steps, in one kernel",
        tuple(
            Slot(name, "Σ over time steps, backward, of the cell's own rules (σ, tanh and products)", _unknown)
            for name in ("input", "weight_ih", "weight_hh", "bias_ih", "bias_hh", "hx", "cx")
        ),
    ),
}  # fmt: skip
"""Rules in words only, for nodes that do not expose the values that code would need."""


def rule_of(node: str) -> Rule | None:
    """The rule for a backward node, by its name (`MulBackward0`); None if there is none."""
    name = node.removesuffix("_copy")
    return RULES.get(name) or IN_WORDS.get(name)
