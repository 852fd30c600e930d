"""Texts of a compiled kernel as artifacts of a record, each line linked to the Triton line it comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from compiler.binary import lines
from compiler.binary.sources import KernelSource
from compiler.record import Artifact, Entity, Kernel
from compiler.targets import Target

LANGUAGES = {"ttir": "mlir", "ttgir": "mlir", "llir": "llvm", "ptx": "ptx", "sass": "sass", "amdgcn": "amdgcn"}
_HEADERS = {
    "mlir": re.compile(r"\s*tt\.func "),
    "llvm": re.compile(r"define "),
    "ptx": re.compile(r"\s*\.(?:visible\s+)?\.?entry "),
    "sass": re.compile(r"\s*\.text\.\w+:"),
    "amdgcn": re.compile(r"\w+:"),
}


def stages_of(target: Target) -> tuple[str, ...]:
    """The stages from Triton to the target's machine code."""
    return ("ttir", "ttgir", "llir", "amdgcn") if target.vendor == "amd" else ("ttir", "ttgir", "llir", "ptx", "sass")


def artifact_id(stage: str, kernel: Kernel, config: int) -> str:
    """`ptx[0/0 forward triton_poi_fused_0]`; ` config 1` where it is not the configuration that is tried first."""
    return f"{stage}[{kernel.place} {kernel.name}{f' config {config}' if config else ''}]"


def binary_artifact(stage: str, text: str, source: KernelSource, config: int, attrs: Mapping[str, Any]) -> Artifact:
    """One stage's text, with an entity for each Triton line that it has instructions of, and one for its header."""
    kernel, language = source.kernel, LANGUAGES[stage]
    identity = artifact_id(stage, kernel, config)
    origin = lines.source_lines(language, text, source.file)
    header = _header(language, text)
    linked = {line: (f"{identity}.L{number}",) for line, number in origin.items()}
    if header:
        linked[header] = (f"{identity}.kernel",)
    whole = Entity(f"{identity}.kernel", "kernel", kernel.name, {"line": header}, (), (kernel.id,))
    groups = _groups(identity, source, Counter(origin.values()))
    return Artifact(
        identity, stage, kernel.name, language, text, kernel.graph, dict(sorted(linked.items())),
        (whole, *groups), {"kernel": kernel.id, **attrs}, kernel.half,
    )  # fmt: skip


def _groups(identity: str, source: KernelSource, counts: Mapping[int, int]) -> tuple[Entity, ...]:
    rows = source.text.split("\n")
    return tuple(
        Entity(
            f"{identity}.L{number}", "instructions", rows[number - 1].strip(),
            {"line": number, "instructions": counts[number]}, (), (f"{source.kernel.id}.L{number}",),
        )
        for number in sorted(counts)
        if 0 < number <= len(rows)
    )  # fmt: skip


def _header(language: str, text: str) -> int:
    """The line that the kernel starts in, 0 where there is none."""
    numbered = enumerate(text.split("\n"), 1)
    return next((number for number, line in numbered if _HEADERS[language].match(line)), 0)
