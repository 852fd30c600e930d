"""Damaged logs: `python -m benchmarks.log_fuzz FIRST COUNT LOG…` mutates logs of TORCH_TRACE, and reads and shows each.

A mutant is refused with LogError, or all that can be read of it is shown without an error, in bounded time and memory.
Mutants are numbered, so that each can be made again: some are changed in their bytes, some in their lines, and some in
the JSON of their events and payloads.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.mutators import ODD, damage_bytes, damage_structure, outcome_of, print_outcomes
from compiler.logs.cold_start import write_trace
from compiler.logs.events import Log
from compiler.logs.files import LogError, read_logs
from compiler.logs.job import Job, Rank
from compiler.logs.ranks import compare_ranks
from explorer.run.job_facts import cold_starts
from explorer.run.job_page import index_text, page_of

SECONDS = 20
"""The time limit for reading and showing one mutant."""
HEAD = re.compile(rb"^(V\d{4} [^\n\]]*\] )(\{[^\n]*)$", re.MULTILINE)
FOREIGN = (b"[rank0]: Traceback", b"\xff\xfe\x00", b"", b"W1126 x.py:1] {", b"\x1b[31m")
IDS = ("frame_id", "frame_compile_id", "attempt", "rank", "has_payload", "stack", "compiled_autograd_id")


def mutant(text: bytes, seed: int) -> bytes:
    """A damaged copy of a log."""
    chance = random.Random(seed)
    how = chance.choice((_change_bytes, _change_lines, _change_event, _change_event, _change_payload, _change_ids))
    for _ in range(chance.choice((1, 1, 2, 4, 10))):
        text = how(text, chance)
    return text


def _change_bytes(text: bytes, chance: random.Random) -> bytes:
    data = bytearray(text)
    damage_bytes(data, chance)
    return bytes(data)


def _change_lines(text: bytes, chance: random.Random) -> bytes:
    """Cut, double, swap or join lines, or write those of another program between them."""
    lines = text.split(b"\n")
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.choice(("cut", "cut many", "double", "swap", "join", "indent", "foreign", "end"))
    if kind == "cut":
        del lines[first]
    elif kind == "cut many":
        del lines[first : first + chance.randrange(1, 200)]
    elif kind == "double":
        lines[first:first] = lines[first : first + chance.randrange(1, 50)]
    elif kind == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    elif kind == "join":
        lines[first : first + 2] = [b"".join(lines[first : first + 2])]
    elif kind == "indent":
        lines[first] = lines[first][1:] if lines[first].startswith(b"\t") else b"\t" + lines[first]
    elif kind == "foreign":
        lines.insert(
            first, chance.choice((b"[rank0]: Traceback", b"\xff\xfe\x00", b"", b"W1126 x.py:1] {", b"\x1b[31m"))
        )
    else:
        del lines[first:]
    return b"\n".join(lines)


def _change_event(text: bytes, chance: random.Random) -> bytes:
    """Change the JSON of one event."""
    heads = list(HEAD.finditer(text))
    if not heads:
        return text
    head = chance.choice(heads)
    return text[: head.start(2)] + _damaged_json(head[2], chance) + text[head.end(2) :]


def _change_payload(text: bytes, chance: random.Random) -> bytes:
    """Change the JSON of one payload; other payloads lose or gain a line."""
    payloads = list(re.finditer(rb"(?:^\t[^\n]*\n?)+", text, re.MULTILINE))
    if not payloads:
        return text
    found = chance.choice(payloads)
    plain = found[0].replace(b"\n\t", b"\n")[1:]
    try:
        json.loads(plain)
    except ValueError:
        changed = _change_lines(plain, chance)
    else:
        changed = _damaged_json(plain, chance)
    return text[: found.start()] + b"\t" + changed.rstrip(b"\n").replace(b"\n", b"\n\t") + b"\n" + text[found.end() :]


def _change_ids(text: bytes, chance: random.Random) -> bytes:
    """Remove an id from some events, or give them another."""
    name = chance.choice(IDS).encode()
    value = json.dumps(chance.choice((None, 0, 1, -1, 2**70, 1.5, "x", [], {}, *ODD)), default=str).encode()
    share = chance.choice((0.02, 0.3, 1.0))
    removed = chance.random() < 0.5

    def changed(found: re.Match[bytes]) -> bytes:
        if chance.random() > share:
            return found[0]
        return b"" if removed else b', "' + name + b'": ' + value

    return re.sub(rb', "' + name + rb'": (?:\d+|"[^"\n]*"|\[[^\n\]]*\])', changed, text)


def _damaged_json(text: bytes, chance: random.Random) -> bytes:
    try:
        plain: Any = [json.loads(text)]
    except (ValueError, RecursionError):
        return text
    for _ in range(chance.choice((1, 1, 2))):
        with suppress(RecursionError, IndexError):
            damage_structure(plain, chance)
    whole = plain[0] if plain else copy.deepcopy(chance.choice(ODD))
    try:
        return json.dumps(whole).encode(errors="surrogatepass")
    except (ValueError, RecursionError):
        return text


def read_all(path: Path, good: Log) -> None:
    """Read all that tcompile reads of a log, show it, and compare it with a good one. Errors are passed on."""
    job = Job.load(path)
    for look in _looks(job, good):
        look()


def _looks(job: Job, good: Log) -> Iterator[Callable[[], object]]:
    yield lambda: (repr(job), str(job), job.problems, job.unknown)
    yield lambda: index_text(job)
    yield lambda: write_trace(cold_starts(job))
    yield lambda: page_of(job)
    for rank in job.ranks.values():
        yield partial(_show_rank, rank)
        yield partial(compare_ranks, {0: good, 1: rank.log})


def _show_rank(rank: Rank) -> None:
    """Read the record of the whole log; the page has read those of single compilations."""
    repr(rank), list(rank.log), rank.record.to_json()


def outcome(text: bytes, seed: int, folder: Path) -> str:
    """`refused`, `shown`, or the error of a mutant that should be one of these."""
    path = folder / "dedicated_log_torch_trace_mutant.log"
    path.write_bytes(mutant(text, seed))
    good = Log(("good.log",), (text,))
    return outcome_of(lambda: read_all(path, good), LogError, lambda error: "\n" not in str(error), SECONDS)


def main() -> None:
    """Print how many were refused and shown, the errors, each once, and the largest memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("logs", nargs="+", type=Path)
    args = parser.parse_args()
    texts = [bytes(text) for path in args.logs for log in read_logs(path) for text in log.texts]
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(args.first, args.first + args.count)
        print_outcomes((f"seed {seed}", outcome(texts[seed % len(texts)], seed, Path(folder))) for seed in seeds)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB resident at most")


if __name__ == "__main__":
    main()
