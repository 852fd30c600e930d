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


def test_a_format_that_a_gpu_lacks_is_missing() -> None:
    assert pd.isna(explorer.targets().loc["t4", "tflops_bfloat16"])


def test_columns_have_a_type_and_no_row_is_without_a_source() -> None:
    table = explorer.targets()
    assert "object" not in {str(dtype) for dtype in table.dtypes}
    assert table["sources"].str.len().min() > 0
