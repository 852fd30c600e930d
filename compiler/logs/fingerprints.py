"""What one rank compiled, reduced to the facts that must be equal on all ranks of a job.

Times, addresses, folders, device numbers and names that torch numbers or hashes are left out: they differ between ranks
that do the same. Payloads are compared as bytes first, and read as text only where they differ.
"""

from __future__ import annotations

import json
import linecache
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from compiler.logs.capture import resumed_line
from compiler.logs.compilations import INSTALLED
from compiler.logs.events import CACHE_EVENT, Event, Log
from compiler.logs.guard_text import is_wrapper, telling_reason, wrapped_name

GRAPHS = ("dynamo_output_graph", "aot_joint_graph", "aot_inference_graph", "aot_forward_graph", "aot_backward_graph")
STAGE_OF = {
    "dynamo_graph_break_reason": "graph break",
    "dynamo_output_graph": "graph",
    "optimize_ddp_split_graph": "DDP split",
    "aot_joint_graph": "joint graph",
    "aot_inference_graph": "inference graph",
    "aot_forward_graph": "forward graph",
    "aot_backward_graph": "backward graph",
    "compiled_autograd_graph": "compiled autograd",
    "inductor_post_grad_graph": "post-grad graph",
    "after_post_grad_graph": "post-grad graph",
    "inductor_collective_schedule": "schedule of collectives",
    "inductor_runtime_and_tensor_meta": "tensors of kernels",
    "inductor_output_code": "kernels",
    "triton_kernel_info": "kernel configurations",
    "dynamo_cpp_guards_str": "guards",
    "recompile_reasons": "recompilation",
}
"""Event or artifact -> the kind of fact, in the order in which a compilation makes them."""
KINDS = tuple(dict.fromkeys(STAGE_OF.values()))
CHANGED = "changed"
"""The key in `Compiled.configs` of settings that are not the default, as code; other keys are torch's packages."""
_CONFIGS = {f"{name}_config": name for name in ("dynamo", "inductor", "functorch", "compiler")}

SETTING = re.compile(r"^torch\._(dynamo|inductor|functorch)\.config\.([\w.]+) = (.*)$", re.MULTILINE)
_GROUPS = re.compile(r"^[ \t]*setup_fake_process_groups\((\{.*\})\)$", re.MULTILINE)
_SIZE_OF_GROUP = re.compile(r"'size': (\d{1,6})\b")

_LINE = re.compile(r"# File: (?P<file>.+?):(?P<line>\d+) in (?P<function>[^,]+)(?:, code: (?P<code>.*))?$")
_LINE_OF_GUARD = re.compile(r"(?:#\s+(?P<code>.*?)\s*)?#\s*(?P<file>[^\s#]+\.py):(?P<line>\d+) in (?P<function>\S+)")
_LINE_OF_BREAK = re.compile(r"user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_NOISE = (
    (re.compile(r"0x[0-9a-fA-F]{4,}"), "0x_"),
    (re.compile(r"(___check_\w+\(.*?, )\d+(?=\))"), r"\1_"),
    (re.compile(r"\b(ids? == |id=)\d{6,}"), r"\1_"),
    (re.compile(r"(?<=_)\d{9,}(?=_|\b)"), "_"),
    (re.compile(r"Guard latency = [\d.]+ us"), ""),
    (re.compile(r"(_c10d_functional\.[\w.]+\([^\n]*), '\d+'\)"), r"\1, 'group')"),  # compared for all ranks together
    (re.compile(r"(group_name == )'\d+'"), r"\1'group'"),
    (re.compile(r"\bcuda:\d+"), "cuda:_"),
    (re.compile(r"(type='?\w+'?, index=|\bdevice=)\d+"), r"\1_"),
    (re.compile(r"(get_raw_stream\(|stream|_DeviceGuard\(|set_device\()\d+"), r"\1_"),
    (re.compile(r"[0-9a-f]{8}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{4}_[0-9a-f]{12}"), "_"),
    (re.compile(r"\b[0-9a-f]{40,64}\b"), "hash"),
    (re.compile(r"(?:/[\w.@+~-]+)+/(?=[\w.-]+)"), ""),
    (re.compile(r"\bc[a-z2-7]{50,52}\b"), "hash"),
    (re.compile(r"\d+(?:\.\d+)? ?(?:ns|us|ms)\b"), ""),
)
"""Parts of a text that differ between equal ranks, and what replaces them."""
_SYMBOL = re.compile(r"\b([su])(\d+)\b")
_DEFINED = re.compile(r"^\s*(\w+)(?:: \"[^\"]*\")? = ")
_ALIAS = re.compile(r"(\w+) = (L_\w+)$")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!\()")
_TENSOR = re.compile(r'(\w+)(?:\[([^\]]*)\])(?:\[[^\]]*\])?')  # fmt: skip
_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "b8": 1, "c64": 8}
OF_TORCH = re.compile(r"(?:^|/)torch/(?:distributed|_\w+|nn|ops)/")
_LINES_SEARCHED = 20
_USER_STACK = re.compile(r"^\s*User stack trace:[ \t]*\n(?:[ \t]+[^\n]*(?:\n|$))*", re.MULTILINE)
"""What follows the reason of a recompilation: the calls that led to the guarded line."""
_COLLECTIVE = re.compile(
    r"torch\.ops\._c10d_functional\.(?P<name>(?!wait_tensor)\w+?)_?(?:\.default|\.\w+)?\((?P<arguments>[^)]*)\)"
)
TYPED = re.compile(r'(\w+): "([^"]+)"')


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code; `line` is 0 if it is unknown."""

    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a fact: as it is compared, as it was logged, and the code that it came from."""

    same: str
    text: str
    place: Place = Place()


@dataclass(frozen=True, slots=True)
class Key:
    """Identifies a compilation on every rank: its code, which frame of this code, which compilation of the frame."""

    function: str
    file: str
    line: int
    frame: int
    number: int


@dataclass
class Compiled:
    """One compilation of a rank: its facts, by kind, as the events that logged them."""

    key: Key
    id: str
    start: float
    last: float
    stack: tuple[Place, ...]
    facts: dict[str, list[Event]] = field(default_factory=dict)
    caches: dict[str, list[tuple[str, str, float]]] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The function; of a module or function of torch, its class, or the code of the call."""
        if not is_wrapper(self.key.file):
            resumed = resumed_line(self.key.function)
            return f"{resumed[0]} (resumed)" if resumed else self.key.function
        known = next((name for event in self.facts.get("guards", ()) if (name := wrapped_name(event.payload))), "")
        return known or self._call.code.strip() or self.key.function

    @property
    def place(self) -> Place:
        """The function that was compiled; of a module or function of torch, the user's call."""
        if is_wrapper(self.key.file) and self._call.line:
            return replace(self._call, function=self.name)
        return Place(self.key.file, self.key.line, self.name, self.stack[-1].code if self.stack else "")

    @property
    def _call(self) -> Place:
        """The innermost call by the user's code."""
        return next((place for place in reversed(self.stack) if not INSTALLED.search(place.file)), Place())

    @property
    def recompile_reasons(self) -> list[Line]:
        """Torch's reasons why this was compiled again; the one that tells most is first."""
        found = [line for event in self.facts.get("recompilation", ()) for line in lines_of(event, "recompilation")]
        guards = "".join(event.payload for event in self.facts.get("guards", ())[-1:]) if len(found) > 1 else ""
        first = telling_reason([line.text for line in found], guards)
        return [*found[first : first + 1], *found[:first], *found[first + 1 :]]

    @property
    def seconds(self) -> float:
        """Time from the first to the last event of this compilation's forward."""
        return self.last - self.start


@dataclass(frozen=True, slots=True)
class Collective:
    """A call of a collective in a graph. `group` is torch's name of the group, `bytes` the size of its input."""

    name: str
    arguments: str
    group: str
    input: str
    place: Place
    compile_id: str

    def __str__(self) -> str:
        size = bytes_of(self.input)
        detail = ", ".join(filter(None, (self.arguments, self.input, f"{size:,} bytes" if size else "")))
        return f"{self.name}({detail})"


@dataclass
class RankFacts:
    """All that one rank compiled, in order, with the facts of the whole process. `end` is its last event's time.

    If the log `is_cut`, a compilation that it was cut in is `cut_in`, and left out of the others. `world` is the number
    of ranks in the largest process group that a graph uses, 0 if it is unknown.
    """

    rank: int
    compilations: dict[Key, Compiled] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] | None = None
    start: float = 0.0
    end: float = 0.0
    is_cut: bool = False
    cut_in: Compiled | None = None
    world: int = 0

    @cached_property
    def unfinished(self) -> Compiled | None:
        """The compilation that the log ends in; None if the last one was finished."""
        last = next(reversed(self.compilations.values()), None)
        return last if last is not None and not last.metrics and not last.key.function.startswith("backward") else None

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of all graphs, in the order in which they were compiled."""
        return tuple(found for compiled in self.compilations.values() for found in collectives_of(compiled))


def facts_of(log: Log, rank: int) -> RankFacts:
    """Read what must be equal on all ranks from a log, in one pass."""
    return _Reader(log, rank).read()


class _Reader:
    """Sorts the events of a log into compilations."""

    def __init__(self, log: Log, rank: int) -> None:
        self.log, self.facts = log, RankFacts(rank, is_cut=log.is_cut)
        self._by_id: dict[str, Compiled] = {}
        self._frames: dict[tuple[str, str, int], dict[str, int]] = {}
        self._code: dict[str, Place] = {}
        self._resets: Counter[str] = Counter()
        self._texts: dict[str, str] = {}

    def read(self) -> RankFacts:
        kinds = ("dynamo_start", "artifact", "compilation_metrics", *STAGE_OF)
        last = 0.0
        torn = self.log.ends[-1:] if self.log.is_cut else ()
        for event in self.log.events_of(*dict.fromkeys(kinds)):
            if event in torn:
                break
            last = event.seconds
            self.facts.start = self.facts.start or event.seconds
            self._read(event)
        self.facts.end = last
        if self.facts.is_cut and (cut := self.facts.unfinished) is not None:
            self.facts.cut_in = self.facts.compilations.pop(cut.key)
            del self.facts.unfinished  # it is cached
        return self.facts

    def _read(self, event: Event) -> None:
        if event.kind == "dynamo_start":
            self._begin(event)
            return
        if event.kind == "compilation_metrics" and isinstance(event.fields, dict):
            self._end(event)
            return
        name = event.name or event.kind
        if name == "torch_version":
            self._read_version(event)
        elif name == "fx_graph_runnable":
            self._read_runnable(event)
        elif cache := CACHE_EVENT.fullmatch(name):
            outcome = (cache[2], event.payload, event.seconds)
            self._compilation_of(event).caches.setdefault(cache[1], []).append(outcome)
        elif kind := STAGE_OF.get(name):
            self._compilation_of(event).facts.setdefault(kind, []).append(event)

    def _begin(self, event: Event) -> None:
        known = self._by_id.get(event.compile_id)
        if known is not None and known.stack and not known.metrics and event.attempt > 0:
            # The analysis restarts: what the previous attempt logged is void.
            for kind in (*GRAPHS, "guards"):
                known.facts.pop(STAGE_OF.get(kind, kind), None)
            return
        if known is not None and known.stack:  # torch counts from 0 again after torch._dynamo.reset()
            self._resets[event.compile_id] += 1
            known = None
        self._add(event, tuple(_places(event, self.log.strings)), known)

    def _add(self, event: Event, stack: tuple[Place, ...], known: Compiled | None = None) -> Compiled:
        """Add the compilation of an event; `known` holds what was logged of it before its start."""
        parts = event.id_parts
        frame_id = f"{parts.frame_id}#{self._resets[event.compile_id]}"
        name = "compiled autograd" if parts.autograd else event.compile_id or "no compilation"
        code = self._code.setdefault(frame_id, stack[-1]) if stack else self._code.get(frame_id, Place(function=name))
        autograd = "backward graph of " if parts.autograd and stack else ""
        named = (f"{autograd}{code.function}", code.file, code.line)
        frames = self._frames.setdefault(named, {})
        frame = frames.setdefault(frame_id, len(frames))
        key = Key(*named, frame, int(parts.number) if parts.number.isdecimal() else 0)
        compiled = Compiled(key, event.compile_id, event.seconds, event.seconds, stack)
        if known is not None:
            self.facts.compilations.pop(known.key, None)
            compiled.facts, compiled.caches = known.facts, known.caches
        self._by_id[event.compile_id] = compiled
        return self.facts.compilations.setdefault(key, compiled)

    def _compilation_of(self, event: Event) -> Compiled:
        """The compilation of an event; one is added if its start was not logged (as for compiled autograd)."""
        found = self._by_id.get(event.compile_id)
        if found is None:
            found = self._add(event, ())
        if not found.metrics:
            found.last = max(found.last, event.seconds)
        return found

    def _end(self, event: Event) -> None:
        compiled = self._compilation_of(event)
        metrics = {key: event.fields.get(key) for key in ("fail_type", "fail_reason", "fail_user_frame_filename",
                   "fail_user_frame_lineno", "restart_reasons", "param_bytes", "guard_count")}  # fmt: skip
        compiled.last, compiled.metrics = event.seconds, metrics
        for name in ("pytorch_version", "python_version", "triton_version", "cuda_version"):
            if event.fields.get(name):
                self.facts.versions[name.removesuffix("_version")] = str(event.fields[name])
        for source, prefix in _CONFIGS.items():
            if isinstance(text := event.fields.get(source), str):
                compiled.configs[prefix] = self._texts.setdefault(text, text)

    def _read_runnable(self, event: Event) -> None:
        """The environment, and settings that were changed for one graph (as by `mode=`)."""
        head = event.payload.partition("\nisolate_fails_code_str")[0]
        self.facts.environment = (self.facts.environment or {}) | dict(_environment(head))
        groups = _GROUPS.search(event.payload)
        sizes = [int(size) for size in _SIZE_OF_GROUP.findall(groups[1])] if groups is not None else []
        self.facts.world = max([self.facts.world, *sizes])
        changed = "\n".join(line for line in head.splitlines() if SETTING.match(line))
        self._compilation_of(event).configs.setdefault(CHANGED, self._texts.setdefault(changed, changed))

    def _read_version(self, event: Event) -> None:
        try:
            values = json.loads(event.payload)
        except ValueError:
            return
        if isinstance(values, dict):
            self.facts.versions |= {
                key.removesuffix("_version"): str(value) for key, value in values.items() if key != "oss"
            }


def _places(event: Event, strings: Mapping[int, str]) -> Iterator[Place]:
    stack = event.fields.get("stack") if isinstance(event.fields, dict) else None
    for frame in stack if isinstance(stack, list) else ():
        if isinstance(frame, dict):
            line = frame.get("line")
            name = frame.get("filename")
            file = strings.get(name, "") if isinstance(name, int) else ""
            number = line if isinstance(line, int) else 0
            yield Place(file, number, str(frame.get("name", "")), str(frame.get("loc", "")))


def _environment(head: str) -> Iterator[tuple[str, str]]:
    for name, value in re.findall(r"^os\.environ\['(\w+)'\] = '(.*)'$", head, re.MULTILINE):
        if not name.startswith("_") and not name.endswith(("_DIR", "_TRACE", "_PATH", "_FILE", "RUN_ID", "RANK")):
            yield name, canonical(value)


def canonical(text: str) -> str:
    """A text without the parts that differ between equal ranks."""
    for noise, instead in _NOISE:
        text = noise.sub(instead, text)
    return text


def lines_of(event: Event, kind: str) -> tuple[Line, ...]:
    """The lines of a fact that are compared, each with the code that it came from."""
    if kind == "guards":
        return tuple(sorted(_guards(event.payload), key=lambda line: line.same))
    if kind == "graph break":
        return _break_lines(event.payload)
    if kind == "tensors of kernels":
        return tuple(_tensor_lines(event.payload))
    if kind == "kernels":
        return tuple(_code_lines(event.payload))
    if kind == "recompilation":
        reasons = (re.sub(r"^\s*-?\s*\d+/\d+: ", "", text) for text in reasons_of(event.payload))
        return tuple(Line(canonical(text), text, _guard_place(text)) for text in reasons)
    return tuple(graph_lines(event.payload))


def reasons_of(payload: str) -> list[str]:
    """The reasons of a recompilation: a JSON list, or a line each."""
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        values = _USER_STACK.sub("", payload).splitlines()
    reasons = values if isinstance(values, list) else [values]
    texts = (str(reason).partition("User stack trace:")[0] for reason in reasons)
    return [" ".join(text.split()) for text in texts if text.strip()]


def graph_lines(text: str) -> Iterator[Line]:
    """Lines of a graph; values are renamed in order of definition, symbols in order of appearance."""
    place, names, symbols = Place(), {}, {}  # type: ignore[var-annotated]
    for line in text.splitlines():
        stripped = line.strip()
        if found := _LINE.search(stripped):
            place = Place(found["file"], int(found["line"]), found["function"], found["code"] or "")
            continue
        if not stripped or stripped.startswith(("#", "class ")):
            continue
        if stripped.startswith("def forward(self, "):
            inputs = sorted(f"{name}: {of}" for name, of in TYPED.findall(stripped))
            yield from (Line(_rename_values(each, names, symbols), each) for each in inputs)
            continue
        if _ALIAS.match(stripped):
            continue
        if defined := _DEFINED.match(line):
            names.setdefault(defined[1], f"value{len(names)}")
        yield Line(_rename_values(stripped.partition(";")[0], names, symbols), stripped.partition(";  ")[0], place)


def _rename_values(text: str, names: Mapping[str, str], symbols: dict[str, str]) -> str:
    text = _NAME.sub(lambda word: names.get(word[0], word[0]), text)
    text = _SYMBOL.sub(lambda word: symbols.setdefault(word[0], f"{word[1]}_{len(symbols)}"), text)
    return canonical(text).partition("  #")[0]


def _guards(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        guard = line.lstrip("| +-")
        if not guard or guard.startswith(("GuardManager", "TREE_GUARD", "RootGuard", "Guard latency", "DictGuard")):
            continue
        same = canonical(guard.partition("  #")[0].rstrip())
        yield Line(re.sub(r"\bs\d+\b", "s", same), guard.partition("  #")[0].strip(), _guard_place(guard))


def _guard_place(text: str) -> Place:
    found = _LINE_OF_GUARD.search(text)
    return Place(found["file"], int(found["line"]), found["function"], found["code"] or "") if found else Place()


def _break_lines(text: str) -> tuple[Line, ...]:
    found = _LINE_OF_BREAK.search(text)
    place = Place(found["file"], int(found["line"])) if found else Place()
    reason = re.search(r"^Graph Break Reason: (.*)$", text, re.MULTILINE)
    words = reason[1] if reason else next(iter(text.splitlines()), "")
    return (Line(f"{canonical(words)} at {place.file.rpartition('/')[2]}:{place.line}", words, place),)


def _tensor_lines(text: str) -> Iterator[Line]:
    """Names and tensors of kernels and collectives, without their estimated times."""
    try:
        operations = json.loads(text).get("ops", ())
    except (ValueError, AttributeError):
        return
    for each in operations if isinstance(operations, list) else ():
        if isinstance(each, dict):
            words = f"{each.get('name')} {each.get('type')} {json.dumps(each.get('outputs'), sort_keys=True)}"
            yield Line(canonical(words), words)


def _code_lines(text: str) -> Iterator[Line]:
    """Lines of generated code without comments; `# Source Nodes` and paths are comments too.

    The end of the file is left out: it runs the code by itself, on inputs of the sizes that this rank saw first.
    """
    for line in text.splitlines():
        if line.startswith(("def get_args(", "def benchmark_compiled_module(")):
            return
        code = line.split("  #")[0].strip()
        if code and not code.startswith(("#", "//")):
            same = _SYMBOL.sub(r"\1", canonical(code))
            yield Line(re.sub(r"\b(ks)\d+\b", r"\1", same), code)


def collectives_of(compiled: Compiled, *, captured_only: bool = False) -> Iterator[Collective]:
    """The collectives that a compilation runs: of AOTAutograd's graphs, or the captured one if none was logged.

    AOTAutograd's graphs have those of DTensors and FSDP, too; the captured graph has the better lines.
    `captured_only` leaves out the others.
    """
    captured = list(_collectives(compiled, ("graph",)))
    if captured_only or not _has_autograd_graphs(compiled):
        yield from captured
        return
    places: dict[str, list[Place]] = {}
    for each in captured:
        places.setdefault(each.name, []).append(each.place)
    for each in _collectives(compiled, ("inference graph", "forward graph")):
        known = places.get(each.name)
        yield replace(each, place=known.pop(0)) if known else each
    yield from _collectives(compiled, ("backward graph", "compiled autograd"))


def collectives_of_both(a: Compiled, b: Compiled) -> tuple[list[Collective], list[Collective]]:
    """The collectives of two compilations, of captured graphs alone if only one of them logged the others."""
    captured_only = _has_autograd_graphs(a) != _has_autograd_graphs(b)
    one, other = (list(collectives_of(each, captured_only=captured_only)) for each in (a, b))
    return one, other


def _has_autograd_graphs(compiled: Compiled) -> bool:
    """Whether a graph that AOTAutograd made was logged; one from a cache may not have been."""
    return any(kind in compiled.facts for kind in ("inference graph", "forward graph", "compiled autograd"))


def _collectives(compiled: Compiled, kinds: tuple[str, ...]) -> Iterator[Collective]:
    for kind in kinds:
        for event in compiled.facts.get(kind, ()):
            text = event.payload
            if "_c10d_functional" not in text:
                continue
            types = dict(TYPED.findall(text))
            aliases = (_ALIAS.match(line.strip()) for line in text.splitlines())
            types |= {alias[1]: types.get(alias[2], "") for alias in aliases if alias is not None}
            lines = list(graph_lines(text))
            for number, line in enumerate(lines):
                if found := _COLLECTIVE.search(line.text):
                    yield _collective(found, types, _users_place(lines, number, found["name"], compiled), compiled.id)


def _users_place(lines: Sequence[Line], number: int, name: str, compiled: Compiled) -> Place:
    """The user's line that calls a collective, also where the graph names the line in torch that this call runs.

    It lies between the lines of the operations before and after it. The source file, if it is here and unchanged, shows
    which line it is.
    """
    if not OF_TORCH.search(lines[number].place.file):
        return lines[number].place
    users = [
        (place, line.place)
        for place, line in enumerate(lines)
        if line.place.line and not OF_TORCH.search(line.place.file)
    ]
    before = next((place for at, place in reversed(users) if at < number), compiled.place)
    first = next((at for at, place in reversed(users) if at < number), -1)
    last, after = next(
        ((at, place) for at, place in users if at > number and place.file == before.file), (len(lines), None)
    )
    word = word_of_collective(name)
    same = [
        at for at in range(first + 1, last) if (found := _COLLECTIVE.search(lines[at].text)) and word in found["name"]
    ]
    return calling_place(before, after, word, len(same) - same.index(number))


def word_of_collective(name: str) -> str:
    """The part of an operator's name that the function has, too, by which users call it: `all_gather`."""
    return name.removesuffix("_coalesced").partition("_into_tensor")[0].removesuffix("_tensor")


def calling_place(before: Place, after: Place | None, word: str, from_end: int) -> Place:
    """The line between two lines of the user that calls a function with this word: the last one, or one before it."""
    source = _source(before)
    until = after.line if after is not None and after.line >= before.line else _end_of_block(source, before.line)
    calls = [line for line in range(before.line, min(until, len(source)) + 1) if word in source[line - 1]]
    if not calls:
        return before
    line = calls[max(0, len(calls) - from_end)]
    return Place(before.file, line, before.function, source[line - 1].strip())


def _end_of_block(source: Sequence[str], line: int) -> int:
    """The last line, of the next few, before one that is indented less than this line."""
    own = len(source[line - 1]) - len(source[line - 1].lstrip()) if source else 0
    following = range(line + 1, min(line + _LINES_SEARCHED, len(source)) + 1)
    indents = ((at, source[at - 1]) for at in following if source[at - 1].strip())
    return next((at - 1 for at, text in indents if len(text) - len(text.lstrip()) < own), line + _LINES_SEARCHED)


def _source(place: Place) -> list[str]:
    """Lines of a file on this machine, if it holds the logged code at the logged line; else none."""
    lines = linecache.getlines(place.file) if place.file.endswith(".py") else []
    fits = 0 < place.line <= len(lines) and (not place.code or lines[place.line - 1].strip() == place.code.strip())
    return lines if fits else []


def _collective(found: re.Match[str], types: Mapping[str, str], place: Place, compile_id: str) -> Collective:
    value, *rest = [part.strip() for part in found["arguments"].split(",")]
    group = rest.pop().strip("'\"") if rest else ""
    tensor = re.sub(r"(?<=cuda):\d+", "", types.get(value.strip("[]"), ""))
    return Collective(found["name"], ", ".join(rest), group, tensor, place, compile_id)


def bytes_of(tensor: str) -> int:
    """Bytes of a tensor from its type in a graph, `f32[8, 4][4, 1]cpu`; 0 if a size is symbolic or the type unknown."""
    found = _TENSOR.match(tensor)
    if found is None or found[1] not in _BYTES:
        return 0
    sizes = [part.strip() for part in found[2].split(",") if part.strip()]
    if not all(size.isdecimal() for size in sizes):
        return 0
    total = _BYTES[found[1]]
    for size in sizes:
        total *= int(size)
    return total


def cache_folders(compiled: Compiled) -> set[str]:
    """The directories in which Inductor keeps a compilation's code: `<cache>/ab/cab….py`."""
    fields = (event.fields for event in compiled.facts.get("kernels", ()))
    files = (str(each.get("filename", "")) for each in fields if isinstance(each, dict))
    return {file.rpartition("/")[0].rpartition("/")[0] for file in files}
