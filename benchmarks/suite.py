"""Does compiling pay? Models as people use them, eager against compiled, in one run: `python -m benchmarks.suite`.

Each case (a model, inference or training, float32 or mixed precision) has a fresh process with empty caches, where
`compiler.timing` times the candidates in interleaved rounds. Training is forward, backward and an AdamW step. With
several GPUs each takes a share of the cases, `--at-once` at a time (default one): these compile side by side, and while
one is timed the others wait. Results are written after each case, so a stopped run keeps them; `--add` continues from a
file, with the cases that are not in it yet.

Candidates are compiled one after another, and the first one pays for torch's one-time imports: every other case has the
candidates in the opposite order.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import RESULTS
from benchmarks.fresh import ProcessError, measured
from benchmarks.suite_models import WORKLOADS
from benchmarks.suite_table import summary

CASES = ("inference fp32", "inference AMP", "training fp32", "training AMP")


@dataclass
class Suite:
    """The finished cases, and the file that they are written to."""

    path: Path
    found: dict[str, Any] = field(default_factory=lambda: {"machine": {}, "cases": []})
    lock: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def of(path: Path, add: bool) -> Suite:
        """An empty suite; with `add`, one with the cases in the file."""
        return Suite(path, json.loads(path.read_text(encoding="utf-8"))) if add and path.exists() else Suite(path)

    def has(self, model: str, case: str) -> bool:
        return any(_name(done) == (model, case) for done in self.found["cases"])

    def add(self, case: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> None:
        """Add a case, in the models' order, and write the file atomically.

        If the case is there already, this is its second run, and is kept with the first.
        """
        with self.lock:
            self.found["machine"] = dict(machine or {})
            known = next((done for done in self.found["cases"] if _name(done) == _name(case)), None)
            if known is None:
                self.found["cases"].append(dict(case))
            else:
                known["again"] = list(_again(known, case))
            models, cases = list(WORKLOADS), list(CASES)
            self.found["cases"].sort(key=lambda done: (models.index(done["model"]), cases.index(done["case"])))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_suffix(".new")
            written.write_text(_text(self.found), encoding="utf-8")
            written.replace(self.path)


def _name(case: Mapping[str, Any]) -> tuple[str, str]:
    return case["model"], case["case"]


def _again(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A second run of the same candidates: the ratio of the medians, and the noise notes of both runs."""
    before = {one["name"]: one for one in first["candidates"]}
    for one in second["candidates"]:
        other = before.get(one["name"])
        if other is None or not other["seconds"] or not one["seconds"]:
            continue
        said = (*first["measurement"]["noise"], *second["measurement"]["noise"])
        noise = [note for note in said if note.startswith(f"{one['name']} ")]
        ratio = one["seconds"] / other["seconds"]
        yield {"name": one["name"], "seconds": one["seconds"], "ratio": ratio, "noise": noise}


def _text(found: Mapping[str, Any]) -> str:
    """JSON with a case on each line, numbers to four digits."""
    cases = ",\n".join(json.dumps(_rounded(case), ensure_ascii=False) for case in found["cases"])
    return f'{{"machine": {json.dumps(found["machine"], ensure_ascii=False)},\n"cases": [\n{cases}\n]}}\n'


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = _parser().parse_args(arguments)
    suite = Suite.of(chosen.out, chosen.add)
    wanted = [
        (model, case) for model in chosen.models for case in chosen.cases if suite.has(model, case) == chosen.again
    ]
    candidates = list(_in_both_modes(chosen.backends)) if chosen.backends else _listed(chosen.candidates)
    job = Job(candidates, not chosen.no_loop, time.monotonic() + chosen.seconds, chosen.at_once)
    _run(suite, wanted, job, chosen.gpus)
    print(summary(suite.found))
    print(f"written to {chosen.out}")


@dataclass(frozen=True)
class Job:
    """The settings of a suite's run; no case starts after `until`.

    On each GPU `at_once` cases are compiled side by side, and timed one after another.
    """

    candidates: Sequence[str]
    loop: bool
    until: float
    at_once: int = 1

    def candidates_of(self, model: str, case: str) -> str:
        """The candidates in their order, or in the opposite order."""
        turned = (list(WORKLOADS).index(model) + CASES.index(case)) % 2
        return ",".join(reversed(self.candidates) if turned else self.candidates)


def _run(suite: Suite, wanted: Iterable[tuple[str, str]], job: Job, gpus: int) -> None:
    """Each GPU takes the next case when it is done with one."""
    todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for item in wanted:
        todo.put(item)
    every = list(range(max(gpus, 1)))
    with tempfile.TemporaryDirectory() as folder:
        workers = [
            threading.Thread(target=_work, args=(suite, todo, job, gpu, len(every), f"{folder}/{gpu}"))
            for gpu in every * job.at_once
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def _work(suite: Suite, todo: queue.SimpleQueue[tuple[str, str]], job: Job, gpu: int, gpus: int, lock: str) -> None:
    environment = {"TCOMPILE_SUITE_GPU": lock} | ({"CUDA_VISIBLE_DEVICES": str(gpu)} if gpus > 1 else {})
    while time.monotonic() < job.until:
        try:
            model, case = todo.get_nowait()
        except queue.Empty:
            return
        arguments = (model, case, job.candidates_of(model, case), f"{gpu}/{gpus}", "loop" if job.loop else "")
        began = time.monotonic()
        try:
            found = measured("benchmarks.suite_case", *arguments, environment=environment)
            found["case"]["candidates"] = [
                _with_own_memory(one, arguments, environment) for one in found["case"]["candidates"]
            ]
        except ProcessError as error:
            print(f"{model}, {case}: {error}", flush=True)
            continue
        suite.add(found["case"], found["machine"])
        print(f"{model}, {case}: {time.monotonic() - began:.0f} s", flush=True)


def _with_own_memory(candidate: Mapping[str, Any], arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The candidate with its peak memory as measured in a process of its own, if others' CUDA graphs were counted.

    CUDA graphs of one process share a pool, so that candidates measured beside others seem to hold these too.
    """
    if not any("together with those of" in note for note in candidate.get("notes", ())):
        return candidate
    model, case, _, share, _ = arguments
    again = measured("benchmarks.suite_case", model, case, candidate["name"], share, "", environment=environment)
    own = next(one for one in again["case"]["candidates"] if one["name"] == candidate["name"])
    return {**candidate, "peak_bytes": own["peak_bytes"], "notes": own["notes"]}


def _in_both_modes(backends: Iterable[str]) -> Iterator[str]:
    for backend in backends:
        yield from [backend] if backend == "eager" else [backend, f"{backend} reduce-overhead"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description=__doc__)
    parser.add_argument("--candidates", default="default,reduce-overhead", help="as --time takes them; eager is added")
    parser.add_argument("--backends", type=_listed, help="eager,inductor,tcompile: candidates in both modes of each")
    parser.add_argument("--models", type=_listed, default=list(WORKLOADS), help=", ".join(WORKLOADS))
    parser.add_argument("--cases", type=_listed, default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--gpus", type=int, default=1, help="so many GPUs take cases side by side")
    parser.add_argument("--at-once", type=int, default=1, help="so many cases of a GPU are compiled side by side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case is begun after so long")
    parser.add_argument("--out", type=Path, default=RESULTS / "suite.json")
    parser.add_argument("--add", action="store_true", help="keep the cases that are in the file already")
    parser.add_argument("--no-loop", action="store_true", help="without the independent loop of CUDA events")
    parser.add_argument("--again", action="store_true", help="with --add: measure cases of the file a second time")
    return parser


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
