"""Compare random programs in our own backend with eager mode, and minimize the programs that differ.

    python -m benchmarks.backend_fuzz FIRST COUNT [--device cuda] [--options JSON] [--as-gpu] [--writes]

prints each seed whose program differs, its minimized steps, and the error; at the end, how many programs agree and how
many torch itself refuses. Memory is filled with NaN before it is written, so that a read before the write is visible.
With `--as-gpu` programs are compiled for a GPU that is not here, and their kernels run in Triton's interpreter. See
tests/compiler/backend/random_programs.py.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tests.compiler.backend.poison import poisoned
from tests.compiler.backend.random_programs import (
    AGREES,
    NOT_EAGER,
    NOT_TORCH,
    WIDE,
    WRITES,
    Case,
    as_for_a_gpu,
    case_of,
    check,
    program,
)

FINE = (AGREES, NOT_EAGER, NOT_TORCH)


def verdict(case: Case) -> str:
    """A verdict of FINE, or the error of compiling or running a program."""
    try:
        for grow in case.grows:
            replace(case, device="cpu").results(program(case.steps), grow)
    except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
        return NOT_EAGER
    try:
        return check(case)
    except Exception:  # noqa: BLE001 whatever goes wrong is the finding
        return traceback.format_exc(limit=-4)


def smallest(case: Case) -> Case:
    """Minimize a case: leave out one step at a time while the program still fails."""
    place = len(case.steps) - 1
    while place >= 0:
        shorter = replace(case, steps=[*case.steps[:place], *case.steps[place + 1 :]])
        case = case if verdict(shorter) in FINE else shorter
        place = min(place, len(case.steps)) - 1
    return case


def verdicts(
    seeds: range, device: str, options: Mapping[str, Any], names: Sequence[str]
) -> Iterator[tuple[int, Case, str]]:
    """For each seed, its minimized program and the verdict."""
    for seed in seeds:
        case = case_of(seed, device, options, names)
        with poisoned():
            if (found := verdict(case)) not in FINE:
                case = smallest(case)
                found = verdict(case)
        yield seed, case, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--as-gpu", action="store_true")
    parser.add_argument("--writes", action="store_true", help="programs of views, writes and calls alone")
    given = parser.parse_args()
    seeds, names = range(given.first, given.first + given.count), WRITES if given.writes else WIDE
    total: Counter[str] = Counter()
    with as_for_a_gpu() if given.as_gpu else nullcontext():
        for seed, case, found in verdicts(seeds, given.device, given.options, names):
            total[found if found in FINE else "differs"] += 1
            if found not in FINE:
                print(f"seed {seed}: {case}\n{found}", flush=True)
    print(f"of {given.count} programs: {', '.join(f'{number} {what}' for what, number in sorted(total.items()))}")


if __name__ == "__main__":
    main()
