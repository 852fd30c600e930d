"""The collectives that a log's graphs call, read from their printed calls.

Names and sizes of process groups are those in the calls; a log does not say which ranks are in a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from math import prod
from typing import Any

from compiler.distributed.graph_collectives import STAGES_WITH_COLLECTIVES, GraphCollectives
from compiler.logs.fingerprints import OF_TORCH, Place, calling_place, word_of_collective
from compiler.logs.graph_text import item_size
from compiler.record import Artifact, Collective, Entity, Group, Span, Symbol
from compiler.record.distributed_facts import collective_kind, is_wait

_ARGUMENTS = re.compile(r"= torch\.ops\.[\w.]+\((.*)\)")
_QUOTED = re.compile(r"'([^'\n]{1,200})'")
_GROUP_SIZE = re.compile(r", (\d{1,6}), '[^']*'$")
_REDUCING = frozenset(("all_reduce", "reduce_scatter", "reduce"))
_SIZED = frozenset(("all_gather", "reduce_scatter"))


def collectives_of(
    artifacts: Iterable[Artifact], symbols: Iterable[Symbol], files: Mapping[str, str]
) -> tuple[list[Collective], list[Group]]:
    """The collectives in the graphs of a record, in order of execution, and their groups; their ranks are unknown.

    `files` are the paths of source files by the names that the record gives them.
    """
    artifacts = list(artifacts)
    hints = {(each.frame, each.name): each.hint for each in symbols if isinstance(each.hint, int)}
    found = GraphCollectives()
    for artifact in artifacts:
        if artifact.stage in STAGES_WITH_COLLECTIVES:
            own = {name: hint for (frame, name), hint in hints.items() if frame == artifact.graph.partition(" ")[0]}
            found.add(artifact, [(each, Group(each.group, ())) for each in _calls(artifact, own)])
    users = _UsersLines(artifacts, files)
    linked = [users.with_line(each) for each in found.collectives_in_order(artifacts)]
    sizes = {each.group: each.group_size for each in linked if each.group_size}
    return [replace(each, group_size=sizes.get(each.group, 0)) for each in linked], list(found.groups.values())


def _calls(artifact: Artifact, hints: Mapping[str, int]) -> Iterator[Collective]:
    kinds = ((each, collective_kind(str(each.attrs.get("target", "")))) for each in artifact.entities)
    found = [(each, kind) for each, kind in kinds if kind is not None]
    if not found:
        return
    entities = {each.id: each for each in artifact.entities}
    users: dict[str, list[Entity]] = {}
    for each in artifact.entities:
        for name in each.inputs:
            users.setdefault(name, []).append(each)
    printed, rows = {name: line for line, names in artifact.lines.items() for name in names}, artifact.text.split("\n")
    for order, (call, kind) in enumerate(found):
        statement = rows[printed[call.id] - 1] if call.id in printed else ""
        matched = _ARGUMENTS.search(statement)
        arguments = matched[1] if matched is not None else ""
        quoted, size = _QUOTED.findall(arguments), _GROUP_SIZE.search(arguments)
        inputs = [entities[name].attrs for name in call.inputs if name in entities]
        results = [call, *(each for each in users.get(call.id, ()) if each.attrs.get("target") == "operator.getitem")]
        yield Collective(
            id=f"collective[{f'{artifact.graph} {artifact.half}'.strip()}].{call.label}",
            kind=kind,
            graph=artifact.graph,
            half=artifact.half,
            operator=str(call.attrs["target"]),
            group=quoted[-1] if quoted else "",
            group_size=int(size[1]) if size is not None and kind in _SIZED else 0,
            reduction=quoted[0] if kind in _REDUCING and len(quoted) > 1 else "",
            dtype=", ".join(dict.fromkeys(str(each["dtype"]) for each in inputs if "dtype" in each)),
            tensors=len(inputs) or 1,
            input_bytes=0 if kind == "recv" else sum(_bytes(each, hints) for each in inputs),
            output_bytes=0 if kind == "send" else sum(_bytes(each.attrs, hints) for each in results),
            wait=next((each.id for made in results for each in users.get(made.id, ()) if _waits(each)), ""),
            entities=(call.id,),
            order=order,
        )


class _UsersLines:
    """Finds the user's line of a collective for which the log names only the line in torch that the call runs."""

    def __init__(self, artifacts: Iterable[Artifact], files: Mapping[str, str]) -> None:
        self.files = files
        self.captured = [list(each.entities) for each in artifacts if each.stage == "captured"]
        self.home = {each.id: (rows, at) for rows in self.captured for at, each in enumerate(rows)}
        self.origins = {each.id: each.origins for artifact in artifacts for each in artifact.entities}

    def with_line(self, found: Collective) -> Collective:
        if not found.lines or not OF_TORCH.search(f"/{found.lines[0].file}"):
            return found
        outer = tuple(line for line in found.lines if not OF_TORCH.search(f"/{line.file}"))
        own = self._line(found)
        return replace(found, lines=(own, *outer)) if own is not None else replace(found, lines=outer or found.lines)

    def _line(self, found: Collective) -> Span | None:
        """The line between those of the operations before and after the call in the captured graph."""
        node = found.entities[0]
        while node not in self.home and self.origins.get(node):
            node = self.origins[node][0]
        if node not in self.home:
            return None
        rows, at = self.home[node]
        before = next((place for each in reversed(rows[:at]) if (place := self._place(each))), None)
        if before is None:
            return None
        later = ((each, self._place(each)) for each in rows[at + 1 :])
        after = next((place for _, place in later if place is not None and place.file == before.file), None)
        word = word_of_collective(str(rows[at].attrs["target"]).split(".")[1])
        same = 1 + sum(word in str(each.attrs.get("target")) for each in self._until_users_line(rows[at + 1 :]))
        place = calling_place(before, after, word, same)
        names = {path: name for name, path in self.files.items()}
        return Span(names.get(place.file, place.file), place.line, place.line, code=place.code)

    def _until_users_line(self, rows: Iterable[Entity]) -> Iterator[Entity]:
        return takewhile(lambda each: self._place(each) is None, rows)

    def _place(self, entity: Entity) -> Place | None:
        """The entity's line, unless it is in torch."""
        file, line = str(entity.attrs.get("file") or ""), entity.attrs.get("line")
        if not file or not isinstance(line, int) or OF_TORCH.search(f"/{file}"):
            return None
        return Place(self.files.get(file, file), line, "", str(entity.attrs.get("code") or ""))


def _waits(entity: Entity) -> bool:
    return is_wait(str(entity.attrs.get("target", "")))


def _bytes(attrs: Mapping[str, Any], hints: Mapping[str, int]) -> int:
    """Size of a tensor; its symbols have the value with which it was traced. 0 for expressions of symbols."""
    sizes = [hints.get(size, 0) if isinstance(size, str) else size for size in attrs.get("shape", ())]
    return min(prod(sizes) * item_size(str(attrs["dtype"])), 2**50) if "dtype" in attrs else 0
