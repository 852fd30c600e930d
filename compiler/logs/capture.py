"""Facts about TorchDynamo in a log: guards, symbols, graph breaks, recompilations with their causes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compiler.capture import recompile_advice as advice
from compiler.capture.breaks import frames_after, graph_break
from compiler.capture.guard_words import SymbolNames, argument, plain, quote, value_words
from compiler.capture.guards import find_asker, guards_of
from compiler.logs.events import Event, Log
from compiler.logs.sources import LoggedSources, is_of_package
from compiler.record import Condition, Frame, GraphBreak, Guard, GuardFailure, Recompile, Span, Symbol
from compiler.record.break_facts import AND_THEN, DEAD_ENDS, BreakFacts, Place

_LEAF = re.compile(r"^((?:\| )*)\+- ([A-Z][A-Z_0-9]+): (.*)$")
_MANAGER = re.compile(r"^((?:\| )*)\+- \w*Guard\w*Manager\w*(?:: source=(.*?), accessed_by=.*)?")
_BREAK = re.compile(
    r"Graph break in user code at (?P<file>.+):(?P<line>\d+)\n(?:Graph Break Reason: )?(?P<rest>.*)", re.DOTALL
)
_TRACEBACK = re.compile(
    r'  File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)\n'
    r"(?:    (?P<code>.*)\n?)?(?:    (?P<marks> *[~^]+)[~^ ]*$)?",
    re.MULTILINE,
)
_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")
_LAST_LINES = re.compile(r"\n+(?:NoneType: None|Traceback \(most recent call last\):.*)\s*$", re.DOTALL)
MOST_CONDITIONS = 40
"""Maximum number of conditions on one symbol that are listed."""
MOST_GUARDS = 5_000
"""Maximum number of guards of one compilation that are listed."""


@dataclass(frozen=True, slots=True)
class _LoggedGuard:
    """A leaf guard of the logged tree (`compiler.torch_api.guards.GuardFacts`)."""

    kind: str
    source: str
    code: tuple[str, ...]
    seconds: float | None = None
    fails: int = 0
    of_wrapper: bool = False


def guards_of_text(frame: str, text: str, book: LoggedSources, symbols: Sequence[Symbol]) -> tuple[Guard, ...]:
    """The guards in torch's printed tree (`dynamo_cpp_guards_str`), in the order in which they are checked."""
    sources: dict[int, str] = {}
    facts: list[_LoggedGuard] = []
    for line in text.split("\n"):
        if len(line) > 100_000 or len(facts) >= MOST_GUARDS:
            continue
        if leaf := _LEAF.match(line):
            facts.append(_LoggedGuard(leaf[2], sources.get(len(leaf[1]) // 2 - 1, "L"), (leaf[3],)))
        elif manager := _MANAGER.match(line):
            sources[len(manager[1]) // 2] = manager[2] or "L"
    names = {file: book.name(file) for file in book.lines}
    sizes = SymbolNames(
        {symbol.source: symbol.became or symbol.name for symbol in symbols},
        {symbol.source: symbol.name for symbol in symbols if not symbol.became},
    )
    return guards_of(frame, facts, names, sizes, None, {})


def frames_of(log: Log, stack: object) -> list[Span]:
    """The frames of a logged stack, outermost first; files are full paths."""
    spans = []
    for each in stack if isinstance(stack, list) else []:
        if isinstance(each, dict) and isinstance(line := each.get("line"), int):
            known = each.get("filename")
            file = log.strings.get(known, "") if isinstance(known, int) else str(known or "")
            installed = is_of_package(file)
            spans.append(Span(file, line, line, 0, 0, str(each.get("name", "")), str(each.get("loc") or ""), installed))
    return spans


def symbols_of(frame: str, events: Iterable[Event], log: Log, book: LoggedSources) -> tuple[Symbol, ...]:
    """Symbolic sizes and numbers, with their specializations and the conditions added on them."""
    found: dict[str, Symbol] = {}
    for event in events:
        fields = event.fields if isinstance(event.fields, dict) else {}
        if event.kind in ("create_symbol", "create_unbacked_symbol"):
            name, (low, high) = str(fields.get("symbol", "")), _range(str(fields.get("vr", "")))
            source = plain(str(fields.get("source", "")))
            found[name] = Symbol(name, frame, source, _number(fields.get("val")), low, high)
        elif event.kind == "symbolic_shape_specialization":
            name = str(fields.get("symbol", ""))
            if name in found:
                place = _innermost(frames_of(log, fields.get("user_stack")), book)
                by = find_asker([(span.file, span.function) for span in frames_of(log, fields.get("stack"))])
                value = str(fields.get("value", ""))
                found[name] = replace(found[name], became=value, specialized_by=place, asked_by=by)
        elif event.kind in ("guard_added", "guard_added_fast"):
            words = str(fields.get("expr", ""))
            place = _innermost(frames_of(log, fields.get("user_stack")), book) or Span("", 0)
            condition = Condition(words, place.file, place.line, place.code)
            for name in set(re.findall(r"\b\w+\b", words)) & found.keys():
                known = found[name].conditions
                if condition not in known and len(known) < MOST_CONDITIONS:
                    found[name] = replace(found[name], conditions=(*known, condition))
    return tuple(found.values())


def _innermost(spans: Sequence[Span], book: LoggedSources) -> Span | None:
    """The innermost line of the user's own code, or else the innermost line."""
    chosen = ([span for span in spans if not span.installed] or list(spans))[-1:]
    return book.logged_span(chosen[0].file, chosen[0].line, chosen[0].function, chosen[0].code) if chosen else None


def _number(text: object) -> int | float | None:
    try:
        value = float(str(text))
    except ValueError:
        return None
    if value != value or abs(value) > 2**62:
        return None
    return int(value) if value.is_integer() and "." not in str(text) else value


def _range(text: str) -> tuple[int | float | None, int | float | None]:
    low, _, high = text.strip("[]VR ").partition(",")
    return _number(low), _number(high)


def break_of(frame: Frame, payload: str, number: int, book: LoggedSources) -> GraphBreak:
    """A graph break from torch's message (`dynamo_graph_break_reason`)."""
    matched = _BREAK.match(payload)
    message, _, trace = (matched["rest"] if matched else payload).partition("\nUser code traceback:\n")
    told = message = _LAST_LINES.sub("", message).strip()
    if message.startswith(("Encountered graph break when attempting to trace", *DEAD_ENDS)) and "\n\n" in message:
        message = message.partition("\n\n")[2]
    message, *later = (part.strip() for part in message.split(AND_THEN))
    stack: list[tuple[str, int, str, str, re.Match[str] | None]] = [
        (found["file"], int(found["line"]), found["function"], (found["code"] or "").strip(), found)
        for found in _TRACEBACK.finditer(_LAST_LINES.sub("", trace))
    ]
    if not stack and matched:
        stack = [(matched["file"], int(matched["line"]), "", "", None)]
    places = []
    for file, line, _, code, _ in stack:
        book.add_logged_line(file, line, code)
    for file, line, function, code, found in stack:
        columns = _columns(book, file, line, code, found["marks"] if found else None)
        places.append(Place(file, function, line, *columns))
    own = _drop_callers(places, frame, book)
    reason = message.partition("\n")[0].strip()
    goes_on = not told.startswith(DEAD_ENDS)
    consequence = later[-1].partition("\n")[0].strip() if later else ""
    facts = BreakFacts(reason or "graph break", told, (), tuple(own), message, consequence, goes_on)
    made = graph_break(f"break[{frame.id}].{number}", frame.id, facts, book, registry={})
    place = own[-1] if own else None
    code = next(
        (code for file, line, _, code, _ in reversed(stack) if place and (file, line) == (place.file, place.line)), ""
    )
    whole = place is not None and book.is_whole(place.file)
    return replace(made, code=code or made.code, suggestions=made.suggestions if whole else _without_edits(made))


def _without_edits(found: GraphBreak) -> tuple[Any, ...]:
    """Suggestions without rewrites, as the file is not here or has changed."""
    return tuple(replace(each, rewrite="", applicability="explanation", caveat="") for each in found.suggestions)


def _drop_callers(places: Sequence[Any], frame: Frame, book: LoggedSources) -> list[Any]:
    """Drop the places of the callers and of torch's wrappers, which are outside of the compiled function."""
    last = max((number for number, each in enumerate(places) if "_dynamo/eval_frame.py" in each.file.replace("\\", "/")
                or "_wrapped_call_impl" in each.function or each.function == "_call_impl"), default=-1)  # fmt: skip
    inner = list(places[last + 1 :]) or list(places[-1:])
    for number, each in enumerate(inner):
        if (each.function, book.name(each.file)) == (frame.function, frame.file) and each.line >= frame.line:
            return inner[number:]
    return [each for each in inner if each.function != "<module>"] or inner[-1:]


def _columns(book: LoggedSources, file: str, line: int, code: str, marks: str | None) -> tuple[int, ...]:
    """End line and columns of the marked part of a line, if the file is here; () otherwise."""
    if not book.is_whole(file):
        return ()
    marks = marks or "^" * len(code)  # torch marks nothing if it is the whole line
    text = book.source(file)[line - 1]
    indent = len(text) - len(text.lstrip())
    start = len(marks) - len(marks.lstrip())
    piece = _expression(code[start : start + len(marks.strip())])
    return (line, indent + start, indent + start + len(piece)) if piece else ()


def _expression(piece: str) -> str:
    """A marked piece of code if it is an expression; for the header of a block, the expression in it; else ""."""
    while piece:
        try:
            ast.parse(piece, mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            piece = piece.rpartition(":")[0].rstrip()
        else:
            return piece
    return ""


_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Int": "int32", "Long": "int64",
    "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}  # fmt: skip
_MISMATCH = re.compile(
    r"tensor '(?P<name>.*?)' (?P<what>size|stride|dtype|rank|requires_grad|device index|dispatch key set|Tensor type)"
    r" mismatch(?: at index (?P<index>\d+))?\.? ?expected (?P<old>.*?)(?:,? actual (?P<new>.*))?$", re.DOTALL,
)  # fmt: skip
_CAUSES = {
    "size": "shape", "stride": "stride", "dtype": "dtype", "rank": "number of dimensions",
    "requires_grad": "requires_grad", "device index": "device", "dispatch key set": "tensor", "Tensor type": "type",
}  # fmt: skip
_SINGLETONS = ("True", "False", "None")
_STATES = {"grad_mode": "grad mode", "autocast": "autocast", "default_dtype": "default dtype"}


def recompile_of(
    frame: Frame,
    reasons: Sequence[str],
    telling: int,
    guards: Sequence[Guard],
    symbols: Sequence[Symbol],
    instance: Mapping[str, str],
) -> Recompile:
    """A recompilation from torch's reasons, one for each earlier cache entry, latest first.

    `telling` is the index of the reason that tells most, which cause and advice are of.
    `guards` and `symbols` are those of the new code: torch logs the old value of an argument that changed, and its new
    guard or symbol has the new value. `instance` maps torch's ids of compilations to those of this record.
    """
    failures = []
    for reason in reasons:
        entry, _, words = reason.partition(": ")
        failures.append(failure_of(instance.get(entry, entry), words, guards, symbols))
    first = failures[telling] if failures else None
    text: str = ""
    settings: tuple[str, ...] = ()
    if first is not None:  # a log does not say what `self` is; in most programs it is a module
        text, settings = advice.advise_on(first, of_module=first.source.startswith(("L['self'].", "self.")))
    return Recompile(
        id=f"recompile[{frame.id}]", frame=frame.id, function=frame.function, file=frame.file, line=frame.line,
        reasons=tuple(reasons), failures=tuple(failures), cause=first.cause if first else "",
        argument=first.argument if first else "", advice=text, settings=tuple(settings),
        closest=first.entry if first else "", applicability=advice.applicability(settings, ""),
        call=frame.called_at,
    )  # fmt: skip


def failure_of(entry: str, reason: str, guards: Sequence[Guard], symbols: Sequence[Symbol] = ()) -> GuardFailure:
    """Classify torch's reason why a cache entry did not fit a call."""
    first = reason.partition("\n")[0]
    code = first.split("  #", 1)[0].strip()
    if match := _MISMATCH.match(code):
        return _tensor_failure(entry, match)
    if code.startswith(("GLOBAL_STATE", "___check_global_state")):
        key = next((key for key in _STATES if key in code), "")
        words = f"{_STATES.get(key, 'a torch setting')} has changed"
        return GuardFailure(entry, _STATES.get(key, "torch setting"), _STATES.get(key, "torch setting"), "", "", words)
    if code.startswith("Unexpected recompilation"):
        return GuardFailure(entry, "race", "", "", "", "another thread compiled the same code meanwhile")
    source, old = _parse_comparison(code)
    named = source or (found[0] if (found := _SOURCE.search(code)) else "")
    name = argument(named) if named.startswith(("L[", "G[")) else named
    of_type = "check_type_id" in code
    new = next((value for guard in guards if argument(guard.source) == name for part in guard.code
                for _, value in [_parse_comparison(part)]
                if value and ("check_type_id" in part) == of_type), "")  # fmt: skip
    new = new or next((str(symbol.hint) for symbol in symbols if symbol.source == name and not of_type), "")
    cause = _cause_of(code, source, old)
    old_words, new_words = (text if text in _SINGLETONS else value_words(text) for text in (old, new))
    change = f"{quote(name)} was {old_words}, is now {new_words or 'another value'}"
    if cause == "length":
        old_words, new_words, change = old, new, f"length of {quote(name)} was {old}, is now {new or 'another'}"
    if cause in ("condition", "condition on sizes", "equal sizes"):
        old_words, new_words, change = plain(code), "no longer so", f"`{plain(code)}` no longer holds"
    return GuardFailure(entry, cause, name, old_words, new_words, change, source, code)


def _tensor_failure(entry: str, match: re.Match[str]) -> GuardFailure:
    name, what, index = match["name"], match["what"], match["index"]
    old, new = match["old"].strip(), (match["new"] or "").strip()
    cause = _CAUSES[what]
    if cause == "dtype":
        old, new = _DTYPES.get(old, old), _DTYPES.get(new, new)
    if cause == "requires_grad":
        old = "True" if old.endswith("1") else "False"
        new = "False" if old == "True" else "True"
    where = f" in dimension {index}" if index is not None else ""
    subject = {"shape": "size", "stride": "stride"}.get(cause, cause)
    words = f"{subject} of {quote(name)}{where} was {old}" + (f", is now {new}" if new else "")
    return GuardFailure(entry, cause, name, old, new, words, f"L['{name}']")


_SOURCE = re.compile(r"[LG]\['(?!___)\w+'\](?:\.\w+|\['\w+'\])*")
"""An argument or global in a condition; a name with three underscores is TorchDynamo's own."""


def _parse_comparison(code: str) -> tuple[str, str]:
    """Source and value of a guard such as `L['k'] == 1`; ("", "") for another kind of guard."""
    if match := re.fullmatch(r"___check_(?:type|obj)_id\((.*), \d+\)(?:, type=<(?:class|enum) '(.*)'>)?", code):
        return match[1], match[2] or ""
    if match := re.fullmatch(r"(?:len\()?([\w.\[\]'\"]+)\)? (?:==|is) (.+)", code, re.DOTALL):
        return match[1], match[2]
    return "", ""


def _cause_of(code: str, source: str, value: str) -> str:
    if "check_type_id" in code:
        return "type"
    if "check_obj_id" in code:
        return "function" if "function" in value else "object"
    if code.startswith("len("):
        return "length"
    if not source:
        return "condition on sizes" if ".size()" in code else "condition"
    if source.endswith(".training"):
        return "training mode"
    if source.startswith("G["):
        return "global"
    if source.startswith(("L['self'].", "self.")):
        return "module attribute"
    if value in _SINGLETONS:
        return "flag"
    return "string" if value[:1] in "'\"" else "number" if _number(value) is not None else "value"


def listed_reasons(payload: str) -> tuple[str, ...]:
    """Torch's recompile reasons: one text, or a JSON list of them."""
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        return (payload.strip(),) if payload.strip() else ()
    return tuple(str(value) for value in values) if isinstance(values, list) else (str(values),)


def resumed_line(function: str) -> tuple[str, int] | None:
    """Function and line at which a resume function resumes; None for any other function."""
    match = _RESUME.match(function)
    return (match[1], int(match[2])) if match else None


def with_followers(
    breaks: Sequence[GraphBreak],
    frames: Mapping[str, Frame],
    nodes: Mapping[str, int],
    returned: Mapping[str, Sequence[int]],
) -> list[GraphBreak]:
    """Breaks with the graphs that they ended, and the frames that resume after them.

    `nodes` are the numbers of calls in the frames' graphs, `returned` the bytes of the tensors that they return.
    """
    if not breaks:
        return []
    resumed_by = {found.id: _followers(found, frames) if found.outcome == "resumed" else () for found in breaks}
    of_frames: dict[str, list[str]] = {}
    for found in breaks:
        of_frames.setdefault(found.frame, []).append(found.id)
    return [
        replace(
            found, resumed_by=resumed_by[found.id],
            ended=f"captured[{found.frame}]" if nodes.get(found.frame) else "",
            nodes=(
                nodes.get(found.frame, 0),
                sum(nodes.get(name, 0) for name in frames_after(found.id, resumed_by, of_frames)),
            ),
            crossing=len(returned.get(found.frame, ())), crossing_bytes=sum(returned.get(found.frame, ())),
            outcome="plain" if found.outcome == "resumed" and frames[found.frame].outcome != "compiled"
            and not resumed_by[found.id] else found.outcome,
        )
        for found in breaks
    ]  # fmt: skip


def _followers(found: GraphBreak, frames: Mapping[str, Frame]) -> tuple[str, ...]:
    """The next frame that resumes at the line of a break, or else an earlier one, whose code may be reused."""
    place = frames[found.frame].file, found.chain[0].line if found.chain else found.line
    resuming = [
        name for name, frame in frames.items()
        if frame.file == place[0] and (resumed_line(frame.function) or ("", -1))[1] == place[1]
    ]  # fmt: skip
    order = list(frames)
    later = [name for name in resuming if order.index(name) > order.index(found.frame)]
    return tuple((later or resuming)[:1])
