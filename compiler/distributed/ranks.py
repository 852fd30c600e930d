"""The ranks of a simulated job: which of them are explored, which of them are equal, and which wait for each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod

from compiler.distributed.distinct import stand_ins_in_mesh
from compiler.distributed.hangs import Hang, find_hangs
from compiler.record import Artifact, RankPlace, Record
from compiler.record.checks import MOST_HANGS
from compiler.record.options import Options
from compiler.record.plain_text import rank_words
from compiler.torch_api.shard_shapes import Sharding

_COMPARED = (
    "captured", "pre_grad", "joint", "forward", "backward", "inference", "post_grad", "ir", "fused_ir", "kernels",
)  # fmt: skip


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job: the record of each rank that was simulated, by rank.

    `shapes` groups all ranks of the job by the shapes of their shards; () if they are unknown. `failed` are ranks on
    which the program raised an error, with its words. `mesh` has name and size of each dimension of the device mesh.
    `in_mesh` has the ranks of which few were simulated along each dimension, with the equal rank that stands for each;
    None if only the ranks that were named are simulated. `told` says where ranks wait for others in vain, if only the
    record of one rank tells it; None if the records of all ranks that were explored are here.
    """

    world: int
    records: Mapping[int, Record]
    mesh: tuple[tuple[str, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    origin: str = "simulated"
    in_mesh: Mapping[int, int] | None = None
    told: tuple[str, ...] | None = None

    @cached_property
    def fingerprints(self) -> dict[int, str]:
        """Rank -> a hash of its graphs, code, collectives and shapes of shards; equal ranks have one."""
        like = {rank: group[0] for group in self.shapes for rank in group}
        return {rank: fingerprint(record, like.get(rank, "")) for rank, record in self.records.items()}

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Simulated ranks with equal fingerprints, largest group first."""
        found: dict[str, list[int]] = {}
        for rank, mark in self.fingerprints.items():
            found.setdefault(mark, []).append(rank)
        return tuple(sorted(map(tuple, found.values()), key=lambda group: (-len(group), group[0])))

    @cached_property
    def stand_ins(self) -> dict[int, int]:
        """Rank that was not simulated -> a simulated rank that stands for it, as `likeness` says."""
        if self.in_mesh is not None:
            return dict(self.in_mesh)
        found: dict[int, int] = {}
        for group in self.shapes:
            known = next((rank for rank in group if rank in self.records), None)
            if known is not None:
                found |= {rank: known for rank in group if rank not in self.records}
        return found

    @property
    def likeness(self) -> str:
        """How a rank that was not simulated is like the rank that stands for it."""
        return "between equal ranks of the mesh, as" if self.in_mesh is not None else "shards of the same shapes as"

    @property
    def not_simulated(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world) if rank not in self.records)

    @property
    def hangs(self) -> tuple[Hang, ...]:
        """Where ranks wait for others that never come, judged by the collectives that the simulated ranks call."""
        return find_hangs(self.records) if self.told is None else tuple(Hang(words, (), ()) for words in self.told)

    @property
    def lack(self) -> str:
        """What is to be said of a rank without a record."""
        return f"not {self.origin}" if self.told is None else "not in the record"

    def __str__(self) -> str:
        known = tuple(self.records)
        mesh = " × ".join(f"{name} {size}" for name, size in self.mesh)
        those = rank_words(known) if self.told is None else f"the record of {rank_words(known)} alone"
        lines = [f"{self.world} ranks{f' ({mesh})' if mesh else ''}; {self.origin}: {those}"]
        lines += [f"equal: {rank_words(group)}" for group in self.groups if len(self.groups) > 1 or len(group) > 1]
        like: dict[int, list[int]] = {}
        for rank, stand_in in self.stand_ins.items():
            like.setdefault(stand_in, []).append(rank)
        lines += [f"not simulated: {rank_words(ranks)}; {self.likeness} rank {rank}" for rank, ranks in like.items()]
        unlike = [rank for rank in self.not_simulated if rank not in self.stand_ins]
        why = "too many ranks differ" if self.in_mesh is not None else "shards of other shapes" if self.shapes else ""
        why = "" if self.told is not None else f"; {why or 'shapes are unknown'}"
        lines += [f"{self.lack}: {rank_words(unlike)}{why}"] if unlike else []
        lines += [f"rank {rank} failed: {words}" for rank, words in self.failed.items()]
        return "\n".join([*lines, *map(str, self.hangs)])


def first_rank(options: Options) -> int:
    """The rank that is explored first."""
    word = options.rank.partition(",")[0]
    return int(word) if word.isdecimal() else options.ranks - 1 if word == "last" else 0


def asks_several(options: Options) -> bool:
    """Whether the options may ask for more than one rank."""
    return "," in options.rank or options.rank in ("corners", "distinct")


def asked_ranks(options: Options, place: RankPlace | None, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that the options ask for, without repetition: numbers, "first", "last", "corners", "distinct"."""
    corners = mesh_corners(place.mesh if place else (), options.ranks)
    named: dict[str, Sequence[int]] = {
        "": [0], "first": [0], "last": [options.ranks - 1], "corners": corners,
        "distinct": [0, options.ranks - 1, *corners, *(group[0] for group in shapes)],
    }  # fmt: skip
    words = options.rank.split(",")
    return tuple(dict.fromkeys(rank for word in words for rank in named.get(word) or [int(word)]))


def mesh_corners(mesh: Sequence[tuple[str, int]], world: int) -> list[int]:
    """Ranks at the corners of a mesh of consecutive ranks; the first and the last without one."""
    sizes = [size for _, size in mesh] or [world]
    strides = [prod(sizes[index + 1 :]) for index in range(len(sizes))]
    ends = ([0, (size - 1) * stride] for size, stride in zip(sizes, strides, strict=True))
    return sorted({sum(place) for place in product(*ends)})


def equal_shapes(found: Sequence[Sharding], world: int) -> tuple[tuple[int, ...], ...]:
    """Ranks grouped by the shapes of all their shards; () without sharded tensors."""
    shapes: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in range(world)}
    for sharding in found:
        for rank, shape in sharding.local_shapes():
            if rank in shapes:
                shapes[rank].append(shape)
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for rank, of_rank in shapes.items():
        groups.setdefault(tuple(of_rank), []).append(rank)
    return tuple(map(tuple, groups.values())) if found else ()


def explore_others(
    options: Options, first: Record, found: Sequence[Sharding], explore_rank: Callable[[int], Record]
) -> Ranks:
    """Explore the other ranks that the options ask for, and return all. `found` is how the call's tensors are split.

    An exception of the program on another rank is noted, as the first rank has run.
    """
    shapes = equal_shapes(found, options.ranks)
    group_of = {rank: group[0] for group in shapes for rank in group}
    records, failed = {first_rank(options): first}, dict[int, str]()

    def simulate(rank: int) -> str:
        if rank not in records and rank not in failed:
            try:
                records[rank] = explore_rank(rank)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything on another rank
                failed[rank] = f"{type(error).__name__}: {error}"
        return failed.get(rank) or fingerprint(records[rank], group_of.get(rank, ""))

    for rank in asked_ranks(options, first.place, shapes) if asks_several(options) else ():
        simulate(rank)
    mesh, in_mesh = first.place.mesh if first.place else (), None
    if "distinct" in options.rank.split(","):
        sizes = [size for _, size in mesh]
        whole = sizes if prod(sizes) == options.ranks else [options.ranks]
        alike = stand_ins_in_mesh(whole, simulate, group_of.get)
        in_mesh = {rank: like for rank, like in alike.items() if rank not in records and like in records}
    made = Ranks(options.ranks, dict(sorted(records.items())), mesh, shapes, failed, in_mesh=in_mesh)
    hangs = made.hangs
    return replace(made, records={rank: _with_hangs(record, hangs) for rank, record in made.records.items()})


def _with_hangs(record: Record, hangs: Sequence[Hang]) -> Record:
    """The record with the hangs of the job, which is saved without the records of the other ranks."""
    if record.place is None:
        return record
    return record.with_fields(place=replace(record.place, hangs=tuple(each.words for each in hangs[:MOST_HANGS])))


def fingerprint(record: Record, shapes: object = "") -> str:
    """A hash of what must be equal on equal ranks: graphs, code and collectives, without names of process groups.

    `shapes` stands for the shapes of the rank's shards.
    """
    texts = [f"{artifact.id}\n{artifact.text}" for artifact in compared_artifacts(record)]
    calls = [repr((each.kind, each.graph, each.half, each.group_size, each.dtype, each.input_bytes, each.output_bytes))
             for each in record.collectives]  # fmt: skip
    return hashlib.sha256("\n".join([*texts, *calls, str(shapes)]).encode()).hexdigest()[:12]


def compared_artifacts(record: Record) -> Iterator[Artifact]:
    """The artifacts that must be equal on equal ranks, with numbers in place of the names of process groups."""
    names = {group.name: f"group {index}" for index, group in enumerate(record.groups)}
    for artifact in record.artifacts:
        if artifact.stage in _COMPARED:
            text = artifact.text
            for name, instead in names.items():
                text = text.replace(f"'{name}'", f"'{instead}'")
            yield replace(artifact, text=text)
