"""Measured times of kernels and lines as users see them: tables, text, the static view, the front end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.record import KernelTime, LineTime, Record
from explorer.findings.timing.heat import heats, seconds_in_words, source_heat
from explorer.findings.timing.heat_text import heat_text
from explorer.findings.timing.measured import add_measured_times, measured_times
from explorer.findings.timing.tables import kernel_times, line_times
from explorer.reading.kernel_table import list_of_kernels
from explorer.run.payload import Payload
from explorer.run.static_view import twin
from explorer.run.text import summary
from tests.explorer.small_record import small_record

FIRST, SECOND = "source[cell].L2", "source[cell].L3"
CALL = "kernels[0/0 forward]"


def timed() -> Record:
    """Two kernels in the forward, and an addition in the backward without a kernel in the record."""
    return replace(
        small_record(),
        kernel_times=(
            KernelTime(
                "extern_kernels.mm",
                "compiled",
                "forward",
                30e-6,
                2,
                kernel=f"{CALL}.call_L2",
                call=f"{CALL}.call_L2",
                op="aten::mm",
                functions=("gemm", "Memset (Device)"),
                bytes=896,
                flops=1024,
                memory_share=0.25,
                compute_share=0.5,
                nodes=("forward[0/0].mm",),
                lines=(FIRST,),
            ),
            KernelTime(
                "cpp_fused_div_0",
                "compiled",
                "forward",
                10e-6,
                1,
                kernel=f"{CALL}.cpp_fused_div_0",
                call=f"{CALL}.call_L3",
                nodes=("forward[0/0].div",),
                lines=(SECOND,),
            ),
            KernelTime("vectorized_add", "compiled", "backward", 10e-6, 1, op="aten::add"),
            KernelTime("sgd", "compiled", "optimizer", 50e-6, 1, op="aten::add_"),
            KernelTime("gemm", "eager", "forward", 40e-6, 1, op="aten::mm", lines=(FIRST,)),
        ),
        line_times=(
            LineTime(FIRST, "eager", "forward", 40e-6, 60e-6),
            LineTime(FIRST, "eager", "backward", 10e-6, 10e-6),
            LineTime(FIRST, "compiled", "forward", 30e-6, 40e-6),
            LineTime(SECOND, "compiled", "forward", 10e-6, 10e-6),
            LineTime("", "compiled", "backward", 10e-6, 10e-6),
            LineTime("", "compiled", "optimizer", 50e-6, 50e-6),
        ),
    )


def test_kernel_times_table_has_time_and_peak_shares() -> None:
    table = kernel_times(timed()).set_index("name")
    product = table.loc["extern_kernels.mm"]
    assert product["us"] == pytest.approx(30)
    assert product["share"] == pytest.approx(0.3)
    assert (product["bandwidth_percent"], product["peak_percent"]) == (25, 50)
    assert product["gb_per_second"] == pytest.approx(896 / 30e-6 / 1e9)
    assert product["where"] == "cell:2"
    assert product["functions"] == "gemm; Memset (Device)"


def test_unmatched_kernels_keep_their_name_and_share() -> None:
    table = kernel_times(timed())
    assert list(table["name"]) == [
        "optimizer: sgd",
        "extern_kernels.mm",
        "cpp_fused_div_0",
        "unmatched: vectorized_add",
        "gemm",
    ]
    assert table.groupby("side", observed=True)["share"].sum().tolist() == pytest.approx([1, 1])


def test_calls_of_one_kernel_are_one_row() -> None:
    record = timed()
    again = replace(record.kernel_times[1], call=f"{CALL}.call_L9", seconds=5e-6)
    table = kernel_times(record.with_fields(kernel_times=(*record.kernel_times, again)))
    (row,) = table[table["name"] == "cpp_fused_div_0"].to_dict("records")
    assert (row["us"], row["launches"]) == (pytest.approx(15), 2)


def test_line_times_table_has_own_and_total_time() -> None:
    table = line_times(timed())
    first = table[(table["where"] == "cell:2") & (table["side"] == "eager") & (table["half"] == "forward")].iloc[0]
    assert (first["us"], first["total_us"]) == (pytest.approx(40), pytest.approx(60))
    assert first["code"].startswith("scores = x @ w")
    assert table["where"].isna().sum() == 2


@pytest.mark.parametrize("make", [kernel_times, line_times])
def test_tables_without_rows_have_the_same_columns(make: object) -> None:
    empty, full = make(small_record()), make(timed())  # type: ignore[operator]
    assert len(empty) == 0
    assert list(empty.columns) == list(full.columns)
    assert list(empty.dtypes.map(str)) == list(full.dtypes.map(str))


def test_kernel_list_has_columns_for_measurements() -> None:
    shown = list_of_kernels(timed())
    assert shown is not None
    titles = [column["title"] for column in shown["columns"]]
    rows = {row["id"]: dict(zip(titles, row["cells"], strict=True)) for row in shown["rows"]}
    product = rows[f"{CALL}.call_L2"]
    assert product["Measured"] == pytest.approx(30e-6)
    assert [product[name] for name in ("Share", "Bandwidth", "Peak")] == [30.0, 25.0, 50.0]
    assert rows[f"{CALL}.cpp_fused_div_0"]["Bandwidth"] is None
    before = list_of_kernels(small_record())
    assert before is not None
    assert "Measured" not in [column["title"] for column in before["columns"]]


def test_cpu_times_have_no_gpu_peak_share() -> None:
    record = timed()
    times = tuple(replace(time, device="cpu", memory_share=None) for time in record.kernel_times)
    shown = list_of_kernels(record.with_fields(kernel_times=times))
    assert shown is not None
    about = {column["title"]: column["about"] for column in shown["columns"]}
    assert "CPU" in about["Measured"]
    assert "Bandwidth" not in about


def test_frontend_gets_microseconds_by_row_side_and_half() -> None:
    assert source_heat(timed()) == {
        "device": "GPU",
        "halves": ["forward", "backward"],
        "rows": {
            "source[cell]": {
                "2": [[[60.0, 10.0], [40.0, 10.0]], [[40.0, 0.0], [30.0, 0.0]]],
                "3": [[[0.0, 0.0], [0.0, 0.0]], [[10.0, 0.0], [10.0, 0.0]]],
            }
        },
    }
    assert Payload(timed()).manifest()["heat"] == source_heat(timed())
    assert source_heat(small_record()) == {}


def test_nodes_share_kernel_time_without_loss() -> None:
    found = measured_times(timed())
    assert found["forward[0/0].mm"] == pytest.approx(30)
    assert found["captured[0/0].scores"] == pytest.approx(30)
    assert found["captured[0/0].softmax"] == pytest.approx(10)
    assert found[f"{CALL}.cpp_fused_div_0"] == pytest.approx(10)
    assert "backward[0/0].mul" not in found, "nothing is known of it"
    shown = {entity.id: entity.attrs for entity in add_measured_times(timed()).entities()}
    assert shown["forward[0/0].mm"]["measured_µs"] == 30.0
    assert shown[FIRST]["eager_time"] == "70 µs: 60 µs forward, 10 µs backward"
    assert shown[FIRST]["compiled_time"] == "40 µs forward"


def test_record_without_times_is_unchanged() -> None:
    record = small_record()
    assert add_measured_times(record) is record
    assert heat_text(record) == ""


def test_summary_names_hottest_lines_and_unmatched_time() -> None:
    text = summary(timed())
    assert [line.split("  ")[0] for line in heat_text(timed()).splitlines()] == [
        "time by line (GPU)",
        "cell:2",
        "cell:3",
        "unmatched: in no line",
        "the optimizer",
    ]
    assert "unmatched: in no line  20 % of compiled" in heat_text(timed())
    assert "time by line (GPU)" in text
    (first,) = [heat for heat in heats(timed()) if heat.line == FIRST]
    assert seconds_in_words(first, "compiled") == "40 µs forward"


def test_static_view_escapes_the_same_content() -> None:
    html = twin(timed())
    assert "Time by line" in html
    assert "unmatched: in no line" in html
    assert "<script>" not in html
