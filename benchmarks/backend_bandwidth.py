"""Bandwidth of memory-bound kernels, by `backend="tcompile"` and by Inductor, as a fraction of a plain copy's.

    python -m benchmarks.backend_bandwidth [--out FILE] [NAME …]

Each case reads and writes a known number of bytes, far more than the GPU's cache holds. CUDA events time our kernel, a
device-to-device copy and Inductor's kernel in interleaved rounds; the times are medians. Needs a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

ELEMENTS = 2**28
ROUNDS, CALLS = 15, 4
ROW = 1024
LONG_ROW = 32768
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Case = tuple[Callable[[Tensor], Tensor], int, int]
#: A function of a matrix, the length of the matrix's rows, and the size of the result in 1024ths of the matrix.
CASES: dict[str, Case] = {
    "relu": (torch.relu, ROW, 1024),
    "gelu": (functional.gelu, ROW, 1024),
    "add transposed": (lambda x: x.t() + 1, 16384, 1024),
    "transpose": (lambda x: x.t().contiguous(), 16384, 1024),
    "sum of rows": (lambda x: x.sum(-1), ROW, 1),
    "sum of long rows": (lambda x: x.sum(-1), LONG_ROW, 0),
    "sum of columns": (lambda x: x.sum(0), ROW, 0),
    "sum of all": (torch.sum, ROW, 0),
    "LayerNorm": (lambda x: functional.layer_norm(x, (x.shape[-1],)), ROW, 1024),
    "softmax": (lambda x: x.softmax(-1), ROW, 1024),
    "long softmax": (lambda x: x.softmax(-1), LONG_ROW, 1024),
    "log softmax": (lambda x: x.log_softmax(-1), ROW, 1024),
    "long log softmax": (lambda x: x.log_softmax(-1), LONG_ROW, 1024),
}


def seconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Median GPU seconds per call of each candidate, in interleaved rounds."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, into in zip(calls, found, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            into.append(begin.elapsed_time(end) / CALLS / 1e3)
    return [statistics.median(times) for times in found]


def measured(name: str, dtype: str) -> dict[str, Any]:
    fn, row, share = CASES[name]
    torch.compiler.reset()
    x = torch.randn(ELEMENTS // row, row, device="cuda", dtype=DTYPES[dtype])
    copied = torch.empty_like(x)
    ours, theirs = torch.compile(fn, backend="tcompile"), torch.compile(fn)
    tolerance = {"fp32": 1e-3, "bf16": 2e-2}[dtype]
    torch.testing.assert_close(ours(x), theirs(x), rtol=tolerance, atol=tolerance * 10)
    copy, own, inductor = seconds((lambda: copied.copy_(x), lambda: ours(x), lambda: theirs(x)))
    bytes_ = x.nbytes * (1 + share / 1024)
    rate = 2 * x.nbytes / copy
    return {
        "case": name,
        "dtype": dtype,
        "copy": rate,
        "tcompile": bytes_ / own / rate,
        "inductor": bytes_ / inductor / rate,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for name in given.names or CASES:
        for dtype in DTYPES:
            rows.append(measured(name, dtype))
            print(
                "{case:18} {dtype} tcompile {tcompile:.2f} inductor {inductor:.2f} of a copy".format(**rows[-1]),
                flush=True,
            )
    if given.out:
        given.out.write_text(json.dumps({"gpu": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
