"""All rules of lowering in one table: the full name of an operator -> its rule.

A rule is `rule(low, node, *arguments)`, with the node's arguments lowered: tensors as `Tensor`, sizes as `Index`. It
returns a `Tensor`, or a tuple of these. It raises NoRuleError, with the reason, for a call that it has no loops for.
"""

from __future__ import annotations

from compiler.backend.lower.convolutions import CONVOLUTIONS
from compiler.backend.lower.indexing import INDEXING
from compiler.backend.lower.pointwise import POINTWISE
from compiler.backend.lower.products import PRODUCTS
from compiler.backend.lower.random import RANDOM
from compiler.backend.lower.reductions import REDUCTIONS
from compiler.backend.lower.scattering import SCATTERING
from compiler.backend.lower.value import Rule
from compiler.backend.lower.views import VIEWS
from compiler.backend.lower.windows import WINDOWS

RULES: dict[str, Rule] = {
    **POINTWISE, **VIEWS, **REDUCTIONS, **INDEXING, **PRODUCTS, **CONVOLUTIONS, **RANDOM, **SCATTERING, **WINDOWS,
}  # fmt: skip
