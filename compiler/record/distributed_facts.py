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
GPUS_A_NODE = 8
"""GPUs of a node, if nobody says: what torch assumes without a GPU."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The rank that a record describes. `mesh` has name and size of each dimension of the device mesh, outermost first,
    and `coordinates` the rank's place in it. `node_size` is the number of ranks on one node, 0 if it is unknown.
    `hangs` says where ranks that were simulated with this one wait for others in vain.
    """

    rank: int
    world: int
    mesh: tuple[tuple[str, int], ...] = ()
    coordinates: tuple[int, ...] = ()
    node_size: int = 0
    hangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that this rank belongs to: torch's name for it, its global ranks, and torch's description."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank sends in one step: its `calls` of collectives and the exact `bytes` of their messages.

    Estimates, None if unknown: `seconds` of the collectives, the part of them that is `exposed` because the code waits,
    and the seconds of the `whole` step.
    """

    calls: int
    bytes: int
    seconds: float | None = None
    exposed: float | None = None
    whole: float | None = None


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
    in the last graph and in the generated code, `wait` is the node that waits for the result. `lines` are the user's
    lines of Python that it comes from, innermost first; `cause` says how.
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
    origin: CollectiveOrigin = "graph"
    order: int = 0
    calls: int = 1
    """How often the step calls it: a graph that several blocks share runs once for each."""
    peer: int = -1
    """The rank that a send or a receive is with; -1 if it is unknown, and for other kinds."""
    root: int = -1
    """The rank that a broadcast or a scatter sends from, or a reduce or a gather to; -1 likewise."""

    @property
    def bytes(self) -> int:
        """Size of the message: the larger of input and output, which is what NCCL's formulas take as its size."""
        return max(self.input_bytes, self.output_bytes)


CALLED_BY_JOIN = "torch.distributed.algorithms.Join calls it, so that ranks may make different numbers of steps"
"""The cause of a collective whose result decides what Join does next."""
Wrapper = Literal["fully_shard", "FullyShardedDataParallel", "DistributedDataParallel"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Parameters that a wrapper gathers or reduces together: a module that FSDP wraps, or a bucket of DDP's graphs.

    `name` is the module's path ("" for the root), or "bucket 1 of 4". `bytes` is the size of the whole parameters,
    `shard_bytes` of what this rank keeps between steps. `gathered_as` and `reduced_as` are the dtypes of the
    collectives, if FSDP calls them. `policy` is what happens to gathered parameters after the forward: "freed", "kept"
    or "resharded to N ranks". `shards` and `replicas` are sizes of the mesh. `graphs` are ids of graphs that use the
    unit, `collectives` ids of its collectives in order. `gathers_again` is whether the backward gathered the
    parameters, `prefetched` whether a collective was called ahead of its turn.
    """

    id: str
    wrapper: Wrapper
    name: str
    parameters: tuple[str, ...]
    bytes: int
    shard_bytes: int
    dtype: str = ""
    gathered_as: str = ""
    reduced_as: str = ""
    policy: str = ""
    shards: int = 1
    replicas: int = 1
    graphs: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    gathers_again: bool = False
    prefetched: bool = False


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """What DistributedDataParallel does at one `bucket_cap_mb`, by torch's own rules.

    `graphs` are bytes of parameters in each graph that DDPOptimizer makes, in order of the forward; () if it makes
    none. `reductions` are bytes of each all_reduce from the second step on, in order of the backward: the first step
    reduces all gradients in one. `is_used` marks the cap of the explored model, `graph` its capture.
    """

    cap_mb: float
    graphs: tuple[int, ...]
    reductions: tuple[int, ...]
    is_used: bool = False
    graph: str = ""


PipelineStepKind = Literal["F", "B", "I", "W"]


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """The work on one microbatch at one stage.

    `kind` is torch's: F (forward), B (backward), I (backward for inputs only) or W (backward for weights only).
    """

    stage: int
    kind: PipelineStepKind
    microbatch: int


@dataclass(frozen=True, slots=True)
class PipelineSchedule:
    """The schedule of a pipeline: for each rank of the pipeline's group, its steps in order. `rank` is this rank."""

    name: str
    stages: int
    microbatches: int
    rank: int
    steps: tuple[tuple[PipelineStep, ...], ...]


_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")
_KINDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("reduce_scatter", "reduce_scatter"), ("all_gather", "all_gather"), ("all_reduce", "all_reduce"),
    ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("isend", "send"),
    ("irecv", "recv"), ("batch_p2p", "point_to_point"),
)  # fmt: skip
"""Part of an operator's name -> its kind; the first that fits."""
_WAIT = "_c10d_functional.wait_tensor"
_CAPTURED = "torch._ops."
"""Operators have this before their names in a captured graph, and no overload."""


def is_wait(target: str) -> bool:
    """Whether the operator with this name waits for a collective."""
    return target.removeprefix(_CAPTURED).startswith(_WAIT)


def collective_kind(target: str) -> CollectiveKind | None:
    """The kind of collective that an operator calls (`_c10d_functional.all_reduce.default`); None for others."""
    namespace, _, name = target.removeprefix(_CAPTURED).partition(".")
    if namespace not in _NAMESPACES or name.startswith("wait_tensor"):
        return None
    return next((kind for part, kind in _KINDS if part in name), None)
