"""Records and pages saved by version 0.1.0 still load, and print the same text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import explorer
from compiler.record import SCHEMA, Record
from explorer.run.run import Run

SAVED = Path(__file__).parent / "saved"
STAGES = {"training": 12, "backend": 14}


@pytest.fixture(params=sorted(path.name for path in SAVED.glob("*.gz")))
def loaded(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    path = tmp_path / request.param.removesuffix(".gz")
    path.write_bytes(gzip.decompress((SAVED / request.param).read_bytes()))
    return explorer.load(path)


def test_files_saved_by_earlier_versions_load_and_print(loaded: Run, tmp_path: Path) -> None:
    expected = STAGES["training" if "Classifier" in str(loaded) else "backend"]
    stages = {artifact.stage for artifact in loaded.record.artifacts}
    assert len(stages) == expected
    assert all(str(loaded[stage]) for stage in stages)
    again = tmp_path / "again.html"
    loaded.save(again)
    assert explorer.load(again).record == loaded.record


def test_files_saved_by_earlier_versions_have_halves(loaded: Run) -> None:
    trains = "Classifier" in str(loaded)
    halves = {"forward", "backward"} if trains else {"inference"}
    assert {found.half for stage in ("post_grad", "kernels") for found in loaded.record.of_stage(stage)} <= halves
    assert {kernel.half for kernel in loaded.record.kernels} == halves
    assert {loaded.record["captured"].half, loaded.record["source"].half} == {""}
    assert loaded.record.schema == SCHEMA


def test_files_saved_by_earlier_versions_have_numbered_frames(loaded: Run) -> None:
    assert loaded.record.frames
    assert all(frame.id == f"{frame.code}/{frame.compilation}" for frame in loaded.record.frames)


@pytest.mark.parametrize("name", ["training", "backend"])
def test_record_of_schema_2_is_read(name: str) -> None:
    """Schema 2 has no numbers of frames, and no variants of kernels."""
    record = Record.from_json(gzip.decompress((SAVED / f"{name}.json.gz").read_bytes()))
    data = json.loads(record.to_json()) | {"schema": 2}
    for part, fields in (("frames", ("code", "compilation")), ("kernels", ("variant",))):
        assert data[part]
        data[part] = [{key: value for key, value in each.items() if key not in fields} for each in data[part]]
    assert Record.from_json(json.dumps(data)) == record


def test_second_side_of_an_earlier_version_has_halves(tmp_path: Path) -> None:
    record = json.loads(gzip.decompress((SAVED / "training.json.gz").read_bytes()))
    path = tmp_path / "both.json"
    path.write_text(json.dumps(record | {"versus": record}))
    found = explorer.load(path).record
    assert found.versus is not None
    assert {kernel.half for kernel in found.versus.kernels} == {"forward", "backward"}
    assert found.versus == found.with_fields(versus=None)
