"""Measured facts: candidates, their host time, times of kernels and lines, memory.

Seconds are for one call, unless a field says otherwise. None means not measured, or not requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compiler.record.distributed_facts import Traffic

What = Literal["forward", "forward and backward", "training step"]
Side = Literal["eager", "compiled"]
Half = Literal["forward", "backward", "optimizer"]
Role = Literal["", "input", "saved", "tangent", "result", "gradient"]
MemorySide = Literal["compiled", "eager", "measured", "rank"]
MemoryKind = Literal[
    "", "parameters", "shards", "gathered weights", "activations", "gradients", "optimizer states", "buckets", "inputs"
]
MemoryWhat = Literal["input", "allocate", "reuse", "alias", "free", "output"]


@dataclass(frozen=True, slots=True)
class HostTime:
    """Parts of the time of one call, in seconds.

    `guards` is the time to check guards, with warm CPU caches. `wrapper` is the time of the generated wrapper and all
    other Python and torch code. `launches` is the time to launch GPU work. `gpu` is the time that the GPU was busy,
    which overlaps with the other times, as the GPU runs asynchronously.
    """

    guards: float | None = None
    wrapper: float | None = None
    launches: float | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the user's call, and its measurements.

    `name` is "eager", a backend ("aot_eager", "inductor") or a backend with a mode ("inductor reduce-overhead").
    `what` is the work of one call. `rounds` are times of a call, each the mean (on a GPU, the median) of
    `calls_a_round` calls. `seconds` is the median of `rounds`; `low` and `high` are the quartiles. The L2 cache is
    emptied before each call, except for `stream_seconds`: the time of a call in a back-to-back stream.
    `compile_seconds` is for the first call, with empty caches.
    `peak_bytes` is the peak memory during one call, less the memory in use before.
    `kernels` counts distinct generated kernels, `launches` the launches of one call (library kernels, too), and
    `graphs` the compiled graphs. `notes` are sentences; `problem` says why there are no numbers.
    """

    name: str
    backend: str = ""
    mode: str = ""
    what: What = "forward"
    device: str = ""
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: tuple[float, ...] = ()
    calls_a_round: int = 0
    stream_seconds: float | None = None
    compile_seconds: float | None = None
    peak_bytes: int | None = None
    kernels: int | None = None
    launches: int | None = None
    graphs: int | None = None
    host: HostTime | None = None
    notes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Method and conditions of the measurement of a record's candidates.

    `device` is "cpu" or "cuda", `device_name` its model, `threads` torch's number of CPU threads. `method` is one
    sentence. `noise` are notes on the reliability of the numbers. `left_out` names possible candidates that were not
    timed, and how to include them. `interrupted` is set if candidates or rounds are missing because the user
    interrupted.
    """

    device: str
    device_name: str = ""
    threads: int = 0
    method: str = ""
    noise: tuple[str, ...] = ()
    left_out: str = ""
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Profiled time of one call of a generated kernel, or of one device function or operator in eager mode.

    `seconds` is the median over the profiled calls of the user's function; the launches in each of these calls are
    summed, and `launches` is their mean number. `device` is where the time was spent: "cuda", or "cpu".
    `kernel` is the id of a `Kernel`, and `call` the id of the entity that calls it in the generated code. Both are ""
    for eager, and for functions in the compiled call that match no kernel of the record: then `name` is the device
    function, or on a CPU the operator. `op` is the operator that launched it, `functions` are the device functions that
    ran. `bytes` and `flops` are by formula, for all launches. `memory_share` and `compute_share` are the achieved
    shares of the GPU's peak bandwidth and peak rate, from 0 to 1 (more if the cache serves traffic), None if the peak
    is unknown. `nodes` are ids of the post-grad nodes that the kernel computes, `lines` ids of source lines.
    """

    name: str
    side: Side
    half: Half
    seconds: float
    launches: float
    device: str = "cuda"
    kernel: str = ""
    call: str = ""
    op: str = ""
    functions: tuple[str, ...] = ()
    bytes: int | None = None
    flops: int | None = None
    memory_share: float | None = None
    compute_share: float | None = None
    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineTime:
    """Profiled time of a line of Python in one call, in seconds; `line` is the id of the line's entity.

    `seconds` are for operations on the line itself, `total` includes the functions that the line calls. The time of a
    kernel that computes several places (a line with its calling lines) is divided equally among these places. If `line`
    is "", `seconds` could not be matched to any line. `device` is where the time was spent.
    """

    line: str
    side: Side
    half: Half
    seconds: float
    total: float
    device: str = "cuda"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One step of a graph that changes the memory in use, in execution order.

    `what` is the change of `buffer`: "input" (exists before the half begins), "allocate", "reuse" (takes over the
    memory of `of`), "alias" (another name for the memory of `of`), "free", "output" (stays after the half; its outer
    name is `of`). `role` is the role of an input or output. `bytes` are the buffer's own. `live` are the bytes in use
    after the step: the graph's inputs and all its allocations, shared memory counted once.

    `side` "compiled" is the generated code as planned: `entity` is the node that writes the buffer, `at` the line of
    the wrapper. `side` "eager" are the captured graph's operators run in eager mode: `entity` is the captured node that
    allocates the buffer, by itself or in its derivative. `side` "measured" are allocations and frees during the call,
    from the GPU's allocator or the CPU profiler: without names, graphs and halves. `side` "rank" is one training step
    of a rank of a distributed job, with all that the rank keeps: `kind` says what the buffer is, and `graph` is "" for
    what no graph allocates.
    """

    graph: str
    half: Half
    what: MemoryWhat
    buffer: str
    bytes: int
    live: int
    side: MemorySide = "compiled"
    role: Role = ""
    of: str = ""
    entity: str = ""
    at: int = 0
    kind: MemoryKind = ""


@dataclass(frozen=True, slots=True)
class Merge:
    """One step of Inductor's fusion: scheduler nodes `first` and `second`, by name, became `name` in `round`, from 1.

    `kind` is the half of the graph ("forward", "backward", "inference"). A name that no `Merge` made is a node of the
    `ir` stage. `saved` is Inductor's score of the pair (`Scheduler.score_fusion_memory`): the bytes that both access.
    `reordered` marks the last round, in which loops may be reordered.
    """

    graph: str
    kind: str
    round: int
    first: str
    second: str
    name: str
    saved: int
    reordered: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """Time that torch spent in a compilation phase, from torch's own events; `parent` is the enclosing phase."""

    name: str
    seconds: float
    graph: str = ""
    parent: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of one piece of advice (`advice` is its id): the call without and with the change, timed in turns.

    `device` is the device on which both were timed.

    `before` and `after` are median seconds of a call. `gained` is the median over `rounds` of the time saved, `low` and
    `high` its quartiles. The compile seconds are for the first call, with empty caches, and the graphs, of a trial of
    advice on recompilations, for all explored calls. `expected` is the gain that the advice claimed, of a "call" or of
    "compile" time (`of`). `same` is the verdict on the results, and `numbers` their
    difference in words. `problem` says why there are no numbers. A trial by simulation has `traffic_before` and
    `traffic_after` in place of times.
    """

    advice: str
    what: What = "forward"
    device: str = ""
    before: float | None = None
    after: float | None = None
    gained: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    compile_before: float | None = None
    compile_after: float | None = None
    same: Literal["equal", "close", "differs", "not comparable", ""] = ""
    numbers: str = ""
    expected: float | None = None
    of: Literal["call", "compile"] = "call"
    problem: str = ""
    traffic_before: Traffic | None = None
    traffic_after: Traffic | None = None
    graphs_before: int | None = None
    graphs_after: int | None = None
