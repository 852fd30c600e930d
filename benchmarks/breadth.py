"""What people compile today: programs of each kind, explored whole, with values and gradients held against a formula.

python -m benchmarks.breadth --flex              FlexAttention: mask and score functions, on both targets
python -m benchmarks.breadth --triton            users' own Triton kernels
python -m benchmarks.breadth --features          sparse, torch.func, C++ wrapper …: one program each
python -m benchmarks.breadth --quantised         torchao's formats, and a float8 matmul
python -m benchmarks.breadth --programs          small programs in our own backend, against float64
python -m benchmarks.breadth --models            60 models, forward and backward; needs timm, diffusers and torchvision
python -m benchmarks.breadth --flex --only alibi only the programs with this in their name

A section yields a `Row` for each program and setting. A program fails if a stage is missing, or if a value is beyond
the numerics policy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks.breadth_row import Row


def flex(only: str) -> Iterator[Row]:
    from benchmarks.breadth_flex import rows

    return rows(only)


def triton(only: str) -> Iterator[Row]:
    from benchmarks.breadth_triton import rows

    return rows(only)


def features(only: str) -> Iterator[Row]:
    from benchmarks.breadth_features import rows

    return rows(only)


def quantised_rows(only: str) -> Iterator[Row]:
    from benchmarks.breadth_quantised import rows

    return rows(only)


def small_programs(only: str) -> Iterator[Row]:
    from benchmarks.breadth_programs import rows

    return rows(only)


def models(only: str) -> Iterator[Row]:
    from benchmarks.breadth_models import rows

    return rows(only)


SECTIONS: dict[str, Callable[[str], Iterator[Row]]] = {
    "flex": flex,
    "triton": triton,
    "features": features,
    "quantised": quantised_rows,
    "programs": small_programs,
    "models": models,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in SECTIONS:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", default="", help="a part of the programs' names")
    asked = parser.parse_args()
    failed = 0
    for name, section in SECTIONS.items():
        if getattr(asked, name):
            found = []
            for row in section(asked.only):
                print(row, flush=True)
                found.append(row)
            right = sum(row.is_right for row in found)
            failed += len(found) - right
            print(f"{name}: {right} of {len(found)} right")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
