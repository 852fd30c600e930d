"""`tcompile.operators()`: how many operators this torch has, beside what the literature says."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def operators() -> pd.DataFrame:
    """Count the operators of this torch, as a table with one row for each set.

    The sets go from all registered operators down to prims, and to those that Inductor leaves to ATen.

    `overloads` counts `aten::add.Tensor` and `aten::add.Scalar` as two, `names` as one. `quoted` is what pytorch.org
    says of PyTorch 2 (https://pytorch.org/get-started/pytorch-2-x/), `method` is how it was counted here.
    """
    import pandas as pd

    from compiler.decompose.counts import totals

    rows = [(total.what, total.overloads, total.names, total.quoted, total.method) for total in totals()]
    table = pd.DataFrame(rows, columns=["what", "overloads", "names", "quoted", "method"])
    return table.set_index("what").astype(
        {"overloads": "Int64", "names": "Int64", "quoted": "string", "method": "string"}
    )
