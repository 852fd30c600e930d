"""The bars of logs: cost beside tlparse, links, `tcompile run`, ranks, damaged logs; each figure with its bar.

    python -m benchmarks.logs                           everything but --gpu-profile, on logs that it writes itself
    python -m benchmarks.logs --sizes --ranks LOG…      some sections, on these small logs

--sizes        99 MB of large payloads, and 99 MB of many graphs: `tcompile show` and `tcompile report` ÷ tlparse
--ranks        eight ranks of 12 MB: `tcompile show` ÷ tlparse for all ranks
--huge         1 GB: the memory of `tcompile show`
--links        share of the nodes and kernel calls that are linked, and of inferred links that torch's provenance has
--overhead     a program of 30 s, and a small one, under `tcompile run` ÷ with TORCH_TRACE alone, in turns
--differences  differences that are found between equal ranks, and of those that were injected (`benchmarks/ranks.py`)
--fuzz         3,000 mutated logs (`benchmarks/log_fuzz.py`)
--gpu-profile  a profile of a GPU beside the log of the same program: kernels at their graph, module and line

The large logs repeat the small ones under new compile ids. For --links, give logs that were written with
`INDUCTOR_PROVENANCE=1`; each is read as it is, and without its provenance. On a busy machine, the ratio of CPU times,
which is printed too, says more than that of wall times. tlparse is found by --tlparse, the environment variable
TLPARSE, or on PATH (`cargo install tlparse`, or its wheel). Times are the fastest of --rounds, in turns; memory is the
peak of the process. Results are written as JSON to benchmarks/results/, and with --json to one file. Exits with code
1 if a bar was missed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pty
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
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
PROGRAM_SECONDS = 30.0
MUTANTS = 3_000
LOGGED = ("transformer", "images", "pieces")
"""The programs of `log_programs` whose logs are repeated and checked."""
FUZZED = ("small_transformer", "images", "pieces")
"""The programs whose logs are mutated: a log of a large one is read in seconds, and holds no other kinds of events."""
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

    def run(self, command: Sequence[str], environment: dict[str, str] | None = None, stderr: int = 0) -> None:
        """Run a command; its errors go to the file descriptor `stderr`, if given."""
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | (environment or {}), stdout=subprocess.DEVNULL,
            stderr=stderr or subprocess.PIPE,
        )  # fmt: skip
        told = process.stderr.read() if process.stderr is not None else b""
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
    given: list[Path]

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
    """Programs with warm caches: under `tcompile run`, the same in a terminal, and with TORCH_TRACE alone."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / "cache"), "OMP_NUM_THREADS": "1"}
    count = _steps_in(PROGRAM_SECONDS, cache)
    Cost().run(_program("pieces"), cache)  # it fills its caches
    for name, words in ((f"{PROGRAM_SECONDS:.0f} s program", f"steps {count}"), ("small program", "pieces")):
        costs = _costs_of_run(bench, words, cache)
        yield from _added(name, costs["with a page"], costs["alone"], "tcompile run -o")
        yield from _added(name, costs["page not asked for"], costs["alone"], "tcompile run")
        line = min(costs["in a terminal"].of_cpu) - min(costs["with a page"].of_cpu)
        note = f"of {min(costs['with a page'].of_cpu):.1f} s; less than a percent is not measurable"
        yield Figure(f"{name}: CPU time that the status line adds", line, "s", note=note)


def _costs_of_run(bench: Bench, words: str, cache: dict[str, str]) -> dict[str, Cost]:
    """The costs of a program alone, and of the ways to run it under `tcompile run`, in turns."""
    costs = {name: Cost() for name in ("alone", "with a page", "page not asked for", "in a terminal")}
    for _ in range(bench.rounds):
        for name, cost in costs.items():
            folder = Path(tempfile.mkdtemp(dir=bench.folder))
            page = [] if name == "page not asked for" else ["-o", str(folder / "page.html")]
            run = [] if name == "alone" else tcompile("run", *page, "--")
            with _terminal() if name == "in a terminal" else _no_terminal() as stderr:
                cost.run([*run, *_program(words)], cache | {"TORCH_TRACE": str(folder)}, stderr)
    return costs


def _program(words: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.log_programs", *words.split()]


def _added(name: str, ours: Cost, alone: Cost, command: str) -> Iterator[Figure]:
    """What `tcompile run` adds to wall and CPU time: medians of pairs."""
    for kind, mine, theirs in (("wall", ours.seconds, alone.seconds), ("CPU", ours.of_cpu, alone.of_cpu)):
        ratios = [each / other for each, other in zip(mine, theirs, strict=True)]
        added = statistics.median(each - other for each, other in zip(mine, theirs, strict=True))
        note = f"adds {added:.2f} s to {statistics.median(theirs):.1f} s"
        yield Figure(
            f"{name}: {kind} time of {command} ÷ TORCH_TRACE alone", statistics.median(ratios), "×", OVERHEAD_BAR,
            note=note, runs=tuple(ratios),
        )  # fmt: skip


def _steps_in(seconds: float, cache: dict[str, str]) -> int:
    """How many steps the program makes in these seconds; this fills its caches, too."""
    command = [sys.executable, "-m", "benchmarks.log_programs", "timed_steps", str(seconds / 2)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | cache, capture_output=True, text=True, check=True)
    return 2 * int(done.stdout.split()[-1])


@contextmanager
def _no_terminal() -> Iterator[int]:
    yield 0


@contextmanager
def _terminal() -> Iterator[int]:
    """A terminal for the errors of a command, as a file descriptor."""
    controller, terminal = pty.openpty()
    reader = threading.Thread(target=_drain, args=(controller,), daemon=True)
    reader.start()
    try:
        yield terminal
    finally:
        os.close(terminal)
        reader.join(5)
        os.close(controller)


def _drain(controller: int) -> None:
    try:
        while os.read(controller, 4096):
            pass
    except OSError:
        return  # the terminal is closed


def differences(bench: Bench) -> Iterator[Figure]:
    """Equal ranks that are told to differ, and injected differences that are found."""
    at_once = max(1, (os.cpu_count() or 2) // 4)
    command = [
        sys.executable,
        "-m",
        "benchmarks.ranks",
        "--at-once",
        str(at_once),
        "--keep",
        str(bench.folder / "pairs"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"benchmarks.ranks ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout[done.stdout.index("{\n") :])
    note = f"{found['equal_pairs']} pairs"
    yield Figure("differences of equal ranks", found["false_divergences"], "", 0.0, note=note)
    note = f"of {found['injected']}, bar 28 of 30"
    yield Figure("injected differences that are found", 100 * found["found"] / found["injected"], "%", 100 * 28 / 30,
                 at_least=True, note=note)  # fmt: skip


def fuzz(bench: Bench) -> Iterator[Figure]:
    """Mutated small logs that are neither shown nor refused with one line; mutant `n` has the seed `n`, from 0."""
    paths = []
    texts = [text for path in bench.given or write_logs_of(FUZZED, bench.folder) for text in texts_at(path)]
    for number, text in enumerate(texts):
        paths.append(bench.folder / f"dedicated_log_torch_trace_fuzzed_{number}.log")
        paths[-1].write_bytes(text)
    parts = os.cpu_count() or 1
    each = -(-MUTANTS // parts)
    command = [sys.executable, "-m", "benchmarks.log_fuzz"]
    running = [
        subprocess.Popen(
            [*command, str(part * each), str(each), *map(str, paths)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for part in range(parts)
    ]
    outputs = [process.communicate()[0] for process in running]
    counts = [dict(re.findall(r"'(\w+)': (\d+)", output)) for output in outputs]
    totals = {name: sum(int(count.get(name, 0)) for count in counts) for name in ("shown", "refused", "error")}
    told = "\n".join(output for output, count in zip(outputs, counts, strict=True) if "error" in count)
    note = f"{totals['shown']:,} shown, {totals['refused']:,} refused"
    yield Figure("mutated logs with an error", totals["error"], "", 0.0, note=note, details={"told": told[:20_000]})


def gpu_profile(bench: Bench) -> Iterator[Figure]:
    """The time of a GPU's kernels that a profile has at a graph, a module and a line of the log."""
    trace, path = bench.folder / "profiled", bench.folder / "profile.json"
    command = [sys.executable, "-m", "benchmarks.log_programs", "profiled", str(path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"TORCH_TRACE": str(trace)}, check=True)
    from explorer.run.job import Job
    from explorer.run.profile import load_profile

    found = load_profile(path, Job.load(trace))
    print(found)
    if found.trace.device != "cuda":
        print("no kernel of a GPU is in this profile: the figures are of a CPU")
    kernels = [each for each in found.trace.launches if each.kind == "kernel" or found.trace.device == "cpu"]
    inside = sum(each.span.seconds for each in kernels if each.run is not None)
    table = found.kernels
    whole = float(table["seconds"].sum())
    yield Figure("kernel time in compiled graphs", 100 * inside / sum(each.span.seconds for each in kernels), "%")
    for name in ("graph", "modules", "lines"):
        share = 100 * float(table.loc[table[name] != "", "seconds"].sum()) / whole
        yield Figure(f"of it, time with its {name.removesuffix('s')}", share, "%", 95.0, at_least=True)
    yield Figure(
        "compilations, and breaks, on the timeline", len(found.compilations) + len(found.breaks), "", 1.0, at_least=True
    )
    yield Figure(
        "size of the trace that was written back", found.save(bench.folder / "again.json").stat().st_size / 1e6, "MB"
    )
    results = ROOT / "benchmarks" / "results"
    results.mkdir(exist_ok=True)
    for suffix in ("page.html", "again.json.gz"):
        shutil.copy(found.save(bench.folder / suffix), results / f"gpu_profile_{suffix}")


SECTIONS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "sizes": sizes, "ranks": ranks, "huge": huge, "links": links, "overhead": overhead, "differences": differences,
    "fuzz": fuzz, "gpu-profile": gpu_profile,
}  # fmt: skip
ON_REQUEST = ("gpu-profile",)


def texts_at(path: Path) -> Iterator[bytes]:
    """The texts of the logs at a path."""
    return (bytes(text) for log in read_logs(path) for text in log.texts)


def write_logs_of(names: Sequence[str], folder: Path) -> list[Path]:
    """Logs of programs of `log_programs`, with provenance; those that the folder lacks are run, all at once."""
    environment = os.environ | {"INDUCTOR_PROVENANCE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = [sys.executable, "-m", "benchmarks.log_programs"]
    paths = [folder / "own" / name for name in names]
    running = [
        subprocess.Popen(
            [*command, path.name], cwd=ROOT, env=environment | {"TORCH_TRACE": str(path)}, stdout=subprocess.DEVNULL
        )
        for path in paths
        if not path.exists()
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit("a program of benchmarks/log_programs.py failed: its errors are above")
    return paths


def main() -> int:
    """Measure, print and write the figures; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in SECTIONS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--tlparse", default=os.environ.get("TLPARSE") or shutil.which("tlparse") or "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="a file for the figures of all sections")
    parser.add_argument("logs", nargs="*", type=Path)
    args = parser.parse_args()
    chosen = [name for name in SECTIONS if getattr(args, name.replace("-", "_"))]
    chosen = chosen or [name for name in SECTIONS if name not in ON_REQUEST]
    if {"sizes", "ranks"} & {*chosen} and not os.access(args.tlparse, os.X_OK):
        where = f"{args.tlparse} can't be run" if args.tlparse else "tlparse is not on PATH"
        parser.error(f"{where}: install it (cargo install tlparse, or its wheel), or give --tlparse or TLPARSE")
    missed, everything = 0, []
    with tempfile.TemporaryDirectory() as folder:
        small = args.logs or (
            write_logs_of(LOGGED, Path(folder)) if {*chosen} & {"sizes", "ranks", "huge", "links"} else []
        )
        texts = [text for path in small for text in texts_at(path)]
        bench = Bench(texts, args.tlparse, args.rounds, Path(folder), args.logs)
        for name in chosen:
            before, figures, started = load(), [], time.perf_counter()
            for figure in SECTIONS[name](bench):
                print(figure.line(), flush=True)
                figures.append(figure)
            print(f"  ({name}: {time.perf_counter() - started:.0f} s, {before})", flush=True)
            write(f"logs-{name}", figures, before, load())
            everything += [asdict(figure) | {"met": figure.met, "section": name, "load": before} for figure in figures]
            missed += sum(figure.met is False for figure in figures)
            if args.json:
                args.json.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
