"""Measured facts: candidates, their host time, times of kernels and lines, memory.

Seconds are of one call, unless a field says otherwise. None stands for what could not be measured or was not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

What = Literal["forward", "forward and backward", "training step"]
Side = Literal["eager", "compiled"]
Half = Literal["forward", "backward", "optimizer"]
Role = Literal["", "input", "saved", "tangent", "result", "gradient"]
MemorySide = Literal["compiled", "eager", "measured"]
MemoryWhat = Literal["input", "allocate", "reuse", "alias", "free", "output"]


@dataclass(frozen=True, slots=True)
class HostTime:
    """Where the host's time of one call goes, in seconds: checking guards (the CPU's caches warm), the generated
    wrapper and all else in Python and torch, launching what the GPU is to do; and how long the GPU was busy with it.

    `gpu` overlaps with the others: the GPU works while the host goes on.
    """

    guards: float | None = None
    wrapper: float | None = None
    launches: float | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the user's call, and what was measured of it.

    `name` is "eager", a backend ("aot_eager", "inductor") or a backend with a mode ("inductor reduce-overhead").
    `what` says what one call is. `seconds` is the median over `rounds`, each of `calls_a_round` calls (their mean, on a
    GPU their median); `low` and `high` are the quartiles. `stream_seconds` is one call in a stream of calls that
    nothing is done between, where `seconds` is of calls with the L2 cache emptied before each. `compile_seconds` is the
    first call's, with empty caches. `peak_bytes` is the most memory in use during one call, less what was in use
    before. `kernels` are different generated ones, `launches` are of one call: of kernels and libraries' routines.
    `graphs` are those that were compiled. `notes` are in words, `problem` says why there are no numbers.
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
    """How the candidates of a record were measured.

    `device` is "cpu" or "cuda", `device_name` its model, `threads` those of the CPU that torch uses. `method` is one
    sentence. `noise` are notes on how far the numbers can be relied on. `left_out` says which candidates were not tried
    though they could be, and how to have them. `interrupted` is true where candidates or rounds are missing because the
    user stopped it.
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
    """Profiled time of one call of a generated kernel, or of one function of eager's.

    Seconds are the median over the profiled calls, in each of which they are the sum of its `launches` (their mean).
    `device` says whose time it is: "cuda", or "cpu" where the code ran there. `kernel` is the id of a `Kernel`, `call`
    of the entity that calls it in the generated code. Both are "" for eager, and for what ran in the compiled call and
    was matched to no kernel of the record: there `name` is the device's function, on a CPU the operator. `op` is the
    operator that launched it, `functions` are the device's functions that ran. `bytes` and `flops` are by formula, for
    all launches; `memory_share` and `compute_share` say how much of the GPU's peak bandwidth and peak rate that is,
    from 0 to 1 (traffic that the cache serves can take it beyond 1), None where a peak is not known. `nodes` are ids of
    what it does the work of in the post-grad graph, `lines` of source lines.
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
    """Seconds of one call that go to a line of Python, by the profiler; `line` is the id of its entity.

    `seconds` are of what stands on the line itself, `total` with all that it calls. What computes several places, each
    a line with the lines that called it, counts for each of them by an equal share. Where `line` is "", `seconds` are
    those that could not be matched to any. `device` says whose time it is.
    """

    line: str
    side: Side
    half: Half
    seconds: float
    total: float
    device: str = "cuda"


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One step of a graph that changes what is in memory, in the order in which it runs.

    `what` says what happens to `buffer`: "input" (it is there before the half begins), "allocate", "reuse" (it takes
    over the memory of `of`), "alias" (another name for the memory of `of`), "free", "output" (it stays when the half
    has ended; outside it is called `of`). `role` says what an input or output is. `bytes` are its own, `live` those in
    use after it: of the graph's inputs and of all that it allocated, each memory once.

    `side` "compiled" is the generated code as it was planned: `entity` is the node that writes the buffer, `at` the
    line of the wrapper. `side` "eager" are the operators of the captured graph as eager runs them: `entity` is the node
    of the captured graph that allocates it, or of whose derivative that is part. `side` "measured" is what came and
    went while the call ran, by the allocator of the GPU or the profiler on the CPU: without names, graphs and halves.
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


@dataclass(frozen=True, slots=True)
class Merge:
    """One step of Inductor's fusion: scheduler nodes `first` and `second`, by name, became `name` in `round`, from 1.

    `kind` is the half of the graph ("forward", "backward", "inference"); a name that no `Merge` has made is that of a
    node of the `ir` stage. `saved` are bytes by Inductor's own score of the pair (`Scheduler.score_fusion_memory`):
    those that both touch. `reordered` marks the last round, in which loops may be reordered.
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
    """Seconds that torch spent in a phase of compiling, by its own events; `parent` is the phase around it."""

    name: str
    seconds: float
    graph: str = ""
    parent: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """Advice (by its id) that was tried: the call as it is, and with the change, timed in turns on `device`.

    `before` and `after` are the medians of seconds a call, `gained` the median over `rounds` of what a call took less,
    `low` and `high` its quartiles; the compile seconds are those of the first call, with empty caches. `expected` is
    what the advice had claimed, "call" or "compile" says of which (`of`). `same` is the verdict on the results, and
    `numbers` says in words by how much they differ. `problem` says why there are no numbers.
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
