"""Facts as pandas DataFrames with fixed columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from explorer.reading.columns import ASKED, COLUMNS
from explorer.reading.stages import ranked_stage


class WideTable(pd.DataFrame):  # type: ignore[misc]
    """A DataFrame with many columns, which prints those in `printed`, and names the others."""

    _metadata = ("printed",)
    printed: tuple[str, ...]

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __repr__(self) -> str:
        names = [name for name in self.printed if name in self.columns]
        rows = pd.DataFrame(self)[names].to_string(na_rep="-", max_rows=pd.get_option("display.max_rows"))
        return f"{rows}\nalso: {', '.join(name for name in self.columns if name not in names)}"

    __str__ = __repr__


def own_cells(table: str, fact: Any, separator: str = "; ") -> dict[str, Any]:
    """Values of the fact's fields that are columns of the table; empty text becomes None."""
    return cells_of(fact, COLUMNS[table] if table in COLUMNS else ASKED[table], separator)


def cells_of(fact: Any, columns: Iterable[str], separator: str = "; ") -> dict[str, Any]:
    """Values of the fact's fields that are in `columns`; empty text becomes None."""
    names = [name for name in columns if hasattr(fact, name)]
    return {name: None if (cell := _cell(getattr(fact, name), separator)) == "" else cell for name in names}


def facts_table(table: str, facts: Iterable[Any], separator: str = "; ") -> pd.DataFrame:
    """Convert facts to a DataFrame; every column of the table must be a field of the facts."""
    return table_of(table, [{name: _cell(getattr(fact, name), separator) for name in COLUMNS[table]} for fact in facts])


def _cell(value: Any, separator: str) -> Any:
    return separator.join(str(part) for part in value) if isinstance(value, tuple) else value


def table_of(table: str, rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Convert rows to a DataFrame with the columns and dtypes of the named table."""
    columns = COLUMNS[table] if table in COLUMNS else ASKED[table]
    stages = sorted({row["stage"] for row in rows}, key=ranked_stage) if columns.get("stage") == "stage" else ()
    dtypes = {"stage": pd.CategoricalDtype(stages, ordered=True)}
    return frame_of(rows, {name: dtypes.get(dtype, dtype) for name, dtype in columns.items()})


def frame_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """Make a DataFrame of rows. `columns` maps names to dtypes; cells that a row lacks are NA."""
    return pd.DataFrame(
        {name: pd.Series([row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}
    )


def count_table(counts: Mapping[str, Counter[str]], column: str) -> pd.DataFrame:
    """Table of the calls of each operator (index `op`), one column per key of `counts`; most frequent ones first."""
    table = pd.DataFrame(counts, dtype="Int64").fillna(0)
    table.index = pd.Index(table.index, dtype="string", name="op")
    table.columns = pd.Index(table.columns, dtype="string", name=column)
    most = dict(zip(table.index, table.max(axis=1), strict=True))
    return table.loc[sorted(most, key=lambda op: (-most[op], op))]
