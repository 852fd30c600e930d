"""The record: the results of one exploration, as plain data.

There are three main types. An `Entity` is one object in one stage (a source line, an FX node, a kernel). An `Artifact`
is the printable text of one stage, with its entities. A `Record` holds artifacts in pipeline order, and facts that
belong to no stage's text. Links are stored only as `Entity.origins`; a selection is their closure in both directions.

Records round-trip through JSON: `Record.from_json(record.to_json()) == record`. Loading executes no code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from compiler.record.capture_facts import Applicability as Applicability
from compiler.record.capture_facts import Condition as Condition
from compiler.record.capture_facts import Frame as Frame
from compiler.record.capture_facts import GraphBreak as GraphBreak
from compiler.record.capture_facts import Guard as Guard
from compiler.record.capture_facts import GuardFailure as GuardFailure
from compiler.record.capture_facts import Recompile as Recompile
from compiler.record.capture_facts import Span as Span
from compiler.record.capture_facts import Step as Step
from compiler.record.capture_facts import Suggestion as Suggestion
from compiler.record.capture_facts import Symbol as Symbol
from compiler.record.distributed_facts import BucketPlan as BucketPlan
from compiler.record.distributed_facts import Collective as Collective
from compiler.record.distributed_facts import CollectiveKind as CollectiveKind
from compiler.record.distributed_facts import Group as Group
from compiler.record.distributed_facts import PipelineSchedule as PipelineSchedule
from compiler.record.distributed_facts import RankPlace as RankPlace
from compiler.record.distributed_facts import Traffic as Traffic
from compiler.record.distributed_facts import Unit as Unit
from compiler.record.limits import TooLargeError, check_json
from compiler.record.measure_facts import Candidate as Candidate
from compiler.record.measure_facts import HostTime as HostTime
from compiler.record.measure_facts import KernelTime as KernelTime
from compiler.record.measure_facts import LineTime as LineTime
from compiler.record.measure_facts import Measurement as Measurement
from compiler.record.measure_facts import MemoryEvent as MemoryEvent
from compiler.record.measure_facts import Merge as Merge
from compiler.record.measure_facts import Phase as Phase
from compiler.record.measure_facts import Trial as Trial
from compiler.record.options import Options
from compiler.record.plain_text import did_you_mean
from compiler.record.xray_facts import Cause as Cause
from compiler.record.xray_facts import CauseFix as CauseFix
from compiler.record.xray_facts import Fix as Fix
from compiler.record.xray_facts import FixState as FixState
from compiler.record.xray_facts import GraphLines as GraphLines
from compiler.record.xray_facts import ProgramCost as ProgramCost
from compiler.record.xray_facts import ProgramState as ProgramState
from compiler.record.xray_facts import Site as Site
from compiler.record.xray_facts import ValueOrigin as ValueOrigin
from compiler.record.xray_facts import XRay as XRay

SCHEMA = 3
READABLE = (1, 2, SCHEMA)
"""Schemas that can be read. Schema 1 has no field for the half of a graph; schemas 1 and 2 have none for the index of a
code object and a kernel's variant.
"""

OWN_STAGES: tuple[str, ...] = (
    "lowered", "simplified", "fold_padding", "inlined", "split", "fused", "fission",
    "one_hot", "recompute", "matmuls", "ordered", "combined", "reordered", "scheduled",
)  # fmt: skip
"""Stages of our own backend's passes, in order. An unlisted stage comes after these, before the kernels."""

STAGES: tuple[str, ...] = (
    "source",
    "bytecode",
    "captured",
    "exported",
    "pre_grad",
    "autograd",
    "joint",
    "forward",
    "backward",
    "inference",
    "decomposed",
    "post_grad",
    "ir",
    "fused_ir",
    *OWN_STAGES,
    "kernels",
    *("ttir", "passes", "layouts", "ttgir", "llir"),
    *("ptx", "sass", "amdgcn", "asm"),
    *("timing", "other"),
)

MACHINE_STAGES: tuple[str, ...] = STAGES[STAGES.index("kernels") + 1 : STAGES.index("timing")]
"""Stages of a Triton kernel's compilation, in order; made on request, one artifact for each kernel."""


def stage_rank(stage: str) -> float:
    """Rank of a stage in the pipeline; an unknown stage ranks as a pass of our own backend."""
    return STAGES.index(stage) if stage in STAGES else STAGES.index("kernels") - 0.5


def ordered_stages(stages: Iterable[str], known: Sequence[str] = STAGES) -> list[str]:
    """Distinct stages in pipeline order; an unknown stage follows the stage before it in `stages`."""
    ranks: dict[str, float] = {}
    before = known.index("kernels") - 0.5
    for stage in stages:
        if stage not in ranks:
            ranks[stage] = known.index(stage) if stage in known else before + 1e-3
        before = ranks[stage]
    return sorted(ranks, key=lambda stage: ranks[stage])


Trust = Literal["untrusted", "trusted"]
Origin = Literal["observed", "log", "simulated"]
"""Source of a record: a call that tcompile ran, a log of a job elsewhere, or a rank of a job that isn't running."""
GraphHalf = Literal["", "forward", "backward", "inference"]


class UntrustedError(RuntimeError):
    """Code of a loaded record would be executed without the user's consent."""


class RecordError(ValueError):
    """A record file can't be read; the message names the field and what was expected."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One object in one stage.

    `id` is canonical (`forward[0/0].mul_2`): the same input gives the same id. `attrs` holds JSON values only. A node
    with a tensor value has `dtype`, `shape`, `stride`, `device`, `bytes`. An FX node also has `op`, `target`, `module`
    (the `nn.Module` path), `file`, `line`, `checkpoint`. A higher-order operator has `subgraphs`, the ids of the
    entities that hold its bodies; a node in a body has `subgraph`, the id of the entity that holds the body. `inputs`
    are ids in this artifact, `origins` ids in earlier stages.
    DTensors also have the attributes of `compiler.distributed.placements`.
    """

    id: str
    kind: str
    label: str
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Artifact:
    """The printable text of one stage. `lines` maps a 1-based line of `text` to the ids of the entities on it.

    `graph` is the capture (`0/0`: frame 0, compilation 0, numbered within this exploration), a part of the capture
    (`0/0 submod_1`, if DDPOptimizer split it) or "". `half` is the half of the graph: "forward", "backward",
    "inference", or "" for the whole graph.
    `attrs` may hold `numbers` (the line number to show for each line of `text`, 0 for none), `path`, `start` (the line
    to open), an export's `mode`, and for source `calls`: id of a line with inlined calls -> ids of lines in them.
    """

    id: str
    stage: str
    title: str
    language: str
    text: str
    graph: str = ""
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    entities: tuple[Entity, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)
    half: GraphHalf = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.id}: {self.title}, {len(self.lines)} linked lines; print it to read it>"

    def calls_inside(self, entity: Entity) -> tuple[str, ...]:
        """Ids of the calls in the subgraphs that a node of this graph runs, including nested subgraphs."""
        inside = entity.attrs.get("subgraphs", ())
        return tuple(
            identity
            for other in (self.entities if inside else ())
            if other.kind == "call" and other.attrs.get("subgraph") in inside
            for identity in (other.id, *self.calls_inside(other))
        )

    def entity(self, name: str) -> Entity:
        """The entity with this id, or with this name within the artifact (`mul_2`). Raises KeyError."""
        wanted = {name, f"{self.id}.{name}"}
        for candidate in self.entities:
            if candidate.id in wanted:
                return candidate
        raise KeyError(f"{self.id} has no entity named {name!r}")


@dataclass(frozen=True, slots=True)
class Decision:
    """A pass's decision about some entities: `pass_name` ("fusion"), `verdict` ("fused", "refused"), and the reason."""

    pass_name: str
    graph: str
    subjects: tuple[str, ...]
    verdict: str
    why: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated kernel. `id` is the id of its entity in the kernels artifact; `lines` its first and last line.

    `category` is "pointwise", "reduction", "extern", "template" or "user" (the user's own kernel).
    `bytes` are the bytes read and written in one call, by Inductor's count (0 if it has none), the mean of all calls.
    `nodes` are ids of fused_ir entities. `half` is the half of its graph: "forward", "backward" or "inference".
    `variant` distinguishes kernels of one half that may share a name: "Triton", "C++", "edited" (in the kernel lab).
    """

    id: str
    name: str
    graph: str
    artifact: str
    language: str
    category: str
    lines: tuple[int, int]
    nodes: tuple[str, ...] = ()
    calls: int = 1
    bytes: int = 0
    half: GraphHalf = ""
    variant: str = ""

    @property
    def place(self) -> str:
        """Graph, half and variant of the kernel: `0/0 forward`."""
        return " ".join(filter(None, (self.graph, self.half, self.variant)))


@dataclass(frozen=True, slots=True)
class Binary:
    """One kernel as machine code for one GPU, in one launch configuration, or for a CPU's instruction set.

    `kernel` is the id of a `Kernel`, `target` names a GPU of `compiler.targets`. `config` holds block sizes,
    `num_warps` and `num_stages`; `configs` are all candidates of Inductor's heuristics, in their order.

    `registers` (vector registers on AMD) and `spill_bytes` are per thread, `shared_memory` (bytes) and `threads` per
    block. `programs` are the blocks of one launch (0 if sizes are symbolic). None means not available.
    `occupancy` is the share of a multiprocessor's warps that are resident; `limiter` is the resource that limits it.
    `mix` counts instructions by class. `load_bits` and `store_bits` are the widest global access of one thread.
    For a CPU's hot loop, `vector_bits` is the width of its vectors, `loop_cycles` an estimate for one iteration.
    `bytes` and `flops` are by formula, for one launch. `bound_seconds` is the least time at the target's peak rates;
    `bound` is the rate that limits it ("memory", "compute").
    """

    kernel: str
    target: str
    config: dict[str, int]
    configs: tuple[dict[str, int], ...] = ()
    registers: int | None = None
    spill_bytes: int | None = None
    shared_memory: int | None = None
    threads: int = 0
    programs: int = 0
    occupancy: float | None = None
    limiter: str = ""
    mix: dict[str, int] = field(default_factory=dict)
    load_bits: int | None = None
    store_bits: int | None = None
    bytes: int = 0
    flops: int = 0
    bound_seconds: float | None = None
    bound: str = ""
    vector_bits: int | None = None
    loop_cycles: float | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that a node of the eager autograd graph (`node`, an entity's id) saves for its backward.

    `of` names the tensor: "leaf w", "result of addmm_1", "" if unknown. Tensors with the same `storage` ("s3") share
    memory, of `storage_bytes` in all. `free` marks memory of leaves, which exists anyway. `version` counts in-place
    writes, `view` marks views. `problem` says why the tensor is not available or can't be used.
    """

    node: str
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    bytes: int = 0
    of: str = ""
    storage: str = ""
    storage_bytes: int = 0
    shared_with: tuple[str, ...] = ()
    free: bool = False
    view: bool = False
    version: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured time in seconds. `subject` is an artifact id or a candidate's name; `what` describes the duration."""

    subject: str
    what: str
    seconds: float
    low: float = 0.0
    high: float = 0.0
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Check:
    """A comparison with eager's results. `subject` is "the call", one of its results ("logits", "gradient of
    layer1.weight"), or a description of a stage's results.

    Errors are absolute, and relative to the largest magnitude; None if not finite.
    `verdict` is "equal", "close" (within the dtype's tolerance, or as near to float64 as eager), "differs" or "not
    comparable"; `words` is the verdict as a sentence.
    `stage` and `graph` name the graphs that were run. Both are "" for compiled code; `graph` is "" if a stage was run
    in the whole call. `node` is the id of the first node whose value differs.
    `max_absolute_float64` and `max_relative_float64` are errors against the same computation in float64, None if
    unknown. In relative errors, a tensor's magnitude counts as at least a thousandth of the largest result's.

    For results of the call, `tolerance` is the allowed relative error. `max_ulps` and `p99_ulps` (the 99th percentile)
    are in units in the last place of the result's dtype. `eager_absolute_float64` is eager's largest error against
    float64.
    """

    subject: str
    max_absolute: float | None
    max_relative: float | None
    verdict: str
    note: str = ""
    stage: str = ""
    graph: str = ""
    max_absolute_float64: float | None = None
    max_relative_float64: float | None = None
    node: str = ""
    words: str = ""
    dtype: str = ""
    tolerance: float | None = None
    mean_absolute: float | None = None
    max_ulps: float | None = None
    p99_ulps: float | None = None
    mean_absolute_float64: float | None = None
    eager_absolute_float64: float | None = None


NOT_IN_LOGS = {
    "ir": "a log has no loop IR: torch writes it to no structured trace",
    "fused_ir": "a log has no loop IR, and no fusion decisions: torch writes them to no structured trace",
    "autograd": "a log has no eager autograd graph",
    "timing": "a log has no measured times of calls or kernels; a profile of the job has them",
}
"""Stages that no log of a job has, with the reasons."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A stage that is not available: the reason, and what to do about it, in the user's terms."""

    stage: str
    reason: str
    hint: str = ""
    graph: str = ""

    @property
    def is_of_all_logs(self) -> bool:
        """Whether every record that was read from a log has this problem."""
        return NOT_IN_LOGS.get(self.stage) == self.reason


@dataclass(frozen=True, slots=True)
class Environment:
    """Software and hardware that made the record.

    `threads` is torch's number of CPU threads, `matmul_precision` the value of torch.get_float32_matmul_precision().
    """

    python: str = ""
    torch: str = ""
    triton: str = ""
    tcompile: str = ""
    platform: str = ""
    processor: str = ""
    cores: int = 0
    gpu: str = ""
    threads: int = 0
    matmul_precision: str = ""


@dataclass(frozen=True, slots=True)
class ExploredCall:
    """The explored call of a cell. `callee` is the callee as written, `line` its line in the cell.

    `inside` is the cell's own call that led to this one, "" if the cell makes it directly. `others` are callees of the
    cell that could have been explored instead. `scripts` are callees that train, build or evaluate a model: calling
    them again would change the model.
    """

    callee: str
    line: int = 0
    inside: str = ""
    others: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """The results of one exploration, in pipeline order.

    `target` is the target of code generation: a GPU of `compiler.targets`, or "cpu" or "cuda" for a device of this
    machine. `calls` is the number of calls of the explored function. `versus` is the record of the same call with
    another backend. `xray` has all sites of graph breaks, if the user asked for them. `origin` says whether tcompile
    observed the call, simulated a rank of a job, or read the log of a job elsewhere. `place` is the rank, None if
    torch.distributed was not initialized; `groups` and `collectives` are the rank's. `units` are the parameters that
    FSDP gathers together, or the buckets of DDP; `bucket_plans` has DDP's buckets for other caps. `pipelines` are the
    schedules of pipelines that the call runs.

    `trust` is unset for a record made in this process. A loaded record is untrusted, whatever its file says, until the
    user agrees to execute its kernels' code (`with_trust`). `trust` is never written to a file.
    """

    title: str
    options: Options
    target: str = ""
    environment: Environment = field(default_factory=Environment)
    artifacts: tuple[Artifact, ...] = ()
    frames: tuple[Frame, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    guards: tuple[Guard, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    decisions: tuple[Decision, ...] = ()
    merges: tuple[Merge, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    binaries: tuple[Binary, ...] = ()
    timings: tuple[Timing, ...] = ()
    measurement: Measurement | None = None
    candidates: tuple[Candidate, ...] = ()
    kernel_times: tuple[KernelTime, ...] = ()
    line_times: tuple[LineTime, ...] = ()
    memory: tuple[MemoryEvent, ...] = ()
    phases: tuple[Phase, ...] = ()
    trials: tuple[Trial, ...] = ()
    checks: tuple[Check, ...] = ()
    problems: tuple[Problem, ...] = ()
    steps: tuple[Step, ...] = ()
    autograd_saved: tuple[Saved, ...] = ()
    calls: int = 0
    versus: Record | None = None
    explored: ExploredCall | None = None
    xray: XRay | None = None
    origin: Origin = "observed"
    place: RankPlace | None = None
    groups: tuple[Group, ...] = ()
    collectives: tuple[Collective, ...] = ()
    units: tuple[Unit, ...] = ()
    bucket_plans: tuple[BucketPlan, ...] = ()
    pipelines: tuple[PipelineSchedule, ...] = ()
    schema: int = SCHEMA
    trust: Trust | msgspec.UnsetType = field(default=msgspec.UNSET, compare=False)

    def __repr__(self) -> str:
        stages = ", ".join(dict.fromkeys(artifact.stage for artifact in self.artifacts))
        return f"<Record of {self.title or 'nothing'}: {stages or 'no stages'}>"

    @property
    def full_title(self) -> str:
        """The title, and where the record comes from if tcompile did not observe it."""
        sources = {"observed": "", "log": ", from a log", "simulated": ", a simulated rank"}
        return (self.title or "tcompile") + sources[self.origin]

    def __getitem__(self, name: str) -> Artifact:
        """The artifact with this id, or the first of this stage. Raises KeyError with the reason."""
        for candidate in self.artifacts:
            if name in (candidate.id, candidate.stage):
                return candidate
        raise KeyError(self._absent(name))

    def _absent(self, name: str) -> str:
        asked = (name, *MACHINE_STAGES[: MACHINE_STAGES.index(name)], "kernels") if name in MACHINE_STAGES else (name,)
        why = [problem.reason for stage in asked for problem in self.problems if problem.stage == stage]
        if why:
            return f"stage {name!r} is not in this record: {why[0]}"
        stages = dict.fromkeys(artifact.stage for artifact in self.artifacts)
        meant = did_you_mean(name, [*stages, *(artifact.id for artifact in self.artifacts)], " (", ")")
        return f"no artifact or stage {name!r} in this record{meant}; it has: {', '.join(stages) or 'nothing'}"

    def of_stage(self, stage: str) -> tuple[Artifact, ...]:
        """The artifacts of a stage, one for each graph or half of a graph."""
        return tuple(artifact for artifact in self.artifacts if artifact.stage == stage)

    def last_graphs(self) -> tuple[Artifact, ...]:
        """The graphs that code is generated from: Inductor's after its passes, or else AOTAutograd's."""
        halves = (artifact for stage in ("forward", "backward", "inference") for artifact in self.of_stage(stage))
        return self.of_stage("post_grad") or tuple(halves)

    def entities(self) -> Iterator[Entity]:
        """Every entity of every artifact, in pipeline order."""
        for artifact in self.artifacts:
            yield from artifact.entities

    def linked_ids(self, entity_id: str) -> frozenset[str]:
        """Ids linked to an entity: itself, its direct and indirect origins, and all entities that derive from it."""
        up = {entity.id: entity.origins for entity in self.entities()}
        down: dict[str, list[str]] = {}
        for child, parents in up.items():
            for parent in parents:
                down.setdefault(parent, []).append(child)
        return frozenset(_reach(entity_id, up) | _reach(entity_id, down))

    def to_json(self) -> str:
        """Convert the record to JSON; `from_json` restores an equal record."""
        return msgspec.json.encode(self.with_trust(msgspec.UNSET)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read a record. Raises RecordError, which names the wrong field, and no other error.

        The size is limited (`compiler.record.limits`), and fields that views read are checked
        (`compiler.record.checks`).
        """
        from compiler.record.checks import DamagedError, check_record, upgrade  # imported lazily: rarely needed

        unreadable = (msgspec.MsgspecError, UnicodeError, RecursionError, DamagedError)
        try:
            data = text.encode() if isinstance(text, str) else text
            check_json(data)
            version = msgspec.json.decode(data, type=_Versioned).schema
        except TooLargeError as error:
            raise RecordError(f"this is too large for a tcompile record: {error}") from None
        except unreadable as error:
            raise RecordError(f"this is not a tcompile record: {error}") from None
        if version not in READABLE:
            raise RecordError(f"record schema {version} at `$.schema`; this version of tcompile reads schema {SCHEMA}")
        try:
            record = cls.decode(data)
            check_record(record)
            record = record if version == SCHEMA else upgrade(record, SCHEMA)
        except TooLargeError as error:
            raise RecordError(f"this tcompile record is too large: {error}") from None
        except unreadable as error:
            raise RecordError(f"this tcompile record is damaged: {error}") from None
        return record

    @classmethod
    def decode(cls, data: bytes) -> Record:
        """Decode an untrusted record without checking its fields. Raises msgspec's errors."""
        return msgspec.json.decode(data, type=cls).with_trust("untrusted")

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a `.json` record from disk. Raises RecordError, or OSError if the file can't be read."""
        return cls.from_json(Path(path).read_bytes())

    def with_trust(self, trust: Trust | msgspec.UnsetType) -> Record:
        """A copy with this trust; the other backend's record (`versus`) gets it too."""
        return replace(self, trust=trust, versus=self.versus and self.versus.with_trust(trust))

    @property
    def is_loaded(self) -> bool:
        """Whether the record comes from a file, so that others may have written its content."""
        return self.trust is not msgspec.UNSET

    def require_trust(self) -> None:
        """Raise UntrustedError if the record was loaded and the user has not agreed to execute its code."""
        if self.trust == "untrusted":
            names = [kernel.name for kernel in self.kernels if kernel.language in ("triton", "cpp")]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            raise UntrustedError(
                f"this run was loaded from a file, and code from the file would be executed on this machine: the source"
                f" of {shown or 'its kernels'}. If you trust whoever made the file, call run.trust() and ask again; on "
                "the command line, add --trust"
            )

    def with_fields(self, **changes: Any) -> Record:
        """A copy with the given fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True)
class _Versioned:
    schema: int


def captured_by_frame(frames: Iterable[Frame], artifacts: Iterable[Artifact]) -> dict[str, Artifact]:
    """The captured graph of each frame, by frame id; if DDPOptimizer split the graph, its first part."""
    captured = {artifact.id: artifact for artifact in artifacts if artifact.stage == "captured"}
    return {frame.id: captured[name] for frame in frames for name in frame.graphs[:1] if name in captured}


def _reach(start: str, edges: dict[str, Any]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen
