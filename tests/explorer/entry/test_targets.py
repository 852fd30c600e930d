"""`explorer.targets()`: the table of GPUs."""

from __future__ import annotations

import pandas as pd

import explorer
from compiler.targets import TARGETS


def test_every_target_is_a_row() -> None:
    table = explorer.targets()
    assert list(table.index) == [target.name for target in TARGETS]
    assert table.loc["h100", "tflops_bfloat16"] == 989.4
    assert table.loc["a100", "memory_gib"] == 80


def test_unsupported_format_of_a_gpu_is_missing() -> None:
    assert pd.isna(explorer.targets().loc["t4", "tflops_bfloat16"])


def test_columns_are_typed_and_every_row_has_sources() -> None:
    table = explorer.targets()
    assert "object" not in {str(dtype) for dtype in table.dtypes}
    assert table["sources"].str.len().min() > 0
