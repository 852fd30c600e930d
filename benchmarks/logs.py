"""The cost of reading logs of TORCH_TRACE, beside tlparse on the same logs; each figure is printed with its bar.

    python benchmarks/logs.py LOG…                      everything, on large logs made of these small ones
    python benchmarks/logs.py --sizes --ranks LOG…      some sections

--sizes       99 MB of large payloads, and 99 MB of many graphs: `tcompile show` and `tcompile report` ÷ tlparse
--ranks       eight ranks of 12 MB: `tcompile show` ÷ tlparse for all ranks
--huge        1 GB: the memory of `tcompile show`
--links       share of the nodes and kernel calls that are linked, and of inferred links that torch's provenance has
--overhead    a program under `tcompile run` ÷ the same program with TORCH_TRACE alone

The large logs repeat the given ones under new compile ids. For --links, give logs that were written with
`INDUCTOR_PROVENANCE=1`; each is read as it is, and without its provenance. On a busy machine, the ratio of CPU times,
which is printed too, says more than that of wall times. tlparse is found on PATH or by --tlparse
(`cargo install tlparse`, or its wheel). Times are the fastest of --rounds, in turns; memory is the peak of the process.
Results are written as JSON to benchmarks/results/. Exits with code 1 if a bar was missed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures import Figure, load, write
from benchmarks.fresh import ROOT
from compiler.logs.files import read_logs
from compiler.logs.records import record_of
from compiler.record import Record

MEGABYTE = 1_000_000
SUMMARY_BAR, PAGE_BAR, RANKS_BAR = 1 / 5, 1 / 3, 1 / 4
MEMORY_BAR, HUGE_MEMORY_BAR = 400.0, 600.0
LINKED_BAR, RIGHT_BAR = 95.0, 98.0
OVERHEAD_BAR = 1.03
DRAWN = 300
EVENT = re.compile(rb"^V\d{4} [^\n]*\n(?:\t[^\n]*(?:\n|\Z))*", re.MULTILINE)
FRAME = re.compile(rb'("frame_id": )(\d+)')
COMPILE_ID = re.compile(rb'("compile_id": ")(\d+)(/)')
SUM = re.compile(rb'("has_payload": ")[0-9a-f]{32}')
SMALL = 20_000
"""Maximum bytes of an event in the log of many graphs."""
PROVENANCE = re.compile(rb'"name": "inductor_provenance')


@dataclass
class Cost:
    """Wall seconds, CPU seconds and peak memory (MB) of the runs of one command."""

    seconds: list[float] = field(default_factory=list)
    of_cpu: list[float] = field(default_factory=list)
    memory: float = 0.0

    def run(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        told = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds.append(time.perf_counter() - started)
        self.of_cpu.append(usage.ru_utime + usage.ru_stime)
        self.memory = max(self.memory, usage.ru_maxrss / 1024)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{told.decode()[-2000:]}")


@dataclass
class Bench:
    """The arguments of the command line, and the small logs."""

    texts: list[bytes]
    tlparse: str
    rounds: int
    folder: Path

    def large_log(self, name: str, size: int, keep: Callable[[bytes], bool] | None = None) -> Path:
        """A log of some `size` bytes that repeats the small ones under new compile ids."""
        path = self.folder / name / "dedicated_log_torch_trace_large.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [b"".join(filter(keep, EVENT.findall(text))) for text in self.texts]
        with path.open("wb") as file:
            written = sum(file.write(strings_of(text)) for text in texts)
            for number, text in enumerate(cycle(texts)):
                written += file.write(renumbered(text, 1000 * number))
                if written >= size:
                    break
        return path

    def tlparse_of(self, path: Path, cost: Cost, *arguments: str) -> None:
        out = self.folder / "tlparse"
        cost.run([self.tlparse, str(path), "-o", str(out), "--overwrite", "--no-browser", *arguments])
        shutil.rmtree(out, ignore_errors=True)


def strings_of(text: bytes) -> bytes:
    """The events that number strings; logs of several processes number theirs alike, so that some files are wrong."""
    return b"".join(event for event in EVENT.findall(text) if b'{"str":' in event[:200])


def renumbered(text: bytes, added: int) -> bytes:
    """Events with other frame ids, without the strings, which the log already has."""

    def event(found: bytes) -> bytes:
        head, newline, payload = found.partition(b"\n")
        if b'{"str":' in head[:200]:
            return b""
        head = FRAME.sub(lambda match: match[1] + str(int(match[2]) + added).encode(), head)
        changed = COMPILE_ID.sub(lambda match: match[1] + str(int(match[2]) + added).encode() + match[3], payload)
        if changed != payload:
            plain = changed.removesuffix(b"\n").removeprefix(b"\t").replace(b"\n\t", b"\n")
            head = SUM.sub(lambda match: match[1] + hashlib.md5(plain).hexdigest().encode(), head)
        return head + newline + changed

    return b"".join(map(event, EVENT.findall(text)))


def tcompile(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tcompile", *arguments]


def sizes(bench: Bench) -> Iterator[Figure]:
    """`tcompile show` and `tcompile report` on two logs of 99 MB, and tlparse on the same."""
    for name, keep in (("large payloads", None), ("many graphs", lambda event: len(event) < SMALL)):
        path = bench.large_log(name.replace(" ", "_"), 99 * MEGABYTE, keep)
        summary, page, other = Cost(), Cost(), Cost()
        for _ in range(bench.rounds):
            summary.run(tcompile("show", str(path)))
            page.run(tcompile("report", str(path), "-o", str(bench.folder / "page.html")))
            bench.tlparse_of(path, other)
        yield from beside(f"summary, 99 MB of {name}", summary, other, SUMMARY_BAR)
        yield from beside(f"first page, 99 MB of {name}", page, other, PAGE_BAR)
        yield Figure(f"memory of the summary, 99 MB of {name}", summary.memory, "MB", MEMORY_BAR)
        yield Figure(f"memory of the first page, 99 MB of {name}", page.memory, "MB", MEMORY_BAR)
        shutil.rmtree(path.parent)


def beside(name: str, ours: Cost, theirs: Cost, bar: float) -> Iterator[Figure]:
    ratio, of_cpu = min(ours.seconds) / min(theirs.seconds), min(ours.of_cpu) / min(theirs.of_cpu)
    note = f"{min(ours.seconds):.2f} s ÷ {min(theirs.seconds):.2f} s; {of_cpu:.2f} × of CPU time"
    yield Figure(f"{name} ÷ tlparse", ratio, "×", bar, note=note, runs=tuple(ours.seconds))


def ranks(bench: Bench) -> Iterator[Figure]:
    """`tcompile show` on eight ranks, and tlparse's report of all ranks."""
    folder = bench.folder / "ranks"
    folder.mkdir()
    source = bench.large_log("rank", 12 * MEGABYTE)
    for rank in range(8):
        shutil.copy(source, folder / f"dedicated_log_torch_trace_rank_{rank}_x.log")
    ours, theirs = Cost(), Cost()
    for _ in range(bench.rounds):
        ours.run(tcompile("show", str(folder)))
        bench.tlparse_of(folder, theirs, "--all-ranks-html")
    yield from beside("eight ranks of 12 MB", ours, theirs, RANKS_BAR)
    yield Figure("memory of eight ranks", ours.memory, "MB", MEMORY_BAR)
    shutil.rmtree(folder)


def huge(bench: Bench) -> Iterator[Figure]:
    """`tcompile show` on a log of 1 GB."""
    path = bench.large_log("huge", 1000 * MEGABYTE)
    cost = Cost()
    cost.run(tcompile("show", str(path)))
    yield Figure("memory of the summary, 1 GB", cost.memory, "MB", HUGE_MEMORY_BAR, note=f"{cost.seconds[0]:.1f} s")
    path.unlink()


def links(bench: Bench) -> Iterator[Figure]:
    """How many nodes and calls have links, and how many inferred links are those of torch's provenance."""
    linked: dict[str, list[int]] = {"nodes": [0, 0], "kernel calls": [0, 0]}
    inferred: list[bool] = []
    for number, text in enumerate(bench.texts):
        plain = b"".join(event for event in EVENT.findall(text) if not PROVENANCE.search(event[:400]))
        records = []
        for name, content in (("real", text), ("plain", plain)):
            path = bench.folder / f"dedicated_log_torch_trace_{number}_{name}.log"
            path.write_bytes(content)
            records.append(record_of(read_logs(path)[0]))
        count_links(records[1], linked)
        if PROVENANCE.search(text):
            real = kernel_links(records[0])
            inferred += [pair in real for pair in sorted(kernel_links(records[1]))]
    for name, (count, whole) in linked.items():
        if whole:
            share, note = 100 * count / whole, f"{count:,} of {whole:,}"
            yield Figure(f"linked {name}", share, "%", LINKED_BAR, at_least=True, note=note)
    drawn = random.Random(0).sample(inferred, min(DRAWN, len(inferred)))
    if drawn:
        note = f"{sum(drawn):,} of {len(drawn):,} drawn from {len(inferred):,}"
        right = 100 * sum(drawn) / len(drawn)
        yield Figure("inferred links that torch's provenance has", right, "%", RIGHT_BAR, at_least=True, note=note)


def count_links(record: Record, counts: dict[str, list[int]]) -> None:
    """Add the numbers of linked and of all nodes and calls. A captured node is linked if it has a line."""
    for artifact in record.artifacts:
        for entity in artifact.entities:
            is_node = str(entity.attrs.get("op", "")).startswith("call_")
            if is_node or entity.kind in ("call", "extern"):
                found = counts["kernel calls" if entity.kind == "extern" or artifact.stage == "kernels" else "nodes"]
                found[0] += bool(entity.origins) or (is_node and bool(entity.attrs.get("line")))
                found[1] += 1


def kernel_links(record: Record) -> set[tuple[str, str]]:
    """Pairs of a kernel call and a post-grad node that it computes.

    Items of an operator's results are left out: torch's provenance names the operator in their place.
    """
    post_grad = (entity for artifact in record.of_stage("post_grad") for entity in artifact.entities)
    nodes = {entity.id for entity in post_grad if not str(entity.attrs.get("target")).endswith("getitem")}
    calls = (entity for artifact in record.of_stage("kernels") for entity in artifact.entities)
    return {(call.id, origin) for call in calls for origin in call.origins if origin in nodes}


def overhead(bench: Bench) -> Iterator[Figure]:
    """A program that compiles, with warm caches, under `tcompile run` and with TORCH_TRACE alone."""
    program = bench.folder / "program.py"
    program.write_text(
        "import torch\n"
        "model = torch.compile(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)), torch.nn.GELU()))\n"
        "for rows in range(2, 600):\n    model(torch.randn(rows % 50 + 2, 64)).sum().backward()\n"
    )
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "cache")}
    plain, ours = Cost(), Cost()
    for number in range(bench.rounds + 1):  # the first round fills the cache
        trace = cache | {"TORCH_TRACE": str(bench.folder / f"plain{number}")}
        plain.run([sys.executable, str(program)], trace)
        ours.run(
            tcompile("run", "--trace", str(bench.folder / f"run{number}"), "--", sys.executable, str(program)), cache
        )
    fastest = min(ours.seconds[1:]), min(plain.seconds[1:])
    note = f"{fastest[0]:.2f} s ÷ {fastest[1]:.2f} s"
    yield Figure(
        "a program under tcompile run ÷ TORCH_TRACE alone", fastest[0] / fastest[1], "×", OVERHEAD_BAR, note=note
    )


SECTIONS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "sizes": sizes, "ranks": ranks, "huge": huge, "links": links, "overhead": overhead,
}  # fmt: skip


def main() -> int:
    """Measure, print and write the figures; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SECTIONS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--tlparse", default=shutil.which("tlparse") or "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("logs", nargs="+", type=Path)
    args = parser.parse_args()
    chosen = [name for name in SECTIONS if getattr(args, name)] or list(SECTIONS)
    if {"sizes", "ranks"} & {*chosen} and not args.tlparse:
        parser.error("tlparse is not on PATH: install it (cargo install tlparse, or its wheel), or give --tlparse")
    texts = [bytes(text) for path in args.logs for log in read_logs(path) for text in log.texts]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(texts, args.tlparse, args.rounds, Path(folder))
        for name in chosen:
            before, figures = load(), []
            for figure in SECTIONS[name](bench):
                print(figure.line(), flush=True)
                figures.append(figure)
            write(f"logs-{name}", figures, before, load())
            missed += sum(figure.met is False for figure in figures)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
