"""Compare the tool's measurements with the GPU of this machine: `python -m benchmarks.real_gpu [PART …]`.

    lines    times of source lines and of kernels, with and without CUDA graphs: their sums beside the time of a call
    memory   peak of `run.memory.trace` beside torch's allocator, with and without CUDA graphs
    profile  kernel times of a profile that `load_profile` reads, beside what `run.timing.kernels` measured
    lab      edits of kernels in a `%%tkernel` cell, with the time of one launch before and after

Without a GPU, all but `lab` run on the CPU.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from triton.language.extra import libdevice

import tcompile
from benchmarks.suite_models import WORKLOADS
from explorer.kernel_lab.cell import cell_text
from explorer.kernel_lab.trial import try_edit

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODELS = ("MLP", "GPT-2", "ResNet-18")
MODES = ("default", "reduce-overhead")
CALLS = 30

Row = dict[str, Any]


def step_of(name: str) -> tuple[nn.Module, dict[str, Any], Callable[[Any], Tensor]]:
    """A model of the suite in training, its arguments and its loss."""
    torch.compiler.reset()
    step = WORKLOADS[name].build().to(DEVICE)
    return step.model.train(), step.arguments, step.loss


def warm_call(
    model: nn.Module, arguments: dict[str, Any], loss: Callable[[Any], Tensor], mode: str
) -> Callable[[], None]:
    """A training call of the compiled model, after its first calls."""
    torch.compiler.reset()
    compiled = torch.compile(model, mode=mode)

    def call() -> None:
        torch.compiler.cudagraph_mark_step_begin()
        loss(compiled(**arguments)).backward()
        model.zero_grad()

    for _ in range(4):
        call()
    return call


def measure_lines(name: str, mode: str) -> Row:
    """Microseconds of a training call's forward and backward: by the whole, the kernels and the lines."""
    model, arguments, _ = step_of(name)
    run = tcompile.explore(model, kwargs=arguments, grad=True, time=mode, mode=mode)
    lines, kernels = (table[table.side == "compiled"] for table in (run.timing.lines, run.timing.kernels))
    return {
        "kernels": float(kernels.us.sum()), "lines": float(lines.us.sum()),
        "in no line": float(lines[lines["where"].isna()].us.sum()), **compiled_call(run),
    }  # fmt: skip


def compiled_call(run: tcompile.Run) -> Row:
    """Microseconds of a call of the compiled model, and those in which the GPU was busy, where it was measured."""
    ours = next(each for each in run.record.candidates if each.backend == "inductor")
    busy = {"GPU busy": 1e6 * ours.host.gpu} if ours.host is not None and ours.host.gpu else {}
    return {"call": 1e6 * (ours.seconds or 0), **busy}


def measure_memory(name: str, mode: str) -> Row:
    """Bytes at the peak above the start of a call: by the trace and by torch's allocator."""
    model, arguments, loss = step_of(name)
    run = tcompile.explore(model, kwargs=arguments, grad=True, mode=mode)
    call = warm_call(model, arguments, loss, mode)
    steps = run.memory.trace(call)
    measured = steps[steps.side == "measured"]
    row = {"by the trace": int(measured.in_use.max() - measured.in_use.iloc[0]) if len(measured) else 0}
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        row["by the allocator"] = torch.cuda.max_memory_allocated() - before
    return row


def measure_profile(name: str, mode: str) -> Row:
    """Microseconds of all kernels in a call, by a profile that is read back and by the engine."""
    model, arguments, loss = step_of(name)
    run = tcompile.explore(model, kwargs=arguments, grad=True, time=mode, mode=mode)
    call = warm_call(model, arguments, loss, mode)
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if DEVICE == "cuda" else []
    with torch.profiler.profile(activities=kinds) as profile:
        for _ in range(CALLS):
            call()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "profile.json")
        profile.export_chrome_trace(str(path))
        read = tcompile.load_profile(path, run).kernels
    told = run.timing.kernels
    told = told[(told.side == "compiled") & (told.device == DEVICE)]
    read = read[(read.graph != "") & (read.device == DEVICE)]
    by_profile = 1e6 * float(read.seconds.sum()) / CALLS
    return {"by the profile": by_profile, "by the engine": float(told.us.sum()), **compiled_call(run)}


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def transpose(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous() * 2


@triton.jit  # type: ignore[untyped-decorator]
def double_by_columns(x, out, rows, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = (offsets % rows) * columns + offsets // rows
    tl.store(out + places, tl.load(x + places) * 2)


def double(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    double_by_columns[(x.numel() // 1024,)](x, out, *x.shape, BLOCK=1024)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def add_all(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    values = tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(out + tl.zeros_like(values).to(tl.int32), values)


def total(x: Tensor) -> Tensor:
    out = torch.zeros((), device=x.device)
    add_all[(x.numel() // 1024,)](x, out, BLOCK=1024)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def cube_all(x, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets)
    tl.store(out + offsets, libdevice.pow(values, 3.0))


def cube(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    cube_all[(x.numel() // 1024,)](x, out, BLOCK=1024)
    return out


def layer_norm(x: Tensor) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[-1:])


Edit = tuple[str, Callable[..., Tensor], tuple[Tensor, ...], Mapping[str, int], tuple[str, str]]
"""Name, function, arguments, launch configuration, and a text in the kernel with its replacement."""


def edits() -> Iterator[Edit]:
    x = torch.randn(8192, 4096, device=DEVICE)
    yield "larger tiles of a transposition", transpose, (x,), {"XBLOCK": 64, "YBLOCK": 64, "num_warps": 8}, ("", "")
    yield "smaller tiles of a transposition", transpose, (x,), {"XBLOCK": 32, "YBLOCK": 32, "num_warps": 4}, ("", "")
    yield "warps of a softmax", softmax, (x,), {"XBLOCK": 1, "num_warps": 16}, ("", "")
    by_rows = "(offsets % rows) * columns + offsets // rows", "offsets"
    yield "neighbours in memory in a user's kernel", double, (x,), {}, by_rows
    yield "one atomic addition for a block in a user's kernel", total, (x,), {}, (
        "out + tl.zeros_like(values).to(tl.int32), values", "out, tl.sum(values)",
    )  # fmt: skip
    yield "products instead of a power in a user's kernel", cube, (x,), {}, (
        "libdevice.pow(values, 3.0)", "values * values * values",
    )  # fmt: skip
    yield "warps of a layer norm", layer_norm, (x,), {"XBLOCK": 1, "num_warps": 8}, ("", "")


def measure_edit(fn: Callable[..., Tensor], given: tuple[Tensor, ...], numbers: Mapping[str, int],
                 change: tuple[str, str]) -> Row:  # fmt: skip
    """One edit: microseconds of a launch before and after, and the verdict on its numbers."""
    torch.compiler.reset()
    run = tcompile.explore(fn, *given)
    kernel = run.record.kernels[-1]
    text = cell_text(run.record, kernel.name, "run")
    assert change[0] in text, text
    source = text.partition("\n")[2].replace(*change)
    trial = try_edit(run, kernel, "\n" + source, "", 0, numbers, check=True)
    times = {timing.subject: 1e6 * (timing.seconds or 0) for timing in trial.timings}
    return {**times, "verdict": trial.verdict, "found": [each.what for each in trial.findings], "notes": trial.notes}


def measure(parts: list[str]) -> Iterator[tuple[str, Row]]:
    by_name = {"lines": measure_lines, "memory": measure_memory, "profile": measure_profile}
    for part in (part for part in parts if part in by_name):
        for name in MODELS:
            for mode in MODES:
                yield f"{part} {name} {mode}", attempt(by_name[part], name, mode)
    if "lab" in parts:
        for name, *rest in edits():
            yield f"lab {name}", attempt(measure_edit, *rest)


def attempt(fn: Callable[..., Row], *args: Any) -> Row:
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001 one case that fails is a row of the table
        return {"error": repr(error)[:600]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["lines", "memory", "profile", "lab"])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = {}
    for name, row in measure(asked.parts):
        found[name] = row
        print(name, {key: round(value, 1) if isinstance(value, float) else value for key, value in row.items()})
        if asked.json:
            asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
