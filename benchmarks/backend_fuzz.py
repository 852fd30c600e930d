"""Random programs by our own backend against eager mode, as many as there is time for; what differs is made small.

    python -m benchmarks.backend_fuzz FIRST COUNT [--device cuda] [--options '{"interpret": true}'] [--as-gpu]

prints each seed whose program differs, the few steps that it takes, and how they go wrong. Memory is full of NaN before
anything is written there, so that reading too early is seen. With `--as-gpu` programs are compiled as for a GPU that is
not here, and their kernels run in Triton's interpreter. See tests/compiler/backend/random_programs.py.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tests.compiler.backend.poison import poisoned
from tests.compiler.backend.random_programs import WIDE, Case, as_for_a_gpu, case_of, check, program


def difference(case: Case) -> str:
    """How compiling or running a program goes wrong, "" if it does not, or if eager mode refuses it."""
    try:
        for grow in case.grows:
            replace(case, device="cpu").results(program(case.steps), grow)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return ""
    try:
        check(case)
    except Exception:  # noqa: BLE001 whatever goes wrong is the finding
        return traceback.format_exc(limit=-4)
    return ""


def smallest(case: Case) -> Case:
    """The case with as few steps as still go wrong, leaving out one at a time."""
    place = len(case.steps) - 1
    while place >= 0:
        shorter = replace(case, steps=[*case.steps[:place], *case.steps[place + 1 :]])
        case = shorter if difference(shorter) else case
        place = min(place, len(case.steps)) - 1
    return case


def failing(seeds: range, device: str, options: Mapping[str, Any]) -> Iterator[tuple[int, Case, str]]:
    for seed in seeds:
        case = case_of(seed, device, options, WIDE)
        with poisoned():
            if difference(case):
                case = smallest(case)
                yield seed, case, difference(case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--as-gpu", action="store_true")
    given = parser.parse_args()
    total = 0
    with as_for_a_gpu() if given.as_gpu else nullcontext():
        for seed, case, why in failing(range(given.first, given.first + given.count), given.device, given.options):
            total += 1
            print(f"seed {seed}: {case}\n{why}", flush=True)
    print(f"{total} of {given.count} programs differ")


if __name__ == "__main__":
    main()
