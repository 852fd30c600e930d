"""Facts of one rank of a distributed job: its place, its process groups and its collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.record.capture_facts import Span

CollectiveKind = Literal[
    "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv", "point_to_point", "barrier",
]  # fmt: skip
CollectiveOrigin = Literal["graph", "hook"]
CollectiveHalf = Literal["", "forward", "backward", "inference"]


@dataclass(frozen=True, slots=True)
class Place:
    """The rank that a record is of. `mesh` has name and size of each dimension of the device mesh, outermost first,
    and `coordinates` the rank's place in it. `node_size` is the number of ranks on one node, 0 if it is unknown.
    """

    rank: int
    world: int
    mesh: tuple[tuple[str, int], ...] = ()
    coordinates: tuple[int, ...] = ()
    node_size: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that this rank belongs to: torch's name for it, its global ranks, and torch's description."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective by this rank.

    `graph` and `half` name the graph that makes the call; `origin` is "hook" for a call outside of all graphs. `order`
    counts the calls of one step from 0. `operator` is torch's name, `group` the name of a `Group` with `group_size`
    ranks, and `reduction` "sum", "avg", … for kinds that reduce.

    Bytes are exact. `input_bytes` is the size of the tensors that this rank passes in, `output_bytes` the size of those
    that it gets back, over all `tensors` of the call: for an all-gather, the rank's own shard and the gathered tensor;
    for a reduce-scatter, the reverse. For an all-reduce or a broadcast, both are the size of the tensor.
    `send` has no output and `recv` no input. A symbolic size counts as in the traced call.

    `seconds` and `algorithm` are estimates by torch's cost model; None and "" if it has none. `entities` are the calls
    in the last graph and in the generated code, `wait` is the node that waits for the result. `lines` are the lines of
    Python that caused it, innermost first; `cause` says how. `hidden_by` are the kernels that run meanwhile (estimate).
    """

    id: str
    kind: CollectiveKind
    graph: str = ""
    half: CollectiveHalf = ""
    operator: str = ""
    group: str = ""
    group_size: int = 0
    reduction: str = ""
    dtype: str = ""
    tensors: int = 1
    input_bytes: int = 0
    output_bytes: int = 0
    seconds: float | None = None
    algorithm: str = ""
    wait: str = ""
    entities: tuple[str, ...] = ()
    lines: tuple[Span, ...] = ()
    cause: str = ""
    hidden_by: tuple[str, ...] = ()
    origin: CollectiveOrigin = "graph"
    order: int = 0

    @property
    def bytes(self) -> int:
        """Size of the message: the larger of input and output, which is what NCCL's formulas take as its size."""
        return max(self.input_bytes, self.output_bytes)
