"""`tcompile.decompose("aten.gelu", x)`: decompose one call of an operator, level by level."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import pandas as pd

    from compiler.decompose.one_op import Decomposition, Level


@overload
def decompose() -> pd.DataFrame: ...
@overload
def decompose(operator: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> OpLevels: ...
def decompose(
    operator: str | Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
) -> OpLevels | pd.DataFrame:
    """Decompose one call of an operator, level by level down to prims.

    >>> print(tcompile.decompose("gelu", torch.randn(8)))

    The levels are the call itself, ATen, core ATen, Inductor's operators and prims. `operator` is a name ("aten.gelu",
    "aten.add.Tensor", "gelu", "torch.nn.functional.gelu", "F.gelu") or the function itself. Backward operators
    ("aten.native_layer_norm_backward") work too. The call changes neither the arguments nor the state of the random
    number generators.

    Without an operator, returns a DataFrame with the operator counts of this torch, one row per operator set.
    `overloads` counts `aten::add.Tensor` and `aten::add.Scalar` as two, `names` as one. `quoted` is the number that
    pytorch.org gives (https://pytorch.org/get-started/pytorch-2-x/), `method` describes how we count.

    Raises OperatorError (a ValueError) for an unknown operator, and for arguments that do not match its signature;
    TypeError if `operator` is neither a name nor callable.
    """
    from compiler.decompose.one_op import decompose_call
    from compiler.decompose.operators import operator_named

    if operator is None:
        return _count_operators()
    name, function = operator_named(operator)
    return OpLevels(decompose_call(name, function, args, kwargs))


def _count_operators() -> pd.DataFrame:
    import pandas as pd

    from compiler.decompose.counts import totals

    rows = [(total.what, total.overloads, total.names, total.quoted, total.method) for total in totals()]
    table = pd.DataFrame(rows, columns=["what", "overloads", "names", "quoted", "method"])
    return table.set_index("what").astype(
        {"overloads": "Int64", "names": "Int64", "quoted": "string", "method": "string"}
    )


class OpLevel:
    """One operator call at one level. Prints the trees, and why the remaining operators are not decomposed.

    `code` is the graph as Python code.
    """

    def __init__(self, found: Level) -> None:
        self.found = found
        self.name, self.code = found.name, found.code

    @property
    def ops(self) -> list[str]:
        """The operators in the graph of this level, in order."""
        return self.found.ops()

    def __str__(self) -> str:
        from explorer.findings.decompose.text import level_text

        return level_text(self.found)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from explorer.findings.decompose.parts import level_fold
        from explorer.render.static import document_html

        return document_html([level_fold(self.found)])


class OpLevels:
    """One operator call at each level. Prints a table of op counts and errors, and the trees of each level.

    `level("prims")` is one level; `levels` has all of them as data. `numbers` and `ops` are DataFrames.
    `source("Inductor")` is the code of the decompositions, `code("prims")` the graph as Python.
    """

    def __init__(self, found: Decomposition) -> None:
        self.found = found
        self.levels = found.levels

    def level(self, name: str) -> OpLevel:
        """One level: "torch", "ATen", "core ATen", "Inductor" or "prims". Raises ValueError for another name."""
        return OpLevel(self.found.level(name))

    @property
    def numbers(self) -> pd.DataFrame:
        """One row per level and dtype: the largest errors against eager, and the tolerance."""
        import pandas as pd

        names = ("dtype", "count", "max_absolute", "max_relative", "tolerance", "verdict", "worst", "note")
        rows = [
            (level.name, *(getattr(item, name) for name in names)) for level in self.levels for item in level.numbers
        ]
        table = pd.DataFrame(rows, columns=["level", *names])
        # Not Float64: pandas shows its 1e-7 as 0.0.
        return table.astype({"max_absolute": "float64", "max_relative": "float64"})

    @property
    def ops(self) -> pd.DataFrame:
        """Number of calls of each operator (rows) at each level (columns)."""
        import pandas as pd

        counts = {level.name: Counter(level.ops()) for level in self.levels}
        table = pd.DataFrame(counts, dtype="Int64").fillna(0)
        table.index.name = "op"
        return table

    def source(self, level: str = "Inductor") -> str:
        """Source of the decompositions that a level used, each preceded by its operator, file and lines.

        Raises ValueError for an unknown level.
        """
        from explorer.findings.decompose.text import sources_text

        roots = self.found.level(level).roots
        return sources_text([pair for root in roots for pair in root.sources()])

    def code(self, level: str = "prims") -> str:
        """The graph at a level, as Python code. Raises ValueError for an unknown level."""
        return self.found.level(level).code

    def __str__(self) -> str:
        from explorer.findings.decompose.text import decomposition_text

        return decomposition_text(self.found)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from explorer.findings.decompose.parts import decomposition_document
        from explorer.render.static import document_html

        return document_html(decomposition_document(self.found))
