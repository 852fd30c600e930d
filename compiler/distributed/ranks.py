"""The ranks of a simulated job: which of them are explored, which of them are equal, and which wait for each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product, zip_longest
from math import prod
from typing import Any

from compiler.record import Artifact, Collective, Place, Record, Span
from compiler.record.options import Options
from compiler.record.plain_text import rank_words
from compiler.torch_api.shard_shapes import Sharding

_COMPARED = (
    "captured", "pre_grad", "joint", "forward", "backward", "inference", "post_grad", "ir", "fused_ir", "kernels",
)  # fmt: skip
_POINT_TO_POINT = ("send", "recv", "point_to_point")


@dataclass(frozen=True)
class Hang:
    """A collective that `waiting` ranks call and `others` do not: the job stops there.

    `lines` are those of the waiting ranks, `beside` those of what the others call instead, or called last.
    """

    words: str
    waiting: tuple[int, ...]
    others: tuple[int, ...]
    lines: tuple[Span, ...] = ()
    beside: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job: the record of each rank that was simulated, by rank.

    `shapes` groups all ranks of the job by the shapes of their shards; () if they are unknown. `failed` are ranks on
    which the program raised an error, with its words. `mesh` has name and size of each dimension of the device mesh.
    """

    world: int
    records: Mapping[int, Record]
    mesh: tuple[tuple[str, int], ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    origin: str = "simulated"

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
        """Rank that was not simulated -> a simulated rank whose shards have the same shapes."""
        found: dict[int, int] = {}
        for group in self.shapes:
            known = next((rank for rank in group if rank in self.records), None)
            if known is not None:
                found |= {rank: known for rank in group if rank not in self.records}
        return found

    @property
    def not_simulated(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world) if rank not in self.records)

    @property
    def hangs(self) -> tuple[Hang, ...]:
        """Where ranks wait for others that never come, judged by the collectives that the simulated ranks call."""
        return find_hangs(self.records)

    def __str__(self) -> str:
        known = tuple(self.records)
        mesh = " × ".join(f"{name} {size}" for name, size in self.mesh)
        lines = [f"{self.world} ranks{f' ({mesh})' if mesh else ''}; {self.origin}: {rank_words(known)}"]
        lines += [f"equal: {rank_words(group)}" for group in self.groups if len(self.groups) > 1 or len(group) > 1]
        like: dict[int, list[int]] = {}
        for rank, stand_in in self.stand_ins.items():
            like.setdefault(stand_in, []).append(rank)
        lines += [f"not simulated: {rank_words(ranks)}, whose shards have the shapes of rank {rank}'s"
                  for rank, ranks in like.items()]  # fmt: skip
        unlike = [rank for rank in self.not_simulated if rank not in self.stand_ins]
        why = "shards have other shapes" if self.shapes else "shapes are unknown"
        lines += [f"not simulated: {rank_words(unlike)}, whose {why}"] if unlike else []
        lines += [f"rank {rank} failed: {words}" for rank, words in self.failed.items()]
        return "\n".join([*lines, *map(str, self.hangs)])


def first_rank(options: Options) -> int:
    """The rank that is explored first."""
    word = options.rank.partition(",")[0]
    return int(word) if word.isdecimal() else options.ranks - 1 if word == "last" else 0


def asks_several(options: Options) -> bool:
    """Whether the options may ask for more than one rank."""
    return "," in options.rank or options.rank in ("corners", "distinct")


def asked_ranks(options: Options, place: Place | None, shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
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
    own = first_rank(options)
    records, failed = {own: first}, {}
    for rank in asked_ranks(options, first.place, shapes) if asks_several(options) else ():
        if rank not in records:
            try:
                records[rank] = explore_rank(rank)
            except Exception as error:  # noqa: BLE001 - the user's code may raise anything on another rank
                failed[rank] = f"{type(error).__name__}: {error}"
    mesh = first.place.mesh if first.place else ()
    return Ranks(options.ranks, dict(sorted(records.items())), mesh, shapes, failed)


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


def find_hangs(records: Mapping[int, Record]) -> tuple[Hang, ...]:
    """Where ranks wait for ranks that never come, by the collectives that each pair of ranks has to call together.

    Ranks that stop at the same lines are reported together. Sends and receives are not compared.
    """
    found: dict[tuple[str, str], list[_Stop]] = {}
    for one, other in combinations(records, 2):
        stop = _first_stop(one, other, records)
        if stop is not None:
            found.setdefault((_call_words(stop.call), _call_words(stop.instead)), []).append(stop)
    return tuple(map(_hang, found.values()))


@dataclass(frozen=True, slots=True)
class _Stop:
    """`waiting` calls a collective that `other` must call too, which calls `instead`, or nothing after `last`."""

    waiting: int
    other: int
    call: Collective
    instead: Collective | None
    last: Collective | None = None


def _first_stop(one: int, other: int, records: Mapping[int, Record]) -> _Stop | None:
    """The first collective that two ranks of one group do not call together."""
    of_one, of_other = (_shared_calls(records[rank], {one, other}) for rank in (one, other))
    last: tuple[Collective | None, Collective | None] = None, None
    for call, instead in zip_longest(of_one, of_other):
        if call is None:
            return _Stop(other, one, instead[1], None, last[0])
        if instead is None:
            return _Stop(one, other, call[1], None, last[1])
        if call[0] != instead[0]:
            return _Stop(one, other, call[1], instead[1])
        last = call[1], instead[1]
    return None


def _shared_calls(record: Record, ranks: set[int]) -> list[tuple[tuple[Any, ...], Collective]]:
    """The collectives of groups that hold these ranks, in order, each with what must be equal on all ranks."""
    members = {group.name: group.ranks for group in record.groups}
    calls = sorted(record.collectives, key=lambda call: call.order)
    return [
        ((call.kind, members[call.group], call.reduction), call)
        for call in calls
        if call.kind not in _POINT_TO_POINT and ranks <= set(members.get(call.group, ()))
    ]


def _hang(stops: Sequence[_Stop]) -> Hang:
    first = stops[0]
    waiting = tuple(sorted({stop.waiting for stop in stops}))
    others = tuple(sorted({stop.other for stop in stops} - set(waiting)))
    who, them = rank_words(waiting), rank_words(others)
    verb, never = ("waits" if len(waiting) == 1 else "wait"), ("calls" if len(others) == 1 else "call")
    words = f"{who.capitalize()} {verb} in {_call_words(first.call)}, which {them} never {never}: the job hangs there."
    if first.instead is not None:
        words += f" {them.capitalize()} {never} {_call_words(first.instead)} instead."
    elif first.last is not None:
        words += f" {them.capitalize()} {never} none after {_call_words(first.last)}."
    beside = first.instead or first.last
    return Hang(words, waiting, others, first.call.lines, beside.lines if beside is not None else ())


def _call_words(call: Collective | None) -> str:
    """A collective with its line: `all_reduce (train.py:31: dist.all_reduce(x))`."""
    if call is None:
        return ""
    if not call.lines:
        return call.kind
    line = next((line for line in call.lines if not line.file.startswith("torch/")), call.lines[0])
    code = f": {line.code}" if line.code and not line.file.startswith("torch/") else ""
    return f"{call.kind} ({line.file}:{line.line}{code})"
