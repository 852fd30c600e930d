"""`Target`: the specification of one GPU, and its lookup by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

DTYPES: tuple[str, ...] = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
"""The dtypes of peak rates, named as in torch; "float8" is any 8-bit float, "tf32" is float32 on tensor cores."""

_MAKERS = re.compile(r"^(nvidia|amd|tesla|geforce|instinct)+")


class UnknownTargetError(ValueError):
    """The GPU is not in the table; the message lists the table and suggests the closest name."""


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU. Sizes are in bytes, rates per second, clocks in Hz.

    A "multiprocessor" is an SM or, for AMD, a CU. `architecture` is the vendor compiler's name ("sm_90", "gfx942"),
    `capability` is torch's compute capability, `device_name` is torch.cuda.get_device_name().
    `clock` is the highest boost clock. `memory` is the nominal size; a little less can be allocated.
    `shared_memory_per_block` is the default limit of a block, `shared_memory_per_block_optin` the opt-in limit.
    `registers_per_multiprocessor` counts 32-bit registers. `memory_bus_width` is in bits. `peak` maps names in
    `DTYPES` to dense rates, in operations per second, on tensor or matrix cores if they support the dtype; a dtype is
    missing if the GPU has no instructions for it. `sources` names the vendor's publications.
    """

    name: str
    title: str
    device_name: str
    vendor: Literal["nvidia", "amd"]
    family: str
    architecture: str
    capability: tuple[int, int]
    multiprocessors: int
    warp_size: int
    clock: float
    memory_clock: float
    memory_bus_width: int
    memory: int
    memory_bandwidth: float
    l2_cache: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    registers_per_multiprocessor: int
    max_threads_per_multiprocessor: int
    max_blocks_per_multiprocessor: int
    peak: Mapping[str, float] = field(hash=False)
    sources: tuple[str, ...]

    @property
    def max_warps_per_multiprocessor(self) -> int:
        return self.max_threads_per_multiprocessor // self.warp_size

    @property
    def max_threads_per_block(self) -> int:
        return 1024

    @property
    def backend(self) -> Literal["cuda", "hip"]:
        """Triton's backend name for the vendor."""
        return "hip" if self.vendor == "amd" else "cuda"

    @property
    def triton_arch(self) -> int | str:
        """Triton's name of the architecture: 90 for sm_90, "gfx942" for gfx942."""
        return self.architecture if self.vendor == "amd" else 10 * self.capability[0] + self.capability[1]


def target(name: str) -> Target:
    """Look up a GPU by name, in any spelling ("RTX 4090", "nvidia-h100").

    Case, spaces, dashes, underscores and the vendor's name are ignored. Raises UnknownTargetError.
    """
    from compiler.targets.gpus import TARGETS

    known = {spelling: found for found in TARGETS for spelling in _spellings(found)}
    wanted = _letters(name)
    if wanted in known:
        return known[wanted]
    near = get_close_matches(wanted, known, n=1, cutoff=0.6)
    meant = f"; did you mean {known[near[0]].name!r}?" if near else "."
    raise UnknownTargetError(
        f"there is no GPU {name!r} in the table{meant} It has {', '.join(t.name for t in TARGETS)}."
    )


def known_target(name: str) -> Target | None:
    """Look up a GPU by name; None if it is not in the table (a record of another version may name such a GPU)."""
    try:
        return target(name)
    except UnknownTargetError:
        return None


def is_virtual(name: str) -> bool:
    """Whether a `target` option names a GPU of the table instead of a device ("", "cpu", "cuda:0")."""
    return bool(name) and name.partition(":")[0] not in ("cpu", "cuda")


def _spellings(known: Target) -> set[str]:
    return {_letters(known.name), _letters(known.title), _letters(known.device_name), re.sub("^rtx", "", known.name)}


def _letters(name: str) -> str:
    return _MAKERS.sub("", re.sub(r"[\s_-]", "", name.lower()))
