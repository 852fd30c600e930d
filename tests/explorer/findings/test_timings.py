"""Measured candidates as users see them: table, text, stage and chart.

The hand-written numbers have known ratios; nothing here is timed.
"""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from compiler.record import Candidate, Record
from compiler.record.options import Options
from explorer.findings import findings
from explorer.findings.timing.chart import svg, timing_chart
from explorer.findings.timing.compared import Ratio, by_call, timed_candidates
from explorer.findings.timing.finding import timing_finding
from explorer.findings.timing.tables import timings
from explorer.findings.timing.words import lead_sentences, ratio_text, round_to_three_digits, three_digits, time_text
from explorer.reading.plain_text import WIDTH
from explorer.render.static import document_html
from explorer.run import tables, text
from explorer.run.run import Run
from tests.explorer.findings.documents import parts_of
from tests.explorer.findings.timed_record import MS, NOISE, candidate, measurement, timed_record
from tests.explorer.golden import assert_golden
from tests.explorer.small_record import small_record


def with_candidates(*candidates: Candidate) -> Record:
    return timed_record("cpu").with_fields(candidates=candidates)


def lead(*candidates: Candidate) -> str:
    record = with_candidates(*candidates)
    [group] = by_call(timed_candidates(record))
    return " ".join(lead_sentences(group, record))


def test_table_has_candidates_with_speedup_and_break_even() -> None:
    table = timings(timed_record()).set_index("name")
    assert list(table.index) == [
        "eager", "aot_eager", "inductor", "inductor max-autotune", "openxla", "inductor reduce-overhead",
    ]  # fmt: skip
    assert table.loc["inductor", "speedup"] == pytest.approx(2)
    assert table.loc["inductor", "speedup_low"] == pytest.approx(2.0 * 0.91 / 0.98)  # eager's and its own third round
    assert table.loc["inductor", "speedup_high"] == pytest.approx(2.0 * 1.09 / 1.02)
    assert table.loc["inductor", "break_even_calls"] == 24_000
    assert table.loc["inductor", "guard_seconds"] == pytest.approx(0.02 * MS)
    assert table.loc["inductor reduce-overhead", "problem"].startswith("CUDA graphs need a GPU")


def test_slower_or_noisy_candidate_never_breaks_even() -> None:
    table = timings(timed_record()).set_index("name")
    assert table["break_even_calls"].isna()[["eager", "aot_eager", "openxla", "inductor reduce-overhead"]].all()
    assert table["speedup"].isna()[["eager", "inductor reduce-overhead"]].all()


def test_each_kind_of_call_has_its_own_eager() -> None:
    forward = [replace(item, what="forward") for item in (candidate("eager", 3 * MS), candidate("inductor", 1 * MS))]
    found = timed_candidates(with_candidates(candidate("eager", 2 * MS), candidate("inductor", 1 * MS), *forward))
    assert [item.ratio and round(item.ratio.value) for item in found] == [None, 2, None, 3]
    assert len(by_call(found)) == 2
    assert len({item.id for item in found}) == 4


def test_times_without_eager_have_no_speedup() -> None:
    table = timings(with_candidates(candidate("inductor", 1 * MS)))
    assert table["seconds"].notna().all()
    assert table["speedup"].isna().all()
    assert "Nothing that was compiled could be compared" in lead(candidate("inductor", 1 * MS))


def test_stage_compile_times_have_their_own_table() -> None:
    table = tables.stage_times(small_record())
    assert table["artifact"].tolist() == ["captured[0/0]", "forward[0/0]"]
    assert table["seconds"].tolist() == [0.121, 0.0042]


def test_conclusion_comes_first() -> None:
    eager = candidate("eager", 2 * MS)
    assert lead(eager, candidate("inductor", 1 * MS, compile_seconds=10)).startswith("Compiled it is 2.00 × as fast")
    assert "have paid after 10,000 calls" in lead(eager, candidate("inductor", 1 * MS, compile_seconds=10))
    slower = lead(eager, candidate("inductor", 4 * MS, compile_seconds=10))
    assert slower.startswith("Compiled it is slower, 0.50 × as fast")
    assert "paid" not in slower
    same = lead(eager, candidate("inductor", 2.01 * MS, compile_seconds=10))
    assert same.startswith("Compiled it takes as long as eager, within noise")


def test_no_faster_candidate_is_stated() -> None:
    told = lead(candidate("eager", 2 * MS), candidate("aot_eager", 3 * MS), candidate("inductor", 4 * MS))
    assert told.endswith("None that was tried is faster than eager.")
    assert "Fastest" not in told


def test_speedup_without_rounds_uses_quartiles() -> None:
    eager, compiled = (replace(candidate(name, seconds * MS), rounds=()) for name, seconds in (("eager", 2), ("x", 1)))
    ratio = timed_candidates(with_candidates(eager, compiled))[1].ratio
    assert ratio is not None
    assert (ratio.low, ratio.high) == pytest.approx((1.96 / 1.02, 2.04 / 0.98))


def test_fastest_other_candidate_is_named() -> None:
    told = lead(candidate("eager", 2 * MS), candidate("inductor", 1 * MS), candidate("inductor max-autotune", 0.5 * MS))
    assert "Fastest is inductor max-autotune: 0.500 ms, 4.00 ×" in told


def test_golden_timing_stage() -> None:
    assert_golden("timing.txt", Run(timed_record())["timing"].text.rstrip("\n"))


def test_summary_comparison_fits_the_width() -> None:
    lines = text.summary(timed_record()).splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("time of one call"))
    assert_golden("timing_summary.txt", "\n".join(lines[first : lines.index("", first)]))
    assert max(map(len, lines)) <= WIDTH


def static_html(record: Record) -> str:
    found = timing_finding(record)
    assert found is not None
    return document_html(found.document)


def test_cpu_times_are_never_presented_as_gpu_times() -> None:
    told = "not of the NVIDIA H100 SXM5 80 GB that the code is for"
    for shown in (text.summary(timed_record()), static_html(timed_record()), Run(timed_record())["timing"].text):
        assert told in " ".join(shown.split())
    assert "that the code is for" not in text.summary(timed_record("cpu"))


def test_estimate_is_separate_from_measurements() -> None:
    heading = "Estimate, not a measurement: NVIDIA H100 SXM5 80 GB, which is not here"
    shown = Run(timed_record())["timing"].text
    assert shown.index(heading) > shown.index("inductor max-autotune  0.800 ms")
    assert "An estimate, not a measurement: on the NVIDIA H100 SXM5 80 GB" in " ".join(
        text.summary(timed_record()).split()
    )
    assert heading in static_html(timed_record())
    assert heading not in Run(timed_record("cpu"))["timing"].text
    [finding] = [found for found in findings(timed_record()) if found.artifact.stage == "timing"]
    sections = parts_of(finding.data, "section")
    assert [section["heading"] for section in sections if section["style"] == "estimate"] == [heading]
    assert heading not in str(parts_of(finding.data, "chart"))
    assert not any("stimate" in entity.label for entity in finding.artifact.entities)


def test_noise_and_interrupt_come_before_the_numbers() -> None:
    record = timed_record("cpu").with_fields(measurement=measurement(interrupted=True))
    shown = Run(record)["timing"].text
    assert shown.index("It was stopped before all candidates were measured") < shown.index("a call  ")
    assert shown.index(NOISE) < shown.index("a call  ")


def test_each_candidate_is_an_entity_on_its_line() -> None:
    [finding] = [found for found in findings(timed_record()) if found.artifact.stage == "timing"]
    lines = finding.artifact.text.splitlines()
    for entity in finding.artifact.entities:
        own = [line for line, ids in finding.artifact.lines.items() if entity.id in ids]
        assert lines[own[0] - 1].startswith(entity.label)
    assert [entity.kind for entity in finding.artifact.entities] == ["candidate"] * 6
    assert finding.view == "times"
    rows = [name for row in parts_of(finding.data, "row") for name in row.get("ids", ())]
    assert list(dict.fromkeys(rows)) == [item.id for item in finding.artifact.entities]


def test_untimed_record_has_no_stage_or_chart() -> None:
    record = small_record().with_fields(candidates=())
    assert "timing" not in {found.artifact.stage for found in findings(record)}
    assert timing_finding(record) is None
    with pytest.raises(ValueError, match="explore with --time"):
        timing_chart(record)


def test_chart_has_bars_quartiles_and_eager_line() -> None:
    [axes] = timing_chart(timed_record()).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "eager", "aot_eager", "inductor", "inductor max-autotune", "openxla",
    ]  # fmt: skip
    assert [round(bar.get_width(), 3) for bar in axes.patches] == [2.0, 2.6, 1.0, 0.8, 1.95]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"] == [2.0]
    assert len(axes.containers) == 10  # a bar and its quartiles
    assert "H100" in axes.get_title(loc="left")


def test_chart_is_deterministic_with_text_as_text() -> None:
    first, second = (svg(timing_chart(timed_record())) for _ in range(2))
    assert first == second
    words = " ".join("".join(node.itertext()) for node in ElementTree.parse(io.StringIO(first)).iter())
    assert "2.00 × as fast" in words


def test_run_plots_its_timings() -> None:
    run = Run(timed_record())
    assert len(run.timing.plot()._repr_png_()) > 1000
    assert len(run.timing.candidates) == 6


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(8.12e-7, "812 ns"), (1.234e-5, "12.3 µs"), (0.9996e-3, "1.00 ms"), (0.0995, "99.5 ms"), (24, "24.0 s"),
     (1234, "1,234 s")],
)  # fmt: skip
def test_times_have_three_digits(seconds: float, words: str) -> None:
    assert time_text(seconds) == words


def test_small_numbers_keep_three_digits_counts_are_rounded() -> None:
    assert [three_digits(value) for value in (0.0312, 0.8, 0.9999, 9.999, 0.0)] == [
        "0.0312",
        "0.800",
        "1.00",
        "10.0",
        "0.00",
    ]
    assert [round_to_three_digits(count) for count in (7, 1234, 23_999)] == [7, 1230, 24_000]
    assert [ratio_text(Ratio(value, 1, 2)) for value in (0.046, 9.999, 14.09)] == ["0.05 ×", "10.0 ×", "14.1 ×"]


def test_missing_time_is_not_zero() -> None:
    failed = Candidate("inductor", "inductor", "default", "forward", "cpu", problem="g++ is missing")
    record = Record("f", Options(), candidates=(failed,))
    assert "inductor: not measured: g++ is missing" in Run(record)["timing"].text
    assert static_html(record).count("g++ is missing") == 1


def test_quartiles_lie_around_the_median() -> None:
    finding = next(found for found in findings(timed_record()) if found.artifact.stage == "timing")
    rows = parts_of(finding.data, "chart")[0]["data"]["rows"]
    assert rows
    for row in rows:
        assert row["low"] < row["seconds"] < row["high"]
