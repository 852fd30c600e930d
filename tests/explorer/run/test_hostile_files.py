"""Damaged and hostile files: refused with RecordError, or loaded and shown; in bounded time and memory, either way."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.record_fuzz import outcome
from compiler.advise.reading import Reading
from compiler.record import Entity, Record, RecordError
from compiler.record.limits import MOST_ENTITIES, MOST_FACTS
from explorer.entry.load import load
from explorer.run.page_record import FACTS_TYPE
from explorer.run.run import Run
from tests.explorer.findings import fused_record as fused
from tests.explorer.findings.timed_record import timed_record
from tests.explorer.small_record import small_record, xrayed_record

MUTANTS = int(os.environ.get("TCOMPILE_MUTANTS", "150"))


def test_damaged_files_are_refused_or_shown(tmp_path: Path) -> None:
    records = [xrayed_record(), fused.fused_record(), timed_record()]
    runs = [Run(record) for record in records]
    found = [outcome(records[seed % 3], runs[seed % 3], seed, tmp_path) for seed in range(MUTANTS)]
    assert [each for each in found if each not in ("refused", "shown")] == []
    assert {"refused", "shown"} <= set(found)


def changed(change: Callable[[dict[str, Any]], object], record: Record | None = None) -> bytes:
    plain = json.loads((record or small_record()).to_json())
    change(plain)
    return json.dumps(plain).encode()


def artifact(plain: dict[str, Any], stage: str = "forward") -> dict[str, Any]:
    return next(each for each in plain["artifacts"] if each["stage"] == stage)


def in_a_circle(field: str) -> Callable[[dict[str, Any]], object]:
    def change(plain: dict[str, Any]) -> None:
        first, second = artifact(plain)["entities"][:2]
        first[field], second[field] = [second["id"]], [first["id"]]

    return change


PHASE = {"name": "a", "seconds": 1.0, "parent": "b"}
EVENT = {"graph": "0/0", "half": "forward", "what": "allocate", "buffer": "buf0", "bytes": 8, "live": 8}
MERGE = {"graph": "0/0", "kind": "forward", "round": 1, "first": "b", "second": "c", "name": "a", "saved": 1}
STEP = {"stage": 1, "kind": "F", "microbatch": 0}
PIPELINE = {"name": "p", "stages": 2, "microbatches": 1, "rank": 0, "steps": [[STEP]]}
COLLECTIVE = {"id": "c", "kind": "all_reduce", "input_bytes": 8, "output_bytes": 8}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (in_a_circle("inputs"), "inputs"),
        (in_a_circle("origins"), "origins"),
        (lambda plain: artifact(plain)["entities"][0].update(origins=["forward[0/0].primals_1"]), "origins"),
        (lambda plain: plain.update(phases=[PHASE, PHASE | {"name": "b", "parent": "a"}]), r"\$\.phases"),
        (lambda plain: plain.update(merges=[MERGE, MERGE | {"name": "b", "first": "a"}]), r"\$\.merges"),
        (lambda plain: plain.update(memory=[EVENT, EVENT | {"live": 2**51}]), r"\$\.memory\[1\]"),
        (lambda plain: plain.update(candidates=[{"name": "eager", "seconds": 1.0, "low": 0.9, "high": 0.5}]),
         r"\$\.candidates\[0\]\.seconds"),
        (lambda plain: plain["frames"][0].update(caller="0/0"), r"\$\.frames"),
        (lambda plain: plain["breaks"][0].update(link="javascript:alert(1)"), r"\$\.breaks\[0\]\.link"),
        (lambda plain: plain["kernels"][0].update(name="a\nimport os"), r"\$\.kernels\[0\]\.name"),
        (lambda plain: plain["kernels"][0].update(lines=[9, 2]), r"\$\.kernels\[0\]\.lines"),
        (lambda plain: plain["artifacts"].append(plain["artifacts"][0]), r"\$\.artifacts\[5\]\.id"),
        (lambda plain: artifact(plain)["entities"][2]["attrs"].update(shape="8"), r"entities\[2\]\.attrs\.shape"),
        (lambda plain: artifact(plain)["lines"].update({"-3": []}), r"\$\.artifacts\[2\]\.lines"),
        (lambda plain: plain.update(versus=plain | {"versus": dict(plain)}), r"\$\.versus\.versus"),
        (lambda plain: plain.update(place={"rank": 8, "world": 8}), r"\$\.place\.rank"),
        (lambda plain: plain.update(place={"rank": 0, "world": 8, "mesh": [["dp", 9]]}), r"\$\.place\.mesh"),
        (lambda plain: plain.update(pipelines=[PIPELINE | {"stages": 1}]), r"\$\.pipelines\[0\]\.steps\[0\]"),
        (lambda plain: artifact(plain)["entities"][2]["attrs"].update(placements=[1]), r"attrs\.placements\[0\]"),
        (lambda plain: plain.update(collectives=[COLLECTIVE, COLLECTIVE]), r"\$\.collectives\[1\]\.id"),
        (lambda plain: plain.update(collectives=[COLLECTIVE | {"input_bytes": -1}]), r"collectives\[0\]\.input_bytes"),
    ],
)  # fmt: skip
def test_invalid_field_is_refused_by_name(change: Callable[[dict[str, Any]], object], field: str) -> None:
    with pytest.raises(RecordError, match=field):
        Record.from_json(changed(change))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda xray: xray["sites"].append(xray["sites"][0]), r"\$\.xray\.sites\[2\]\.id"),
        (lambda xray: xray["sites"][0].update(line=-1), r"\$\.xray\.sites\[0\]\.line"),
        (lambda xray: xray["sites"][1].update(behind="site[7]"), r"\$\.xray\.sites\[1\]\.behind"),
        (lambda xray: xray["left"][0].update(behind="site[7]"), r"\$\.xray\.left\[0\]\.behind"),
        (lambda xray: xray["fixes"][1].update(site="site[7]"), r"\$\.xray\.fixes\[1\]\.site"),
        (lambda xray: xray.update(problems=["more"] * (MOST_FACTS + 1)), r"\$\.xray\.problems"),
    ],
)
def test_invalid_site_is_refused_by_name(change: Callable[[dict[str, Any]], object], field: str) -> None:
    with pytest.raises(RecordError, match=field):
        Record.from_json(changed(lambda plain: change(plain["xray"]), xrayed_record()))


def test_diamonds_are_walked_once() -> None:
    """Each node has two origins that have two origins: 2 ** 60 paths."""
    record = fused.fused_record()
    graph = record["post_grad"]
    levels = [Entity(f"ir[0/0 inference].{side}{level}", "buffer", side, {},
                     (), tuple(f"ir[0/0 inference].{other}{level - 1}" for other in "ab") if level else ())
              for level in range(60) for side in "ab"]  # fmt: skip
    diamonds = replace(graph, id="ir", stage="ir", entities=tuple(levels))
    reading = Reading(record.with_fields(artifacts=(*record.artifacts, diamonds)))
    assert reading.fx_nodes([levels[-1].id]) == ()


MEASURED = """
import sys, time
from pathlib import Path
from explorer.run.files import read
from compiler.record import RecordError
start = time.process_time()
try:
    read(sys.argv[1])
    outcome = "loaded"
except RecordError as error:
    outcome = f"refused: {error}"
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(round(time.process_time() - start, 1), int(peak) // 1024, outcome[:500])
"""


def loading(path: Path) -> tuple[float, int, str]:
    """CPU seconds and peak MiB of loading a file, and the outcome."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True, timeout=120
    )
    seconds, mebibytes, outcome = done.stdout.split(maxsplit=2)
    return float(seconds), int(mebibytes), outcome


def bomb() -> str:
    """A 2 MB page that unpacks to 400 MB."""
    packing = zlib.compressobj(1)
    pieces = [packing.compress(piece) for piece in (b'{"artifacts":"', *[b"a" * 2**20] * 400)]
    data = b"".join([*pieces, packing.flush()])
    return f'<script type="{FACTS_TYPE}" data-part="facts">{base64.b64encode(data).decode()}</script>'


def with_entities(count: int) -> bytes:
    """A record with `count` nodes, each with the next as its origin."""
    one = b'{"id":"forward[0/0].n%d","kind":"call","label":"n","attrs":{"line":3},"origins":["forward[0/0].n%d"]}'
    each = b",".join(one % (number, number + 1) for number in range(count))
    whole = b'{"id":"forward[0/0]","stage":"forward","title":"","language":"","text":"","entities":[%s]}' % each
    return b'{"schema":1,"title":"","options":{},"artifacts":[%s]}' % whole


def test_long_chains_of_origins_are_refused() -> None:
    """Views go back along them: more than there are stages is no record of ours."""
    Record.from_json(with_entities(200))
    with pytest.raises(RecordError, match=r"leads back through over 300 others - at `\$\.artifacts`, origins"):
        Record.from_json(with_entities(400))


def test_signs_in_a_long_text_take_no_memory() -> None:
    """The file is looked through piece by piece, and pieces begin and end in the middle of a text."""
    text = "[" * (8 * 2**20)
    assert Record.from_json(b'{"schema":1,"title":"%s","options":{}}' % text.encode()).title == text


START = b'{"schema":1,"title":"","options":{"options":{"x":['
LARGE = {
    "lists.json": lambda: START + b"[]," * (30 * 10**6) + b"1]}}}",
    "objects.json": lambda: START + b'{"a":1},' * (12 * 10**6) + b"1]}}}",
    "deep.json": lambda: b"[" * 10**8,
    "quotes.json": lambda: b'"' * 10**8,
    "entities.json": lambda: with_entities(900_000),
    "text.json": lambda: b'{"schema":1,"title":"' + b"x" * 10**8 + b'","options":{}}',
    "wide.json": lambda: b'{"schema":1,"title":"' + "\U0001d518".encode() + b"x" * 10**8 + b'","options":{}}',
    "bomb.html": lambda: bomb().encode(),
    "tags.html": lambda: b'<script type="application/x-tcompile' * (2 * 10**6),
    "comments.html": lambda: b"<!--" * (25 * 10**6),
    "too_large.json": lambda: b" " * (150 * 10**6),
}  # fmt: skip


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")


@on_linux
@pytest.mark.parametrize("name", LARGE)
def test_a_large_file_takes_bounded_time_and_memory(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(LARGE[name]())
    seconds, mebibytes, outcome = loading(path)
    assert outcome.startswith("loaded" if name in ("text.json", "wide.json") else "refused")
    assert seconds < 10
    assert mebibytes < 1024


@on_linux
def test_maximum_number_of_entities_loads(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    chains = with_entities(MOST_ENTITIES).replace(b'"origins":["forward[0/0].n', b'"inputs":["forward[0/0].n')
    path.write_bytes(chains)
    seconds, mebibytes, outcome = loading(path)
    assert outcome.startswith("loaded")
    assert seconds < 10
    assert mebibytes < 1024


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no FIFOs")
def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "device.html").symlink_to("/dev/zero")
    for name in ("folder.json", "fifo.json", "device.html"):
        with pytest.raises(RecordError, match=rf"{name}: this is no regular file"):
            load(tmp_path / name)
    Run(small_record()).save(tmp_path / "run.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "run.json")
    assert load(tmp_path / "link.json").record == small_record()
