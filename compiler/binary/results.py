"""Add a compiled kernel to a record: texts linked to Triton lines, and facts about the machine code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from compiler.binary import lines, mix, occupancy, roofline
from compiler.binary.jobs import Output
from compiler.binary.listing import LANGUAGES
from compiler.binary.sources import KernelSource
from compiler.record import Artifact, Binary, Entity, Kernel, Record
from compiler.targets import Target
from compiler.torch_api.triton_kernels import CompileRequest

_HEADERS = {
    "mlir": re.compile(r"\s*tt\.func "),
    "llvm": re.compile(r"define "),
    "ptx": re.compile(r"\s*\.(?:visible\s+)?\.?entry "),
    "sass": re.compile(r"\s*\.text\.\w+:"),
    "amdgcn": re.compile(r"\w+:"),
}


def stages_of(target: Target) -> tuple[str, ...]:
    """Stages from TTIR to the target's machine code."""
    return ("ttir", "ttgir", "llir", "amdgcn") if target.vendor == "amd" else ("ttir", "ttgir", "llir", "ptx", "sass")


def artifact_id(stage: str, kernel: Kernel, config: int) -> str:
    """Id of an artifact: `ptx[0/0 forward triton_poi_fused_0]`, with ` config 1` after the name for configuration 1."""
    return f"{stage}[{kernel.place} {kernel.name}{f' config {config}' if config else ''}]"


def binary_artifact(stage: str, text: str, source: KernelSource, config: int, attrs: Mapping[str, Any]) -> Artifact:
    """Artifact of one stage's text, with entities for the kernel's header and each Triton line with instructions."""
    kernel, language = source.kernel, LANGUAGES[stage]
    identity = artifact_id(stage, kernel, config)
    origin = lines.source_lines(language, text, source.file)
    header = _header(language, text)
    linked = {line: (f"{identity}.L{number}",) for line, number in origin.items()}
    if header:
        linked[header] = (f"{identity}.kernel",)
    whole = Entity(f"{identity}.kernel", "kernel", kernel.name, {"line": header}, (), (kernel.id,))
    groups = line_groups(identity, source, Counter(origin.values()))
    return Artifact(
        identity, stage, kernel.name, language, text, kernel.graph, dict(sorted(linked.items())),
        (whole, *groups), {"kernel": kernel.id, **attrs}, kernel.half,
    )  # fmt: skip


def line_groups(identity: str, source: KernelSource, counts: Mapping[int, int]) -> tuple[Entity, ...]:
    """An entity for each line of a kernel that an artifact has instructions of, with their number."""
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
    """Line number at which the kernel starts; 0 if there is none."""
    numbered = enumerate(text.split("\n"), 1)
    return next((number for number, line in numbered if _HEADERS[language].match(line)), 0)


_TENSOR_MEMORY = 512  # columns per Blackwell multiprocessor; PTX ISA 8.6, tcgen05.alloc
_WHAT_TO_DO = (
    "it compiles and can't be launched, so Inductor would pass this configuration over; smaller blocks or fewer stages "
    "need less"
)
Shortage = tuple[str, str]


def machine_facts(
    source: KernelSource, request: CompileRequest, output: Output, target: Target, record: Record
) -> tuple[Binary | None, Shortage | None]:
    """Facts about a kernel's machine code, and a reason with a hint if it can't be launched; either may be None."""
    stage = "amdgcn" if target.vendor == "amd" else "sass"
    if output.error or stage not in output.texts:
        return None, None
    text = output.texts[stage]
    load_bits, store_bits = mix.access_bits(stage, text)
    fits, shortage = _occupancy(output, target)
    work = roofline.work(source.kernel, record)
    seconds, bound = roofline.least_seconds(
        target, bytes=source.kernel.bytes, flops=work.flops, dtype=work.dtype, matmul=work.matmul
    )
    facts = Binary(
        kernel=source.kernel.id,
        target=target.name,
        config=request.config,
        configs=request.configs,
        registers=output.registers,
        spill_bytes=output.spill_bytes,
        shared_memory=output.shared_memory,
        threads=output.threads,
        programs=request.programs,
        occupancy=fits.fraction if fits else None,
        limiter=fits.limiter if fits else "",
        mix=mix.instruction_mix(stage, text),
        load_bits=load_bits,
        store_bits=store_bits,
        bytes=source.kernel.bytes,
        flops=work.flops,
        bound_seconds=seconds,
        bound=bound,
    )
    return facts, shortage


def _occupancy(output: Output, target: Target) -> tuple[occupancy.Occupancy | None, Shortage | None]:
    """The occupancy, and a reason with a hint if no block fits, which Triton reports only at launch."""
    if (output.tensor_memory or 0) > _TENSOR_MEMORY:
        reason = f"a block asks for {output.tensor_memory} columns of tensor memory: {_TENSOR_MEMORY} are the most"
        return None, (reason, _WHAT_TO_DO)
    try:
        found = occupancy.occupancy(
            target,
            threads=output.threads,
            registers=output.registers or 0,
            shared_memory=output.shared_memory or 0,
        )
    except occupancy.OccupancyError as error:
        return None, (str(error), _WHAT_TO_DO)
    return (found if output.registers is not None else None), None
