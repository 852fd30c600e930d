"""Compare the code for a GPU that is not here with the code on a real one.

The one side is the kernels for virtual `h200`, from CPU inputs; the other is plain torch.compile on an H200, with the
same torch.

    python benchmarks/fidelity.py                                    on a machine with that GPU: everything
    python benchmarks/fidelity.py --models GPT-2 --formats fp32      some of it
    python benchmarks/fidelity.py --folder sides --sides virtual     one side only: its code is kept in the folder

Every model × (inference, training) × (fp32, autocast to bf16) is compiled twice, each time in a fresh process: by
torch.compile on the GPU, with kernels built and run; and by an exploration with the GPU hidden. The results of a
process are kept in `--folder` and reused, so one side may come from another machine with the same versions of torch and
Triton; sides of different versions are refused. The comparison ignores paths, torch's compilation id, and
`backend_hash` (a hash of Triton's installation and of the GPU, which an exploration that builds nothing leaves out).
Everything else counts: names, numbers in them, and the metadata for the autotuner. Exits with code 1 below 95 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.figures import RESULTS, load
from benchmarks.fresh import ProcessError, measured
from benchmarks.same_kernels import Comparison, compared

BAR = 95.0
MODES, FORMATS, SIDES = ("inference", "training"), ("fp32", "bf16"), ("real", "virtual")
# A process of the virtual side sees no GPU. Each has one core because they run side by side.
ENVIRONMENT = {
    "real": {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    "virtual": {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
}


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    mode: str
    format: str

    def file(self, folder: Path, side: str) -> Path:
        return folder / f"{side}-{self.model}-{self.mode}-{self.format}.json"

    def __str__(self) -> str:
        return f"{self.model}, {self.mode}, {self.format}"


@dataclass(frozen=True, slots=True)
class Row:
    """A compared case. `problems` are the reasons why the virtual side wrote no code."""

    case: Case
    comparison: Comparison
    problems: tuple[str, ...] = ()

    def line(self) -> str:
        found = self.comparison
        share = f"{100 * found.equal / found.total:5.1f} %" if found.total else "no code"
        notes = [
            f"{found.renumbered} more but for their number" if found.renumbered else "",
            f"ATen calls {found.equal_calls} of {found.calls}" if found.calls != found.equal_calls else "",
            "" if found.same_order or found.equal != found.total else "in another order",
            "wrappers equal" if found.same_text else "",
            *(problem.split("\n")[0] for problem in self.problems),
        ]
        row = f"{self.case.model:<15} {self.case.mode:<10} {self.case.format:<5} {found.equal:>4} of {found.total:<4}"
        return f"{row} {share:>8}   {'; '.join(filter(None, notes))}".rstrip()


def make(case: Case, side: str, folder: Path, target: str) -> str:
    """Compile one side of a case, if it is not in the folder; returns an error message, or ""."""
    path = case.file(folder, side)
    if path.exists():
        return ""
    arguments = (side, case.model, case.mode, case.format, "--target", target)
    try:
        found = measured("benchmarks.fidelity_side", *arguments, environment=ENVIRONMENT[side])
    except ProcessError as error:
        return f"{case}: {error}"
    path.write_text(json.dumps(found), encoding="utf-8")
    return ""


def make_all(cases: Sequence[Case], sides: Sequence[str], folder: Path, target: str, jobs: int) -> list[str]:
    """Compile the missing cases, `jobs` processes side by side; returns the error messages."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        failures = pool.map(lambda asked: make(*asked, folder, target), product(cases, sides))
        return [_told(failure) for failure in failures if failure]


def _told(failure: str) -> str:
    print(failure, file=sys.stderr, flush=True)
    return failure


def rows(cases: Iterable[Case], folder: Path) -> Iterator[Row]:
    """Compare the cases with both sides in the folder. Raises ValueError for sides of different versions."""
    for case in cases:
        paths = [case.file(folder, side) for side in SIDES]
        if all(path.exists() for path in paths):
            real, virtual = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
            _same_versions(case, real, virtual)
            yield Row(case, compared(real["codes"], virtual["codes"]), tuple(virtual["problems"]))


def _same_versions(case: Case, real: dict[str, Any], virtual: dict[str, Any]) -> None:
    for name in ("torch", "triton"):
        versions = [side[name].partition("+")[0] for side in (real, virtual)]
        if versions[0] != versions[1]:
            raise ValueError(f"{case}: {name} {versions[0]} made the real side, {versions[1]} the virtual one")


def write(found: Sequence[Row], total: Comparison, failures: Sequence[str], path: Path) -> None:
    """The figures and every difference as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "equal": total.equal,
        "kernels": total.total,
        "load": load(),
        "failures": list(failures),
        "cases": [asdict(row) for row in found],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    asked = _arguments()
    cases = [Case(*values) for values in product(asked.models, asked.modes, asked.formats)]
    failures = make_all(cases, asked.sides, asked.folder, asked.target, asked.jobs)
    found = list(rows(cases, asked.folder))
    for row in found:
        print(row.line())
    total = sum((row.comparison for row in found), Comparison())
    write(found, total, failures, asked.results)
    if not total.total:
        print("nothing to compare: one side is missing")
        return int(bool(failures))
    share = 100 * total.equal / total.total
    verdict = "met" if share >= BAR else "MISSED"
    print(f"{'all':<32} {total.equal:>4} of {total.total:<4}  {share:5.1f} %   bar ≥ {BAR:.0f} % {verdict}")
    print(f"ATen calls {total.equal_calls} of {total.calls}; differences in {asked.results}")
    return int(bool(failures) or share < BAR)


def _arguments() -> argparse.Namespace:
    from benchmarks.fidelity_models import MODELS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--target", default="h200", help="the virtual GPU: the one that this machine has")
    parser.add_argument("--folder", type=Path, default=RESULTS / "fidelity", help="where sides are kept")
    parser.add_argument("--results", type=Path, default=RESULTS / "fidelity.json")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
