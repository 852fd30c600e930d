"""Damaged records: `python -m benchmarks.record_fuzz FIRST COUNT FILE…` mutates saved runs, and loads and shows each.

A mutant is refused with RecordError, or it loads and every view of it renders without an error. Mutants are numbered,
so that each can be made again: half of them are changed in their bytes, half in their structure.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.mutators import damage_bytes, damage_structure, outcome_of, print_outcomes
from compiler.record import Record, RecordError, UntrustedError
from explorer.entry.load import load
from explorer.findings import capture_text
from explorer.run import page as html
from explorer.run import page_record, text
from explorer.run.payload import Payload
from explorer.run.run import Run
from explorer.run.static_view import twin
from explorer.run.widget import Explorer

SECONDS = 30
"""The time limit for loading and showing one mutant."""
TABLES = (
    "breaks", "guards", "symbols", "recompiles", "graphs", "ops", "kernels", "decisions", "fusion", "unfused", "memory",
    "peak_memory", "saved", "checks", "problems", "frames", "steps", "timings", "phases", "candidates", "kernel_times",
    "line_times", "advice", "stage_times", "estimates", "binaries",
)  # fmt: skip


def mutant(record: Record, seed: int) -> tuple[str, bytes]:
    """The suffix and the bytes of a damaged file."""
    chance = random.Random(seed)
    suffix = chance.choice((".json", ".json", ".html"))
    if chance.random() < 0.3:
        data = bytearray(_file(record.to_json(), suffix))
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            damage_bytes(data, chance)
        return suffix, bytes(data)
    plain = json.loads(record.to_json())
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        with suppress(RecursionError):  # too deeply nested for Python to copy
            damage_structure(plain, chance)
    return suffix, _file(json.dumps(plain), suffix)


def _file(encoded: str, suffix: str) -> bytes:
    """The bytes of a file: a page with the record in parts, valid or not; JSON if there are no parts."""
    plain = json.loads(encoded)
    try:
        if suffix == ".html":
            return "\n".join(["<body>", *_blocks(plain), "</body>"]).encode(errors="surrogatepass")
    except (TypeError, KeyError, AttributeError):
        pass
    return encoded.encode()


def _blocks(plain: dict[str, Any]) -> Iterator[str]:
    for artifact in plain["artifacts"]:
        attrs = artifact["attrs"]
        parts = {"text": {"text": artifact.pop("text"), "numbers": attrs.pop("numbers", None)}}
        parts["entities"] = {"entities": artifact.pop("entities"), "lines": artifact.pop("lines")}
        parts |= {"view": attrs.pop("viewed")} if "viewed" in attrs else {}
        yield from (_block(page_record.PARTS_TYPE, artifact["id"], name, part) for name, part in parts.items())
    yield _block(page_record.FACTS_TYPE, "", "facts", plain)


def _block(kind: str, artifact: str, name: str, content: Any) -> str:
    data = b64encode(zlib.compress(json.dumps(content).encode(errors="surrogatepass"))).decode()
    return f'<script type="{kind}" data-artifact="{escape(str(artifact))}" data-part="{name}">{data}</script>'


def show(run: Run, good: Run) -> None:
    """Render every view of a run. Errors are passed on."""
    for look in _looks(run, good):
        look()


def _looks(run: Run, good: Run) -> Iterator[Callable[[], object]]:
    record = run.record
    yield lambda: (str(run), repr(run), run._repr_mimebundle_(), text.summary(record), twin(record))
    yield lambda: [_shown(run, artifact.id) for artifact in run._shown.artifacts]
    yield lambda: [capture_text.fact_text(record, fact) for fact in capture_text.FACTS]
    yield lambda: (str(run.cards), [str(card) for card in run.cards])
    for name in TABLES:
        if hasattr(type(run), name):
            yield lambda name=name: _table(run, name)  # type: ignore[misc]
    yield lambda: page_record.record_of(page_record.with_facts(html.page(record), record))
    yield lambda: _payload(record)
    yield lambda: [run.linked(entity.id) for entity in list(record.entities())[:3]]
    yield lambda: [_kernel(run, kernel.id) for kernel in record.kernels[:3]]
    for one, other in ((run, good), (good, run)):
        yield lambda one=one, other=other: _differ(one, other)  # type: ignore[misc]


def _table(run: Run, name: str) -> None:
    with suppress(UntrustedError):  # an untrusted run raises this on purpose
        str(getattr(run, name))


def _kernel(run: Run, name: str) -> None:
    with suppress(KeyError):  # its source is not in the record
        str(run.kernel(name))


def _shown(run: Run, name: str) -> None:
    artifact = run[name]
    str(artifact), repr(artifact)
    text.listing(run.record, artifact, colour=True)


def _payload(record: Record) -> None:
    payload = Payload(record)
    json.dumps(payload.manifest())
    for artifact in payload.record.artifacts:
        payload.part(artifact.id, "words")
    widget = Explorer(record)
    widget.close()


def _differ(one: Run, other: Run) -> None:
    diff = one.diff(other)
    str(diff), diff._repr_html_()
    for found in diff.artifacts[:5]:
        str(found), found._repr_html_()
    for name in ("capture", "breaks", "guards", "recompiles", "ops"):
        getattr(diff, name, None)


def outcome(record: Record, good: Run, seed: int, folder: Path) -> str:
    """`refused`, `shown`, or the error of a mutant that should be one of these."""
    suffix, data = mutant(record, seed)
    path = folder / f"mutant{suffix}"
    path.write_bytes(data)
    return outcome_of(lambda: show(load(path), good), RecordError, lambda error: str(path) in str(error), SECONDS)


def main() -> None:
    """Print how many were refused and shown, and the errors, each once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("files", nargs="+", type=Path)
    args = parser.parse_args()
    records = [Record.from_json(path.read_bytes()) for path in args.files]
    runs = [Run(record) for record in records]
    with tempfile.TemporaryDirectory() as folder:
        mutants = ((seed, seed % len(records)) for seed in range(args.first, args.first + args.count))
        print_outcomes(
            (f"seed {seed}, {args.files[at].name}", outcome(records[at], runs[at], seed, Path(folder)))
            for seed, at in mutants
        )


if __name__ == "__main__":
    main()
