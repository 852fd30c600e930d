"""Rules about compile time: the slowest phase, and repeated blocks that could be compiled once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.reading import Reading
from compiler.record import Entity
from compiler.record.measure_facts import Phase

LEAST_SECONDS = 3.0
"""Compile time below this is not worth a word."""
DOMINANT = 0.4
REGIONS = 4
"""From so many equal blocks on, compiling one of them is worth it."""
CLAIMED = 0.5
"""How much of what the copies of a block take is expected to be saved by compiling one of them."""

PARTS: tuple[tuple[str, str], ...] = (
    ("bytecode_tracing", "TorchDynamo reads the code"),
    ("build_guards", "guards are made"),
    ("aot_trace_joint_graph", "AOTAutograd traces"),
    ("aot_collect_metadata", "AOTAutograd traces"),
    ("min_cut_rematerialization_partition", "forward and backward are divided"),
    ("_recursive_pre_grad_passes", "Inductor's passes over graphs"),
    ("_recursive_joint_graph_passes", "Inductor's passes over graphs"),
    ("_recursive_post_grad_passes", "Inductor's passes over graphs"),
    ("GraphLowering.run", "operators are lowered to loops"),
    ("Scheduler.__init__", "loops are fused"),
    ("Scheduler.codegen", "kernels are written"),
    ("PythonWrapperCodegen.generate", "kernels are written"),
    ("async_compile.wait", "kernels are built"),
    ("PyCodeCache.load_by_key_path", "kernels are built"),
    ("compile_file", "kernels are built"),
    ("CachingAutotuner.benchmark_all_configs", "kernels are tuned"),
    ("select_algorithm_autotune", "kernels are tuned"),
    ("select_algorithm_precompile", "kernels are tuned"),
    ("additional_fake_tensor_prop", "operators are lowered to loops"),
)
"""What torch's phases do, in words; the outermost one that is listed counts for all in it."""

_REMEDIES: Mapping[str, str] = {
    "Inductor's passes over graphs": (
        "The first compilation of a process loads Inductor's patterns, once: the next takes less. Later processes "
        "find the "
        "result of all of it in the cache on disk (keep TORCHINDUCTOR_CACHE_DIR)."
    ),
    "kernels are built": (
        "Building is cached on disk: keep TORCHINDUCTOR_CACHE_DIR between runs (in containers: on a volume), or "
        "carry it along "
        "with torch.compiler.save_cache_artifacts."
    ),
    "kernels are tuned": (
        "Results of tuning are cached on disk: keep TORCHINDUCTOR_CACHE_DIR, or leave out max-autotune while "
        "developing."
    ),
    "TorchDynamo reads the code": (
        "Compile a smaller region (the block that repeats, model.layer.compile()); fullgraph=True says what it "
        "gives up on."
    ),
}
_USUAL = (
    "A second process finds the result in the cache on disk (fx_graph_cache is on by default; keep "
    "TORCHINDUCTOR_CACHE_DIR). "
    "Compiling one block that repeats takes a part of the time."
)


def slowest_phase(reading: Reading) -> Iterator[Advice]:
    """Report the phase of the pipeline that takes most of the compile time."""
    whole = reading.compile_seconds
    if whole < LEAST_SECONDS:
        return
    parts = by_part(reading)
    name, longest = max(parts.items(), key=lambda item: item[1], default=("", 0.0))
    if longest < DOMINANT * whole:
        return
    listed = ", ".join(
        f"{part} {seconds(spent)}" for part, spent in sorted(parts.items(), key=lambda item: -item[1])[:4]
    )
    found = f"Compiling took torch {seconds(whole)}, {percent(longest / whole)} of it while {name}."
    built = (
        "" if _is_built(reading) else " Nothing was built in this run: g++ or Triton come on top where the code is run."
    )
    evidence = (Evidence(f"{listed}.{built}", "measured"),)
    yield Advice("compile-time", "Where compile time goes", found, evidence, None, Change(_REMEDIES.get(name, _USUAL)))


def by_part(reading: Reading) -> dict[str, float]:
    """Seconds by what torch did, as `PARTS` has it; each second counts once."""
    known = dict(PARTS)
    found: dict[str, float] = {}
    for phase in reading.phases:
        if phase.name in known and not _is_inside(phase, reading, known):
            found[known[phase.name]] = found.get(known[phase.name], 0.0) + phase.seconds
    return found


def _is_inside(phase: Phase, reading: Reading, known: Mapping[str, str]) -> bool:
    """Whether a phase is part of another one that is listed."""
    parents = {(each.graph, each.name): each.parent for each in reading.phases}
    seen, parent = {phase.name}, phase.parent
    while parent and parent not in seen:
        if parent in known:
            return True
        seen.add(parent)
        parent = parents.get((phase.graph, parent), "")
    return False


def _is_built(reading: Reading) -> bool:
    return any(phase.name in ("async_compile.wait", "PyCodeCache.load_by_key_path") for phase in reading.phases)


def regions(reading: Reading) -> Iterator[Advice]:
    """Equal blocks that are compiled one after another as if they were different."""
    blocks = repeated_blocks(reading)
    whole = reading.cold_compile_seconds or reading.compile_seconds
    if len(blocks) < REGIONS or whole < LEAST_SECONDS:
        return
    share = _share_of_calls(reading, blocks)
    saved = CLAIMED * share * (1 - 1 / len(blocks)) * whole
    found = (
        f"{len(blocks)} blocks ({blocks[0]} … {blocks[-1]}) run the same operations on the same sizes, and each "
        f"is compiled "
        f"as if it were the only one: {percent(share)} of the graph."
    )
    change = Change(
        f"Compile the block that repeats in place of the whole: for block in …: block.compile(). The "
        f"{len(blocks)} blocks "
        "share what was compiled for the first. Or keep one graph and mark the block with "
        "torch.compiler.nested_compile_region. "
        "Each call pays for guards of every block, and nothing is fused across them.",
        regions=blocks,
    )
    how = (
        f"{percent(CLAIMED)} of the compile time of {len(blocks) - 1} blocks, taking it to go with the number "
        "of operations"
    )
    gain = Gain(saved, "compile", how, "estimate", saved / whole)
    ids = tuple(entity.id for entity in _calls(reading) if _block_of(entity.attrs.get("module", "")) == blocks[0])[:3]
    evidence = (Evidence(f"Compiling takes {seconds(whole)}.", "measured", ids),)
    yield Advice("regions", "One block, compiled many times", found, evidence, gain, change)


def repeated_blocks(reading: Reading) -> tuple[str, ...]:
    """Paths of modules (`layers.0`, `layers.1` …) that call the same operations on the same sizes; the most that
    belong together.
    """
    operations: dict[str, list[str]] = {}
    for entity in _calls(reading):
        block = _block_of(str(entity.attrs.get("module", "")))
        if block:
            operations.setdefault(block, []).append(f"{entity.attrs.get('target', '')} {entity.attrs.get('shape', '')}")
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for block, called in operations.items():
        alike.setdefault((block.rpartition(".")[0], tuple(called)), []).append(block)
    best = max(alike.items(), key=lambda item: len(item[1]) * len(item[0][1]), default=None)
    return tuple(best[1]) if best is not None and len(best[0][1]) > 1 else ()


def _calls(reading: Reading) -> list[Entity]:
    return [
        entity
        for artifact in reading.record.of_stage("captured")
        for entity in artifact.entities
        if entity.kind == "call"
    ]


def _block_of(module: str) -> str:
    """`h.3` of `h.3.attn.c_proj`: up to the first part that is a number."""
    found = re.match(r"(?:[^.]*[^.\d][^.]*\.)*\d+(?=\.|$)", module)
    return found[0] if found else ""


def _share_of_calls(reading: Reading, blocks: tuple[str, ...]) -> float:
    calls = _calls(reading)
    inside = [entity for entity in calls if _block_of(str(entity.attrs.get("module", ""))) in blocks]
    return len(inside) / max(len(calls), 1)
