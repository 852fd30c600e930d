"""Find the causes of recompilation in all calls: follow each failed guard back to its owner, where its value changes.

Recompilations come from the exploration's record (`Record.recompiles`), and from a second exploration with values in
place of all sites. The second one also finds recompilations of code that graph breaks now leave to Python.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Protocol

from compiler.calls.call import Call
from compiler.calls.state import State, roots_of
from compiler.calls.versions import files_by_name
from compiler.capture.assignments import Source, Step, covers, place_of, source_of_file
from compiler.capture.function_names import function_name
from compiler.capture.guard_words import UNNAMED
from compiler.capture.sources import is_installed, span_of
from compiler.record import Cause, Frame, GuardFailure, Recompile, Record, Span, ValueOrigin
from compiler.record.options import Options
from compiler.record.plain_text import one_line
from compiler.targets.destination import WRITERS
from compiler.xray.bench import Bench, repeatable, restore_before
from compiler.xray.call_edits import Parameters, UsersCall, find_users_call
from compiler.xray.changing_values import Kinds
from compiler.xray.outside import STOPS, OutsideError, inside_the_process, mute, unheard
from compiler.xray.owners import CallSite, Walk, call_to, global_owner
from compiler.xray.search import Search
from compiler.xray.substitution import PREFIX, Change, Noted, Program, StandIn

ONE_CALL = (
    "one call was explored, so only recompilations within it can show: give more calls, as in "
    "tcompile.explore(f, calls=[(a,), (b,)]), or call the function several times in the cell"
)
CAPTURE = Options(stages=("captured",), backend="eager")
_BASE = re.compile(r"(?P<scope>[LG])\['(?P<name>\w+)'\](?P<path>.*)", re.DOTALL)
_STORES = re.compile(r"\.(?:__dict__|_modules|_parameters|_buffers)\['(\w+)'\]")
_ATTRIBUTE = re.compile(r"\.([A-Za-z_]\w*)")
_STATES = ("grad mode", "autocast", "default dtype", "torch setting")
_CONDITIONS = ("condition on sizes", "equal sizes")
_OBJECTS = ("function", "identity", "object")
_FOLLOW_SHAPES = ("stride", "length")
"""Kinds of causes that a changed shape with the same owner explains."""
_FAMILIES = {"condition on sizes": "shape", "equal sizes": "shape", "condition": "number"}
"""Kinds of causes that follow from another kind: with the same owner, they count as that kind."""
_ASPECTS = {
    **dict.fromkeys(("shape", "number of dimensions", "condition on sizes", "equal sizes", "length"), "shape"),
    **dict.fromkeys(("module structure", "marking"), "shape"),
    **{name: name for name in ("stride", "dtype", "device", "requires_grad", "type")},
    **dict.fromkeys(("function", "closure", "object", "identity", "tensor", "aliasing"), "identity"),
}
"""Aspect of a value that each kind of cause depends on; for kinds that are not listed, "value"."""


class Observing(Protocol):
    """Interface of an exploration. Its class is in a package that imports this one."""

    @property
    def record(self) -> Record: ...
    def compile(self, fn: Any) -> Callable[..., Any]: ...


Explore = Callable[[Options], AbstractContextManager[Observing]]
Prepare = Callable[[Call, int], tuple[Sequence[Any], Mapping[str, Any]]]


def _arguments_of_call(call: Call, _: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return call.args, call.kwargs


@dataclass(frozen=True)
class CauseSearch:
    """Causes of recompilation in the calls of a search, and the data needed to try changes.

    `files` are the paths of the user's files by name. `owners` are the places where values change, by id of the cause.
    """

    search: Search
    explore: Explore
    kinds: Kinds
    files: Mapping[str, str]
    causes: tuple[Cause, ...] = ()
    notes: tuple[str, ...] = ()
    owners: Mapping[str, Step] = field(default_factory=dict)

    @property
    def calls(self) -> tuple[Call, ...]:
        return (self.search.call, *self.search.call.later)

    @functools.cached_property
    def users_call(self) -> UsersCall | None:
        """The call in the user's source that led to the explored calls; None if it is not known."""
        call = self.search.call
        files = [frame.file for frame in call.site if not is_installed(frame.file)]
        return find_users_call(call, self.search.names_in(files[-1])) if files else None

    @property
    def parameters(self) -> Parameters:
        """The parameters of the explored function."""
        return Parameters.of(Bench(self.search.call, lambda: None).function)

    def record_with(
        self, prepare: Prepare, options: Options = CAPTURE, *, as_it_is: bool = False, change: Change | None = None
    ) -> tuple[Record | None, str]:
        """Explore all calls, with a change if given. Return the record and "", or None and the error in words.

        `prepare` returns the arguments for a call and its index. All sites are replaced by values, unless `as_it_is`
        is set.
        """
        search, calls, change = self.search, self.calls, change or Change()
        program = Program(search.functions, {} if as_it_is else search.spots, change.edits, change.definitions)
        left_out = frozenset() if as_it_is else frozenset(search.left_out)
        with ExitStack() as stack:
            restore = stack.enter_context(repeatable(*calls))
            stack.enter_context(change.apply_settings())
            noted = [_values_of_call(program, call, left_out, search.limit) for call in calls]
            restore()
            try:
                stack.enter_context(program.with_stand_ins(_all_values(noted), left_out))
                exploration = stack.enter_context(self.explore(options))
                stack.enter_context(unheard() if as_it_is else inside_the_process())
                if not as_it_is:
                    stack.enter_context(mute())
                compiled = exploration.compile(Bench(calls[0], restore).function)
                for number, (call, values) in enumerate(zip(calls, noted, strict=True)):
                    program.set_values(values.values)
                    restore_before(call)
                    args, kwargs = prepare(call, number)
                    with Bench(call, restore, search.limit).in_its_modes():
                        compiled(*args, **kwargs)
            except STOPS as error:
                return None, f"the calls without their breaks end at a {type(error).__name__}: {error}".splitlines()[0]
        return exploration.record, ""

    def record_of_patch(self, change: Change) -> Record | None:
        """Explore all calls as they were explored, with a change; None if they fail."""
        options = replace(self.search.record.options, time=False, check=False)
        return self.record_with(_arguments_of_call, options, as_it_is=True, change=change)[0]

    def failure_of_patch(
        self, change: Change, prepare: Prepare = _arguments_of_call, dynamic: bool | None = None
    ) -> str:
        """Why the explored backend can't generate code for the program with a change, if it can without; "" if it can.

        No code is built. Other backends than those that generate code are not tried. `prepare` is as for `record_with`.
        """
        if self.search.record.options.backend not in WRITERS:
            return ""
        found = self._failures(change, prepare, dynamic)
        return next((each for each in found if each not in self._own_failures), "")

    @functools.cached_property
    def _own_failures(self) -> Sequence[str]:
        return self._failures(Change(), _arguments_of_call, None)

    def _failures(self, change: Change, prepare: Prepare, dynamic: bool | None) -> Sequence[str]:
        """Why the explored backend can't generate code for graphs of the program with a change, or the calls fail."""
        own = self.search.record.options
        options = replace(own, stages=("kernels",), time=False, check=False, step=False, vs="",
                          dynamic=own.dynamic if dynamic is None else dynamic)  # fmt: skip
        record, error = self.record_with(prepare, options, as_it_is=True, change=change)
        return [one_line(problem.reason) for problem in record.problems if problem.graph] if record else [error]

    def objects(self) -> list[Any]:
        """The user's objects that the calls reach."""
        roots = [root for call in self.calls for root in roots_of(call.fn, call.args, call.kwargs)]
        return [value for _, value in State.of(roots, largest=0).objects]

    def failures_with_owners(
        self, record: Record, calls: Sequence[int]
    ) -> Iterator[tuple[Recompile, GuardFailure, Step | None]]:
        """Yield each recompilation with each failed guard of its closest cache entry, and the guarded value's owner.

        `calls` are the numbers of the record's calls.
        """
        attribution = _Attribution(record, self, calls)
        for found in record.recompiles:
            for failure in _failures(found):
                yield found, failure, attribution.owner(found, failure)


def find_causes(search: Search, explore: Explore) -> CauseSearch:
    """Find the causes of recompilation of an explored call and its later calls. `search` has found the sites."""
    kinds, notes = Kinds(), list[str]()
    files = _users_files(search)
    calls = (search.call, *search.call.later)
    if search.record.calls == 1:
        notes.append(ONE_CALL)
    found = CauseSearch(search, explore, kinds, files)
    notes += _note_kinds(search, kinds, [*files.values()])
    collected = _Collection(found)
    collected.add(search.record, range(1, search.record.calls + 1), as_it_is=True)
    if len(calls) > 1 and search.sites:
        hidden, problem = found.record_with(_arguments_of_call)
        notes += [problem] if problem else []
        if hidden is not None:
            collected.add(hidden, [call.number for call in calls], as_it_is=False)
    causes, owners = collected.causes()
    return replace(found, causes=causes, notes=tuple(notes), owners=owners)


def _users_files(search: Search) -> dict[str, str]:
    """Paths of the user's files in the record, by name."""
    return files_by_name(search.record, [path for path in search.functions if not is_installed(path)])


def _note_kinds(search: Search, kinds: Kinds, files: Sequence[str]) -> Iterator[str]:
    """Run all calls eagerly and record the kinds of all values; yield a problem if a call raises."""
    calls = (search.call, *search.call.later)
    functions: dict[str, Sequence[FunctionType]] = {file: search.functions.get(file, ()) for file in files}
    with repeatable(*calls) as restore:
        restore()
        for call in calls:
            kinds.call = call.number
            bench = Bench(call, restore, search.limit)
            restore_before(call)
            try:
                with kinds.record_kinds(functions), bench.in_its_modes(), unheard():
                    bench.call_once()
            except STOPS as error:
                name = "it" if isinstance(error, OutsideError) else f"it raises {type(error).__name__}:"
                yield f"call {call.number} could not be made again in full: {name} {error}".splitlines()[0]
                return


def _values_of_call(program: Program, call: Call, left_out: frozenset[int], limit: float) -> Noted:
    """Run a call eagerly and record the values at the program's spots."""
    noted = Noted()
    if program.spots:
        restore_before(call)
        Bench(call, lambda: None, limit).run_noting(program, noted, left_out)
    return noted


def _all_values(noted: Sequence[Noted]) -> dict[int, StandIn]:
    """Replacements for all spots that any call reaches: items, not constants, so that all calls run the same code."""
    return {number: StandIn(items=tuple(values)) for each in noted for number, values in each.values.items()}


def _failures(found: Recompile) -> list[GuardFailure]:
    """Failed guards of the closest cache entry, except guards on values that the x-ray put in place."""
    own = [each for each in found.failures if each.entry == found.closest]
    return [each for each in own if PREFIX not in each.source + each.code + each.argument]


@dataclass
class _Group:
    step: Step
    recompiles: list[Recompile]
    failures: list[GuardFailure]
    calls: list[int]
    as_it_is: bool
    steps: Sequence[Step]
    record: Record


@dataclass
class _Collection:
    """Groups failed guards by owner and kind of change."""

    found: CauseSearch
    groups: dict[tuple[Any, str], _Group] = field(default_factory=dict)

    def add(self, record: Record, calls: Sequence[int], *, as_it_is: bool) -> None:
        """Add a record's recompilations; `calls` are the numbers of its calls."""
        attribution = _Attribution(record, self.found, calls)
        for found in record.recompiles:
            for failure in _failures(found):
                owner = attribution.owner(found, failure)
                if owner is not None:
                    call = calls[found.call_number - 1] if 0 < found.call_number <= len(calls) else found.call_number
                    self._add(owner, found, failure, call, as_it_is, attribution.steps, record)

    def _add(
        self, owner: Step, found: Recompile, failure: GuardFailure, call: int, as_it_is: bool,
        steps: Sequence[Step], record: Record,
    ) -> None:  # fmt: skip
        family = _FAMILIES.get(failure.cause, failure.cause)
        if family in _OBJECTS and "___stack" in failure.source:
            family = "identity"  # torch drops the code with the object, or sees another one: it depends on Python's gc
        group = self.groups.setdefault(
            ((owner.file, owner.node, owner.argument), family), _Group(owner, [], [], [], as_it_is, steps, record)
        )
        if group.as_it_is != as_it_is:
            return
        group.failures.append(failure)
        if found not in group.recompiles:
            group.recompiles.append(found)
            group.calls.append(call)

    def causes(self) -> tuple[tuple[Cause, ...], dict[str, Step]]:
        """All causes, and their owners by id of the cause."""
        self._merge_into_shapes()
        named = {f"cause[{n}]": group for n, group in enumerate(self.groups.values(), 1)}
        causes = tuple(self._cause(name, group, family) for (name, group), (_, family) in
                       zip(named.items(), self.groups, strict=True))  # fmt: skip
        return causes, {name: group.step for name, group in named.items()}

    def _merge_into_shapes(self) -> None:
        """Merge changed strides and lengths into the changed shape of the same owner."""
        for place, family in list(self.groups):
            shape = self.groups.get((place, "shape"))
            if family in _FOLLOW_SHAPES and shape is not None:
                group = self.groups.pop((place, family))
                new = [n for n, each in enumerate(group.recompiles) if each not in shape.recompiles]
                shape.recompiles += [group.recompiles[n] for n in new]
                shape.calls += [group.calls[n] for n in new]

    def _cause(self, identity: str, group: _Group, family: str) -> Cause:
        book = self.found.search.book
        span, first = span_of(place_of(group.step), book), group.failures[0]
        last = group.recompiles[-1]
        return Cause(
            id=identity,
            file=span.file,
            line=span.line,
            span=span,
            kind=family,
            what=_sentence(first, group, " ".join(span.code.split())),
            reason="\n".join(group.recompiles[0].reasons),
            argument=first.argument,
            old=first.old,
            new=first.new,
            functions=tuple(dict.fromkeys(function_name(each.function) for each in group.recompiles)),
            frames=tuple(each.frame for each in group.recompiles),
            calls=tuple(dict.fromkeys(group.calls)),
            origins=tuple(ValueOrigin(step.name, span_of(place_of(step), book)) for step in group.steps),
            as_it_is=group.as_it_is,
            site=next((site.id for site in self.found.search.sites if _is_within(site.span, span)), ""),
            advice=last.advice if last.cause == first.cause else "",
        )


def _sentence(failure: GuardFailure, group: _Group, code: str) -> str:
    """One sentence on the change. A value on Python's stack has no name, so `code` is shown instead."""
    words = failure.words.replace(f"`{UNNAMED}", f"`{code}").replace(UNNAMED, f"`{code}`")
    words = words.replace("requires_grad of", "`requires_grad` of")
    function = function_name(group.recompiles[0].function)
    return f"{words[:1].upper()}{words[1:]}, so `{function}` is compiled again."


def _is_within(inner: Span, outer: Span) -> bool:
    if inner.file != outer.file:
        return False
    return (outer.line, outer.column) <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= (
        outer.end_line, outer.end_column)  # fmt: skip


class _Attribution:
    """Finds the owners of the values in a record's failed guards."""

    def __init__(self, record: Record, found: CauseSearch, calls: Sequence[int]) -> None:
        self.record, self.found, self.calls = record, found, calls
        self.frames = {frame.id: frame for frame in record.frames}
        self.breaks = {item.id: item for item in record.breaks}
        self.paths = files_by_name(record, found.files.values()) | dict(found.files)
        self.steps: Sequence[Step] = ()

    def owner(self, found: Recompile, failure: GuardFailure) -> Step | None:
        """The owner of a failed guard's value; None if it has no place in the user's code."""
        self.steps = ()
        inner = self.frames.get(found.frame)
        if inner is None:
            return None
        frame = self._users_frame(inner)
        if frame.file not in self.paths:
            return self._owner_outside(found, failure, inner, frame)
        source = source_of_file(self.paths.get(frame.file, ""))
        function = source.function_at(function_name(frame.function), frame.line) if source else None
        if source is None or function is None:
            return None
        if failure.cause in _STATES:
            return self._switch(frame) or Step(source.file, function, function_name(frame.function))
        walk = self._walk(found, failure, frame)
        if frame is inner:
            owner = self._follow(walk, source, function, frame, failure)
        else:
            owner = self._follow_into_package(walk, source, inner, frame, failure)
        self.steps = tuple(walk.steps)
        return owner

    def _owner_outside(self, found: Recompile, failure: GuardFailure, inner: Frame, outermost: Frame) -> Step | None:
        """The owner of a value if only code of packages is compiled again.

        It is the user's statement that sets an attribute of this name, or else the user's call, or an argument of it.
        For the call, only the first change of a recompilation counts: the other values in packages change with it.
        """
        walk = self._walk(found, failure, outermost)
        for attribute in reversed(_attributes(failure.source)):
            if step := walk.owner_of_attribute(attribute):
                self.steps = tuple(walk.steps)
                return step
        called, first = self.found.users_call, next(iter(_failures(found)), None)
        if called is None or failure is not first:
            return None
        path, node = failure.argument or failure.cause, None
        if inner is outermost and not path.startswith("global "):
            parameters = self.found.parameters
            path = parameters.path_without_kwargs(path)
            node = next(filter(None, map(called.argument, parameters.places_of(path))), None)
        return Step(called.file, node or called.node, ast.unparse(node or called.node.func), path)

    def _walk(self, found: Recompile, failure: GuardFailure, frame: Frame) -> Walk:
        first = self.frames.get(failure.entry, frame)
        numbers = {self._number(frame) for frame in (first, self.frames[found.frame])} | {
            self._outer_call(found.call_number)
        }
        aspect = _ASPECTS.get(failure.cause, "value")
        files, sites = list(self.paths.values()), self._sites(frame)
        return Walk(self.found.kinds, aspect, tuple(sorted(numbers)), files, sites, _sizes(found, failure))

    def _number(self, frame: Frame) -> int:
        return self._outer_call(frame.call_number)

    def _outer_call(self, number: int) -> int:
        return self.calls[number - 1] if 0 < number <= len(self.calls) else number

    def _follow(self, walk: Walk, source: Source, function: Any, frame: Frame, failure: GuardFailure) -> Step | None:
        scope, name, path = _split(failure)
        if name.startswith("___stack"):
            return self._left_on_stack(walk, frame, failure)
        attributes = _attributes(path)
        for attribute in reversed(attributes):
            if found := walk.owner_of_attribute(attribute):
                return found
        if attributes and scope == "L":
            return self._guarded_step(failure) or walk.owner_of_name(source, function, name, frame.line)
        if scope == "G":
            return global_owner(source, name, walk)
        enclosing = [function, *(each for each in source.enclosing_nodes(function) if hasattr(each, "args"))]
        for each in enclosing:
            if found := walk.owner_of_name(source, each, name, frame.line):
                return found
        return self._guarded_step(failure) or next(iter(walk.steps[-1:]), None)

    def _follow_into_package(
        self, walk: Walk, source: Source, inner: Frame, frame: Frame, failure: GuardFailure
    ) -> Step | None:
        """The owner of a value in a package's function that the user's `frame` calls.

        It is the user's statement that sets an attribute of this name, or the code in the user's files that reads the
        value, or else the owner of what the user's function passes to the package.
        """
        _, _, path = _split(failure)
        for attribute in reversed(_attributes(path)):
            if found := walk.owner_of_attribute(attribute):
                return found
        if found := self._guarded_step(failure):
            return found
        while inner.caller != frame.id and inner.caller in self.frames:
            inner = self.frames[inner.caller]
        called = inner.called_at
        if called is None:
            return None
        calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and covers(node, called.line)]
        call = call_to(source, called.line, function_name(inner.function), self.found.kinds) or next(iter(calls), None)
        return walk.owner_of_expression(source, call, walk.entered_at) if call is not None else None

    def _users_frame(self, frame: Frame) -> Frame:
        """The frame itself, or the nearest caller in the user's files."""
        while frame.file not in self.paths and frame.caller in self.frames:
            frame = self.frames[frame.caller]
        return frame

    def _sites(self, frame: Frame) -> tuple[CallSite, ...]:
        """The calls that lead to a frame, outermost first."""
        sites: list[CallSite] = []
        while frame.caller in self.frames and (called := frame.called_at) is not None and len(sites) < len(self.frames):
            caller = self.frames[frame.caller]
            if frame.resumes and function_name(caller.function) == function_name(frame.function):
                frame = caller
                continue
            source, name = source_of_file(self.paths.get(called.file, "")), function_name(frame.function)
            call = call_to(source, called.line, name, self.found.kinds) if source else None
            if source is None or call is None:
                break
            sites.append(CallSite(source.file, call))
            frame = caller
        return tuple(reversed(sites))

    def _left_on_stack(self, walk: Walk, frame: Frame, failure: GuardFailure) -> Step | None:
        """The owner of a value that a break left on Python's stack; for objects, the call around the breaking code."""
        found = self.breaks.get(frame.resumes)
        spans = [span for span in found.chain if span.file in self.paths] if found else []
        step = self._step_at(spans[0]) if spans else None
        source = source_of_file(step.file) if step else None
        if step is None or source is None or not isinstance(step.node, ast.expr):
            return step
        if failure.cause in _OBJECTS:
            around = (each for each in source.enclosing_nodes(step.node) if isinstance(each, ast.Call))
            return Step(step.file, next(around, step.node), failure.argument)
        return walk.owner_of_expression(source, step.node, walk.entered_at) or step

    def _step_at(self, span: Span) -> Step | None:
        """The outermost expression at exactly this span, or else the innermost statement that begins at its line."""
        source = source_of_file(self.paths.get(span.file, ""))
        for node in ast.walk(source.tree) if source else ():
            if isinstance(node, ast.expr) and source and span.end_column:
                place = span_of(place_of(Step(source.file, node)), self.found.search.book)
                if (place.line, place.column, place.end_column) == (span.line, span.column, span.end_column):
                    return Step(source.file, node, span.code)
        return _statement_at(source, span) if source else None

    def _guarded_step(self, failure: GuardFailure) -> Step | None:
        """The code that reads a guarded value, from the record's guards; None if unknown."""
        same = (each for each in self.record.guards if each.frame == failure.entry and each.source == failure.source)
        found = next((each for each in same if each.file in self.paths and each.line), None)
        return self._step_at(Span(found.file, found.line)) if found else None

    def _switch(self, frame: Frame) -> Step | None:
        """The innermost `with` around the calls that lead to a frame, as it may switch torch's state; None if none."""
        for site in reversed(self._sites(frame)):
            source = source_of_file(site.file)
            for node in source.enclosing_nodes(site.call) if source else ():
                if isinstance(node, ast.With):
                    return Step(site.file, node, "")
        return None


def _statement_at(source: Source, span: Span) -> Step | None:
    """The innermost statement that begins at a span's line."""
    statements = (node for node in ast.walk(source.tree) if isinstance(node, ast.stmt) and node.lineno == span.line)
    return next((Step(source.file, node, span.code) for node in reversed(list(statements))), None)


def _sizes(found: Recompile, failure: GuardFailure) -> frozenset[int]:
    """The old and new size or int in a failed guard; for a condition on sizes, new sizes in other failed guards."""
    if failure.cause not in _CONDITIONS:
        numbers = (each.removeprefix("the int ") for each in (failure.old, failure.new))
        return frozenset(int(each) for each in numbers if each.isdigit())
    same = (each for each in found.failures if each.cause == "shape" and each.argument == failure.argument)
    return frozenset(int(each.new) for each in same if each.new.isdigit())


def _attributes(path: str) -> list[str]:
    """Names of the attributes in the path of a guarded value, outermost first."""
    return [each for each in _ATTRIBUTE.findall(_STORES.sub(r".\1", path)) if not each.startswith("__")]


def _split(failure: GuardFailure) -> tuple[str, str, str]:
    """Scope ("L" for local, "G" for global), name and path of a guarded value."""
    found = _BASE.search(failure.source) or _BASE.search(failure.code)
    if found:
        return found["scope"], found["name"], found["path"]
    name = re.search(r"[A-Za-z_]\w*", failure.argument.removeprefix("global "))
    scope = "G" if failure.argument.startswith("global ") else "L"
    rest = failure.argument.partition(name[0])[2].partition(" and ")[0] if name else ""
    return scope, name[0] if name else "", rest
