"""Stacks: consecutive equal modules of a graph, such as the 32 layers of a Llama, which views show as one × 32."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from compiler.record import Artifact, Entity

FEWEST = 3
"""Fewer equal modules are shown one by one."""

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
    return [stack for place, modules in found.items() for stack in _equal_runs(place, modules)]


def _modules(entity: Entity) -> _Place:
    """Names of the modules around a node; () for what is no call, and for a node inside of an operator's body."""
    is_call = entity.kind == "call" and "subgraph" not in entity.attrs
    return tuple(filter(None, str(entity.attrs.get("module") or "").split("."))) if is_call else ()


def _equal_runs(place: _Place, modules: Mapping[int, Sequence[Entity]]) -> Iterator[Stack]:
    """Runs of modules that are equal and numbered up or down without a gap, in the order of the graph."""
    if len(modules) < FEWEST:
        return
    signs = {number: _sign(nodes, len(place) + 1) for number, nodes in modules.items()}
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


def _sign(nodes: Sequence[Entity], depth: int) -> tuple[object, ...]:
    """What a module computes: operators, shapes and dtypes, modules inside, and which nodes use each other."""
    at = {node.id: index for index, node in enumerate(nodes)}
    return tuple(
        (
            node.attrs.get("target"),
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
