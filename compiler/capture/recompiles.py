"""Recompilations as facts: all failed guards, old and new values, the argument to blame, and advice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from compiler.capture import recompile_advice as advice
from compiler.capture.function_names import function_name
from compiler.capture.guard_words import (
    UNNAMED,
    argument,
    layout,
    plain,
    quote,
    shape_words,
    short_type,
    state_of,
    switch_name,
    switch_words,
    tensor_match,
    value_words,
    words,
)
from compiler.capture.guards import with_names
from compiler.record import Artifact, Frame, GuardFailure, Problem, Recompile
from compiler.record.builder import Builder
from compiler.record.plain_text import pluralize
from compiler.torch_api.dynamo import EntryFailures
from compiler.torch_api.guards import DROPPED, FailedGuard

_STATES = {"grad_mode": "grad mode", "autocast_state": "autocast", "default_dtype": "default dtype"}
_COUNTS = ("LENGTH_CHECK", "DICT_LENGTH", "MAPPING_KEYS_CHECK")
_LENGTHS = (*_COUNTS, "DICT_CONTAINS", "ABSENT", "DICT_VERSION")
_CONTAINERS = (list, tuple, dict, set)
_CONTAINS = ("DICT_CONTAINS", "SET_CONTAINS")
_MATCHES = {"TRUE_MATCH": "True", "FALSE_MATCH": "False", "NONE_MATCH": "None"}
_TYPE = re.compile(r"type=<(?:class|enum) '([\w.<>]+)'>")
_SOURCE = re.compile(r"[LG]\['\w+'\](?:\.(?!size\(|stride\()\w+|\[[^\]]*\])*")
_HOLDS = re.compile(r"\.(?:_modules|_parameters|_buffers)$|(?<=\])\.(?:_size|_keys)$")
_CHILDREN = re.compile(r"\._(?:modules|parameters|buffers)\)*(?:\[\d+\])?$")
"""Sources of a module's dicts of modules, parameters or buffers: a change of length is a change of structure."""
_SAME = re.compile(rf"(?:{_SOURCE.pattern}) is (?:{_SOURCE.pattern})")
_VALUE = re.compile(r".*? == (.*)$", re.DOTALL)
SHOWN = 3
_ANNOTATION = re.compile(r': "[^"]*"')
_SYMBOL = re.compile(r"\b(?:z?[su]f?)\d+\b")
_SIZES = re.compile(r'"[a-z]+\d*\[[^\]]*\]|"Sym\([^)]*\)')


def recompile(
    known: Recompile,
    entries: Sequence[EntryFailures],
    name: Callable[[tuple[int, int]], str],
    state: str,
    *,
    is_outermost: bool = True,
    resumes: bool = False,
    stack: dict[str, str] | None = None,
    same_call: Container[str] = (),
) -> Recompile:
    """Add all failed guards, their cause and advice to a recompilation.

    `name` returns the id of an entry's compilation. `state` is torch's current global state, as JSON. `is_outermost` is
    whether the compiled function itself recompiles, `resumes` whether a resume function does. `stack` maps torch's
    names for values on the stack to local variables. `same_call` are the compilations of the current call.
    """
    newest_first = sorted(entries, key=lambda entry: entry.key, reverse=True)
    failures = [sorted(_failures(name(entry.key), entry, state, stack or {}), key=_rank) for entry in newest_first]
    nearest = min(filter(None, failures), key=lambda found: (found[0].cause == advice.IDENTITY, len(found)), default=())
    if not nearest:
        return known
    first = next((failure for failure in nearest if failure.cause not in advice.CONDITIONS), nearest[0])
    held = any(guard.of_module and guard.source == first.source for entry in entries for guard in entry.guards)
    text, settings = advice.advise_on(first, of_module=held)
    if first.cause == advice.IDENTITY and first.argument == UNNAMED:
        text = advice.ON_THE_STACK
    if first.cause in advice.SIZES and (resumes or not is_outermost):
        text, settings = advice.inner_advice(function_name(known.function), resumes), ()
    if first.cause == "requires_grad" and first.entry in same_call:
        text = advice.IN_ONE_CALL
    others = advice.other_conditions(first, nearest)
    if known.file.startswith(("torch/distributed/", "torch/nn/parallel/")):
        text, settings, others = advice.OF_TORCH, (), ""
    return replace(
        known,
        failures=tuple(failure for found in failures for failure in found),
        cause=first.cause,
        argument=first.argument,
        advice=text + others,
        settings=settings,
        applicability=advice.applicability(settings, others),
        closest=first.entry,
    )


def with_graph_changes(recompiles: Sequence[Recompile], graphs: Mapping[str, Artifact]) -> list[Recompile]:
    """Add to each recompilation a description of how its graph changed. `graphs` maps compilations to graphs."""
    return [
        replace(found, graph_change=graph_change(graphs[found.closest], graphs[found.frame]))
        if found.closest in graphs and found.frame in graphs
        else found
        for found in recompiles
    ]


def _rank(failure: GuardFailure) -> tuple[bool, int, str, str]:
    """Sort key of a failure, independent of the order in which torch checks guards, which depends on earlier calls."""
    is_unnamed = failure.argument == UNNAMED
    return is_unnamed, advice.CAUSES.index(failure.cause), failure.argument, failure.words


def _failures(entry: str, found: EntryFailures, state: str, stack: dict[str, str]) -> Iterator[GuardFailure]:
    seen = set()
    for guard in found.guards:
        code = tuple(with_names(part, stack) for part in guard.code)
        named = replace(guard, source=with_names(guard.source, stack), code=code)
        for told in _failures_of_guard(named, state):
            if (told.cause, told.argument, told.words) not in seen:
                seen.add((told.cause, told.argument, told.words))
                yield replace(told, entry=entry, source=guard.source if told.source else "")


def _failure(
    cause: str, name: str, old: str, new: str, change: str = "", *, source: str = "", code: str = ""
) -> GuardFailure:
    """A failure with an empty `entry`, which is set later."""
    return GuardFailure("", cause, name, old, new, change or f"{quote(name)} {_was(old, new)}", source, code)


def _was(old: object, new: object) -> str:
    return f"was {old}, is now {new}"


def _failures_of_guard(guard: FailedGuard, state: str) -> Iterator[GuardFailure]:
    code = plain(guard.code[0]) if guard.code else ""
    if guard.kind == "GLOBAL_STATE":
        yield from _state_failures(guard, state)
    elif guard.kind == "TENSOR_MATCH" and isinstance(guard.value, torch.Tensor):
        yield from _tensor_failures(guard)
    elif guard.kind == "NO_TENSOR_ALIASING":
        change = "two of the arguments are the same tensor"
        yield _failure("aliasing", "", "different tensors", "the same tensor", change, code=code)
    elif guard.kind == DROPPED:
        name = argument(guard.source)
        change = f"the code was for one object, {quote(name)}, which is gone"
        yield _failure(advice.IDENTITY, name, "an object that is gone", "another object", change, source=guard.source)
    elif guard.kind == "LAMBDA_GUARD":
        yield _condition_failure(guard)
    elif (held := _module_contents(guard)) is not None:
        name, old, new = held
        change = f"{quote(name)} had {old}, now has {new}"
        yield _failure("module structure", name, old, new, change, source=guard.source, code=code)
    else:
        name = argument(guard.source, guard.owner)
        yield _failure(_cause(guard), name, *_value_change(name, guard), source=guard.source, code=code)


def _module_contents(guard: FailedGuard) -> tuple[str, str, str] | None:
    """A module's name, and the old and new number of its children; None if the guard checks something else."""
    holder, count = _HOLDS.search(guard.source), _VALUE.match(_first_code(guard))
    if holder is None or count is None or not count[1].strip().isdigit():
        return None
    now = guard.value if isinstance(guard.value, int) else len(guard.value)
    old, new = (pluralize(number, "item") for number in (int(count[1]), now))
    return argument(guard.source[: holder.start()]), old, new


def _first_code(guard: FailedGuard) -> str:
    return guard.code[0].split("  #", 1)[0].strip() if guard.code else ""


def _value_change(name: str, guard: FailedGuard) -> tuple[str, str, str]:
    """Old value, new value, and a description of the change."""
    subject = quote(name)
    if guard.kind == "ABSENT":
        return "there", "gone", f"{subject} is not there any more"
    if guard.kind in _CONTAINS:
        has = words(guard.kind, guard.source, guard.code).rpartition("` has ")[2]
        key = has.removeprefix("no ")
        old, new = (f"with {key}", f"without {key}")[:: -1 if has.startswith("no ") else 1]
        return old, new, f"{subject} is {new} now"
    old = _old(guard)
    if guard.kind in _COUNTS and type(guard.value) in _CONTAINERS:
        new = pluralize(len(guard.value), "item")
        return old, new, f"{subject} {'was empty' if old == 'empty' else f'had {old}'}, now has {new}"
    new = value_of(guard.value)
    return old, new, f"{subject} is another {old.removeprefix('a ')}" if old == new else f"{subject} {_was(old, new)}"


def _old(guard: FailedGuard) -> str:
    """The required value, parsed from the guard's text, as torch does not keep it elsewhere."""
    code = _first_code(guard)
    if guard.kind in _MATCHES:
        return _MATCHES[guard.kind]
    if guard.kind == "TENSOR_MATCH":
        return "a Tensor"
    if guard.kind in _COUNTS:
        return words(guard.kind, guard.source, (code,)).rpartition("` ")[2].removeprefix("has ").removeprefix("is ")
    if found := _TYPE.search(code):
        return _a(short_type(found[1]))
    found = _VALUE.match(code)
    return value_words(found[1]) if found else plain(code)


def _a(kind: str) -> str:
    return kind if kind == "None" else f"a {kind}"


def value_of(value: Any) -> str:
    """Describe a user's value in a few words, without running user code."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if type(value) in (int, float, complex, str, bytes):
        text = repr(value)
        return f"the {type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
    if isinstance(value, torch.dtype | torch.device | torch.layout):
        return str(value)
    if isinstance(value, torch.Tensor):
        return f"a {short_type(type(value).__name__)} of {_dtype(value)}, {shape_words(tuple(value.shape))}"
    if type(value) in _CONTAINERS:
        return f"a {type(value).__name__} of {len(value)}"
    return _a(short_type(type(value).__name__))


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _cause(guard: FailedGuard) -> str:
    if ".__closure__[" in guard.source:
        return "closure"
    if guard.source.startswith("G['"):
        return "global"
    if guard.kind in _LENGTHS or guard.source.startswith("list(dict.keys("):
        return "module structure" if _CHILDREN.search(guard.source) else "length"
    if guard.source.endswith(".training"):
        return "training mode"
    if guard.source.endswith(".__code__") or (guard.kind == "ID_MATCH" and callable(guard.value)):
        return "function"
    if guard.kind in ("TYPE_MATCH", "CLASS_MATCH", "TENSOR_MATCH"):
        return "type"
    if guard.of_module or re.match(r"L\['self'\]\.", guard.source) or "._modules[" in guard.source:
        return "module attribute"
    return _value_cause(guard)


def _value_cause(guard: FailedGuard) -> str:
    """Classify a changed plain value: flag, number, string, marking, object or value."""
    if guard.kind in _MATCHES or isinstance(guard.value, bool) or guard.value is None:
        return "flag"
    if isinstance(guard.value, int | float) and guard.kind == "EQUALS_MATCH":
        return "number"
    if isinstance(guard.value, str):
        return "string"
    if guard.kind == "DIMENSION_DYNAMIC_MARKING_GUARD":
        return "marking"
    return "object" if guard.kind == "ID_MATCH" else "value"


def _state_failures(guard: FailedGuard, state: str) -> Iterator[GuardFailure]:
    old, new = state_of(guard.code[0]) if guard.code else {}, state_of(state)
    if not old:
        yield from _switched_settings(" ".join(guard.code), new)
    for key in old:
        if key in new and old[key] != new[key]:
            before, now = switch_words(key, old[key]), switch_words(key, new[key])
            yield _setting_failure(key, *((before, now) if before != now else ("one setting", "another")))


def _switched_settings(reason: str, now: dict[str, Any]) -> Iterator[GuardFailure]:
    """Yield failures of the global state from the text of older torch, which only names the changed settings."""
    for key in ("grad_mode", "autocast_state", "default_dtype", "deterministic_algorithms", "num_threads"):
        value = torch.is_grad_enabled() if key == "grad_mode" else now.get(key)
        if key in reason and isinstance(value, bool):
            yield _setting_failure(key, switch_words(key, not value), switch_words(key, value))
        elif key in reason:
            yield _setting_failure(key, "", "", f"{switch_name(key)} has changed")


def _setting_failure(key: str, old: str, new: str, change: str = "") -> GuardFailure:
    name = switch_name(key)
    return _failure(_STATES.get(key, "torch setting"), name, old, new, change or f"{name} {_was(old, new)}")


def _tensor_failures(guard: FailedGuard) -> Iterator[GuardFailure]:
    """Yield a failure for each property of a tensor that differs. Symbolic sizes can't fail here."""
    match, value = tensor_match(guard.code[0]), guard.value
    name, source = argument(guard.source, guard.owner), guard.source
    subject = quote(name)
    if match is None:
        yield _failure("tensor", name, "", value_of(value), f"{subject} is another kind of tensor", source=source)
        return
    size, stride = tuple(value.shape), tuple(value.stride())
    found: list[tuple[str, str, str, str]] = [
        (cause, old, new, f"{cause} of {subject}")
        for cause, old, new in (
            ("type", match.type, type(value).__name__),
            ("dtype", match.dtype, _dtype(value)),
            ("device", match.device, str(value.device)),
            ("requires_grad", str(match.requires_grad), str(value.requires_grad)),
        )
    ]
    if len(size) == len(match.size):
        lengths = [(n, length) for n, length in enumerate(match.size) if length not in (None, size[n])]
        found += [("shape", f"{old}", f"{size[n]}", f"size of {subject} in dimension {n}") for n, old in lengths]
        if not lengths and any(step not in (None, stride[n]) for n, step in enumerate(match.stride)):
            was, now = layout(match.size, match.stride), layout(size, stride)
            found.append(("stride", was, now, f"memory layout of {subject}"))
    differing = [each for each in found if each[1] != each[2]]
    for cause, old, new, what in differing:
        yield _failure(cause, name, old, new, f"{what} {_was(old, new)}", source=source)
    if len(size) != len(match.size):
        old, new = shape_words(match.size), shape_words(size)
        count = pluralize(len(match.size), "dimension")
        change = f"{subject} had {count} ({old}), now has {len(size)} ({new})"
        yield _failure("number of dimensions", name, old, new, change, source=source)
    elif not differing:
        yield _failure("tensor", name, *_kinds(guard), source=source)


def _kinds(guard: FailedGuard) -> tuple[str, str]:
    """Old and new kind of a tensor with equal properties, such as made in inference mode or not."""
    if guard.value.is_inference() != ("ADInplaceOrView" in guard.code[0]):
        return "a tensor of another kind", "a tensor of this kind"
    new, old = ("made in inference mode", "not made in inference mode")[:: 1 if guard.value.is_inference() else -1]
    return old, new


def _condition_failure(guard: FailedGuard) -> GuardFailure:
    """Failure of a condition on symbolic sizes and numbers, or on the identity of two objects."""
    code = _first_code(guard)
    named = list(dict.fromkeys(argument(source) for source in _SOURCE.findall(code)))
    name = " and ".join(named) or "torch's state"
    if _SAME.fullmatch(code):
        change = f"{' and '.join(map(quote, named))} were the same object, are no longer"
        return _failure("aliasing", name, "the same object", "different ones", change, code=code)
    cause = "condition on sizes" if ".size()" in code else "condition"
    if re.fullmatch(r"L\['\w+'\]\.size\(\)\[\d+\] == L\['\w+'\]\.size\(\)\[\d+\]", code):
        cause = "equal sizes"
    return _failure(cause, name, plain(code), "no longer so", f"`{plain(code)}` no longer holds", code=code)


def mark_limit_reached(builder: Builder, frame: Frame, limit: str) -> None:
    """Record that a frame reached the recompile limit: calls that fail all its guards now run as plain Python."""
    reason = f"it reached {limit}"
    builder.frames[frame.id] = replace(frame, outcome="skipped", reason=reason)
    builder.recompiles[:] = [
        replace(found, limit=limit) if found.frame == frame.id else found for found in builder.recompiles
    ]
    where = f"{frame.function} ({frame.file}:{frame.line})"
    words_now = f"{where} is not compiled any more: {reason}"
    if not any(problem.reason == words_now for problem in builder.problems):
        builder.problem(Problem("captured", words_now, advice.limit_advice(limit), frame.id))


def graph_change(before: Artifact, after: Artifact) -> str:
    """Describe how a graph changed: '2 ops more (operator.add, operator.mul)', 'the same ops; s77 symbolic'."""
    first, second = _ops(before), _ops(after)
    parts = [_list_ops(second - first, "more"), _list_ops(first - second, "fewer")]
    if not any(parts):
        parts = [_same(before, after)]
    opened, fixed = _symbols(after) - _symbols(before), _symbols(before) - _symbols(after)
    parts += [f"{', '.join(sorted(names))} {word}" for names, word in ((opened, "symbolic"), (fixed, "fixed")) if names]
    return "; ".join(part for part in parts if part)


def _ops(graph: Artifact) -> Counter[str]:
    return Counter(
        str(entity.attrs.get("target") or entity.label) for entity in graph.entities if entity.kind == "call"
    )


def _list_ops(ops: Counter[str], word: str) -> str:
    """List ops: '2 ops more (operator.add, operator.mul)'."""
    count = ops.total()
    if not count:
        return ""
    names = [name if times == 1 else f"{times} × {name}" for name, times in sorted(ops.items())]
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return f"{pluralize(count, 'op')} {word} ({shown})"


def _same(before: Artifact, after: Artifact) -> str:
    """Describe the difference of two graphs with the same ops."""
    if before.text == after.text:
        return "the same graph"
    lines = [[_ANNOTATION.sub("", line) for line in _code(graph)] for graph in (before, after)]
    if lines[0] == lines[1]:
        return "the same ops on other sizes or types"
    return "the same ops with other arguments"


def _code(graph: Artifact) -> Iterator[str]:
    """Yield the lines of calls in a graph's text; inputs are left out, as guards describe them."""
    calls = {entity.id for entity in graph.entities if entity.kind == "call"}
    for number, line in enumerate(graph.text.splitlines(), 1):
        if calls.intersection(graph.lines.get(number, ())):
            yield line


def _symbols(graph: Artifact) -> set[str]:
    """Names of the symbols in a graph's sizes."""
    return {name for part in _SIZES.findall(graph.text) for name in _SYMBOL.findall(part)}
