"""The cost of tcompile, measured in fresh processes; each figure is printed with its bar.

    python benchmarks/explore.py                          everything that this machine can measure
    python benchmarks/explore.py --ratio --models mlp     some sections, some models

--ratio       exploring ÷ the first call of plain torch.compile: forward and backward, both cold, in turns
--triton      code for a virtual GPU: seconds to Triton source and to binaries; exploring ÷ torch.compile for the CPU
--captured    seconds until the captured graph arrives, in the engine and in a notebook's cell
--provenance  share of compute nodes, stage by stage, that are linked to a line of Python
--size        bytes of the saved page, and bytes sent to the widget
--frontend    the page in headless Chromium: first paint, selection, groups, panning
--memory      peak memory of the exploring process
--recording   on a GPU: compiling while it is recorded ÷ compiling
--watch       in `tcompile watch`: seconds from a save to the captured graph of a small function, and what changed
--recorded    CPU seconds that recording adds to a compile for the CPU, and the stepper to capturing, in one process

Cold means a fresh process with its own, empty torch caches. Compared measurements run in interleaved rounds, after a
discarded first round if disk caches matter; a ratio is the ratio of the medians. Results are written as JSON to
benchmarks/results/. Exits with code 1 if a bar was missed or a measurement failed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures import Figure, load, write
from benchmarks.fresh import ProcessError, measured
from benchmarks.models import MODELS, TITLES

RATIO_BARS = {"mlp": 0.15, "gpt2": 0.55, "resnet101": 0.5, "densenet201": 0.6, "llama32": 0.5}
TRITON_TARGET = "h100"
TRITON_BARS = {"gpt2": 0.5}
TRITON_SECONDS_BARS = {"mlp": 3.0}
BINARIES_SECONDS_BARS = {"mlp": 3.0}
PAGE_BARS = {"mlp": 300_000, "gpt2": 3_000_000}
WIDGET_BARS = {"mlp": 300_000}
CAPTURED_BARS = {"gpt2": 6.0}
PROVENANCE_BARS = {"gpt2": 95.0}
RECORDING_BAR = 1.05
WATCH_BAR = 1.0
RECORDED_MODELS = ("mlp", "encoder", "resnet18")
RECORDED_CASES = ("5 breaks", "30 breaks", "resnet18")
RECORDED_BAR = 1.10
STEPPED_BAR = 3.0
FX_STAGES = ("captured", "pre_grad", "joint", "forward", "backward", "inference", "post_grad")


@dataclass
class Bench:
    """The command-line arguments, and earlier measurements that other sections need too."""

    models: list[str]
    rounds: int
    folder: Path
    explored: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def record_path(self, model: str) -> Path:
        return self.folder / f"{model}.json"

    def explore(self, model: str) -> dict[str, Any]:
        """Explore a model once more, and keep the record."""
        say(f"exploring {TITLES[model]}")
        found = measured("benchmarks.one_process", "explore", model, "--keep", str(self.record_path(model)))
        if found["problems"]:
            raise ProcessError(f"exploring {TITLES[model]} met problems:\n    " + "\n    ".join(found["problems"]))
        self.explored.setdefault(model, []).append(found)
        return found

    def once(self, model: str) -> list[dict[str, Any]]:
        """The first measurement of exploring a model; explores it if there is none."""
        return self.explored.get(model) or [self.explore(model)]

    def record(self, model: str) -> Any:
        from compiler.record import Record

        self.once(model)
        return Record.load(self.record_path(model))

    def page(self, model: str) -> Path:
        from explorer.run.run import Run

        return Run(self.record(model)).save(self.folder / f"{model}.html")


def ratio(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        explored, compiled = [], []
        for _ in range(bench.rounds):
            explored.append(bench.explore(model))
            say(f"compiling {TITLES[model]} with torch.compile")
            compiled.append(measured("benchmarks.one_process", "compile", model))
        yield compared(f"{TITLES[model]}: explore ÷ torch.compile", explored, compiled, RATIO_BARS.get(model))


def triton(bench: Bench) -> Iterable[Figure]:
    """Time to Triton source for a GPU that is not here, against torch.compile for the CPU; then to binaries."""
    for model in bench.models:
        explored, built, compiled = [], [], []
        for _ in range(bench.rounds):
            say(f"exploring {TITLES[model]} for {TRITON_TARGET}, and compiling its kernels")
            built.append(measured("benchmarks.one_process", "binaries", model, "--target", TRITON_TARGET))
            explored.append(measured("benchmarks.one_process", "explore", model, "--target", TRITON_TARGET))
            say(f"compiling {TITLES[model]} with torch.compile, for the CPU")
            compiled.append(measured("benchmarks.one_process", "compile", model))
        yield compared(f"{TITLES[model]}: to Triton ÷ torch.compile", explored, compiled, TRITON_BARS.get(model))
        yield seconds(f"{TITLES[model]}: to Triton source", explored, TRITON_SECONDS_BARS.get(model))
        note = f"{built[0]['kernels']} kernels, {built[0]['binaries']} binaries, {len(built[0]['problems'])} problems"
        yield seconds(f"{TITLES[model]}: from there to binaries", built, BINARIES_SECONDS_BARS.get(model), note)


def seconds(name: str, runs: list[dict[str, Any]], bar: float | None, note: str = "") -> Figure:
    measured_seconds = tuple(run["seconds"] for run in runs)
    return Figure(name, statistics.median(measured_seconds), "s", bar, note=note, runs=measured_seconds)


def compared(name: str, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], bar: float | None) -> Figure:
    """The ratio of the median seconds of two measurements made in turns; the note has seconds, and CPU seconds."""
    seconds = [[run["seconds"] for run in runs] for runs in (ours, theirs)]
    cpu = [[run["cpu_seconds"] for run in runs] for runs in (ours, theirs)]
    (mine, plain), (my_cpu, plain_cpu) = map(medians, (seconds, cpu))
    note = f"{mine:.1f} s ÷ {plain:.1f} s; CPU {my_cpu:.1f} s ÷ {plain_cpu:.1f} s = {my_cpu / plain_cpu:.2f}"
    runs = tuple(a / b for a, b in zip(*seconds, strict=True))
    return Figure(name, mine / plain, "", bar, note=note, runs=runs, details={"seconds": seconds, "cpu_seconds": cpu})


def medians(lists: Iterable[list[float]]) -> list[float]:
    return [statistics.median(values) for values in lists]


def captured(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        runs = tuple(captured_at(run["events"]) for run in bench.once(model))
        bar = CAPTURED_BARS.get(model)
        yield Figure(f"{TITLES[model]}: captured graph, from the call", statistics.median(runs), "s", bar, runs=runs)
        say(f"running a cell that explores {TITLES[model]}")
        cell = measured("benchmarks.cell", model)
        if cell["captured"] is None:
            raise ProcessError(f"the cell that explores {TITLES[model]} ended before its captured graph was sent")
        note = f"the cell took {cell['seconds']:.1f} s; its kernel peaked at {cell['peak_mib']:.0f} MiB"
        yield Figure(
            f"{TITLES[model]}: captured graph in the notebook", cell["captured"], "s", bar, note=note, details=cell
        )


def captured_at(events: list[dict[str, Any]]) -> float:
    """When the biggest captured graph arrived."""
    graphs = [event for event in events if event["artifact"].startswith("captured[")]
    return float(max(graphs, key=lambda event: event["entities"])["at"])


def provenance(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        for stage, (reaching, all_) in shares(bench.record(model)).items():
            name = f"{TITLES[model]}: {stage} nodes that lead to a line of Python"
            yield Figure(
                name, 100 * reaching / all_, "%", PROVENANCE_BARS.get(model), True, f"{reaching:,} of {all_:,}"
            )


def shares(record: Any) -> dict[str, tuple[int, int]]:
    """For each FX stage, how many of its compute nodes reach a source line through origins, and how many there are."""
    from explorer.reading.provenance import source_lines

    reaching = source_lines(record)
    found = {}
    for stage in FX_STAGES:
        calls = [entity.id for a in record.of_stage(stage) for entity in a.entities if entity.kind == "call"]
        if calls:
            found[stage] = (sum(identity in reaching for identity in calls), len(calls))
    return found


def size(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        yield kilobytes(f"{TITLES[model]}: run.html", bench.page(model).stat().st_size, PAGE_BARS.get(model))
        sent = widget_bytes(bench.record(model))
        parts = ", ".join(f"{name} {count / 1000:.0f}" for name, count in sent.items())
        yield kilobytes(f"{TITLES[model]}: widget payload", sum(sent.values()), WIDGET_BARS.get(model), parts)


def kilobytes(name: str, count: int, bar: int | None, note: str = "") -> Figure:
    return Figure(name, count / 1000, "kB", None if bar is None else bar / 1000, note=note)


def widget_bytes(record: Any) -> dict[str, int]:
    """Bytes sent to show a record in a notebook, with all its parts loaded: code, style, manifest and parts."""
    import msgspec

    from explorer.run import frontend
    from explorer.run.payload import Payload

    payload = Payload(record)
    return {
        "script": len(frontend.widget_module().encode()),
        "style": len(frontend.css().encode()),
        "manifest": len(msgspec.json.encode(payload.manifest())),
        "parts": sum(len(part.data) for part in payload.parts()),
    }


def front_end(bench: Bench) -> Iterable[Figure]:
    from benchmarks.frontend import frontend_figures

    for model in bench.models:
        if model == "mlp":
            say(f"left out: the graphs of {TITLES[model]} have no closed group to open")
            continue
        page = bench.page(model)
        say(f"opening the page of {TITLES[model]} in Chromium")
        for figure in frontend_figures(page):
            yield Figure(**{**vars(figure), "name": f"{TITLES[model]}: {figure.name}"})


def memory(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        run = bench.once(model)[-1]
        note = f"{run['peak_mib_before']:,.0f} MiB before: torch, the model and its inputs"
        yield Figure(f"{TITLES[model]}: peak memory of exploring", run["peak_mib"], "MiB", note=note)


def recording(bench: Bench) -> Iterable[Figure]:
    for model in bench.models:
        runs: dict[str, list[dict[str, Any]]] = {"explore": [], "compile": []}
        for number in range(bench.rounds + 1):
            for what in ("explore", "compile") if number % 2 else ("compile", "explore"):
                say(f"{what} {TITLES[model]} on the GPU, round {number} of {bench.rounds}")
                found = measured("benchmarks.one_process", what, model, "--device", "cuda")
                if number:  # the first round warms the disk
                    runs[what].append(found)
        name = f"{TITLES[model]}: compiling while recorded ÷ compiling, GPU"
        yield compared(name, runs["explore"], runs["compile"], RECORDING_BAR)


def recorded(bench: Bench) -> Iterable[Figure]:
    """Measure fixed cases, independent of `--models`."""
    for what, rounds in (("compile", bench.rounds), ("capture", 4 * bench.rounds)):
        for case in RECORDED_CASES:
            say(f"{what} of {case}, plain and recorded, in {rounds} rounds")
            found = measured("benchmarks.recorded", case, what, "--rounds", str(rounds))
            bar = RECORDED_BAR if what == "compile" else None
            yield in_turns(f"{case}: {what} while recorded ÷ {what}", found, "recorded", bar)
            if "stepped" in found:
                yield in_turns(f"{case}: {what} with the stepper ÷ {what}", found, "stepped", STEPPED_BAR)


def in_turns(name: str, found: dict[str, dict[str, list[float]]], way: str, bar: float | None) -> Figure:
    """The median over rounds of a ratio of CPU seconds; the note has its quartiles and the seconds."""
    pairs = zip(found[way]["cpu_seconds"], found["plain"]["cpu_seconds"], strict=True)
    runs = tuple(mine / plain for mine, plain in pairs)
    low, middle, high = statistics.quantiles(runs, n=4, method="inclusive")
    mine, plain = medians(found[each]["cpu_seconds"] for each in (way, "plain"))
    note = f"quartiles {low:.2f} to {high:.2f}; CPU {mine:.2f} s ÷ {plain:.2f} s"
    return Figure(name, middle, "", bar, note=note, runs=runs, details=found)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def watch(_: Bench) -> Iterable[Figure]:
    say("saving a watched file")
    seconds = tuple(measured("benchmarks.watching")["seconds"])
    note = f"{len(seconds)} saves, at most {max(seconds):.2f} s"
    yield Figure("small function: from save to captured", statistics.median(seconds), "s", WATCH_BAR, note=note)


SECTIONS: dict[str, Callable[[Bench], Iterable[Figure]]] = {
    "ratio": ratio,
    "triton": triton,
    "captured": captured,
    "provenance": provenance,
    "size": size,
    "frontend": front_end,
    "memory": memory,
    "recording": recording,
    "recorded": recorded,
    "watch": watch,
}
DEFAULT_MODELS = dict.fromkeys(SECTIONS, ("mlp", "gpt2")) | {
    "provenance": ("gpt2",),
    "frontend": ("gpt2",),
    "recording": RECORDED_MODELS,
}


def say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def run_section(section: str, bench: Bench) -> bool:
    """Measure, print and write one section; return whether it met all its bars."""
    before = load()
    print(f"\n{section} ({before})", flush=True)
    figures: list[Figure] = []
    kept = True
    try:
        for figure in SECTIONS[section](bench):
            figures.append(figure)
            print(figure.line(), flush=True)
    except (ProcessError, RuntimeError) as error:
        print(f"FAILED: {error}", flush=True)
        kept = False
    write(section, figures, before, load())
    return kept and all(figure.met is not False for figure in figures)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for section in SECTIONS:
        parser.add_argument(f"--{section}", action="append_const", dest="sections", const=section)
    parser.add_argument("--models", nargs="+", choices=MODELS, help="instead of those that have bars")
    parser.add_argument("--rounds", type=int, default=3, help="how often to measure what is compared (3)")
    parser.add_argument("--keep", type=Path, help="folder for records and pages; otherwise they are not kept")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    sections = asked.sections or [section for section in SECTIONS if section != "recording" or has_gpu()]
    with tempfile.TemporaryDirectory(prefix="tcompile-bench-") as temporary:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench([], asked.rounds, folder)
        kept = []
        for section in sections:
            bench.models = list(asked.models or DEFAULT_MODELS[section])
            kept.append(run_section(section, bench))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
