"""The device that code is generated for: a device of this machine, or a GPU of the table."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from compiler.record import Problem
from compiler.record.options import Options
from compiler.targets import Target, is_virtual, target

WRITERS = ("inductor", "tcompile")
"""The backends that generate code, also for a GPU that this machine lacks."""
DEFAULT_TARGET = "h100"
"""The default GPU if tensors are on the CPU and the user names no target."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The device that code is generated for.

    `name` is a GPU of the table, or a device type of this machine; then `gpu` is None.
    `problem` says why no code can be generated for the GPU; None if there is no such problem.
    """

    name: str
    gpu: Target | None = None
    problem: Problem | None = None


def has_triton() -> bool:
    """Whether Triton is installed; it has no wheels for macOS and Windows."""
    return importlib.util.find_spec("triton") is not None


def builds(options: Options) -> bool:
    """Whether the options require generated code to be built and run."""
    return options.check is True and not is_virtual(options.target)


def measures(options: Options) -> bool:
    """Whether the options ask for Inductor's candidates to be timed (max-autotune)."""
    return options.mode.startswith("max-autotune")


def destination(options: Options, devices: Iterable[torch.device]) -> Destination:
    """The device to generate code for, from the options and the devices of the graph's tensors."""
    found = [device.type for device in devices]
    here = next((kind for kind in found if kind not in ("cpu", "meta")), "cpu")
    runs = (bool(options.time) or builds(options)) and "meta" not in found
    if not _wants_gpu(options, here, runs):
        return Destination(here)
    if not has_triton():
        return Destination(here, problem=_no_triton(options.target))
    gpu = target(options.target or DEFAULT_TARGET)
    return Destination(gpu.name, gpu)


def _wants_gpu(options: Options, here: str, runs: bool) -> bool:
    """Whether to use a virtual GPU: the user names one, or nothing runs and Inductor or our backend compiles."""
    if is_virtual(options.target):
        return True
    return not options.target and here == "cpu" and options.backend in WRITERS and not runs


def _no_triton(asked: str) -> Problem:
    title = target(asked or DEFAULT_TARGET).title
    return Problem(
        "ttir",
        f"Triton is not installed here (it has no wheels for macOS and Windows): kernels are C++ for the CPU, and "
        f"there is no code for {title}",
        "use Linux, or Windows' WSL, with `pip install triton`; every other stage is as it is there",
    )
