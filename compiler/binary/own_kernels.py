"""Triton kernels of our own backend: source and `triton.compile` arguments from the record.

Nothing is executed: the kernel's entity has types, configurations and grid (`compiler.backend_record.launch`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from compiler.binary.jobs import alone
from compiler.record import Artifact, Kernel
from compiler.torch_api.triton_kernels import CompileRequest, KernelSourceError

_NO_CONSTANT = ("num_warps", "num_stages")


def launch_of(artifact: Artifact, kernel: Kernel) -> Mapping[str, Any]:
    """How to compile and launch a kernel of our own backend; empty for other kernels."""
    entity = next((entity for entity in artifact.entities if entity.id == kernel.id), None)
    return entity.attrs.get("launch", {}) if entity else {}


def own_source(artifact: Artifact, kernel: Kernel) -> str:
    """The kernel's function, under the lines that all functions of the module share."""
    first = min(int(entity.attrs["line"]) for entity in artifact.entities if "launch" in entity.attrs)
    return alone(artifact.text, first, kernel.lines)


def constants_of(launch: Mapping[str, Any], config: int) -> dict[str, int]:
    """The constants of the configuration of this number: its block sizes."""
    return {name: value for name, value in launch["configs"][config].items() if name not in _NO_CONSTANT}


def grid_of(launch: Mapping[str, Any], config: int) -> tuple[int, int, int]:
    """How many programs there are along each axis."""
    blocks = constants_of(launch, config)
    grid = [-(-points // blocks.get(block, 1)) for points, block in launch["grid"]]
    x, y, z = (*([prod(grid)] if launch.get("is_folded") else grid), 1, 1)[:3]
    return x, y, z


def own_request(launch: Mapping[str, Any], config: int) -> CompileRequest:
    """One call of `triton.compile` for a configuration. Raises KernelSourceError."""
    configs = launch["configs"]
    if not 0 <= config < len(configs):
        raise KernelSourceError(f"there is no configuration {config}: {len(configs)} would be tried")
    chosen = configs[config]
    names = list(launch["types"])
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in launch["aligned"]}
    return CompileRequest(
        config=chosen,
        configs=tuple(configs),
        arguments=repr((launch["types"], constants_of(launch, config), attributes)),
        options={name: chosen[name] for name in _NO_CONSTANT},
        programs=prod(grid_of(launch, config)),
    )
