"""CPU instruction sets that C++ kernels are written and compiled for, also on machines that lack them."""

from __future__ import annotations

import platform
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One instruction set.

    `machine` is the name of its architecture in Debian's compilers ("x86_64", "aarch64"), `march` the compiler's name
    for it. `vector_bytes` is the width of a vector register. `model` is the processor whose ports llvm-mca simulates.
    `inductor` is the name of the class in Inductor that describes it.
    """

    name: str
    title: str
    machine: str
    march: str
    vector_bytes: int
    model: str
    inductor: str

    @property
    def target(self) -> str:
        """The target option that names it: `cpu:avx512`."""
        return f"cpu:{self.name}"

    @property
    def language(self) -> str:
        """The language of its assembly: "x86" or "aarch64"."""
        return "x86" if self.machine == "x86_64" else self.machine

    @property
    def is_foreign(self) -> bool:
        """Whether its code has to be cross-compiled on this machine."""
        return self.machine != this_machine()


INSTRUCTION_SETS = (
    InstructionSet("avx512", "AVX-512", "x86_64", "x86-64-v4", 64, "icelake-server", "VecAVX512"),
    InstructionSet("avx2", "AVX2", "x86_64", "x86-64-v3", 32, "haswell", "VecAVX2"),
    InstructionSet("neon", "NEON", "aarch64", "armv8-a", 16, "neoverse-n1", "VecNEON"),
)


def this_machine() -> str:
    """Architecture of the machine that runs Python, as Debian's compilers name it."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def named_instruction_set(target: str) -> InstructionSet | None:
    """The instruction set that a target names (`cpu:avx2`); None for any other target."""
    return next((known for known in INSTRUCTION_SETS if known.target == target.lower()), None)
