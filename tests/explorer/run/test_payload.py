"""The front end's payload: it has the whole record, only once, and is deterministic."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from compiler.record import Artifact, Decision, Entity, Problem, Record, Timing
from compiler.record.options import Options
from explorer.run.payload import Part, Payload, manifest, stage_names
from tests.explorer.explored import broken_record, mlp_record
from tests.explorer.small_record import small_record


def empty(*stages: str, problems: tuple[Problem, ...] = ()) -> Record:
    artifacts = tuple(Artifact(f"{stage}[0]", stage, stage, "text", "") for stage in stages)
    return Record("", Options(), artifacts=artifacts, problems=problems)


@pytest.mark.parametrize(
    ("told", "count", "unit"), [("1,234 rows", 1234, "rows"), ("4.43 ms of kernels", 4.43, "ms of kernels")]
)
def test_a_finding_tells_its_own_count(told: str, count: float, unit: str) -> None:
    record = empty("memory")
    record = replace(record, artifacts=(replace(record.artifacts[0], attrs={"counted": told}),))
    (stage,) = [each for each in manifest(record)["stages"] if each["name"] == "memory"]
    assert (stage["count"], stage["unit"]) == (count, unit)


def test_parts_contain_every_entity_line_and_text() -> None:
    record = mlp_record()
    payload = Payload(record)
    for artifact in record.artifacts:
        parts = payload.parts_of(artifact.id)
        entities = parts["entities"].content()
        assert msgspec.convert(entities["entities"], tuple[Entity, ...]) == artifact.entities
        assert msgspec.convert(entities["lines"], dict[int, tuple[str, ...]], strict=False) == artifact.lines
        assert parts["text"].content() == {"text": artifact.text, "numbers": artifact.attrs.get("numbers")}


def test_the_same_record_gives_the_same_bytes() -> None:
    again = Record.from_json(mlp_record().to_json())
    assert list(Payload(again).parts()) == list(Payload(mlp_record()).parts())
    assert manifest(again) == manifest(mlp_record())


def test_the_manifest_names_each_part_with_its_digest() -> None:
    payload = Payload(mlp_record())
    named = {
        (artifact["id"], name, part["digest"])
        for stage in payload.manifest()["stages"]
        for artifact in stage["artifacts"]
        for name, part in artifact["parts"].items()
    }
    assert named == {(part.artifact, part.name, part.digest) for part in payload.parts()}


def test_manifest_is_json_without_artifact_text() -> None:
    record = mlp_record()
    assert "async_compile" in record["kernels"].text
    assert "async_compile" not in json.dumps(manifest(record))


def test_mlp_payload_is_at_most_300_kb() -> None:
    payload = Payload(mlp_record())
    total = len(json.dumps(payload.manifest())) + sum(len(part.data) for part in payload.parts())
    assert total <= 300_000


def test_growing_record_keeps_unchanged_parts() -> None:
    record = mlp_record()
    own = {artifact.id for artifact in record.artifacts}
    payload = Payload(replace(record, artifacts=record.artifacts[:4]))
    before = {(part.artifact, part.name): part for part in payload.parts()}
    payload.update(record)
    after = {(part.artifact, part.name): part for part in payload.parts()}
    assert len(after) > len(before)
    assert all(after[key] is part for key, part in before.items() if key[0] in own and key[1] != "decisions")


def test_an_artifact_that_changed_gets_a_new_digest() -> None:
    record = small_record()
    payload = Payload(record)
    first = payload.parts_of("source[cell]")["text"].digest
    changed = replace(record["source[cell]"], text="something else\n")
    payload.update(replace(record, artifacts=(changed, *record.artifacts[1:])))
    assert payload.parts_of("source[cell]")["text"].digest != first


def test_stage_without_artifacts_keeps_its_position() -> None:
    record = empty("source", "captured", "kernels", problems=(Problem("forward", "no gradients"),))
    assert stage_names(record) == ["source", "captured", "forward", "kernels"]
    stage = manifest(record)["stages"][2]
    assert stage["artifacts"] == []
    assert stage["problems"][0]["reason"] == "no gradients"


def test_code_is_opened_at_its_first_kernel_or_above_its_first_library_call() -> None:
    mm, kernel = Entity("kernels.call_L9", "extern", "mm", {"line": 9}), Entity("k", "kernel", "k", {"line": 20})
    code = "\n" * 30
    for stage, entities, line in (
        ("kernels", (mm,), 6),
        ("kernels", (mm, kernel), 20),
        ("kernels", (), 1),
        ("captured", (mm,), 1),
    ):
        record = Record("", Options(), artifacts=(Artifact(stage, stage, stage, "python", code, entities=entities),))
        assert manifest(record)["stages"][0]["artifacts"][0]["start"] == line


def test_equal_problems_of_graphs_are_told_once() -> None:
    told = [("kernels", "nothing to compute", "0/0"), ("kernels", "nothing to compute", "1/0"), ("ptx", "no ptxas", "")]
    record = empty("kernels", problems=tuple(Problem(stage, why, graph=graph) for stage, why, graph in told))
    shown = [[each["reason"] for each in stage["problems"]] for stage in manifest(record)["stages"]]
    assert shown == [["0/0, 1/0: nothing to compute"], ["no ptxas"]]


def test_unknown_stage_is_shown_under_its_name() -> None:
    record = empty("source", "tile_loops", "kernels")
    assert [stage["title"] for stage in manifest(record)["stages"]] == ["Source", "Tile loops", "Kernels"]


def test_stage_seconds_are_its_compile_time() -> None:
    timings = (
        Timing("captured[0]", "compile", 0.25),
        Timing("captured", "compile", 0.5),
        Timing("captured[0]", "run", 9.0),
    )
    record = replace(empty("source", "captured"), timings=timings)
    seconds = {stage["name"]: stage["seconds"] for stage in manifest(record)["stages"]}
    assert (seconds["source"], seconds["captured"]) == (None, 0.75)


def test_chip_counts_the_entities_of_its_stage() -> None:
    stages = {stage["name"]: (stage["count"], stage["unit"]) for stage in manifest(small_record())["stages"]}
    assert stages["source"] == (2, "lines")
    assert stages["captured"] == (2, "ops")
    assert stages["kernels"] == (1, "kernel")


def test_source_lines_are_grouped_by_graph() -> None:
    record = broken_record()
    (source,) = (artifact for artifact in record.of_stage("source") if "explored" in artifact.id)
    code = source.text.splitlines()
    landed = manifest(record)["landed"][source.id]
    by_graph = {graph: [code[row - 1].strip() for row in rows] for graph, rows in landed.items()}
    first, second = (by_graph[artifact.graph] for artifact in record.of_stage("captured"))
    assert "y = x.relu()" in first
    assert "return y.sin() + 1" not in first
    assert "return y.sin() + 1" in second


def test_graph_break_has_its_source_span() -> None:
    record = broken_record()
    ((artifact, ((row, start, end, *_),)),) = manifest(record)["spans"].items()
    assert record[artifact].text.splitlines()[row - 1][start:end] == "torch._dynamo.graph_break()"


def test_user_files_come_before_installed_files() -> None:
    own, library = (
        Artifact("source[a]", "source", "a", "python", "x\n"),
        Artifact("source[b]", "source", "b", "python", "y\n", attrs={"installed": True}),
    )
    record = replace(empty(), artifacts=(library, own))
    assert manifest(record)["home"] == ["source[a]", "source[b]"]


def test_decisions_belong_to_their_artifact() -> None:
    record = empty("source", "ir")
    entity = Entity("ir[0].op0", "pointwise", "op0")
    decision = Decision("fusion", "0", ("ir[0].op0", "ir[0].gone"), "refused", "too big")
    record = replace(
        record,
        artifacts=(record.artifacts[0], replace(record.artifacts[1], entities=(entity,))),
        decisions=(decision,),
    )
    payload = Payload(record)
    assert [found["why"] for found in payload.parts_of("ir[0]")["decisions"].content()] == ["too big"]
    assert "decisions" not in payload.parts_of("source[0]")


def test_an_unknown_artifact_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        Payload(small_record()).parts_of("nothing")


def test_part_has_its_uncompressed_size() -> None:
    part = Part.pack("a", "text", {"text": "x" * 1000})
    assert part.size == len(json.dumps({"text": "x" * 1000}, separators=(",", ":")))
    assert len(part.data) < part.size
