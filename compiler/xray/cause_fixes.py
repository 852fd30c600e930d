"""Try changes that end recompilations: repeat all calls with each change, count compilations and compare results.

Changes are marks on the tensors of the first call, options, settings and stances of torch.compile, tensors in place of
numbers in arguments and attributes, contiguous arguments, and edits of the source. They are tried on the user's own
objects, which are restored afterwards.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from compiler.calls.call import Call
from compiler.calls.state import roots_of
from compiler.capture.assignments import Step, source_of_file
from compiler.capture.recompile_advice import DUCK, UNSPECIALIZED
from compiler.record import Cause, CauseFix, Suggestion
from compiler.record.xray_facts import UNTRIED
from compiler.torch_api import apart
from compiler.torch_api.marks import mark_size, preserve_marks
from compiler.torch_api.pytrees import tree_leaves
from compiler.torch_api.settings import dynamo_settings, stance
from compiler.xray.bench import Bench, repeatable, restore_before
from compiler.xray.causes import CAPTURE, CauseSearch
from compiler.xray.fixes import ALONE_ONLY, SEEDS
from compiler.xray.held_numbers import initial_values, make_item_a_tensor, name_and_key
from compiler.xray.outcomes import Outcome, compare_outcomes, run_and_hear
from compiler.xray.substitution import Change, Edit, Program
from compiler.xray.time_limit import TimeBudget
from compiler.xray.user_call_trials import STATIC_CACHE, UserCallTrial

MOST_CANDIDATES = 6
CAUSES, ADDED = 0.9, 0.95
"""Shares of the time budget after which no change is tried, and no change is added to the patch."""
ENDLESS = 3
"""Number of recompilations from which on a cause is taken for one that goes on with each call."""
FLOATS = "torch._dynamo.config.specialize_float = False"
DYNAMIC = "torch.compile(…, dynamic=True)"
STANCE = "Compile nothing again: run such calls as plain Python."
_SIZES = ("shape", "number of dimensions", "stride", "length")
_TOLD = {
    "requires_grad": "code with and without a gradient differs: each needs a compilation, and no change of the "
    "program keeps its gradients",
    "dtype": "each dtype needs its own code: convert before the call if one dtype is enough",
    "device": "each device needs its own code: move the tensors before the call",
    "grad mode": "training and inference each need code of their own",
    "autocast": "code with and without autocast differs",
    "string": "the code takes another branch for each string: each needs a compilation",
    "flag": "the code takes another branch for each value: each needs a compilation",
    "training mode": "training and inference each need code of their own",
    "length": "code is written for one length: keep the container out of the compiled function, or its length fixed",
    "identity": "the object is created again; create it once, outside of the compiled function",
    "function": "another function is passed; create it once, outside of the compiled function",
    "aliasing": "arguments that are one tensor in one call and several in another need two versions",
    "global": "a global is a constant of the code: pass it as an argument",
    "closure": "the function is created again: create it once, and pass the value as an argument",
    "module structure": "the code is for the modules that there were: build the module whole before the first call",
    "type": "each type needs its own code: pass the same type in every call",
}
"""Explanation for each kind of cause without a change to try."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of a tensor's size as dynamic: `dimension` of the tensor that the code `path` reaches.

    An `unbacked` size may also be 0 or 1.
    """

    path: str
    dimension: int
    unbacked: bool = False

    @property
    def code(self) -> str:
        function = "decorators.mark_unbacked" if self.unbacked else "mark_dynamic"
        return f"torch._dynamo.{function}({self.path}, {self.dimension})"


@dataclass(frozen=True)
class Candidate:
    """A change to try, described by `text`.

    `tensors` are parameters, and `attributes` are attributes or globals, with numbers that become tensors. `contiguous`
    are parameters to pass as contiguous tensors. `edits` are edits of the source. `stance` is torch's stance.
    `keywords` are further keywords of the user's call of a package. `other` is a further change to apply.
    """

    text: str
    marks: tuple[Mark, ...] = ()
    dynamic: bool | None = None
    settings: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    contiguous: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    edits: tuple[Suggestion, ...] = ()
    stance: str = ""
    keywords: str = ""
    other: Change = field(default_factory=Change)

    @property
    def is_of_source(self) -> bool:
        """Whether the whole change can be written to the user's files."""
        return not self.code_at_call and bool(self.settings or self.edits)

    @property
    def code(self) -> str:
        """Statements that make the change, for the user to run; "" if there are none."""
        return "\n".join([*self.settings, *self.code_at_call])

    @property
    def code_at_call(self) -> list[str]:
        """Statements that the user has to add where the function is compiled or called."""
        lines = [mark.code for mark in self.marks]
        lines += [f"{name} = torch.tensor({name})" for name in self.tensors]
        lines += [f"{name} = {name}.contiguous()" for name in self.contiguous]
        lines += [DYNAMIC] if self.dynamic else []
        lines += [f"generate(…, {self.keywords})"] if self.keywords else []
        told = f"torch.compiler.set_stance({self.stance!r})  # after the first call, which is compiled"
        return [*lines, told] if self.stance else lines

    def combine(self, other: Candidate) -> Candidate:
        """Both changes."""
        names = ("marks", "settings", "tensors", "contiguous", "attributes", "edits")
        both: dict[str, Any] = {n: tuple(dict.fromkeys((*getattr(self, n), *getattr(other, n)))) for n in names}
        return replace(self, dynamic=self.dynamic or other.dynamic, **both)


@dataclass(frozen=True)
class Added:
    """A change of the source with the changes for some causes.

    `causes` are the ids of the causes that it ends. `call` is an edit that inserts statements above the user's call.
    `at_call` are further statements, for the place where the function is compiled or called. `is_dynamic`: the function
    is compiled with `dynamic=True`. `untried` are the ids of causes whose changes were not tried with the others.
    """

    change: Change
    causes: tuple[str, ...] = ()
    call: Edit | None = None
    at_call: tuple[str, ...] = ()
    is_dynamic: bool = False
    untried: tuple[str, ...] = ()


@dataclass(frozen=True)
class Replay:
    """The outcome of repeating all calls, and the numbers of compilations, recompilations and graph breaks."""

    outcome: Outcome
    compilations: int
    recompilations: int
    breaks: int


@dataclass
class CauseTrials:
    """Tries changes for the causes of one search."""

    found: CauseSearch
    budget: TimeBudget = field(default_factory=TimeBudget)
    _chosen: dict[str, Candidate] = field(default_factory=dict)
    _replays: dict[tuple[Candidate, int | None], Replay] = field(default_factory=dict)

    @functools.cached_property
    def _objects(self) -> list[Any]:
        return self.found.objects()

    def run(self) -> tuple[Cause, ...]:
        """Try changes for all causes; return the causes with the best change of each."""
        return tuple(replace(cause, fix=self.fix(cause)) for cause in self.found.causes)

    def fix(self, cause: Cause) -> CauseFix:
        """Try the changes for a cause until one is verified; return the best."""
        tried: list[CauseFix] = []
        for candidate in list(self._candidates(cause))[:MOST_CANDIDATES]:
            if self.budget.is_spent(CAUSES):
                return next(iter(tried), CauseFix("no fix known", candidate.text, UNTRIED))
            tried.append(self._try(cause, candidate))
            if tried[-1].state == "verified":
                return self._with_fewest_marks(cause, candidate, tried[-1])
        moves = [each for each in tried if each.state != "no fix known"]
        return next(iter(moves or tried[:1]), _unknown(cause))

    def _with_fewest_marks(self, cause: Cause, candidate: Candidate, fix: CauseFix) -> CauseFix:
        """Leave out marks one by one while the change stays verified with as few compilations; return the final fix."""
        for mark in candidate.marks if len(candidate.marks) > 1 and not self.budget.is_spent(CAUSES) else ():
            fewer = replace(candidate, marks=tuple(each for each in candidate.marks if each != mark))
            again = self._try(cause, fewer)
            if again.state == "verified" and (again.after or 0) <= (fix.after or 0):
                candidate, fix = fewer, again
        self._chosen[cause.id] = candidate
        return fix

    def add_to(self, change: Change) -> Added:
        """Add the verified changes for causes that still work with the others to a change of the source.

        Changes that can be written to the user's files come first, so that they also work without the others. A cause
        that the other changes have ended already needs none.
        """
        hidden = {cause.id for cause in self.found.causes if not cause.as_it_is}
        whole, added, untried = Candidate("", other=change), list[str](), list[str]()
        for identity, candidate in sorted(self._chosen.items(), key=lambda item: not item[1].is_of_source):
            if self.budget.is_spent(ADDED):
                untried.append(identity)
                continue
            more = whole.combine(candidate)
            if candidate.stance or candidate.keywords or not self._change(whole).fits(self._change(candidate)):
                continue
            if identity not in hidden and not self._replay(whole).recompilations:
                continue
            breaks = self._replay(more).breaks - self._replay(whole).breaks
            is_alone = whole == Candidate("")
            if breaks <= 0 and not self._difference(whole, more) and (is_alone or not self._failure_of(more)):
                whole = more
                added.append(identity)
        if not (added or change.edits or change.settings) and (found := self._added_keywords(change)):
            return found
        edit = self._edit_of_call(whole)
        told = replace(whole, marks=()) if edit else whole
        at_call = tuple(map(self._spell, told.code_at_call))
        ended = tuple(each.id for each in self.found.causes if each.id in added or self._is_ended(each, whole))
        return Added(self._change(whole), ended, edit, at_call, bool(whole.dynamic), tuple(untried))

    def _is_ended(self, cause: Cause, whole: Candidate) -> bool:
        """Whether a change ends a cause for which it has no change of its own."""
        if whole == Candidate("") or self.budget.is_spent(ADDED):
            return False
        replay = self._replay(whole)
        if replay.outcome.raised:
            return False
        if not replay.recompilations:
            return cause.as_it_is or not replay.breaks
        return cause.as_it_is and not self._count_left(cause, whole)[0]

    def _added_keywords(self, change: Change) -> Added | None:
        """The keywords of the user's call of a package, if they were chosen; they were tried without other changes."""
        chosen = [identity for identity, candidate in self._chosen.items() if candidate.keywords]
        edit = self._user_call.edit(STATIC_CACHE) if chosen and self._user_call else None
        return Added(change, tuple(chosen), edit) if edit else None

    def _edit_of_call(self, candidate: Candidate) -> Edit | None:
        """An edit that marks the changing sizes above the user's call; None if the call or an argument is unknown."""
        called, marks = self.found.users_call, candidate.marks
        if called is None or not marks or not all(map(self._is_spelled, marks)):
            return None
        known = self.found.search.names_in(called.file)
        imports = [] if known.get("torch") is torch else ["import torch"]
        return called.insert_above([*imports, *(self._spell(mark.code) for mark in marks)])

    def _difference(self, first: Candidate, second: Candidate) -> str:
        """The difference that replacing one change by another makes in the outcome of all calls; "" if there is none.

        If the second one changes code or arguments, they are also compared on random inputs.
        """
        is_rewritten = bool(second.edits or second.attributes or second.tensors)
        for seed in (None, *range(SEEDS if is_rewritten else 0)):
            before, after = (self._replay(each, seed).outcome for each in (first, second))
            before = _with_tensors(before, after, second.attributes)
            words = compare_outcomes(before, before, after)
            if any(words):
                again = self._replay_again(first, seed).outcome
                words = compare_outcomes(before, _with_tensors(again, after, second.attributes), after)
            if any(words):
                return " ".join(filter(None, ("" if seed is None else "on other inputs,", *words)))
        return ""

    @functools.cached_property
    def _user_call(self) -> UserCallTrial | None:
        return UserCallTrial.of_generate(self.found)

    def _try_keywords(self, cause: Cause, candidate: Candidate, trial: UserCallTrial) -> CauseFix:
        """Make the user's call of a package again, without and with further keywords."""
        before, after = trial.run(""), trial.run(candidate.keywords)
        words = compare_outcomes(before.outcome, before.outcome, _without_new_private(before.outcome, after.outcome))
        counts = f"{after.recompilations} recompilations with it, {before.recompilations} without"
        told = CauseFix("no fix known", candidate.text, counts, candidate.code)
        if any(words):
            return replace(told, words=" ".join(filter(None, words)))
        told = replace(told, before=before.compilations, after=after.compilations)
        is_better = before.recompilations - after.recompilations >= cause.count and after.breaks <= before.breaks
        return replace(told, state="verified", words=f"{counts}; the results are the same") if is_better else told

    def _try(self, cause: Cause, candidate: Candidate) -> CauseFix:
        if candidate.keywords and self._user_call:
            return self._try_keywords(cause, candidate, self._user_call)
        before, after = self._replay(Candidate("")), self._replay(candidate)
        counts = {"before": before.compilations, "after": after.compilations} if cause.as_it_is else {}
        text = re.sub("`[^`]*`", lambda found: self._spell(found[0]), candidate.text)
        code = self._spell(candidate.code)
        told = CauseFix("no fix known", text, "", code, candidate.edits, **counts)
        if words := self._difference(Candidate(""), candidate):
            return replace(told, words=words, after=None if after.outcome.raised else told.after)
        if after.breaks > before.breaks:
            return replace(told, words=f"with it the graph breaks {after.breaks} times, {before.breaks} without")
        is_over = cause.as_it_is and not after.recompilations
        mine, others = (0, "") if is_over else self._count_left(cause, candidate)
        if mine:
            return replace(told, words=f"{mine} of {cause.count} recompilations remain with it")
        if others and after.recompilations >= before.recompilations and cause.as_it_is:
            return replace(
                told, state="moves the recompilation", words=f"then it is compiled again because of {others}"
            )
        if cause.as_it_is and before.recompilations - after.recompilations < cause.count:
            words = f"{after.recompilations} recompilations in all with it, {before.recompilations} without"
            return replace(told, words=f"it does not save the {cause.count} of this cause: {words}")
        if why := self._failure_of(candidate):
            return replace(told, words=f"with it, {why}")
        where = "" if cause.as_it_is else ", once the graph breaks are gone"
        plain = "; calls that need other code run as plain Python" if candidate.stance else ""
        words = f"nothing is compiled again for this{where}, and the results are the same{plain}"
        return replace(told, state="verified", words=words)

    def _failure_of(self, candidate: Candidate) -> str:
        """Why the user's backend can't compile the program with a change; "" if it can."""
        prepare = functools.partial(self._prepare, candidate)
        with preserve_marks(self._tensors()):
            return self.found.failure_of_patch(self._change(candidate), prepare, candidate.dynamic)

    def _count_left(self, cause: Cause, candidate: Candidate) -> tuple[int, str]:
        """Number of recompilations that a cause still triggers with a change, and words on a new cause ("" if none)."""
        with preserve_marks(self._tensors()):
            record = self._explore_candidate(candidate, as_it_is=cause.as_it_is)
        numbers = [call.number for call in self.found.calls]
        owner, known = self.found.owners[cause.id], {_key(step) for step in self.found.owners.values()}
        mine, others = dict[str, None](), ""
        for found, failure, step in self.found.failures_with_owners(record, numbers) if record else ():
            if step is not None and _key(step) == _key(owner) and _is_kind(cause, failure.cause):
                mine[found.frame] = None
            elif step is not None and _key(step) not in known:
                others = others or failure.words
        return len(mine), others

    def _explore_candidate(self, candidate: Candidate, *, as_it_is: bool) -> Any:
        """Explore all calls with a change; return the record, None if they fail. With `as_it_is`, keep the sites."""
        options = replace(CAPTURE, dynamic=candidate.dynamic)
        with ExitStack() as stack:

            def prepare(call: Call, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
                if number == 1:  # the first call is compiled
                    stack.enter_context(stance(candidate.stance))
                return self._prepare(candidate, call, number)

            return self.found.record_with(prepare, options, as_it_is=as_it_is, change=self._change(candidate))[0]

    def _tensors(self) -> list[torch.Tensor]:
        arguments = [(tuple(call.args), dict(call.kwargs)) for call in self.found.calls]
        return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]

    def _change(self, candidate: Candidate) -> Change:
        path = self.found.search.book.path
        edits = [Edit(path(each.file), each.line, each.end_line, each.rewrite) for each in candidate.edits]
        return candidate.other + Change(tuple(edits), candidate.settings)

    def _replay(self, candidate: Candidate, seed: int | None = None) -> Replay:
        """The first replay of all calls with a change."""
        key = candidate, seed
        if key not in self._replays:
            self._replays[key] = self._replay_again(candidate, seed)
        return self._replays[key]

    def _replay_again(self, candidate: Candidate, seed: int | None = None) -> Replay:
        """Repeat all calls with a change, compiled without an exploration; with a seed, eagerly on random inputs."""
        calls, search, change = self.found.calls, self.found.search, self._change(candidate)
        with ExitStack() as stack:
            stack.enter_context(preserve_marks(self._tensors()))
            restore = stack.enter_context(repeatable(*calls))
            counter = stack.enter_context(apart.forget_compilations())
            stack.enter_context(change.apply_settings())
            stack.enter_context(Program(search.functions, {}, change.edits, change.definitions).with_stand_ins({}))
            restore()
            dynamic = candidate.dynamic if candidate.dynamic is not None else search.record.options.dynamic
            first = Bench(calls[0], restore)
            run = first.compile_function(dynamic=dynamic) if seed is None else first.function

            def make(call: Call, number: int) -> Any:
                bench = Bench(call, restore, search.limit)
                restore_before(call)
                bench.draw_inputs(None if seed is None else seed + number)
                args, kwargs = self._prepare(candidate, call, number)
                with bench.in_its_modes(), stance(candidate.stance if number else ""):
                    return run(*args, **kwargs)

            made = [functools.partial(make, call, number) for number, call in enumerate(calls)]
            roots = [root for call in calls for root in roots_of(call.fn, call.args, call.kwargs)]
            outcome = run_and_hear(made, roots)
        return Replay(outcome, counter.compilations, counter.recompilations, counter.breaks)

    def _prepare(self, candidate: Candidate, call: Call, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Apply a change to the objects and the arguments of a call, given with its index; return args and kwargs."""
        for attribute in candidate.attributes:
            self._make_tensors(attribute)
        args, kwargs = list(call.args), dict(call.kwargs)
        for where, name in self._names(call):
            holder: Any = args if isinstance(where, int) else kwargs
            if name in candidate.tensors and isinstance(holder[where], int | float):
                holder[where] = torch.tensor(holder[where])
            if name in candidate.contiguous and isinstance(holder[where], torch.Tensor):
                holder[where] = holder[where].contiguous()
            for mark in candidate.marks if number == 0 else ():
                for path, leaf in leaves(name, holder[where]):
                    if path == mark.path:
                        mark_size(leaf, mark.dimension, unbacked=mark.unbacked)
        return args, kwargs

    def _parameter(self, owner: Step) -> str:
        """Path of the explored function's argument that owns a change, if the user passes it; "" otherwise."""
        if isinstance(owner.node, ast.arg):
            return owner.node.arg if owner.node.arg != "self" else ""
        called = self.found.users_call
        if not owner.argument or called is None or not (called.is_direct or called.is_passed):
            return ""
        names = [name for _, name in self._names(self.found.calls[0])]
        return next((name for name in names if re.match(rf"{re.escape(name)}(\W|$)", owner.argument)), "")

    @functools.cached_property
    def _codes(self) -> dict[str, str]:
        """Code of the arguments in the user's call, by path from the function's parameters, if it can be read again."""
        called = self.found.users_call
        names = self._names(self.found.calls[0]) if called else []
        codes = {name: called.code_of(where) for where, name in names} if called else {}
        return {name: code for name, code in codes.items() if code}

    def _spell(self, code: str) -> str:
        """Code with the arguments as the user's call has them."""
        names = "|".join(map(re.escape, self._codes))
        return re.sub(rf"(?<![\w.])({names})(?!\w)", lambda found: self._codes[found[0]], code) if names else code

    def _is_spelled(self, mark: Mark) -> bool:
        """Whether the user's call has plain code for the argument with a marked tensor."""
        return any(re.match(rf"{re.escape(name)}(\[|$)", mark.path) for name in self._codes)

    def _names(self, call: Call) -> list[tuple[int | str, str]]:
        """Positions or keywords of a call's arguments, each with the path to it from the function's parameters."""
        places: list[int | str] = [*range(len(call.args)), *call.kwargs]
        return [(where, self.found.parameters.name_of(where)) for where in places]

    def _make_tensors(self, attribute: str) -> None:
        """Replace numbers by tensors in all attributes and globals with the name `attribute`, or items of them."""
        name, key = name_and_key(attribute)
        for value in self._objects:
            held = vars(value).get(name) if hasattr(value, "__dict__") else None
            if key is None and type(held) in (int, float):
                object.__setattr__(value, name, torch.tensor(held))
            make_item_a_tensor(held, key)
        for function in (each for file in self.found.files.values() for each in self.found.search.functions[file]):
            held = function.__globals__.get(name)
            if key is None and type(held) in (int, float):
                function.__globals__[name] = torch.tensor(held)
            make_item_a_tensor(held, key)

    def _candidates(self, cause: Cause) -> Iterator[Candidate]:
        owner = self.found.owners[cause.id]
        parameter = self._parameter(owner)
        if parameter and cause.kind in _SIZES:
            yield from self._marks(parameter)
        if parameter and cause.kind == "stride":
            yield Candidate(f"Pass `{parameter}` contiguous.", contiguous=(parameter,))
        if parameter and cause.kind in ("number", "value"):
            yield Candidate(f"Pass `{parameter}` as a tensor.", tensors=(parameter,))
        if cause.kind in ("module attribute", "global"):
            yield from self._of_number(cause, owner)
        if cause.kind in ("number", "module attribute", "global") and dynamo_settings().get("specialize_float"):
            yield Candidate("Let torch make floats symbolic.", settings=(FLOATS,))
        if cause.kind in ("shape", "number", "module attribute"):
            yield Candidate("Compile with `dynamic=True`.", dynamic=True)
        if owner.argument and cause.kind == "shape" and not parameter and self._user_call:
            yield Candidate("Generate with a cache of fixed size.", keywords=STATIC_CACHE)
        if cause.count >= ENDLESS:
            yield Candidate(STANCE, stance="eager_on_recompile")

    def _marks(self, parameter: str) -> Iterator[Candidate]:
        """Yield changes that mark changing sizes as dynamic: of one argument, then of all arguments with such sizes."""
        own = self._changing_sizes(parameter)
        if not own:
            return
        yield Candidate(f"Declare the sizes of `{parameter}` that change, before the first call.", own)
        owners = [self.found.owners[cause.id] for cause in self.found.causes if cause.kind in _SIZES]
        names = dict.fromkeys(filter(None, map(self._parameter, owners)))
        if any(owner.argument for owner in owners):  # of the changes in a package, only the first of each kind is known
            names |= dict.fromkeys(name for _, name in self._names(self.found.calls[0]))
        every = tuple(mark for name in names for mark in self._changing_sizes(name))
        if every != own:
            yield Candidate("Declare all sizes of the arguments that change, before the first call.", every)
        told = "Declare the sizes that change, and let sizes that are equal at first differ later."
        yield Candidate(told, every, settings=(DUCK,))

    def _changing_sizes(self, parameter: str) -> tuple[Mark, ...]:
        """Marks for the sizes of an argument's tensors that change between calls; unbacked if a size is 0 or 1."""
        sizes: dict[Mark, set[int]] = {}
        with repeatable(*self.found.calls):
            for call in self.found.calls:
                restore_before(call)
                values = {
                    name: call.args[where] if isinstance(where, int) else call.kwargs[where]
                    for where, name in self._names(call)
                }
                for path, leaf in leaves(parameter, values.get(parameter)):
                    for dimension, size in enumerate(leaf.shape):
                        sizes.setdefault(Mark(path, dimension), set()).add(size)
        changing = {mark: found for mark, found in sizes.items() if len(found) > 1}
        return tuple(replace(mark, unbacked=bool(found & {0, 1})) for mark, found in changing.items())

    def _of_number(self, cause: Cause, owner: Step) -> Iterator[Candidate]:
        """Yield changes for a number in an attribute or a global."""
        if cause.kind == "module attribute" and cause.new.startswith("the int "):
            told = "Let torch make ints of modules symbolic"
            yield Candidate(f"{told}.", settings=(UNSPECIALIZED,))
            yield Candidate(f"{told}, from the first call on.", dynamic=True, settings=(UNSPECIALIZED,))
        name = cause.argument.removeprefix("global ").rpartition(".")[2]
        source = source_of_file(owner.file)
        if name_and_key(name)[0] and source is not None and not owner.argument:
            edits = tuple(initial_values(source, owner, name, cause.file))
            yield Candidate(f"Hold `{name}` in a tensor.", attributes=(name,), edits=edits)


def leaves(path: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in nested lists, tuples and dicts, each after the code that reaches it."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from leaves(f"{path}[{number}]", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{path}[{key!r}]", item)


def mark_untried(causes: Sequence[Cause], added: Added) -> tuple[Cause, ...]:
    """The causes, with words on changes that were not tried together with the others."""
    return tuple(
        replace(each, fix=replace(each.fix, words=f"{each.fix.words}; {ALONE_ONLY}"))
        if each.fix is not None and each.id in added.untried
        else each
        for each in causes
    )


def _key(step: Step) -> tuple[str, int, int, str]:
    return step.file, step.node.lineno, step.node.col_offset, step.argument


def _is_kind(cause: Cause, kind: str) -> bool:
    """Whether a failed guard of this kind belongs to a cause: its own kind, or a kind that follows from it."""
    families = {"shape": (*_SIZES, "condition on sizes", "equal sizes"), "number": ("number", "condition", "type")}
    return kind == cause.kind or kind in families.get(cause.kind, ())


def _without_new_private(before: Outcome, after: Outcome) -> Outcome:
    """The second outcome without new private attributes, in which a package keeps what belongs to the keywords."""
    own = {name for name in after.held if name not in before.held and name.rpartition(".")[2].startswith("_")}
    return replace(after, held={name: value for name, value in after.held.items() if name not in own})


def _with_tensors(before: Outcome, after: Outcome, attributes: Sequence[str]) -> Outcome:
    """The outcome with tensors in place of the numbers in `attributes`, where a change has made them tensors.

    A tensor in a global is also held as an object of its own, which a number is not.
    """
    held = {
        name: torch.tensor(value)
        for name, value in before.held.items()
        if name.rpartition(".")[2] in attributes
        and type(value) in (int, float)
        and isinstance(after.held.get(name), torch.Tensor)
    }
    objects = {name: after.held[name] for name in attributes if name in after.held and name not in before.held}
    return replace(before, held={**before.held, **held, **objects}) if held else before


def _unknown(cause: Cause) -> CauseFix:
    why = _TOLD.get(cause.kind, "nothing is known that ends it")
    if cause.site:
        why = f"the value comes from a graph break, and a fix of the break may end it, which was not tried. Else, {why}"
    return CauseFix("no fix known", "", why)
