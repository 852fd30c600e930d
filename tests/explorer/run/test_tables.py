"""Every kind of fact as a DataFrame: fixed columns, sensible dtypes, values that sort and filter."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from compiler.record import Record
from compiler.record.options import Options
from explorer.findings.timing.tables import timings
from explorer.reading.columns import COLUMNS
from explorer.run import tables
from tests.explorer.small_record import small_record

FACTS = [name for name in COLUMNS if name != "linked"]
NAMES = [*FACTS, "ops"]
DTYPES = {"string", "category", "Int64", "Float64", "float64", "boolean", "object"}


def made(name: str, record: Record) -> pd.DataFrame:
    """The table of this name."""
    return timings(record) if name == "timings" else getattr(tables, name)(record)


@pytest.mark.parametrize("name", FACTS)
def test_columns_and_dtypes_are_independent_of_rows(name: str) -> None:
    full = made(name, small_record())
    empty = made(name, Record("", Options()))
    assert list(empty.columns) == list(COLUMNS[name])
    assert list(full.columns)[: len(empty.columns)] == list(empty.columns)
    assert len(full) > 0
    assert len(empty) == 0
    assert {str(dtype) for dtype in [*full.dtypes, *empty.dtypes]} <= DTYPES
    assert full.dtypes[empty.columns].map(str).equals(empty.dtypes.map(str))


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_holds_a_list(name: str) -> None:
    table = made(name, small_record())
    assert not any(isinstance(cell, list | tuple | dict) for column in table for cell in table[column])


def test_ops_counts_each_op_in_each_stage() -> None:
    ops = tables.ops(small_record())
    assert list(ops.columns) == ["captured", "forward", "backward"]
    assert ops.loc["aten.mm.default"].to_dict() == {"captured": 0, "forward": 1, "backward": 1}
    assert ops.loc["torch.softmax", "captured"] == 1
    assert (ops.dtypes.map(str) == "Int64").all()
    assert (ops.index.name, ops.columns.name) == ("op", "stage")


def test_ops_of_a_record_without_graphs_is_empty() -> None:
    assert tables.ops(Record("", Options())).shape == (0, 0)


def test_ops_sums_graphs_and_sorts_by_count() -> None:
    record = small_record()
    twice = record.with_fields(artifacts=record.artifacts + (record["backward"],) * 2)
    ops = tables.ops(twice)
    assert ops.loc["aten.mm.default", "backward"] == 3
    assert list(ops.index[:2]) == ["aten.mm.default", "aten.mul.Tensor"]


def test_graphs_counts_nodes_inputs_calls_and_bytes_written() -> None:
    graphs = tables.graphs(small_record()).set_index("artifact")
    row = graphs.loc["forward[0/0]"]
    assert row[["nodes", "inputs", "calls", "ops", "outputs"]].to_list() == [5, 2, 2, 2, 2]
    assert row["bytes"] == 2 * 8 * 4 * 4
    assert row["function"] == "f"


def test_stages_sort_in_pipeline_order() -> None:
    stages = tables.graphs(small_record())["stage"]
    assert stages.cat.ordered
    assert list(stages.sort_values()) == ["captured", "forward", "backward"]


def test_saved_lists_forward_values_the_backward_reads() -> None:
    saved = tables.saved(small_record()).set_index("name")
    assert list(saved.index) == ["primals_1", "div"]
    facts = saved.loc["div", ["op", "dtype", "shape", "bytes"]].to_list()
    assert facts == ["aten.div.Tensor", "float32", "[8, 4]", 128]
    assert saved.loc["primals_1", ["op", "source"]].to_list() == ["input", "L['x']"]
    assert pd.isna(saved.loc["div", "source"])


def test_kernels_has_bytes_only_where_they_are_counted() -> None:
    record = small_record()
    uncounted = record.with_fields(kernels=(record.kernels[0], replace(record.kernels[1], bytes=0)))
    kernels = tables.kernels(uncounted).set_index("name")
    assert kernels.loc["extern_kernels.mm", "bytes"] == 896
    assert pd.isna(kernels.loc["cpp_fused_div_0", "bytes"])


def test_decision_numbers_become_columns() -> None:
    decisions = tables.decisions(small_record())
    assert decisions.columns[-1] == "bytes"
    assert decisions["bytes"].to_list() == [128.0, pd.NA]
    assert decisions.loc[0, "subjects"] == "ir.op0; ir.op1"


def test_guards_are_joined_to_one_condition() -> None:
    assert tables.guards(small_record()).set_index("id").loc["guard[0/0].0", "code"] == "check(x) and x.dim() == 2"


def test_changing_a_table_changes_no_other() -> None:
    record = small_record()
    changed = tables.breaks(record)
    changed.loc[0, "code"] = "changed"
    assert tables.breaks(record).loc[0, "code"] == "print(x)"


def test_breaks_table_has_location_reason_and_advice() -> None:
    (row,) = tables.breaks(small_record()).to_dict("records")
    place = ("where", "file", "line", "column", "end_column", "function", "code")
    assert [row[name] for name in place] == ["cell:2", "cell", 2, 4, 12, "f", "print(x)"]
    assert (row["graph"], row["ops_before"], row["ops_after"], row["crossing"]) == ("0/0", 2, 3, 1)
    assert row["change"] == "Print from inside the graph.; Or print <later>."
    assert row["rewrite"] == "    torch._higher_order_ops.print(x)"
    assert row["settings"] == "torch._dynamo.config.x.add(print)"
    assert row["chain"] == "cell:9 in f > cell:2 in show"
    assert (row["outcome"], row["resumed_by"]) == ("resumed", "1/0")


def test_break_with_only_a_line_has_no_column() -> None:
    record = small_record()
    line_only = replace(record.breaks[0], chain=(replace(record.breaks[0].chain[1], column=0, end_column=0),))
    unplaced = replace(record.breaks[0], chain=(), ended="", suggestions=())
    table = tables.breaks(record.with_fields(breaks=(line_only, unplaced)))
    assert table["column"].isna().all()
    assert table["where"].to_list() == ["cell:2", "cell:2"]
    assert table.loc[1, ["graph", "change", "rewrite", "settings"]].isna().all()


def test_argument_guards_come_first_with_failures() -> None:
    guards = tables.guards(small_record())
    assert guards["argument"].to_list() == ["x", "sin"]
    assert guards["failed"].to_list() == [1, 0]
    assert guards["internal"].to_list() == [False, True]
    assert guards["cost_us"].to_list() == [0.034, pd.NA]
    assert guards.loc[0, "words"] == "`x` is float32, contiguous, 8×16, on cpu"


def test_recompiles_table_has_argument_values_and_call() -> None:
    (row,) = tables.recompiles(small_record()).to_dict("records")
    told = ("cause", "argument", "old", "new", "call", "called_from", "entries")
    assert [row[name] for name in told] == ["shape", "x", "8", "9", 2, "cell:12", 1]
    assert (
        row["failures"] == "0/0: `n` was the int 1, is now the int 2; 0/0: size of `x` in dimension 0 was 8, is now 9"
    )


def test_frames_count_their_breaks_and_guards() -> None:
    (row,) = tables.frames(small_record()).to_dict("records")
    assert (row["breaks"], row["guards"], row["graphs"]) == (1, 2, "captured[0/0]")


def test_unbounded_symbols_have_no_number() -> None:
    (row,) = tables.symbols(small_record()).to_dict("records")
    assert (row["name"], row["source"], row["hint"], row["low"]) == ("s77", "x.size(0)", 9, 2)
    assert row["high"] is None


@pytest.mark.parametrize("name", ["breaks", "guards", "recompiles", "frames", "symbols"])
def test_first_columns_fit_120_characters(name: str) -> None:
    table = made(name, small_record()).iloc[:, :6]
    assert max(map(len, table.to_string(max_colwidth=50).splitlines())) <= 120
