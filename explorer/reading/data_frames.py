"""Facts as pandas DataFrames with fixed columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from explorer.reading.columns import ASKED, COLUMNS
from explorer.reading.stages import ranked_stage


def own_cells(table: str, fact: Any, separator: str = "; ") -> dict[str, Any]:
    """The cells of those columns that are named as a field of the fact; empty text counts as missing."""
    names = [name for name in COLUMNS[table] if hasattr(fact, name)]
    return {name: None if (cell := _cell(getattr(fact, name), separator)) == "" else cell for name in names}


def facts_table(table: str, facts: Iterable[Any], separator: str = "; ") -> pd.DataFrame:
    """Facts whose fields are named as the table's columns."""
    return table_of(table, [{name: _cell(getattr(fact, name), separator) for name in COLUMNS[table]} for fact in facts])


def _cell(value: Any, separator: str) -> Any:
    return separator.join(str(part) for part in value) if isinstance(value, tuple) else value


def table_of(table: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as the table of this name, with its columns in their order."""
    columns = COLUMNS[table] if table in COLUMNS else ASKED[table]
    return pd.DataFrame(
        {name: pd.Series([row[name] for row in rows], dtype=_dtype(dtype, name, rows))
         for name, dtype in columns.items()}
    )  # fmt: skip


def _dtype(dtype: str, name: str, rows: list[dict[str, Any]]) -> Any:
    if dtype != "stage":
        return dtype
    return pd.CategoricalDtype(sorted({row[name] for row in rows}, key=ranked_stage), ordered=True)
