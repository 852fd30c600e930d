"""Facts about TorchDynamo: frames, graph breaks, guards, symbols, recompilations, steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Frame:
    """One compilation of one code object by TorchDynamo. `id` is canonical (`0/1`); `graphs` are artifact ids.

    `code` is the index of the code object among those that TorchDynamo read, -1 for one that it left alone, and
    `compilation` the index of the compilation among those of that code object, both from 0.

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
    code: int = -1
    compilation: int = 0


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


Applicability = Literal["machine-applicable", "maybe", "explanation"]
"""How far advice of a class was tried. "machine-applicable": the tests apply the edit as it is offered, the break is
gone and the result is the same. "maybe": the edit helps in the tests, and the caveat says what it may lead to in other
code. "explanation": words, and no edit.
"""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What to change. `rewrite` is what lines `line` to `end_line` of `file` may be replaced by ("" if no such text is
    known), `settings` are statements to run before the function is compiled. `caveat` is what the edit may lead to, ""
    unless it is a "maybe".
    """

    text: str
    file: str = ""
    line: int = 0
    end_line: int = 0
    rewrite: str = ""
    settings: tuple[str, ...] = ()
    applicability: Applicability = "explanation"
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A point where TorchDynamo ended a graph. `kind`, `explanation` and `hints` are torch's own words.

    `what` is one plain sentence. `chain` leads from the line of the compiled function through inlined calls to the
    culprit, whose place `file`, `line`, `function` and `code` give. `link` is torch's page on this kind.

    `outcome` says what followed: "resumed" (the function goes on in resume functions: `resumed_by` are their frames'
    ids), "plain" (the rest of the function ran as plain Python), "skipped" (all of the function did), "error"
    (torch.compile raises, or torch.export where `of_export` is set). `consequence` is the kind of a second break that
    the first one led to.

    `ended` is the captured graph before the break ("" if there is none). `nodes` are the calls in it and in the graphs
    after the break; it hands `crossing` tensors, of `crossing_bytes`, back to Python because it ends here.

    `unread` are the first and last line of the frame's code that TorchDynamo did not read because of the break: breaks
    may follow there that nobody knows of. None where it read on. `whose` says whose code the culprit is in: the user's,
    an installed package's, or torch's own.

    `first_call` says that capturing the call once more, after it, met no break here: the code is run in a first call
    only, such as lazy initialisation under a lock.

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
    unread: tuple[int, int] | None = None
    whose: Literal["user", "package", "torch"] = "user"
    first_call: bool = False
    lost_seconds: float | None = None
    lost_note: str = ""
    of_export: bool = False


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
    now ("" where one of the two is not in the record). `plain_calls` are the calls, from a limit on, in which all of
    the function ran as plain Python; not known where code is built to run. `applicability` says how far the
    advice was tried.
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
