"""Checks that a loaded record is safe to show: references, cycles, types of attributes.

The decoder has checked the fields' types; this module checks their values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec

from compiler.record.limits import MOST_FACTS, MOST_STATES, check_counts

if TYPE_CHECKING:
    from compiler.record import (
        Artifact,
        Collective,
        Frame,
        GraphHalf,
        Group,
        Kernel,
        PipelineSchedule,
        RankPlace,
        Record,
        XRay,
    )

MOST_LINES = 10_000_000
MOST_BYTES = 2**50
"""Maximum for a number of bytes: more than any tensor or device has, and sums still fit a 64-bit integer column."""
MOST_RANKS = 2**20
MOST_HANGS = 1000
MOST_DIMENSIONS = 8
MOST_SECONDS = 10**6
MOST_ORIGINS = 300
"""Maximum length of a chain of origins; there are fewer stages."""

Line = Annotated[int, msgspec.Meta(ge=0, le=MOST_LINES)]
Size = Annotated[int, msgspec.Meta(ge=0)]
_Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_]\w*\Z")]
_HALVES: dict[str, GraphHalf] = {"forward": "forward", "backward": "backward", "inference": "inference"}
_TRITON_LAUNCH = frozenset({"aligned", "configs", "grid", "types"})
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class DamagedError(ValueError):
    """A record can't be shown; the message names the field."""


class _Launch(TypedDict, total=False):
    """Compilation and launch data of our backend's kernels. `types` are restricted, as Triton evaluates their text."""

    aligned: list[str]
    arguments: list[int | tuple[_Word, list[Size], list[Size]]]
    configs: Annotated[list[dict[_Word, Size]], msgspec.Meta(min_length=1)]
    grid: list[tuple[Size, str]]
    is_folded: bool
    types: dict[_Word, Annotated[str, msgspec.Meta(pattern=r"^(\*?(i|u|fp|bf)\w{1,9}|constexpr)\Z")]]
    written: list[Size]


class _Grid(TypedDict):
    pairs: list[Size]
    rows: Annotated[list[Annotated[str, msgspec.Meta(pattern=r"^[012]{1,64}\Z")]], msgspec.Meta(max_length=64)]
    full: Size
    partial: Size
    empty: Size
    longest_row: Size


_Positive = Annotated[int, msgspec.Meta(ge=1)]


class _BlockMask(TypedDict):
    """A block mask of FlexAttention (`compiler.calls.block_masks`)."""

    queries: Size
    keys: Size
    block: Annotated[list[_Positive], msgspec.Meta(min_length=2, max_length=2)]
    cell: Annotated[list[_Positive], msgspec.Meta(min_length=2, max_length=2)]
    batches: Size
    heads: _Positive
    shown: Size
    grids: list[_Grid]
    other_grids: Size


class _EntityAttrs(TypedDict, total=False):
    """Types of the entity attributes that views read; other attributes may have any type."""

    block_mask: _BlockMask
    bytes: Size
    category: str
    cause: str
    code: str
    config: dict[str, Any]
    description: str
    device: str
    dtype: str
    file: str
    from_placements: list[str]
    jump: int | None
    kind: str
    language: str
    launch: _Launch
    line: Line
    local_shape: list[int | str]
    mesh: list[tuple[str, Size]]
    module: str
    moves: dict[str, Size]
    op: str
    outputs: list[dict[str, Any]]
    parallel_style: str
    parts: list[str]
    placements: list[str]
    reads: list[str]
    saved_bytes: Size
    shape: list[int | str]
    stride: list[int | str]
    target: str
    writes: list[str]


class _ArtifactAttrs(TypedDict, total=False):
    calls: dict[str, list[str]]
    count: Size
    file: str
    function: str
    line: Line
    numbers: list[Line]
    path: str
    start: Line


def check_record(record: Record, path: str = "$") -> None:
    """Check a decoded record. Raises DamagedError naming the field, or TooLargeError."""
    check_counts(record)
    _check_unique((artifact.id for artifact in record.artifacts), f"{path}.artifacts")
    for place, artifact in enumerate(record.artifacts):
        _check_artifact(artifact, f"{path}.artifacts[{place}]")
    _check_origins(record, path)
    _check_no_cycle({frame.id: (frame.caller,) for frame in record.frames}, f"{path}.frames", "caller")
    phases = {(phase.name, phase.graph): ((phase.parent, phase.graph),) for phase in record.phases}
    _check_no_cycle(phases, f"{path}.phases", "parent")
    merges = {
        (merge.graph, merge.kind, merge.name): [(merge.graph, merge.kind, part) for part in (merge.first, merge.second)]
        for merge in record.merges
    }
    _check_no_cycle(merges, f"{path}.merges", "first")
    _check_facts(record, path)
    if record.xray is not None:
        _check_xray(record.xray, f"{path}.xray")
    if record.versus is not None:
        _expect(
            record.versus.versus is None, "Expected `null`, a record has two sides at most", f"{path}.versus.versus"
        )
        check_record(record.versus, f"{path}.versus")


def _check_facts(record: Record, path: str) -> None:
    """Check kernels, binaries, candidates, memory and links."""
    lengths = {artifact.id: artifact.text.count("\n") + 1 for artifact in record.artifacts}
    for place, kernel in enumerate(record.kernels):
        _check_kernel(kernel, lengths, f"{path}.kernels[{place}]")
    kernels = {kernel.id for kernel in record.kernels}
    for place, binary in enumerate(record.binaries):
        known = binary.kernel in kernels
        _expect(known, f"Expected the id of a kernel, got {binary.kernel!r}", f"{path}.binaries[{place}].kernel")
    for place, candidate in enumerate(record.candidates):
        quartiles = [each for each in (candidate.low, candidate.seconds, candidate.high) if each is not None]
        in_order = quartiles == sorted(quartiles)
        _expect(in_order, "Expected low, seconds and high in this order", f"{path}.candidates[{place}].seconds")
    for place, event in enumerate(record.memory):
        fits = max(abs(event.bytes), abs(event.live)) <= MOST_BYTES
        _expect(fits, f"Expected at most {MOST_BYTES:,} bytes", f"{path}.memory[{place}]")
    for place, found in enumerate(record.breaks):
        is_safe = not found.link or found.link.startswith("https://")
        _expect(is_safe, "Expected an address that begins with https://", f"{path}.breaks[{place}].link")
    _check_rank(record, path)


def _check_rank(record: Record, path: str) -> None:
    """Check the rank's place, its groups and its collectives."""
    if record.place is not None:
        _check_place(record.place, f"{path}.place")
    _check_unique((group.name for group in record.groups), f"{path}.groups")
    for place, group in enumerate(record.groups):
        _check_group(group, f"{path}.groups[{place}]")
    _check_unique((found.id for found in record.collectives), f"{path}.collectives")
    for place, found in enumerate(record.collectives):
        _check_collective(found, f"{path}.collectives[{place}]")
    _check_units(record, path)
    for place, pipeline in enumerate(record.pipelines):
        _check_pipeline(pipeline, f"{path}.pipelines[{place}]")


def _check_units(record: Record, path: str) -> None:
    """Check the sizes of FSDP's units and of DDP's buckets."""
    _check_unique((unit.id for unit in record.units), f"{path}.units")
    for place, unit in enumerate(record.units):
        fits = all(0 <= size <= MOST_BYTES for size in (unit.bytes, unit.shard_bytes))
        _expect(fits, f"Expected from 0 to {MOST_BYTES:,} bytes", f"{path}.units[{place}]")
        fits = 0 < unit.shards <= MOST_RANKS and 0 < unit.replicas <= MOST_RANKS
        _expect(fits, f"Expected from 1 to {MOST_RANKS:,} ranks", f"{path}.units[{place}]")
    for place, plan in enumerate(record.bucket_plans):
        fits = all(0 <= size <= MOST_BYTES for size in (*plan.graphs, *plan.reductions))
        _expect(fits, f"Expected from 0 to {MOST_BYTES:,} bytes", f"{path}.bucket_plans[{place}]")
        _expect(0 < plan.cap_mb <= MOST_BYTES, "Expected a cap in MiB", f"{path}.bucket_plans[{place}].cap_mb")


def _check_place(place: RankPlace, path: str) -> None:
    _expect(0 < place.world <= MOST_RANKS, f"Expected from 1 to {MOST_RANKS:,} ranks", f"{path}.world")
    _expect(0 <= place.rank < place.world, f"Expected a rank below {place.world}", f"{path}.rank")
    _expect(0 <= place.node_size <= MOST_RANKS, f"Expected from 0 to {MOST_RANKS:,} ranks", f"{path}.node_size")
    _expect(len(place.hangs) <= MOST_HANGS, f"Expected at most {MOST_HANGS:,} sentences", f"{path}.hangs")
    sizes = [size for _, size in place.mesh]
    fits = all(0 < size <= place.world for size in sizes) and prod(sizes) <= place.world
    _expect(len(sizes) <= MOST_DIMENSIONS and fits, f"Expected a mesh of at most {place.world} ranks", f"{path}.mesh")
    inside = len(place.coordinates) in (0, len(sizes)) and all(
        0 <= at < size for at, size in zip(place.coordinates, sizes, strict=False)
    )
    _expect(inside, "Expected coordinates inside of the mesh", f"{path}.coordinates")


def _check_group(group: Group, path: str) -> None:
    fits = len(group.ranks) <= MOST_RANKS and all(0 <= rank < MOST_RANKS for rank in group.ranks)
    _expect(fits, f"Expected ranks below {MOST_RANKS:,}", f"{path}.ranks")


def _check_collective(found: Collective, path: str) -> None:
    for name in ("input_bytes", "output_bytes"):
        size = getattr(found, name)
        _expect(0 <= size <= MOST_BYTES, f"Expected from 0 to {MOST_BYTES:,} bytes", f"{path}.{name}")
    for name in ("group_size", "tensors", "order", "calls"):
        fits = 0 <= getattr(found, name) <= MOST_RANKS
        _expect(fits, f"Expected a number from 0 to {MOST_RANKS:,}", f"{path}.{name}")
    for name, rank in (("peer", found.peer), ("root", found.root)):
        _expect(-1 <= rank < MOST_RANKS, f"Expected a rank below {MOST_RANKS:,}", f"{path}.{name}")
    is_time = found.seconds is None or 0 <= found.seconds < MOST_SECONDS
    _expect(is_time, f"Expected from 0 to {MOST_SECONDS:,} seconds", f"{path}.seconds")
    for place, line in enumerate(found.lines):
        fits = 0 <= line.line <= MOST_LINES
        _expect(fits, f"Expected a line from 0 to {MOST_LINES:,}", f"{path}.lines[{place}].line")


def _check_pipeline(found: PipelineSchedule, path: str) -> None:
    sizes = (found.stages, found.microbatches, len(found.steps), sum(map(len, found.steps)))
    _expect(all(size <= MOST_FACTS for size in sizes), f"Expected at most {MOST_FACTS:,} steps", path)
    _expect(0 <= found.rank < len(found.steps), "Expected a rank of the schedule", f"{path}.rank")
    for row, steps in enumerate(found.steps):
        fit = all(0 <= step.stage < found.stages and 0 <= step.microbatch < found.microbatches for step in steps)
        _expect(fit, "Expected stages and microbatches of the schedule", f"{path}.steps[{row}]")


def _check_xray(xray: XRay, path: str) -> None:
    """Check the ids and lines of sites and causes, and that fixes and sites refer to existing sites."""
    sites = {"sites": xray.sites, "left": xray.left or ()}
    for name, own in sites.items():
        _check_unique((site.id for site in own), f"{path}.{name}")
        known = {"", *(site.id for site in own)}
        for place, site in enumerate(own):
            here = f"{path}.{name}[{place}]"
            _expect(0 <= site.line <= MOST_LINES, f"Expected a line from 0 to {MOST_LINES:,}", f"{here}.line")
            _expect(site.behind in known, f"Expected the id of a site, got {site.behind!r}", f"{here}.behind")
    _check_unique((cause.id for cause in xray.causes), f"{path}.causes")
    for place, cause in enumerate(xray.causes):
        is_line = 0 <= cause.line <= MOST_LINES
        _expect(is_line, f"Expected a line from 0 to {MOST_LINES:,}", f"{path}.causes[{place}].line")
    known = {site.id for site in xray.sites}
    for place, fix in enumerate(xray.fixes):
        _expect(fix.site in known, f"Expected the id of a site, got {fix.site!r}", f"{path}.fixes[{place}].site")
    _check_states(xray, f"{path}.states")


def _check_states(xray: XRay, path: str) -> None:
    """Check that the states are in order, with at most as many fixes as there are, and that callers have no cycle."""
    counts = [state.count for state in xray.states]
    most = sum(fix.together for fix in xray.fixes)
    in_order = counts == sorted(set(counts)) and all(0 < count <= most for count in counts)
    _expect(len(counts) <= MOST_STATES, f"Expected at most {MOST_STATES} states", path)
    _expect(in_order, f"Expected rising counts of fixes from 1 to {most}, got {counts}", path)
    for place, state in enumerate(xray.states):
        here = f"{path}[{place}]"
        size = max(len(state.frames), len(state.breaks), sum(len(graph.stacks) for graph in state.graphs))
        _expect(size <= MOST_FACTS, f"Expected at most {MOST_FACTS:,} frames, breaks and stacks", here)
        _check_no_cycle({frame.id: (frame.caller,) for frame in state.frames}, f"{here}.frames", "caller")
        for graph in state.graphs:
            fits = len(graph.stacks) == len(graph.counts)
            _expect(fits, "Expected a count of operations for each stack", f"{here}.graphs")


def _expect(holds: bool, words: str, path: str) -> None:
    if not holds:
        raise DamagedError(f"{words} - at `{path}`")


def _check_unique(ids: Iterable[str], path: str) -> None:
    seen: set[str] = set()
    for place, name in enumerate(ids):
        _expect(name not in seen, f"{name!r} is there twice", f"{path}[{place}].id")
        seen.add(name)


def _check_artifact(artifact: Artifact, path: str) -> None:
    _check_attrs(artifact.attrs, _ArtifactAttrs, path)
    own = {entity.id for entity in artifact.entities}
    if len(own) != len(artifact.entities):
        _check_unique((entity.id for entity in artifact.entities), f"{path}.entities")
    in_range = not artifact.lines or 0 < min(artifact.lines) <= max(artifact.lines) <= MOST_LINES
    _expect(in_range, f"Expected line numbers from 1 to {MOST_LINES:,}", f"{path}.lines")
    for place, entity in enumerate(artifact.entities):
        if entity.attrs:
            _check_attrs(entity.attrs, _EntityAttrs, f"{path}.entities[{place}]")
        if launch := entity.attrs.get("launch"):
            _check_launch(launch, entity.attrs, f"{path}.entities[{place}].attrs")


def _check_launch(launch: Mapping[str, Any], attrs: Mapping[str, Any], path: str) -> None:
    """Check that a kernel of our backend has all fields that its launch needs; C++ kernels need only arguments."""
    _expect("line" in attrs, "a kernel with `launch` has none", f"{path}.line")
    if not _TRITON_LAUNCH & launch.keys():
        return
    if missing := sorted(_TRITON_LAUNCH - launch.keys()):
        raise DamagedError(f"Object missing required field `{missing[0]}` - at `{path}.launch`")
    if other := [name for name in launch["aligned"] if name not in launch["types"]]:
        raise DamagedError(f"{other[0]!r} is no argument in `types` - at `{path}.launch.aligned`")
    are_whole = all({"num_warps", "num_stages"} <= config.keys() for config in launch["configs"])
    _expect(are_whole, "a configuration has no `num_warps` or no `num_stages`", f"{path}.launch.configs")
    blocks = {name for name, kind in launch["types"].items() if kind == "constexpr"}
    if other := [block for _, block in launch["grid"] if block and block not in blocks]:
        raise DamagedError(f"{other[0]!r} is no constexpr in `types` - at `{path}.launch.grid`")


def _check_attrs(attrs: Mapping[str, Any], kind: Any, path: str) -> None:
    try:
        msgspec.convert(attrs, kind)
    except msgspec.ValidationError as error:
        raise DamagedError(str(error).replace("`$", f"`{path}.attrs")) from None


def _check_kernel(kernel: Kernel, lengths: Mapping[str, int], path: str) -> None:
    is_plain = not _CONTROL.search(kernel.name + kernel.id)
    _expect(is_plain, "Expected a name without control characters", f"{path}.name")
    in_text = 0 <= kernel.lines[0] <= kernel.lines[1] <= lengths.get(kernel.artifact, MOST_LINES)
    _expect(in_text, f"Expected the first and the last line in {kernel.artifact}", f"{path}.lines")


def _check_origins(record: Record, path: str) -> None:
    """Check that origins and inputs of entities have no cycles, and that chains of origins are not too long."""
    edges = {entity.id: entity.origins for entity in record.entities()}
    depths: dict[str, int] = {}
    for name in _in_order(edges, f"{path}.artifacts", "origins"):
        depths[name] = 1 + max((depths.get(origin, 0) for origin in edges.get(name, ())), default=0)
        if depths[name] > MOST_ORIGINS:
            raise DamagedError(f"{name} leads back through over {MOST_ORIGINS} others - at `{path}.artifacts`, origins")
    for place, artifact in enumerate(record.artifacts):
        inputs = {entity.id: entity.inputs for entity in artifact.entities if entity.inputs}
        _check_no_cycle(inputs, f"{path}.artifacts[{place}].entities", "inputs")


def _check_no_cycle(edges: Mapping[Any, Sequence[Any]], path: str, field: str) -> None:
    for _ in _in_order(edges, path, field):
        pass


def _in_order(edges: Mapping[Any, Sequence[Any]], path: str, field: str) -> Iterator[Any]:
    """Yield names in topological order. Raises DamagedError for a cycle."""
    try:
        yield from TopologicalSorter(edges).static_order()
    except CycleError as error:
        cycle = [str(name) for name in error.args[1]]
        shown = " -> ".join(cycle if len(cycle) < 6 else [*cycle[:4], "…", cycle[-1]])
        raise DamagedError(f"it leads in a circle, {shown} - at `{path}`, {field}") from None


def upgrade(record: Record, schema: int) -> Record:
    """Convert a record of an earlier schema: fill the missing fields, mostly from ids."""
    kernels, artifacts = record.kernels, record.artifacts
    if record.schema == 1:
        artifacts = tuple(
            replace(found, half=_HALVES.get(found.stage) or _half_in(found.id, found.graph)) for found in artifacts
        )
        kernels = tuple(replace(kernel, half=_half_in(kernel.artifact, kernel.graph)) for kernel in kernels)
    return replace(
        record,
        artifacts=artifacts,
        kernels=tuple(replace(kernel, variant=_variant_of(kernel)) for kernel in kernels),
        frames=tuple(_with_numbers(record.frames)),
        versus=record.versus and upgrade(record.versus, schema),
        schema=schema,
    )


def _words_after(graph: str, artifact: str) -> list[str]:
    """Words in an artifact's id after its graph: `kernels[0/0 submod_1 forward Triton]`."""
    return artifact.partition(f"[{graph} ")[2].rstrip("]").split(" ")


def _half_in(artifact: str, graph: str) -> GraphHalf:
    return next((_HALVES[word] for word in _words_after(graph, artifact) if word in _HALVES), "")


def _variant_of(kernel: Kernel) -> str:
    return " ".join(word for word in _words_after(kernel.graph, kernel.artifact) if word not in _HALVES)


def _with_numbers(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Yield frames with numbers of code objects and compilations; the same function and place share a code object."""
    compilations: dict[tuple[str, str, int], int] = {}
    for frame in frames:
        was_read = frame.outcome != "skipped" or frame.call_number > 0
        if not was_read:
            yield frame
            continue
        place = (frame.function, frame.file, frame.line)
        compilations[place] = compilations.get(place, -1) + 1
        yield replace(frame, code=list(compilations).index(place), compilation=compilations[place])
