"""The record: what one exploration found, as plain data.

Two nouns carry everything. An `Entity` is one thing in one stage (a source line, an FX node, a kernel); an `Artifact`
is one stage's printable value. A `Record` holds artifacts in pipeline order plus the facts that are not a stage's
text. Links are not stored twice: the closure of `Entity.origins`, in both directions, is the selection.

A record is JSON in and out, exactly: `Record.from_json(record.to_json()) == record`. Loading executes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from compiler.options import Options

SCHEMA = 1

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
    "kernels",
    "ttir",
    "ttgir",
    "llir",
    "ptx",
    "sass",
    "amdgcn",
    "timing",
)

MACHINE_STAGES: tuple[str, ...] = STAGES[STAGES.index("kernels") + 1 : STAGES.index("timing")]
"""What a Triton kernel is compiled to, step by step: made when it is asked for, one artifact for each kernel."""


class RecordError(ValueError):
    """A record file that can't be read: the message names the field and what was expected there."""


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing in one stage.

    `id` is canonical (`forward[0/0].mul_2`): the same input gives the same id. `attrs` holds JSON values only: for a
    tensor-valued node `dtype`, `shape`, `stride`, `device`, `bytes`; for an FX node also `op`, `target`, `module`
    (the `nn.Module` path), `file`, `line`. `inputs` are ids in the same artifact, `origins` ids in earlier stages.
    """

    id: str
    kind: str
    label: str
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Artifact:
    """One stage's printable value. `lines` maps a 1-based line of `text` to the ids of the entities on it.

    `graph` is the capture it belongs to (`0/0`: frame 0, compilation 0, numbered within this exploration) or "".
    `attrs` may hold `numbers` (the line number to show for each line of `text`, 0 for none) and `path`; of source also
    `calls`: for the id of a line that calls functions inlined there, ids of lines that ran in these.
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

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.id}: {self.title}, {len(self.lines)} linked lines; print it to read it>"

    def entity(self, name: str) -> Entity:
        """The entity with this id, or with this name inside the artifact (`mul_2`). Raises KeyError."""
        wanted = {name, f"{self.id}.{name}"}
        for candidate in self.entities:
            if candidate.id in wanted:
                return candidate
        raise KeyError(f"{self.id} has no entity named {name!r}")


@dataclass(frozen=True, slots=True)
class Frame:
    """One compilation of one code object by TorchDynamo. `id` is `frame/compilation`; `graphs` are artifact ids.

    `caller` is the frame whose call, at `called_at`, led here ("" for the call that is explored). `plain` are the lines
    that certainly ran as plain Python: not those that only may have.

    `restarts` is why torch read the code anew in this compilation; `resumes` is the id of the break after which this
    code goes on, if it is one of the functions that torch makes for that. `call_number` is in which call of the
    explored function it was compiled, from 1. `guard_seconds` is what one check of all its guards takes with the CPU's
    caches emptied before, as torch measures it once, when it has made them.
    """

    id: str
    function: str
    file: str
    line: int
    outcome: Literal["compiled", "skipped", "failed"]
    reason: str = ""
    graphs: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()
    resumes: str = ""
    caller: str = ""
    called_at: Span | None = None
    plain: tuple[int, ...] = ()
    call_number: int = 0
    guard_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of Python source. Columns count characters from 0, the end is exclusive; `code` is the piece's text.

    `end_column` is 0 where only the line is known.
    """

    file: str
    line: int
    end_line: int = 0
    column: int = 0
    end_column: int = 0
    function: str = ""
    code: str = ""
    installed: bool = False


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to change. `rewrite` is what lines `line` to `end_line` of `file` may be replaced by ("" if no such text is
    known), `settings` are statements to run before the function is compiled.
    """

    text: str
    file: str = ""
    line: int = 0
    end_line: int = 0
    rewrite: str = ""
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A point where TorchDynamo ended a graph. `kind`, `explanation` and `hints` are torch's own words.

    `what` is one plain sentence. `chain` leads from the line of the compiled function through inlined calls to the
    culprit, whose place `file`, `line`, `function` and `code` give. `link` is torch's page on this kind.

    `outcome` says what followed: "resumed" (the function goes on in resume functions: `resumed_by` are their frames'
    ids), "plain" (the rest of the function ran as plain Python), "skipped" (all of the function did), "error"
    (torch.compile raises). `consequence` is the kind of a second break that the first one led to.

    `ended` is the captured graph before the break ("" if there is none). `nodes` are the calls in it and in the graphs
    after the break; it hands `crossing` tensors, of `crossing_bytes`, back to Python because it ends here.

    `lost_seconds` is by how much a call takes longer than without the break, measured if the user asked for times; None
    where it was not, and `lost_note` says why, or what it was compared with.
    """

    id: str
    frame: str
    kind: str
    reason: str
    file: str
    line: int
    function: str
    code: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    gb_id: str = ""
    stack: tuple[str, ...] = ()
    what: str = ""
    chain: tuple[Span, ...] = ()
    link: str = ""
    outcome: Literal["resumed", "plain", "skipped", "error"] = "resumed"
    consequence: str = ""
    ended: str = ""
    resumed_by: tuple[str, ...] = ()
    nodes: tuple[int, int] = (0, 0)
    crossing: int = 0
    crossing_bytes: int = 0
    suggestions: tuple[Suggestion, ...] = ()
    lost_seconds: float | None = None
    lost_note: str = ""


@dataclass(frozen=True, slots=True)
class Guard:
    """One check that compiled code makes before it is reused. `source` is what is guarded (`L['x']`).

    `words` says it plainly; `argument` is what it is about, as the user wrote it (`x`, `self.training`,
    `global SCALE`); `internal` marks those about the insides of modules and of torch. `symbols` are the names of sizes
    and numbers left open that it is about.

    `seconds` is what this check alone takes, the value at hand and caches warm (measured by calling it); None where it
    can't be called alone. `failed` is how many calls it has turned away from this code.
    """

    id: str
    frame: str
    kind: str
    source: str
    code: tuple[str, ...]
    file: str = ""
    line: int = 0
    words: str = ""
    argument: str = ""
    internal: bool = False
    symbols: tuple[str, ...] = ()
    seconds: float | None = None
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """What torch assumed of a symbol (`s77 <= 1024`), and the line that asked for it. `default` marks what no line
    asked for: torch makes code of its own for the sizes 0 and 1, and names the line that used the size first.
    """

    words: str
    file: str = ""
    line: int = 0
    code: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size or number that compiled code leaves open: what it stands for, the value it was traced with, its range.

    `low` and `high` are inclusive; None stands for no bound. `also` are others that had the same value at first: torch
    takes them for the same symbol. `became` is the number or expression that it was found to be, "" while it is open,
    and `specialized_by` the line that needed that. `conditions` are what it was assumed to be.
    """

    name: str
    frame: str
    source: str
    hint: int | float | None
    low: int | float | None
    high: int | float | None
    also: tuple[str, ...] = ()
    became: str = ""
    specialized_by: Span | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GuardFailure:
    """A guard of a cache entry (the compilation `entry`) that did not hold, and what differed.

    `argument` is the name to blame, as the user wrote it; `old` and `new` are its values then and now; `cause` is the
    class of change: "shape", "dtype", "stride", "device", "requires_grad", "grad mode", "number", ...
    """

    entry: str
    cause: str
    argument: str
    old: str
    new: str
    words: str
    source: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Recompile:
    """A compilation of code that had been compiled before, and the guards that failed.

    `reasons` are torch's words: the first failed guard of each cache entry. `failures` are all that failed.
    `cause` and `argument` are those of the entry that came closest. `limit` says which limit kept torch from
    compiling ("" if it did), `call` which line made the call, `call_number` which call of the explored function it was,
    from 1. `closest` is the compilation that came closest, and `graph_change` what is different in the graph captured
    now ("" where one of the two is not in the record).
    """

    id: str
    frame: str
    function: str
    file: str
    line: int
    reasons: tuple[str, ...]
    failures: tuple[GuardFailure, ...] = ()
    cause: str = ""
    argument: str = ""
    advice: str = ""
    settings: tuple[str, ...] = ()
    limit: str = ""
    call: Span | None = None
    call_number: int = 0
    closest: str = ""
    graph_change: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One bytecode instruction as TorchDynamo read it, with the state it came to it with, told as what changed since
    the last step of the same call.

    `attempt` counts from 1 how often the frame was begun anew, `depth` the calls it was inlined through; `first` marks
    the first step of a call. The lowest `kept` entries of the symbolic stack are still there, `pushed` came on top;
    `changed` are locals, "" for one that is gone. `nodes` (FX, by their names then: a store may rename them) and
    `guards` were added until the next step began.
    `ended` is the error that the instruction ended in, "" if it went on.
    """

    frame: str
    attempt: int
    depth: int
    function: str
    file: str
    line: int
    offset: int
    opcode: str
    argument: str = ""
    first: bool = False
    kept: int = 0
    pushed: tuple[str, ...] = ()
    changed: dict[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass decided about some entities: `pass_name` ("fusion"), `verdict` ("fused", "refused"), and why."""

    pass_name: str
    graph: str
    subjects: tuple[str, ...]
    verdict: str
    why: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated kernel. `id` is the id of its entity in the kernels artifact; `lines` its first and last line.

    `category` says what it is ("pointwise", "reduction", "extern", "template"); `bytes` is what it reads and writes
    in one call, in bytes, as Inductor counts it (0 where it does not); `nodes` are ids of fused_ir entities.
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


@dataclass(frozen=True, slots=True)
class Binary:
    """One Triton kernel as machine code for one GPU, in one launch configuration.

    `kernel` is the id of a `Kernel`, `target` names a GPU of `compiler.targets`. `config` holds block sizes,
    `num_warps` and `num_stages`; `configs` are all that Inductor's heuristics would try, in their order.

    `registers` are those of one thread (vector registers with AMD), `spill_bytes` of one thread, `shared_memory` the
    bytes and `threads` the threads of one block, `programs` the blocks of one launch (0 where sizes are symbolic).
    `occupancy` is resident warps over the most a multiprocessor holds, and `limiter` what keeps it there. `mix` counts
    instructions by class; `load_bits` and `store_bits` are the widest global access of one thread. `bytes` and `flops`
    are by formula, for one launch; `bound_seconds` is the least time the target's peak rates allow, and `bound` which
    of them ("memory", "compute"). None stands for what could not be had.
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


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that a node of the eager autograd graph (`node`, an entity's id) keeps for its backward.

    `of` says what it is: "leaf w", "result of addmm_1", "" where that is not known. Tensors of one `storage` ("s3")
    share memory, of `storage_bytes` in all; "" where there is none. `free` marks memory that is there anyway, saved or
    not: that of leaves. `version` counts writes in place, `view` marks views; `problem` says why the tensor can't be
    had or used.
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
    """A measured duration in seconds. `subject` is an artifact id or a candidate's name; `what` says what was timed."""

    subject: str
    what: str
    seconds: float
    low: float = 0.0
    high: float = 0.0
    runs: int = 1


@dataclass(frozen=True, slots=True)
class Check:
    """Compiled numbers against eager's. `subject` is "output 0", "gradient 3".

    Errors are absolute, and relative to the largest magnitude; None where they are not finite. `verdict` is "equal",
    "close" (within the dtype's tolerance), "differs" or "not comparable".
    """

    subject: str
    max_absolute: float | None
    max_relative: float | None
    verdict: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """A stage that could not be had: why, and what to do about it, in the user's terms."""

    stage: str
    reason: str
    hint: str = ""
    graph: str = ""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the record was made."""

    python: str = ""
    torch: str = ""
    triton: str = ""
    tcompile: str = ""
    platform: str = ""
    processor: str = ""
    cores: int = 0
    gpu: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """Everything one exploration found, in pipeline order.

    `target` is what code was written for: a GPU of `compiler.targets`, or "cpu" or "cuda" for a device that was here.
    `calls` is how often the explored function was called.
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
    kernels: tuple[Kernel, ...] = ()
    binaries: tuple[Binary, ...] = ()
    timings: tuple[Timing, ...] = ()
    checks: tuple[Check, ...] = ()
    problems: tuple[Problem, ...] = ()
    steps: tuple[Step, ...] = ()
    autograd_saved: tuple[Saved, ...] = ()
    calls: int = 0
    schema: int = SCHEMA

    def __repr__(self) -> str:
        stages = ", ".join(dict.fromkeys(artifact.stage for artifact in self.artifacts))
        return f"<Record of {self.title or 'nothing'}: {stages or 'no stages'}>"

    def __getitem__(self, name: str) -> Artifact:
        """The artifact with this id, or the first of this stage. Raises KeyError that says what there is."""
        for candidate in self.artifacts:
            if name in (candidate.id, candidate.stage):
                return candidate
        raise KeyError(self._absent(name))

    def _absent(self, name: str) -> str:
        why = [problem.reason for problem in self.problems if problem.stage == name]
        if why:
            return f"stage {name!r} is not in this record: {why[0]}"
        stages = dict.fromkeys(artifact.stage for artifact in self.artifacts)
        near = get_close_matches(name, [*stages, *(artifact.id for artifact in self.artifacts)], n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        return f"no artifact or stage {name!r} in this record{meant}; it has: {', '.join(stages) or 'nothing'}"

    def of_stage(self, stage: str) -> tuple[Artifact, ...]:
        """The artifacts of a stage, one for each graph (and half of it)."""
        return tuple(artifact for artifact in self.artifacts if artifact.stage == stage)

    def entities(self) -> Iterator[Entity]:
        """Every entity of every artifact, in pipeline order."""
        for artifact in self.artifacts:
            yield from artifact.entities

    def linked(self, entity_id: str) -> frozenset[str]:
        """The ids linked to an entity: itself, all it came from, and all that came from it."""
        up = {entity.id: entity.origins for entity in self.entities()}
        down: dict[str, list[str]] = {}
        for child, parents in up.items():
            for parent in parents:
                down.setdefault(parent, []).append(child)
        return frozenset(_reach(entity_id, up) | _reach(entity_id, down))

    def to_json(self) -> str:
        """The record as JSON, from which `from_json` makes an equal one."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read a record. Raises RecordError naming the field that is wrong."""
        try:
            version = msgspec.json.decode(text, type=_Versioned).schema
        except msgspec.MsgspecError as error:
            raise RecordError(f"this is not a tcompile record: {error}") from None
        if version != SCHEMA:
            raise RecordError(f"record schema {version} at `$.schema`; this version of tcompile reads schema {SCHEMA}")
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise RecordError(f"this tcompile record is damaged: {error}") from None

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a `.json` record from disk. Raises RecordError, or OSError when the file can't be read."""
        return cls.from_json(Path(path).read_bytes())

    def with_(self, **changes: Any) -> Record:
        """A copy with these fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True)
class _Versioned:
    schema: int


def _reach(start: str, edges: dict[str, Any]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen
