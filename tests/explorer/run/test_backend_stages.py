"""`--backend tcompile` and `--vs inductor` as users see them: text, tables, pages, the command line."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError
from IPython.testing.globalipapp import start_ipython
from torch import nn

import explorer
from compiler.backend import pipeline
from compiler.backend.pipeline import stage_name
from compiler.backend.runtime import build_cpp
from compiler.record.options import OptionError
from explorer.cli import main
from explorer.entry.magics import TcompileMagics
from explorer.entry.outputs import NotebookOutput
from explorer.findings import with_findings
from explorer.findings.fusion.fusion import fusions
from explorer.findings.kernel_diff import match_kernels
from explorer.findings.versus import totals
from explorer.glossary import for_text
from explorer.reading.stages import stage_title, stage_words
from explorer.run import files, page_record
from explorer.run.both_sides import with_other_side
from explorer.run.payload import Payload
from explorer.run.run import Run

PASSES = [stage_title(stage) for stage in ("lowered", *map(stage_name, pipeline.PASSES))]


def norm_and_gelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(nn.functional.layer_norm(x, (512,)) @ weight)


@cache
def beside_inductor() -> Run:
    torch.manual_seed(0)
    weight = torch.randn(512, 16, requires_grad=True)
    return explorer.explore(norm_and_gelu, torch.randn(512, 512), weight, backend="tcompile", vs="inductor")


def test_summary_lists_each_pass_and_compares_both_sides() -> None:
    lines = str(beside_inductor()).splitlines()
    titles = [line.split("  ")[0] for line in lines]
    assert [title for title in titles if title in PASSES] == PASSES
    assert titles.index("Backward") < titles.index("Lowered") < titles.index("Kernels")
    head = next(line for line in lines if line.split() == ["tcompile", "inductor"])
    row = next(line for line in lines if line.startswith("extern calls"))
    assert row.split()[-2:] == ["2", "2"]
    assert len(row) == len(head)


def test_both_sides_are_counted_the_same_way() -> None:
    run = beside_inductor()
    first, second = run.record, run.record.versus
    assert second is not None
    assert second.options.backend == "inductor"
    assert second.of_stage("fused_ir")
    assert not second.problems
    values = {total.title: total.values for total in totals(first, second)}
    for side, record in enumerate((first, second)):
        kernels = [kernel for kernel in record.kernels if kernel.category != "extern"]
        assert values["kernel launches"][side] == len(kernels)
        assert values["bytes moved by kernels"][side] == sum(kernel.calls * kernel.bytes for kernel in kernels)
    ours, theirs = values["bytes moved by extern calls"]
    assert ours == theirs


def test_kernels_computing_the_same_nodes_are_paired() -> None:
    record = beside_inductor().record
    assert record.versus is not None
    pairs = [(first.nodes, second.nodes) for first, second in match_kernels(record, record.versus) if first and second]
    assert pairs
    assert all("scheduled[" in ours[0] and "fused_ir[" in theirs[0] for ours, theirs in pairs)


def test_versus_diff_names_sides_by_backend() -> None:
    diff = beside_inductor().diff()
    assert diff.labels == ("tcompile", "inductor")
    assert diff["fused"].verdict.startswith("only in")
    assert diff["captured"].verdict == "the same"


def test_python_line_highlights_code_of_both_backends() -> None:
    both = with_other_side(beside_inductor().record)
    line = next(entity.id for artifact in both.of_stage("source") for entity in artifact.entities
                if "gelu(nn.functional" in entity.label)  # fmt: skip
    reached = both.linked_ids(line)
    for artifact in ("kernels[0/0 forward].", "inductor: kernels[0/0 forward]."):
        assert any(entity.startswith(artifact) for entity in reached)


def test_view_opens_with_both_codes_and_their_numbers() -> None:
    manifest = Payload(with_other_side(beside_inductor().record)).manifest()
    assert manifest["first"] == ["kernels[0/0 forward]", "inductor: kernels[0/0 forward]"]
    assert manifest["versus"]["names"] == ("tcompile", "inductor")
    rows = {title: values for title, *values in manifest["versus"]["rows"]}
    kernels = [kernel for kernel in beside_inductor().record.kernels if kernel.category != "extern"]
    assert rows["kernel launches"][0] == str(len(kernels))
    names = [stage["name"] for stage in manifest["stages"]]
    assert names.index("fused_ir") < names.index("lowered") < names.index("kernels") < names.index("versus")


def named_in(data: Any) -> set[str]:
    """The ids in a view's content."""
    if isinstance(data, dict):
        own = {name for name in (data.get("id"), *data.get("ids", ())) if isinstance(name, str)}
        return own.union(*map(named_in, data.values()))
    return set().union(*map(named_in, data)) if isinstance(data, list | tuple) else set()


@pytest.mark.parametrize(
    ("stage", "view"),
    [("fusion", "document"), ("memory", "memory_chart"), ("guards", "document"), ("advice", "document")],
)
def test_findings_of_both_sides_have_their_views(stage: str, view: str) -> None:
    record = beside_inductor().record
    assert record.versus is not None
    both = with_other_side(record)
    payload = Payload(both)
    found = next(each for each in payload.manifest()["stages"] if each["name"] == stage)["artifacts"]
    assert [(each["id"], each["view"], each["opens"], each["pair"]) for each in found] == [
        (stage, view, "view", f"inductor: {stage}"),
        (f"inductor: {stage}", view, "view", stage),
    ]
    lines = {entity.id for artifact in both.of_stage("source") for entity in artifact.entities}
    for side, prefix, own in ((record, "", found[0]), (record.versus, "inductor: ", found[1])):
        shows = payload.parts_of(own["id"])["view"].content()
        alone = Payload(side.with_fields(versus=None)).parts_of(stage)["view"].content()
        ids = named_in(shows)
        assert ids == {f"{prefix}{name}" for name in named_in(alone)}
        assert ids <= {entity.id for entity in both.entities()}
        assert {name.startswith("inductor: ") for name in ids} == {bool(prefix)}
        single = with_findings(side)
        for entity in single[stage].entities:
            assert lines & both.linked_ids(f"{prefix}{entity.id}") == lines & single.linked_ids(entity.id)
        assert any(lines & single.linked_ids(entity.id) for entity in single[stage].entities)


def test_shared_stages_are_counted_per_side() -> None:
    record = beside_inductor().record
    assert record.versus is not None
    manifest = Payload(with_other_side(record)).manifest()
    stages = {stage["name"]: stage for stage in manifest["stages"]}
    kernels = [[kernel for kernel in side.kernels if kernel.category != "extern"] for side in (record, record.versus)]
    assert stages["kernels"]["sides"] == [sum(each.calls for each in side) for side in kernels]
    assert stages["kernels"]["seconds"] is None  # that belongs to one side
    assert stages["versus"]["count"] == len(manifest["versus"]["rows"])
    for name in ("source", "versus", "fused", "fused_ir"):
        assert stages[name]["sides"] == []
    assert {item["pass"].split()[0] for item in manifest["decisions"]} == {"tcompile", "inductor"}
    assert sum(item["count"] for item in manifest["decisions"]) == len(record.decisions) + len(record.versus.decisions)
    alone = Payload(record.with_fields(versus=None)).manifest()
    assert {"fuse", "inline"} <= {item["pass"] for item in alone["decisions"]}


def test_side_without_code_has_no_numbers() -> None:
    record = beside_inductor().record
    kept = tuple(artifact for artifact in record.artifacts if artifact.stage != "kernels")
    failed = record.with_fields(artifacts=kept, kernels=())
    manifest = Payload(with_other_side(failed)).manifest()
    rows = {title: values for title, *values in manifest["versus"]["rows"]}
    assert [rows[title][0] for title in ("kernel launches", "extern calls", "bytes moved by kernels")] == ["", "", ""]
    assert rows["kernel launches"][1] != ""
    line = next(line for line in str(Run(failed)["versus"]).splitlines() if line.startswith("kernel launches"))
    assert len(line.split()) == 3


def test_single_backend_run_has_no_versus_table() -> None:
    manifest = Payload(beside_inductor().record.with_fields(versus=None)).manifest()
    assert (manifest["first"], manifest["versus"]) == ([], None)


def test_loops_inside_a_kernel_are_not_drawn() -> None:
    run = beside_inductor()
    source = run.drawing("fused").source
    inside = [entity for entity in run["fused"].entities if "inside" in entity.attrs]
    assert inside
    assert not any(f'"{entity.id}"' in source for entity in inside)
    kernel = next(entity for entity in run["fused"].entities if entity.kind == "kernel")
    assert kernel.label in source


@pytest.mark.parametrize("suffix", [".json", ".html"])
def test_both_sides_round_trip_through_files(tmp_path: Path, suffix: str) -> None:
    run = beside_inductor()
    path = run.save(tmp_path / f"run{suffix}")
    assert explorer.load(path).record == run.record
    if suffix == ".html":
        assert "inductor: kernels[0/0 forward]" in path.read_text()


def test_saved_comparison_has_views_of_both_sides_once(tmp_path: Path) -> None:
    diff = beside_inductor().diff()
    path = diff.save(tmp_path / "both.html")
    loaded, made = explorer.load(path).record, with_other_side(beside_inductor().record)
    for name in ("fusion", "inductor: fusion", "inductor: guards"):
        parts = [{key: part.digest for key, part in Payload(each).parts_of(name).items()} for each in (loaded, made)]
        assert parts[0] == parts[1]
        assert "view" in parts[0]
    facts = page_record.with_facts("<body></body>", made)
    without = made.with_fields(
        artifacts=tuple(replace(each, attrs={**each.attrs, "viewed": {}}) for each in made.artifacts)
    )
    assert len(facts) - len(page_record.with_facts("<body></body>", without)) < 500


def test_static_view_has_the_table_and_stages() -> None:
    html = beside_inductor()._repr_mimebundle_()["text/html"]
    assert "tcompile and inductor side by side" in html
    for title in PASSES:
        assert f"<b>{title}</b>" in html


def test_versus_table_is_a_printable_stage() -> None:
    text = str(beside_inductor()["versus"])
    assert text.splitlines()[0].split() == ["tcompile", "inductor"]
    assert "--time runs both" in text
    record = beside_inductor().record
    assert record.with_fields(versus=None) != record
    assert record.versus is not None
    twice = record.with_fields(
        versus=record.versus.with_fields(kernels=tuple(replace(each, calls=2) for each in record.kernels))
    )
    kernels = [kernel for kernel in record.kernels if kernel.category != "extern"]
    launches = next(line for line in str(Run(twice)["versus"]).splitlines() if line.startswith("kernel launches"))
    assert int(launches.split()[-1]) == 2 * len(kernels)
    with pytest.raises(ValueError, match="--vs inductor"):
        _ = Run(beside_inductor().record.with_fields(versus=None)).diff()


def test_fusion_steps_have_their_saved_bytes() -> None:
    run = Run(beside_inductor().record.with_fields(versus=None))
    forward, backward = fusions(run.record)
    assert (forward.title, backward.title) == ("0/0 forward", "0/0 backward")
    calls = [kernel for kernel in run.record.kernels if "forward" in kernel.artifact]
    assert {kernel.name for kernel in forward.kernels} == {kernel.name for kernel in calls}
    assert forward.after == sum(kernel.bytes for kernel in calls)
    for kernel in forward.kernels:
        assert len(forward.steps(kernel)) == max(len(kernel.parts) - 1, 0)
        assert kernel.after <= kernel.before
    assert any("call of PyTorch" in refusal.words for refusal in (*forward.refusals, *backward.refusals))
    assert str(run["fusion"]).startswith("Fusion, 0/0 forward")


def test_later_fused_kernels_are_one_fusion_view_kernel() -> None:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    model = nn.Sequential(first, nn.GELU(), second, nn.GELU())
    run = explorer.explore(model, torch.randn(16, 64), backend="tcompile", target="h100")
    made = {kernel.name: kernel.bytes for kernel in run.record.kernels if kernel.category != "extern"}
    halves = fusions(run.record)
    shown = {kernel.name: kernel.after for half in halves for kernel in half.kernels if not kernel.is_call}
    assert shown == made
    assert sum(len(half.kernels) for half in halves) == len(run.record.kernels)
    counts = {stage["name"]: stage["count"] for stage in Payload(run.record).manifest()["stages"]}
    assert counts["fusion"] == counts["kernels"] == len(shown)
    forward = halves[0]
    product = next(kernel for kernel in forward.kernels if kernel.name == "kernel_addmm_gelu")
    assert {part.kind for part in product.parts} == {"extern", "kernel"}
    last, *others = forward.steps(product)
    assert last.saved == 16 * 64 * 4  # read by the kernel itself; the backward needs it stored
    assert len(others) == len(product.parts) - 2
    assert all(refusal.first is not refusal.second for half in halves for refusal in half.refusals)
    words = {refusal.words for half in halves for refusal in half.refusals}
    assert any("was a call of PyTorch when loops were fused" in each for each in words), words


def test_memory_of_both_sides_ends_equal() -> None:
    record = beside_inductor().record
    assert record.versus is not None
    ends = [[event.live for event in side.memory if event.side == "compiled"][-1] for side in (record, record.versus)]
    assert ends[0] == ends[1] > 0
    made = [event for event in record.memory if event.what == "allocate"]
    text = str(record["kernels[0/0 forward call]"]).split("\n")
    assert text[made[0].at - 1].strip().startswith(f"{made[0].buffer} = ")


def test_each_pass_is_described_in_words() -> None:
    for stage in ("lowered", *map(stage_name, pipeline.PASSES)):
        words = stage_words(stage)
        assert words.group == "tcompile"
        assert words.about.endswith(".")
    assert stage_words("tiled").group == "tcompile"


@pytest.mark.skipif(not build_cpp.compiler(), reason="no C++ compiler")
def test_both_sides_target_the_device_that_must_run() -> None:
    run = explorer.explore(norm_and_gelu, torch.randn(8, 512), torch.randn(512, 16), backend="tcompile", vs="inductor",
                           check=True)  # fmt: skip
    other = run.record.versus
    assert other is not None
    assert (run.record.target, other.target) == ("cpu", "cpu")
    for record in (run.record, other):
        assert {kernel.language for kernel in record.kernels if kernel.category != "extern"} == {"cpp"}


@pytest.mark.parametrize(
    ("vs", "words"),
    [
        ("eager", "that backend writes no code"),
        ("inductr", "did you mean 'inductor'?"),
        ("tcompile", "is the backend itself: to compare, name 'inductor'"),
    ],
)
def test_unknown_other_side_is_refused_up_front(vs: str, words: str) -> None:
    with pytest.raises(OptionError) as error:
        explorer.explore(norm_and_gelu, backend="tcompile", vs=vs)
    assert words in str(error.value)


def test_callers_tensors_change_as_after_one_call() -> None:
    calls = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        x.add_(1)
        return x * 2

    x = torch.zeros(4)
    run = explorer.explore(counting, x, backend="tcompile", vs="inductor", stages="kernels")
    assert torch.equal(x, torch.ones(4))
    assert torch.equal(run.value, torch.full((4,), 2.0))


def test_command_line_compiles_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "double.py"
    script.write_text("def double(x):\n    return (x * 2).relu()\n")
    page = tmp_path / "run.html"
    assert main(["explore", f"{script}:double", "--input", "randn(4, 8)", "--backend", "tcompile", "--vs", "inductor",
                 "--html", str(page)]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "extern calls" in out
    assert files.read(page).versus is not None


def test_cell_shows_both_sides_at_the_end() -> None:
    shell = start_ipython() or __import__("IPython").get_ipython()
    outputs: list[NotebookOutput] = []

    def output(args: argparse.Namespace) -> Any:
        outputs.append(NotebookOutput(at_end=bool(args.vs)))
        return outputs[-1]

    magics = TcompileMagics(shell, output)
    shell.user_ns.update(torch=torch, x=torch.ones(4, 8))
    magics.tcompile("--backend tcompile --vs inductor -o both", "def f(x):\n    return (x + 1).relu()\nf(x)")
    run = shell.user_ns["both"]
    assert run.record.versus is not None
    assert outputs[0].widget is run.widget()
    assert run.widget().manifest["versus"]["names"] == ("tcompile", "inductor")
    with pytest.raises(UsageError, match="vs='aot_eager'"):
        magics.tcompile("--vs aot_eager", "f(x)")


def test_extern_calls_in_a_program_are_explained() -> None:
    meaning = for_text("program", beside_inductor()["lowered"].text)["aten.mm.default"]
    assert "matri" in meaning.words
    assert meaning.link.startswith("https://")
