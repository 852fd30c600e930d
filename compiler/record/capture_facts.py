"""Facts about TorchDynamo: frames, graph breaks, guards, symbols, recompilations, steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Frame:
    """One compilation of one code object by TorchDynamo. `id` is canonical (`0/1`); `graphs` are artifact ids.

    `code` is the index of the code object among those that TorchDynamo traced, -1 for a skipped one. `compilation` is
    the index of the compilation among those of the code object. Both count from 0.

    `caller` is the frame that called this one, at `called_at`; "" for the explored call. `plain` are the lines that
    certainly ran as plain Python; lines that may not have run are left out.

    `restarts` are torch's reasons to restart the analysis in this compilation. `resumes` is the id of a break, if the
    code is a resume function for it. `call_number` is the number of the explored function's call that compiled the
    frame, from 1. `guard_seconds` is the time of one check of all guards with cold CPU caches, as torch measures it
    when it creates the guards. `calls` is how often its first graph ran in the explored calls; `modules` are the paths
    of the modules that ran it, if they are compiled on their own ("regional compilation").
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
    code: int = -1
    compilation: int = 0
    calls: int = 0
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of Python source. Columns count characters from 0, the end is exclusive; `code` is the piece's text.

    `end_column` is 0 if only the line is known.
    """

    file: str
    line: int
    end_line: int = 0
    column: int = 0
    end_column: int = 0
    function: str = ""
    code: str = ""
    installed: bool = False


AskedBy = Literal["", "code", "operator"]
Applicability = Literal["machine-applicable", "maybe", "explanation"]
"""Reliability of a class of advice. "machine-applicable": tests apply the edit as offered, the break is gone, and the
result is the same. "maybe": the edit helps in the tests, and the caveat names possible effects in other code.
"explanation": words without an edit.
"""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A suggested change. `rewrite` replaces lines `line` to `end_line` of `file` ("" if there is no rewrite).
    `settings` are statements to run before compilation. `caveat` names possible effects of the edit; it is "" unless
    the applicability is "maybe". `definitions` are functions that the rewrite calls, for the start of the module.
    """

    text: str
    file: str = ""
    line: int = 0
    end_line: int = 0
    rewrite: str = ""
    settings: tuple[str, ...] = ()
    applicability: Applicability = "explanation"
    caveat: str = ""
    definitions: tuple[str, ...] = ()

    @property
    def can_be_applied(self) -> bool:
        """Whether the suggestion is more than words: a rewrite or settings."""
        return bool(self.rewrite or self.settings)


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A point at which TorchDynamo ended a graph. `kind`, `explanation` and `hints` are torch's own words.

    `what` is one plain sentence. `chain` leads from the line of the compiled function through inlined calls to the
    culprit, at `file`, `line`, `function` and `code`. `link` is torch's page on this kind of break.

    `outcome` is the consequence: "resumed" (the function continues in resume functions; `resumed_by` are the ids of
    their frames), "plain" (the rest of the function ran as plain Python), "skipped" (the whole function did), "error"
    (torch.compile raises, or torch.export if `of_export` is set). `consequence` is the kind of a second break caused by
    this one.

    `ended` is the captured graph before the break ("" if there is none). `nodes` are the numbers of calls in this graph
    and in the graphs after the break. `crossing` is the number of tensors that this graph returns to Python because of
    the break, and `crossing_bytes` their size.

    `unread` is the range of lines of the frame's code that TorchDynamo did not trace because of the break; it may
    contain unknown breaks. None if tracing continued. `whose` is the owner of the culprit's code: the user, an
    installed package, or torch.

    `first_call` is set if a second capture, after the call, did not meet this break: the code runs only in a first
    call, such as lazy initialisation under a lock.

    `lost_seconds` is the time that the break adds to a call, if the user asked for times; None if it was not measured.
    `lost_note` is the reason why it was not measured, or the version of the code that it was compared with.
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
    unread: tuple[int, int] | None = None
    whose: Literal["user", "package", "torch"] = "user"
    first_call: bool = False
    lost_seconds: float | None = None
    lost_note: str = ""
    of_export: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """One check that compiled code makes before it is reused. `source` is the guarded value (`L['x']`).

    `words` is the check in plain words. `argument` is its subject, as the user wrote it (`x`, `self.training`,
    `global SCALE`). `internal` marks guards on the internals of modules and of torch. `symbols` are names of the
    symbolic sizes and numbers in the guard.

    `seconds` is the time of this check alone, with warm caches (measured by calling it); None if it can't be called
    alone. `failed` is the number of calls for which the guard rejected this code.
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
    """Torch's assumption about a symbol (`s77 <= 1024`), and the line that caused it. `default` marks an assumption
    that no line caused: torch specializes sizes 0 and 1, and names the line that first used the size.
    """

    words: str
    file: str = ""
    line: int = 0
    code: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbolic size or number of compiled code: its source, the value at tracing, its range.

    `low` and `high` are inclusive; None means no bound. `also` are other sources with the same value at first: torch
    uses the same symbol for them. `became` is the number or expression that it was specialized to, "" if it is still
    symbolic, and `specialized_by` the line that caused this. `asked_by` says what on that line did: "code" (Python code
    asked for the number), "operator" (an operator met another size or a number), "" if unknown. `conditions` are
    assumptions about the symbol.
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
    asked_by: AskedBy = ""


@dataclass(frozen=True, slots=True)
class GuardFailure:
    """A failed guard of a cache entry (`entry` is its compilation), and the change that made the guard fail.

    `argument` is the name to blame, as the user wrote it; `old` and `new` are its values then and now. `cause` is the
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

    `reasons` are torch's words: the first failed guard of each cache entry. `failures` are all failed guards.
    `closest` is the compilation with the closest cache entry; `cause` and `argument` are of that entry.
    `limit` is the recompile limit that prevented a compilation ("" if none did). `call` is the line of the call, and
    `call_number` the number of the explored function's call, from 1.
    `graph_change` compares the captured graph with the graph of `closest` ("" if either is not in the record).
    `plain_calls` are the calls, from a limit on, in which the whole function ran as plain Python; () if code is built
    to run, as they are then unknown. `applicability` is the reliability of the advice.
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
    plain_calls: tuple[int, ...] = ()
    applicability: Applicability = "explanation"


@dataclass(frozen=True, slots=True)
class Step:
    """One bytecode instruction that TorchDynamo traced, and the state before it, stored as changes since the previous
    step of the same call.

    `attempt` is the number of the attempt to trace the frame, from 1. `depth` is the depth of inlined calls. `first`
    marks the first step of a call.
    The lowest `kept` entries of the symbolic stack are unchanged; `pushed` are new entries on top. `changed` are
    locals, "" for a deleted one. `nodes` (FX, by their names at the time: a store may rename them) and `guards` were
    added before the next step. `ended` is the error that ended the instruction, "" if there was none.
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
