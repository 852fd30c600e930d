"""The environment of a record: versions, processor, GPU."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

from compiler.record import Environment


def environment() -> Environment:
    return Environment(
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=_version("triton"),
        tcompile=_version("tcompile"),
        platform=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=os.cpu_count() or 0,
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        threads=torch.get_num_threads(),
        matmul_precision=torch.get_float32_matmul_precision(),
    )


def with_settings_of_now(known: Environment) -> Environment:
    """The environment with the current values of settings that a program may change."""
    return replace(known, threads=torch.get_num_threads(), matmul_precision=torch.get_float32_matmul_precision())


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
