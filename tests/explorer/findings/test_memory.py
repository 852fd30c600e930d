"""Memory in use as a view, a text, tables and a chart."""

from __future__ import annotations

import re

import pytest
import torch
from matplotlib.figure import Figure

from compiler.record import Record
from compiler.record.measure_facts import MemoryEvent
from explorer import explore
from explorer.findings import findings, with_findings
from explorer.findings.memory.finding import memory_finding
from explorer.findings.memory.memory import Line, Step, timelines
from explorer.run.run import Run
from tests.compiler.broken import TORCH
from tests.explorer.explored import mlp_record
from tests.explorer.findings.documents import parts_of
from tests.explorer.golden import assert_golden


def line_of(*steps: tuple[str, str, int, str]) -> Line:
    """A memory line of some steps, each given as action, buffer, bytes and reused buffer."""
    live, made = 0, []
    for what, buffer, size, of in steps:
        live += {"allocate": size, "free": -size}.get(what, 0)
        made.append(Step(MemoryEvent("0/0", "forward", what, buffer, size, live, of=of), live))  # type: ignore[arg-type]
    return Line("compiled", tuple(made))


def test_reused_memory_has_one_name_at_a_time() -> None:
    line = line_of(("allocate", "a", 8, ""), ("reuse", "b", 8, "a"), ("allocate", "c", 4, ""), ("free", "b", 8, ""))
    assert [[each.event.buffer for each in line.alive(number)] for number in range(4)] == [
        ["a"], ["b"], ["b", "c"], ["c"],
    ]  # fmt: skip
    assert (line.peak, line.peak_bytes) == (2, 12)


def test_alias_is_not_a_separate_tensor() -> None:
    line = line_of(("allocate", "a", 8, ""), ("alias", "v", 8, "a"), ("free", "v", 8, ""))
    assert [each.event.buffer for each in line.tensors] == ["a"]


def test_text_shows_peaks_and_the_tensors_live_then() -> None:
    found = memory_finding(mlp_record())
    assert found is not None
    text = found.artifact.text.rstrip("\n")
    if TORCH >= "2.14":  # the seeds of both dropouts are at the first one's line, and were at the last one's
        first, last = r"(randint\.low_out +)explored\.py:25  x = self\.hidden", r"\1explored.py:26  x = self.deeper"
        text, count = re.subn(first, last, text)
        assert count == 1
    assert_golden("memory.txt", text)


def test_tensor_links_to_its_kernel_and_line() -> None:
    record = with_findings(mlp_record())
    tensors = [entity for entity in record["memory"].entities if "eager" not in entity.id.partition(".")[0]]
    made = [entity for entity in tensors if any(".triton" in origin for origin in entity.origins)]
    assert made
    for entity in made:
        linked = record.linked_ids(entity.id)
        assert {"kernels", "fused_ir"} <= {identity.partition("[")[0] for identity in linked}
        kernel = next(origin for origin in entity.origins if ".triton" in origin)
        assert entity.id in record.linked_ids(kernel)
    line = next(identity for identity in record.linked_ids(made[0].id) if identity.startswith("source["))
    assert made[0].id in record.linked_ids(line)


def test_view_has_steps_and_tensor_lifetimes() -> None:
    found = memory_finding(mlp_record())
    assert found is not None
    assert found.view == "memory_chart"
    [data] = [chart["data"] for chart in parts_of(found.data, "chart")]
    assert len(data["rows"]) == len(data["bytes"])
    for timeline in data["timelines"]:
        for side in timeline["sides"]:
            assert len(side["above"]) == len(side["words"])
            assert side["above"][side["peak"]] == max(side["above"])
            for number, first, end, _ in side["spans"]:
                assert data["bytes"][number] >= 0
                assert end == -1 or first < end <= len(side["above"])


def test_tables_and_chart_cover_the_whole_call() -> None:
    run = Run(mlp_record())
    line = timelines(mlp_record())[0].lines["compiled"]
    mine = run.memory.steps[run.memory.steps["side"] == "compiled"]
    assert mine["in_use"].max() == line.peak_bytes
    assert len(mine) == len(line.steps)
    peak = run.memory.peak[run.memory.peak["side"] == "compiled"]
    assert peak["bytes"].sum() == line.peak_bytes
    assert peak["where"].notna().any()
    assert isinstance(run.memory.plot(), Figure)


def test_trace_of_a_real_call_is_compared() -> None:
    run, x = Run(mlp_record()), torch.randn(1024)

    def call() -> torch.Tensor:
        doubled = x * 2
        return doubled.sin()

    table = run.memory.trace(call)
    measured = table[table["side"] == "measured"]
    assert measured["in_use"].max() == 2 * x.nbytes
    assert "what was measured" in str(run["memory"])


def test_record_without_code_has_no_memory_timeline() -> None:
    record: Record = explore(lambda x: x + 1, torch.randn(4), stages=("captured",)).record
    assert "memory" not in {finding.artifact.stage for finding in findings(record)}
    run = Run(record)
    assert run.memory.steps.empty
    assert run.memory.peak.empty
    with pytest.raises(ValueError, match="no generated code"):
        run.memory.plot()
