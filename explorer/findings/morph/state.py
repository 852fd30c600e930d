"""A state of a graph as plain data: nodes with their origins in the state before, edges, counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["op", "view", "scalar", "input", "saved", "leaf", "stop", "kernel", "extern"]
Lane = Literal["both", "forward", "backward"]
Edge = tuple[str, str]

TITLES = {"eager": "Eager", "joint": "Joint", "cut": "Cut", "decomposed": "Decomposed", "fused": "Fused"}
DATA: frozenset[str] = frozenset({"input", "saved", "leaf", "stop"})


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a state. `bytes` are those of its tensor, or for a kernel those that it moves.

    `origins` are ids of nodes of the state before; `inferred` if the record does not link these directly.
    """

    id: str
    kind: Kind
    lane: Lane
    title: str
    detail: str = ""
    bytes: int = 0
    origins: tuple[str, ...] = ()
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """Operations (or kernels), other nodes, launches, and bytes of a state; None if unknown.

    `launches` is exact for kernels, else a lower bound: each operation runs by itself; views and scalars run nothing.
    `moved` are bytes read and written by operations, `saved` are bytes kept for backward, without leaves.
    """

    ops: int
    data: int
    launches: int
    moved: int | None = None
    saved: int | None = None
    exact: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """One state of the graph. `edges` are pairs of ids; `gone` are nodes of the state before that nothing came from."""

    key: str
    words: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    counts: Counts
    gone: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        has_halves = self.key != "cut" or any(node.lane == "backward" for node in self.nodes)
        return TITLES[self.key] if has_halves else "Traced"

    @property
    def new(self) -> tuple[str, ...]:
        """Ids of nodes without origins."""
        return tuple(node.id for node in self.nodes if not node.origins)
