"""Stacks: consecutive equal modules of a graph, such as the 32 layers of a Llama, which views show as one × 32."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from compiler.record import Artifact, Entity

FEWEST = 3
"""Fewer equal modules are shown one by one."""

_LITERAL = re.compile(r"(?<![\w.])-?(?:\d[\w.]*(?:e-\d+)?|inf|True|False|None)\b|'[^']*'")
"""A constant among a call's arguments, in the text of a graph; no digits of a name."""

Fold = tuple[int, int, str]
"""The row (from 0) that stays in sight, the last row that is hidden below it, and what is hidden, in words."""
_Place = tuple[str, ...]


@dataclass(frozen=True)
class Stack:
    """Equal modules with consecutive numbers: `layers` holds the nodes of each, in the graph's order of modules."""

    place: _Place
    numbers: tuple[int, ...]
    layers: tuple[tuple[Entity, ...], ...]

    @property
    def name(self) -> str:
        """The modules' numbers in the graph's order, and their count."""
        return f"{self.numbers[0]}–{self.numbers[-1]} × {len(self.numbers)}"


def stacks_of(artifact: Artifact) -> list[Stack]:
    """The stacks of a graph: runs of modules under one module that compute the same on the same shapes."""
    found: dict[_Place, dict[int, list[Entity]]] = {}
    for entity in artifact.entities:
        path = _modules(entity)
        for depth, name in enumerate(path):
            if name.isdecimal():
                found.setdefault(path[:depth], {}).setdefault(int(name), []).append(entity)
    constants = _constants(artifact) if found else {}
    return [stack for place, modules in found.items() for stack in _equal_runs(place, modules, constants)]


def _constants(artifact: Artifact) -> dict[str, tuple[str, ...]]:
    """The constants among the arguments of each node, as the graph's text has them; of random seeds, not which one."""
    rows = artifact.text.splitlines()
    found: dict[str, tuple[str, ...]] = {}
    for line, ids in artifact.lines.items():
        arguments = rows[line - 1].partition(" = ")[2].partition(";")[0].partition("  #")[0]
        literals = () if "lookup_seed" in arguments else tuple(_LITERAL.findall(arguments))
        found.update((identity, literals) for identity in ids if identity not in found)
    return found


def _modules(entity: Entity) -> _Place:
    """Names of the modules around a node; () for what is no call, and for a node inside of an operator's body."""
    is_call = entity.kind == "call" and "subgraph" not in entity.attrs
    return tuple(filter(None, str(entity.attrs.get("module") or "").split("."))) if is_call else ()


def _equal_runs(
    place: _Place, modules: Mapping[int, Sequence[Entity]], constants: Mapping[str, tuple[str, ...]]
) -> Iterator[Stack]:
    """Runs of modules that are equal and numbered up or down without a gap, in the order of the graph."""
    if len(modules) < FEWEST:
        return
    signs = {number: _sign(nodes, len(place) + 1, constants) for number, nodes in modules.items()}
    runs: list[list[int]] = []
    for number in modules:
        last = runs[-1][-1] if runs else number
        if abs(number - last) == 1 and signs[number] == signs[last]:
            runs[-1].append(number)
        else:
            runs.append([number])
    for numbers in runs:
        layers = tuple(tuple(modules[number]) for number in numbers)
        if len(numbers) >= FEWEST and len(layers[0]) > 1:
            yield Stack(place, tuple(numbers), layers)


def _sign(nodes: Sequence[Entity], depth: int, constants: Mapping[str, tuple[str, ...]]) -> tuple[object, ...]:
    """What a module computes: operators, constants, shapes, dtypes, modules inside, and which nodes use each other."""
    at = {node.id: index for index, node in enumerate(nodes)}
    return tuple(
        (
            node.attrs.get("target"),
            constants.get(node.id),
            node.attrs.get("dtype"),
            tuple(node.attrs.get("shape") or ()),
            _modules(node)[depth:],
            tuple(at.get(each, -1) for each in node.inputs),
        )
        for node in nodes
    )


def names_of_stacks(stacks: Iterable[Stack]) -> dict[str, dict[int, str]]:
    """Names of the stacks around each node, by the depth of their modules in the node's path of modules."""
    marks: dict[str, dict[int, str]] = {}
    for stack in stacks:
        for entity in (entity for layer in stack.layers for entity in layer):
            marks.setdefault(entity.id, {})[len(stack.place)] = stack.name
    return marks


def folded_rows(artifact: Artifact, stacks: Iterable[Stack]) -> list[Fold]:
    """Folds of a graph's text: of each stack, all layers but the first; none where other nodes stand between them."""
    rows = sorted((line - 1, identity) for line, ids in artifact.lines.items() for identity in ids)
    return [fold for stack in stacks for fold in _folds(stack, rows)]


def _folds(stack: Stack, rows: Sequence[tuple[int, str]]) -> Iterator[Fold]:
    """The folds of a stack: one, or in a joint graph one for the forward and one for the backward."""
    owner = {node.id: number for number, layer in zip(stack.numbers, stack.layers, strict=True) for node in layer}
    owned = [(owner.get(identity), row) for row, identity in rows]
    parts = [(number, [row for _, row in part]) for number, part in groupby(owned, key=itemgetter(0))]
    for is_of_stack, run in groupby(parts, key=lambda part: part[0] is not None):
        (first, shown), *hidden = run
        if is_of_stack and sorted(number for number, _ in hidden) == sorted({*stack.numbers} - {first}):
            path = ".".join((*stack.place, str(first)))
            yield shown[-1], hidden[-1][1][-1], f"{len(hidden)} more modules equal to {path}"
