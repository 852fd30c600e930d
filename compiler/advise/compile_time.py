"""Rules about compile time: the slowest phase, and repeated blocks that need to be compiled only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from compiler.advise.facts import Advice, Change, Evidence, Gain, percent, seconds
from compiler.advise.reading import Reading
from compiler.record import Entity
from compiler.record.measure_facts import Phase
from compiler.record.printed_code import first_block

LEAST_SECONDS = 3.0
"""Compile time below this is not reported."""
DOMINANT = 0.4
BUILDS = ("async_compile.wait", "PyCodeCache.load_by_key_path")
PASSES = ("_recursive_pre_grad_passes", "_recursive_joint_graph_passes", "_recursive_post_grad_passes")
TUNES = ("select_algorithm_autotune", "select_algorithm_precompile")
REGIONS = 4
"""Minimum number of equal blocks for which compiling only one of them pays."""
CLAIMED = 0.5
"""Share of the other blocks' compile time that is expected to be saved by compiling only one of equal blocks."""

_PHASES: Mapping[str, tuple[str, ...]] = {
    "TorchDynamo reads the code": ("bytecode_tracing",),
    "guards are made": ("build_guards",),
    "AOTAutograd traces": ("aot_trace_joint_graph", "aot_collect_metadata"),
    "forward and backward are divided": ("min_cut_rematerialization_partition",),
    "Inductor's passes over graphs": PASSES,
    "operators are lowered to loops": ("GraphLowering.run", "additional_fake_tensor_prop"),
    "loops are fused": ("Scheduler.__init__",),
    "kernels are written": ("Scheduler.codegen", "PythonWrapperCodegen.generate"),
    "kernels are built": (*BUILDS, "compile_file"),
    "kernels are tuned": (*TUNES, "CachingAutotuner.benchmark_all_configs"),
}
PARTS: Mapping[str, str] = {phase: words for words, phases in _PHASES.items() for phase in phases}
"""Torch's phases in words; a listed phase includes the phases inside it."""

_REMEDIES: Mapping[str, str] = {
    "Inductor's passes over graphs": (
        "The first compilation of a process loads Inductor's patterns, once: the next takes less. Later processes find "
        "the result of all of it in the cache on disk (keep TORCHINDUCTOR_CACHE_DIR)."
    ),
    "kernels are built": (
        "Building is cached on disk: keep TORCHINDUCTOR_CACHE_DIR between runs (in containers: on a volume), or carry "
        "it along with torch.compiler.save_cache_artifacts."
    ),
    "kernels are tuned": (
        "Results of tuning are cached on disk: keep TORCHINDUCTOR_CACHE_DIR, or leave out max-autotune while "
        "developing."
    ),
    "TorchDynamo reads the code": (
        "Compile a smaller region, such as the block that repeats; fullgraph=True says what TorchDynamo gives up on."
    ),
}
_USUAL = (
    "A second process finds the result in the cache on disk (fx_graph_cache is on by default; keep "
    "TORCHINDUCTOR_CACHE_DIR). Compiling one block that repeats takes a part of the time."
)


def slowest_phase(reading: Reading) -> Iterator[Advice]:
    """Report the slowest phase of the pipeline, if it takes a large share of the compile time."""
    whole = reading.compile_seconds
    if whole < LEAST_SECONDS:
        return
    parts = by_part(reading)
    name, longest = max(parts.items(), key=lambda item: item[1], default=("", 0.0))
    if longest < DOMINANT * whole:
        return
    slowest = sorted(parts.items(), key=lambda item: -item[1])[:4]
    listed = ", ".join(f"{part} {seconds(spent)}" for part, spent in slowest)
    found = f"Compiling took torch {seconds(whole)}, {percent(longest / whole)} of it while {name}."
    is_built = any(phase.name in BUILDS for phase in reading.record.phases)
    built = "" if is_built else " Nothing was built in this run: g++ or Triton come on top where the code is run."
    evidence = (Evidence(f"{listed}.{built}", "measured"),)
    yield Advice("compile-time", "Where compile time goes", found, evidence, None, Change(_REMEDIES.get(name, _USUAL)))


def by_part(reading: Reading) -> dict[str, float]:
    """Compile seconds by activity, in the words of `PARTS`; each second counts once."""
    found: dict[str, float] = {}
    for phase in reading.record.phases:
        if phase.name in PARTS and not _is_inside(phase, reading):
            found[PARTS[phase.name]] = found.get(PARTS[phase.name], 0.0) + phase.seconds
    return found


def _is_inside(phase: Phase, reading: Reading) -> bool:
    """Whether a phase is part of another listed phase."""
    parents = {(each.graph, each.name): each.parent for each in reading.record.phases}
    seen, parent = {phase.name}, phase.parent
    while parent and parent not in seen:
        if parent in PARTS:
            return True
        seen.add(parent)
        parent = parents.get((phase.graph, parent), "")
    return False


def regions(reading: Reading) -> Iterator[Advice]:
    """Report repeated blocks that are compiled one by one."""
    calls = _calls(reading)
    lists = [each for each in lists_of_blocks(calls) if each.alike >= REGIONS]
    cold = reading.own.compile_seconds if reading.own is not None else None  # measured with empty caches
    whole = cold or reading.compile_seconds
    if not lists or whole < LEAST_SECONDS:
        return
    share = sum(each.operations for each in lists) / len(calls)
    saved = CLAIMED * sum(each.repeated for each in lists) / len(calls) * whole
    equal = " and ".join(f"{each.alike} of {each.path or 'the model'}" for each in lists)
    found = (
        f"Equal blocks, {equal}, run the same operations on the same sizes, and each is compiled as if it were the "
        f"only one. The blocks are {percent(share)} of the graph."
    )
    outside = f"What is outside, {percent(1 - share)} of the operations, runs in eager mode then. " if share < 1 else ""
    change = Change(
        "Compile the blocks in place of the whole, each by its forward: before torch 2.14, block.compile() does "
        "nothing for modules of torch.nn. Equal blocks share what was compiled for the first; blocks that differ in a "
        "number, such as a rate of dropout, have code of their own, up to torch._dynamo.config.recompile_limit. "
        f"{outside}Or keep one graph and mark the block with torch.compiler.nested_compile_region. "
        "Each call pays for guards of every block, and nothing is fused across them.",
        regions=tuple(block for each in lists for block in each.blocks),
    )
    how = (
        f"{percent(CLAIMED)} of the compile time of the blocks that are like one before them, taking it to go with the "
        "number of operations"
    )
    gain = Gain(saved, "compile", how, "estimate", saved / whole)
    ids = tuple(entity.id for entity in calls if _block_of(entity) == lists[0].blocks[0])[:3]
    evidence = (Evidence(f"Compiling takes {seconds(whole)}.", "measured", ids),)
    yield Advice("regions", "One block, compiled many times", found, evidence, gain, change)


@dataclass(frozen=True, slots=True)
class BlockList:
    """A list of modules (`layers.0`, `layers.1` …) that a graph calls; `path` is the list's own.

    `operations` counts those of all its blocks, `repeated` those of blocks that run the same operations on the same
    sizes as one before them. `alike` is the largest number of such equal blocks.
    """

    path: str
    blocks: tuple[str, ...]
    alike: int
    operations: int
    repeated: int


def lists_of_blocks(calls: Iterable[Entity]) -> list[BlockList]:
    """The lists of modules whose blocks make these calls, in order of their first call."""
    own: dict[str, list[str]] = {}
    inferred: dict[str, list[str]] = {}  # where torch knows no module, as in nn.TransformerEncoder of torch 2.13
    for entity in calls:
        if block := _block_of(entity):
            operation = f"{entity.attrs.get('target', '')} {entity.attrs.get('shape', '')}"
            (inferred if entity.attrs.get("inherited") else own).setdefault(block, []).append(operation)
    by_list: dict[str, dict[str, list[str]]] = {}
    for block, operations in (own or inferred).items():
        by_list.setdefault(block.rpartition(".")[0], {})[block] = operations
    return [_block_list(path, blocks) for path, blocks in by_list.items()]


def _block_list(path: str, called: Mapping[str, Sequence[str]]) -> BlockList:
    equal = Counter(tuple(operations) for operations in called.values())
    repeated = sum(len(operations) * (number - 1) for operations, number in equal.items())
    return BlockList(path, tuple(called), max(equal.values()), sum(map(len, called.values())), repeated)


def _calls(reading: Reading) -> list[Entity]:
    artifacts = reading.record.of_stage("captured")
    return [entity for artifact in artifacts for entity in artifact.entities if entity.kind == "call"]


def _block_of(entity: Entity) -> str:
    """The module of a list whose call made a call: `h.3` for `h.3.attn.c_proj`."""
    return str(entity.attrs.get("block", first_block(str(entity.attrs.get("module", "")))))
