"""Add an assembled C++ kernel to a record: its listing with the hot loop marked, linked to C++ lines, and its facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from compiler.binary import disassembly, lines, loops, mix, roofline
from compiler.binary.assembling import Assembled, Remark
from compiler.binary.cpp_sources import CppKernel
from compiler.binary.results import artifact_id
from compiler.record import Artifact, Binary, Entity, Record

_MOST_REMARKS = 12
_HOT_LOOP = "hot loop (estimate)"


def cpp_artifacts(result: Assembled, stages: Collection[str], listing: str) -> tuple[Artifact, ...]:
    """The artifacts of a kernel's stages: `listing`, its instructions, and its LLVM IR if there is some."""
    texts = {"llir": ("llvm", result.llvm), "asm": (result.isa.language, listing)}
    return tuple(
        _artifact(stage, language, text, result)
        for stage, (language, text) in texts.items()
        if text and stage in stages
    )


def _artifact(stage: str, language: str, text: str, result: Assembled) -> Artifact:
    source = result.source
    kernel, identity = source.kernel, artifact_id(stage, source.kernel, 0)
    origin = lines.source_lines(language, text, source.file)
    linked = {line: (f"{identity}.L{number}",) for line, number in origin.items()}
    rows = text.split("\n")
    header = next((line for line, row in enumerate(rows, 1) if row.startswith("define ") or row[:1].isalpha()), 0)
    if header:
        linked[header] = (f"{identity}.kernel",)
    whole = Entity(f"{identity}.kernel", "kernel", kernel.name, {"line": header}, (), (kernel.id,))
    attrs: dict[str, Any] = {"kernel": kernel.id, "target": result.isa.target, "config": {}}
    if hot := next((line for line, row in enumerate(rows, 1) if f" {_HOT_LOOP}: " in row), 0):
        attrs["start"] = hot
    groups = _groups(identity, source, Counter(origin.values()))
    return Artifact(
        identity, stage, kernel.name, language, text, kernel.graph, dict(sorted(linked.items())), (whole, *groups),
        attrs, kernel.half,
    )  # fmt: skip


def _groups(identity: str, source: CppKernel, counts: Mapping[int, int]) -> tuple[Entity, ...]:
    """An entity for each C++ line that has instructions."""
    rows = source.text.split("\n")
    return tuple(
        Entity(
            f"{identity}.L{number}", "instructions", rows[number - 1].strip(),
            {"line": number, "instructions": counts[number]}, (), source.origins[number],
        )
        for number in sorted(counts)
        if 0 < number <= len(rows)
    )  # fmt: skip


def cpp_facts(result: Assembled, record: Record, listing: str) -> Binary | None:
    """Facts about a kernel's instructions, which `listing` has as text; None if it was not compiled."""
    if not result.functions:
        return None
    kernel, language = result.source.kernel, result.isa.language
    hot = loops.hot_loop(result.functions, language)
    every = [each for function in result.functions for each in function.instructions]
    body = hot.body if hot else every
    work = loops.work_of(body, language)
    load_bits, store_bits = loops.access_bits(body, language)
    throughput = loops.throughput_of(hot, result.isa) if hot else None
    return Binary(
        kernel=kernel.id,
        target=result.isa.target,
        config={},
        spill_bytes=loops.spills_of(result.functions, language)[0],
        mix=mix.instruction_mix(language, listing),
        load_bits=load_bits,
        store_bits=store_bits,
        bytes=kernel.bytes,
        flops=roofline.work(kernel, record).flops,
        bound=_limit_of_loop(work, result) if hot else "",
        vector_bits=8 * work.vector_bytes,
        loop_cycles=throughput.cycles if throughput else None,
    )


def _limit_of_loop(work: loops.Work, result: Assembled) -> str:
    return "compute" if work.intensity > _ridge(result) else "memory"


def _ridge(result: Assembled) -> float:
    """Operations for each byte at which arithmetic takes as long as memory, by the roofline's assumptions."""
    return 2 * loops.FMA_UNITS * (result.isa.vector_bytes // 4) / loops.BYTES_A_CYCLE


# The listing


def listing_with_loops(result: Assembled) -> str:
    """The kernel's functions as text, below what the compiler said and above each loop what it does; "" if none."""
    if not result.functions:
        return ""
    mark, source = disassembly.NOTE_MARK[result.isa.language], result.source
    rows = source.text.split("\n")
    notes = _loop_notes(result)
    code = disassembly.listing_of(result.functions, result.isa.language, source.file, rows, notes)
    head = "\n".join(f"{mark} {line}" for line in _head(result))
    return f"{head}\n\n{code}"


def _head(result: Assembled) -> Iterator[str]:
    yield f"{result.source.kernel.name} for {result.isa.title}, by {result.compiler}"
    yield " ".join(result.flags)
    yield from _remark_lines(result.remarks)
    size, stores, loads = loops.spills_of(result.functions, result.isa.language)
    yield (
        f"spilled registers: at most {size:,} bytes of stack, stored by {stores} and reloaded by {loads} instructions"
        if size
        else "spilled registers: none"
    )
    if loops.find_mca() is None:
        yield "throughput: llvm-mca is not installed (Debian: apt-get install llvm)"


def _remark_lines(remarks: Sequence[Remark]) -> Iterator[str]:
    """What the compiler's vectorizer did, line by line."""
    if not remarks:
        yield "vectorizer: no remark; vectors are those that the source itself asks for"
        return
    told = dict.fromkeys(
        f"line {each.line}: {'' if each.is_vectorized else 'not vectorized: '}{each.words}" for each in remarks
    )
    for line in [*told][:_MOST_REMARKS]:
        yield f"vectorizer, {line}"
    if len(told) > _MOST_REMARKS:
        yield f"vectorizer: {len(told) - _MOST_REMARKS} more remarks"


def _loop_notes(result: Assembled) -> dict[int, list[str]]:
    """Comments above the first and below the last instruction of the hot loop, by index through all functions."""
    hot = loops.hot_loop(result.functions, result.isa.language)
    if hot is None:
        return {}
    before = 0
    for function in result.functions:
        if function is hot.function:
            break
        before += len(function.instructions)
    return {
        before + hot.first: [*_loop_lines(hot, result)],
        before + hot.last + 1: ["end of the hot loop"],
    }


def _loop_lines(hot: loops.Loop, result: Assembled) -> Iterator[str]:
    isa = result.isa
    work = loops.work_of(hot.body, isa.language)
    vectors = f"{work.vector_bytes}-byte vectors" if work.vector_bytes else "scalars, no vectors"
    yield f"{_HOT_LOOP}: {len(hot.body)} instructions, {vectors}, for C++ lines {_ranges(hot.lines)}"
    moved = f"{work.loaded} bytes loaded, {work.stored} stored, {work.flops} floating-point operations"
    yield f"  an iteration: {moved}, so {work.intensity:.2g} for each byte"
    if hot.calls:
        yield f"  it calls {', '.join(hot.calls)}, whose work is not counted here"
    if throughput := loops.throughput_of(hot, isa):
        ports = ", ".join(f"{name} {use:g}" for name, use in _busiest(throughput.ports))
        yield f"  llvm-mca: {throughput.cycles:g} cycles an iteration on {isa.model} with data in L1; ports: {ports}"
    yield (
        f"  roofline (estimate): {_limit_of_loop(work, result)}-bound with data in memory; assumed for a core: "
        f"{loops.FMA_UNITS} multiply-add units and {loops.BYTES_A_CYCLE} bytes a cycle, so {_ridge(result):g} "
        "operations for each byte"
    )


def _busiest(ports: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(ports.items(), key=lambda port: -port[1])[:8]


def _ranges(numbers: Sequence[int]) -> str:
    """`3, 7 to 9` for 3, 7, 8, 9."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in found)
