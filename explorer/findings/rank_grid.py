"""The ranks of a job as a grid in mesh order, a colour for each group of equal ranks, and how two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import combinations
from math import prod
from typing import Any

from compiler.distributed.ranks import Ranks, compared_artifacts
from compiler.logs.ranks import Difference, RankComparison
from compiler.record import Artifact, Record, Span
from compiler.record.plain_text import pluralize, rank_words, size_text
from explorer.findings.job_ranks import rank_document
from explorer.findings.memory.memory import rank_timeline
from explorer.reading.plain_text import clip
from explorer.render.document import Chart, Document, Only, Parts, Row, Section, Table, Tag, Text, payload

CHART = "rank_grid"
MOST_PAIRS = 28
"""Maximum number of pairs of groups whose difference a grid carries: 8 groups."""
SIMULATED, STAND_IN, UNKNOWN, FAILED = range(4)
_KINDS = {
    "captured": "graph", "joint": "autograd", "forward": "autograd", "backward": "autograd", "inference": "autograd",
    "post_grad": "post-grad graph", "kernels": "kernels",
}  # fmt: skip
"""Stage -> the kind of difference, in the order in which one follows from another."""
_SUBJECTS = {"captured": "the captured graph", "joint": "the joint graph", "kernels": "the generated code"}
_LINES, _LONG = 3, 60


def ranks_document(ranks: Ranks) -> Document:
    """The ranks of a job: how many differ, the grid, what each group of equal ranks does, and where they differ."""
    parts: list[Parts] = [Text(summary(ranks), "lead")]
    parts += [Text(str(hang), "warning") for hang in ranks.hangs]
    parts += [Text(f"Rank {rank} failed: {words}", "warning") for rank, words in ranks.failed.items()]
    table = group_table(ranks)
    parts.append(Only(("text", "html"), (table,)))
    parts.append(Only(("view",), (Chart(CHART, grid_data(ranks), table),)))
    firsts = [group[0] for group in ranks.groups]
    told = [
        section for one, other in combinations(firsts[:3], 2) for section in _difference_sections(ranks, one, other)
    ]
    return [*parts, *([Only(("text", "html"), tuple(told))] if told else [])]


def summary(ranks: Ranks) -> str:
    """How many ranks there are, how many of them were simulated, and how many differ."""
    mesh = " × ".join(f"{name} {size}" for name, size in ranks.mesh)
    count = len(ranks.groups)
    kinds = f": {count} different ones" if count > 1 else ": all of them equal" if len(ranks.records) > 1 else ""
    world = f"{pluralize(ranks.world, 'rank')}{f' ({mesh})' if mesh else ''}"
    if ranks.told is not None:
        return f"The record of {rank_words(tuple(ranks.records))} alone, of {world} {ranks.origin}."
    known = f"{len(ranks.records)} of {world} {ranks.origin}"
    unknown = len(unknown_ranks(ranks))
    rest = f"; nothing is known of {pluralize(unknown, 'rank')}" if unknown else ""
    return f"{known}{kinds}{rest}."


def group_table(ranks: Ranks) -> Table:
    """A row for each group of equal ranks: its letter, its ranks, and what one of them holds and sends."""
    rows = []
    for index, group in enumerate(ranks.groups):
        like = [rank for rank, known in ranks.stand_ins.items() if known in group]
        words = rank_words(group) + (
            f"; not simulated, {ranks.likeness} one of them: {set_words(like, ranks)}" if like else ""
        )
        rows.append(Row((Tag(letter(index), "strong"), words, *facts(ranks.records[group[0]]))))
    unknown = unknown_ranks(ranks)
    rows += [Row(("", f"{ranks.lack}: {set_words(unknown, ranks)}", "", "", ""))] if unknown else []
    head = ("", "ranks", "weights", "peak memory", "collectives")
    return Table(head, tuple(rows), right=(2, 3), label="Groups of equal ranks")


def set_words(some: Sequence[int], ranks: Ranks) -> str:
    """Ranks in words; of many, their number and the coordinates that all of them have."""
    words = rank_words(some)
    if len(words) <= _LONG:
        return words
    shared = [f"{name} {place.pop()}" for name, place in _places(some, ranks.mesh) if len(place) == 1]
    which = f" with {', '.join(shared)}" if shared else f", from {some[0]} to {some[-1]}"
    return f"{len(some):,} ranks{which}"


def _places(some: Sequence[int], mesh: Sequence[tuple[str, int]]) -> Iterator[tuple[str, set[int]]]:
    """Each dimension of the mesh with the coordinates of the ranks in it."""
    below = prod(size for _, size in mesh)
    for name, size in mesh:
        below //= size
        yield name, {rank // below % size for rank in some}


def unknown_ranks(ranks: Ranks) -> list[int]:
    """The ranks of which nothing is known: not simulated, not failed, and no simulated rank has their shapes."""
    return [rank for rank in ranks.not_simulated if rank not in ranks.stand_ins and rank not in ranks.failed]


def letter(index: int) -> str:
    """The name of a group: A, B, …, then numbers."""
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def facts(record: Record) -> tuple[str, str, str]:
    """What a rank holds of the weights, its peak memory, and how many collectives with how many bytes it calls."""
    timeline = rank_timeline(record)
    held = peak = ""
    if timeline is not None:
        line = timeline.lines["rank"]
        sizes = [
            line.layers.get(kind, [0])[line.peak if kind in line.layers else 0] for kind in ("parameters", "shards")
        ]
        held, peak = size_text(sum(sizes)), size_text(line.peak_bytes)
    sent = size_text(sum(each.bytes for each in record.collectives))
    count = pluralize(len(record.collectives), "collective")
    return held, peak, f"{count}, {sent}" if record.collectives else "none"


def grid_data(ranks: Ranks) -> dict[str, Any]:
    """Data of the grid: the group and state of each rank, the facts of each group, and the differences of pairs."""
    group_of = {rank: index for index, group in enumerate(ranks.groups) for rank in group}
    stand_ins, failed = ranks.stand_ins, ranks.failed
    cells = range(ranks.world)
    firsts = [group[0] for group in ranks.groups]
    pairs = list(combinations(range(len(firsts)), 2))[:MOST_PAIRS]
    return {
        "mesh": [list(each) for each in ranks.mesh] if prod(size for _, size in ranks.mesh) == ranks.world else [],
        "origin": ranks.origin,
        "lack": ranks.lack,
        "likeness": ranks.likeness,
        "group": [group_of.get(rank, group_of.get(stand_ins.get(rank, -1), -1)) for rank in cells],
        "state": [_state(rank, ranks) for rank in cells],
        "like": {str(rank): known for rank, known in stand_ins.items()},
        "failed": {str(rank): words for rank, words in failed.items()},
        "groups": [
            {"letter": letter(index), "ranks": rank_words(group), "first": group[0],
             "facts": list(facts(ranks.records[group[0]]))}
            for index, group in enumerate(ranks.groups)
        ],
        "differences": {
            f"{one},{other}": payload(pair_document(ranks, firsts[one], firsts[other]))["parts"]
            for one, other in pairs
        },
    }  # fmt: skip


def _state(rank: int, ranks: Ranks) -> int:
    if rank in ranks.failed:
        return FAILED
    return SIMULATED if rank in ranks.records else STAND_IN if rank in ranks.stand_ins else UNKNOWN


def _difference_sections(ranks: Ranks, one: int, other: int) -> Iterator[Section]:
    yield Section(tuple(pair_document(ranks, one, other)), f"Rank {other} against rank {one}")


def pair_document(ranks: Ranks, one: int, other: int) -> Document:
    """Where two ranks differ: a card for each kind of difference."""
    return [part for part in rank_document(compare(ranks, one, other)) if not isinstance(part, Table)]


def compare(ranks: Ranks, one: int, other: int) -> RankComparison:
    """Compare two simulated ranks: the first difference of each kind in their graphs, collectives and code."""
    if ranks.fingerprints[one] == ranks.fingerprints[other]:
        return RankComparison(((one, other),), ())
    found = list(differences(ranks.records[one], ranks.records[other], one, other))
    if not found:
        words = (
            f"the shards of rank {other} have other shapes than those of rank {one}; graphs, code and collectives "
            "are equal"
        )
        found.append(Difference("shards", words, (other,), (one,)))
    return RankComparison(((one,), (other,)), tuple(found))


def differences(a: Record, b: Record, one: int, other: int) -> Iterator[Difference]:
    """The first difference of each kind between the records of two ranks, which follow from each other."""
    yield from _missing_graphs(a, b, one, other)
    yield from _collective_difference(a, b, one, other)
    left, right = list(compared_artifacts(a)), list(compared_artifacts(b))
    changed: list[Difference] = []
    for stage, kind in _KINDS.items():
        for artifact in (each for each in left if each.stage == stage):
            same = next((each for each in right if each.id == artifact.id), None)
            if same is not None and same.text != artifact.text and all(each.kind != kind for each in changed):
                function = next((frame.function for frame in b.frames if frame.id == same.graph), "")
                found = _text_difference(kind, artifact, same, one, other)
                changed.append(replace(found, function=function))
    for each in changed[:1]:
        yield replace(each, follows=tuple(later.kind for later in changed[1:]))


def _missing_graphs(a: Record, b: Record, one: int, other: int) -> Iterator[Difference]:
    for record, lacks, rank, who in ((a, b, one, other), (b, a, other, one)):
        known = {artifact.graph for artifact in lacks.of_stage("captured")}
        for artifact in record.of_stage("captured"):
            if artifact.graph not in known:
                words = f"graph {artifact.graph} is captured on rank {rank}, and not on rank {who}"
                yield Difference("compilations", words, (rank,), (who,), artifact.graph, artifact.title)
                return


def _collective_difference(a: Record, b: Record, one: int, other: int) -> Iterator[Difference]:
    """The first collective at which two ranks differ."""
    sides = [[f"{each.kind}, group of {each.group_size}, {each.dtype}, {size_text(each.bytes)}" for each in
              record.collectives] for record in (a, b)]  # fmt: skip
    place = next((at for at in range(max(map(len, sides))) if sides[0][at : at + 1] != sides[1][at : at + 1]), None)
    if place is None:
        return
    was, now = (tuple(side[place : place + 1]) for side in sides)
    shown = [
        f"{side[0]} on rank {rank}" if side else f"none on rank {rank}" for side, rank in ((was, one), (now, other))
    ]
    call = (*b.collectives[place : place + 1], *a.collectives[place : place + 1])[0]
    spot = call.lines[0] if call.lines else Span("", 0, 0)
    words = f"collective {place + 1} of the step is {shown[0]} and {shown[1]}"
    yield Difference("collectives", words, (other,), (one,), call.graph, "", spot.file, spot.line, spot.code, was, now)


def _text_difference(kind: str, a: Artifact, b: Artifact, one: int, other: int) -> Difference:
    """The first lines that differ in a text of a stage, with the line of Python that they came from."""
    left, right = a.text.split("\n"), b.text.split("\n")
    opcodes = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    blocks = [each for each in opcodes if each[0] != "equal"]
    code = (each for each in blocks if not all(map(_is_comment, (*left[each[1] : each[2]], *right[each[3] : each[4]]))))
    _, start, end, first, last = next(code, blocks[0])
    was, now = (
        tuple(line.strip() for line in lines if not _is_comment(line))[:_LINES]
        for lines in (left[start:end], right[first:last])
    )
    spot = next(_spots(b, range(first + 1, last + 1)), None) or next(_spots(a, range(start + 1, end + 1)), {})
    subject = f"{_SUBJECTS.get(b.stage, f'the {b.half} graph')} of {b.graph or 'the program'}"
    words = f"{subject} differs: {_change_words(was, now, one, other)}"
    return Difference(kind, words, (other,), (one,), b.graph, was=was, now=now, **spot)


def _is_comment(line: str) -> bool:
    return not line.strip() or line.strip().startswith("#")


def _change_words(was: Sequence[str], now: Sequence[str], one: int, other: int) -> str:
    shown = [(lines[0], rank) for lines, rank in ((was, one), (now, other)) if lines]
    pairs = zip(*(line for line, _ in shown), strict=False) if len(shown) > 1 else ()
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), 0)
    start = max(same - 30, 0) if same > _LONG else 0
    return ", ".join(f"`{'…' if start else ''}{clip(line[start:], 90)}` on rank {rank}" for line, rank in shown)


def _spots(artifact: Artifact, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
    entities = {entity.id: entity for entity in artifact.entities}
    for number in numbers:
        for identity in artifact.lines.get(number, ()):
            attrs = entities[identity].attrs if identity in entities else {}
            if attrs.get("line") and attrs.get("file"):
                yield {
                    "file": str(attrs.get("file", "")),
                    "line": int(attrs["line"]),
                    "code": str(attrs.get("code", "")),
                }
