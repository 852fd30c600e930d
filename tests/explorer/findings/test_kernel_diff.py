"""The same kernel in two runs: matched by name or by its operations, with facts and code side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import compiler.binary
from compiler.record import Kernel, Record
from explorer.entry.load import load
from explorer.findings.kernel_diff import match_kernels
from explorer.run.both_sides import BothSides, both_sides
from explorer.run.run import Run
from tests.explorer.findings import fused_record as fused
from tests.explorer.findings.fused_record import ARTIFACT, DOUBLE, SUM, fused_record

OTHER = "triton_tem_fused_mul_1"


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The targets that kernels were compiled for."""
    targets: list[str] = []

    def growing(record: Record, **options: Any) -> Iterator[Record]:
        targets.append(record.target)
        return fused.growing(record, **options)

    monkeypatch.setattr(compiler.binary, "compile_incrementally", growing, raising=False)
    return targets


def renamed(record: Record) -> Record:
    """The record with another name for its second kernel, as in another mode."""
    kernels = record["kernels"]
    entities = tuple(
        replace(entity, id=entity.id.replace(DOUBLE, OTHER), label=entity.label.replace(DOUBLE, OTHER))
        for entity in kernels.entities
    )
    lines = {line: tuple(name.replace(DOUBLE, OTHER) for name in ids) for line, ids in kernels.lines.items()}
    changed = replace(kernels, text=kernels.text.replace(DOUBLE, OTHER), entities=entities, lines=lines)
    return record.with_fields(
        artifacts=(*record.artifacts[:-1], changed),
        kernels=tuple(
            replace(kernel, id=kernel.id.replace(DOUBLE, OTHER), name=kernel.name.replace(DOUBLE, OTHER))
            for kernel in record.kernels
        ),
    )


def test_facts_of_both_targets_stand_side_by_side(compiled: list[str]) -> None:
    diff = Run(fused_record("h100")).diff(Run(fused_record("a100")))
    assert compiled == []
    kernels = diff.kernels
    assert compiled == ["h100", "a100"]
    assert list(kernels["kernel h100"]) == list(kernels["kernel a100"]) == [SUM, DOUBLE]
    assert list(kernels["registers h100"]) == [26, 26]
    assert list(kernels["registers a100"]) == [31, 31]
    assert list(kernels["occupancy_percent a100"]) == [50.0, 50.0]


def test_the_summary_names_what_changed() -> None:
    diff = Run(fused_record("h100")).diff(Run(fused_record("a100")))
    assert diff.names == ("f (h100)", "f (a100)")
    assert "registers" not in str(diff)
    diff.compile_kernels()
    assert f"{SUM}: registers 26 → 31\n" in str(diff)
    assert f"ptx[0/0 inference {SUM}]" not in str(diff)  # the same on both sides


def test_machine_stage_is_compared_on_request(compiled: list[str]) -> None:
    diff = Run(fused_record("h100")).diff(Run(fused_record("a100")))
    assert diff["PTX"].verdict == "the same"
    assert sorted(compiled) == ["a100", "h100"]


def test_uncompiled_side_is_reported(compiled: list[str]) -> None:
    before, after = Run(fused_record("h100")).compile_kernels(), Run(fused_record("a100"))
    diff = before.diff(after)
    assert "not compiled yet in f (a100): " in diff._repr_html_()
    assert f"sass[0/0 inference {SUM}]" in diff._repr_html_()
    assert "only in" not in str(diff)
    assert compiled == ["h100"]  # a comparison compiles nothing
    assert repr(diff) == "<RunDiff f (h100) against f (a100); print(diff) tells what differs>"


def test_addresses_and_locations_are_ignored() -> None:
    before, after = (Run(fused_record(target)).compile_kernels().record for target in ("h100", "a100"))
    sass = after["sass"]
    moved = replace(sass, text=sass.text.replace("/*0010*/", "/*0050*/").replace(".py:5", ".py:9"))
    after = after.with_fields(artifacts=tuple(moved if artifact is sass else artifact for artifact in after.artifacts))
    assert Run(before).diff(after)["sass"].verdict == "the same"


def test_renamed_kernels_match_by_computed_nodes() -> None:
    before, after = fused_record(), renamed(fused_record())
    names = [(first.name, second.name) for first, second in match_kernels(before, after) if first and second]
    assert names == [(SUM, SUM), (DOUBLE, OTHER)]
    diff = Run(before).diff(after)
    assert diff.labels == ("first", "second")
    assert f"{DOUBLE} is {OTHER} in second" in str(diff)


def test_extern_call_is_paired_with_its_replacement_kernel() -> None:
    before = fused_record()
    called = Kernel(f"{ARTIFACT}.{DOUBLE}", "extern_kernels.mm", "0/0", ARTIFACT, "aten", "extern", (20, 20))
    libraries = before.with_fields(kernels=(before.kernels[0], called))
    pairs = match_kernels(libraries, before)
    assert [(first and first.name, second and second.name) for first, second in pairs] == [
        (SUM, SUM),
        ("extern_kernels.mm", DOUBLE),
    ]


def test_kernel_missing_on_one_side() -> None:
    before = fused_record()
    diff = Run(before).diff(before.with_fields(kernels=before.kernels[:1]))
    assert f"{DOUBLE}: only in first" in str(diff)
    assert diff.kernels["kernel second"].isna().to_list() == [False, True]


def test_both_sides_share_the_source_and_nothing_else() -> None:
    record = both_sides(fused_record("h100"), fused_record("a100"), ("h100", "a100"))
    ids = [artifact.id for artifact in record.artifacts]
    assert ids.count("source[cell]") == 1
    assert {ARTIFACT, f"a100: {ARTIFACT}"} <= set(ids)
    linked = record.linked_ids("source[cell].L2")
    assert {f"{ARTIFACT}.{SUM}.L6", f"a100: {ARTIFACT}.{SUM}.L6"} <= linked
    entities = [entity.id for entity in record.entities()]
    assert len(entities) == len(set(entities))


def test_each_side_compiles_for_its_target(compiled: list[str]) -> None:
    sides = Run(fused_record("h100")).compiler, Run(fused_record("a100")).compiler
    both = BothSides(*sides, ("h100", "a100"))
    heard: list[dict[str, Any]] = []
    both.listen(lambda _, progress: heard.append(progress))
    assert both.pending_stages()["ptx"] == 4
    both.compile()
    assert compiled == ["h100", "a100"]
    assert [binary.registers for binary in both.record.binaries] == [26, 26, 31, 31]
    assert [progress.get("done") for progress in heard] == [0, 1, 2, 2, 3, 4, None]
    assert both.pending_stages() == {}


def test_diff_view_opens_at_the_first_difference() -> None:
    after = renamed(fused_record("a100"))
    widget = Run(fused_record("h100")).diff(after).widget()
    assert widget.manifest["compare"] == [ARTIFACT, f"a100: {ARTIFACT}"]
    sides = {artifact["side"] for stage in widget.manifest["stages"] for artifact in stage["artifacts"]}
    assert sides == {"", "h100", "a100"}


def test_a_diff_is_saved_as_a_page(tmp_path: Path) -> None:
    diff = Run(fused_record("h100")).diff(Run(fused_record("a100")))
    path = diff.compile_kernels().save(tmp_path / "diff.html")
    assert {kernel.artifact for kernel in load(path).record.kernels} == {ARTIFACT, f"a100: {ARTIFACT}"}
    with pytest.raises(ValueError, match=r"saved as \.html"):
        diff.save(tmp_path / "diff.json")
