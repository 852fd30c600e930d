"""Where the ranks of a job differ, why, and which ranks wait for which.

Equal ranks form a group. The largest group is the reference (the group of the lowest rank if two are as large); every
other group is compared with it. A difference that follows from an earlier one in the same compilation is listed with
that one: another captured graph has other kernels, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compiler.logs.changes import (
    CONFIGURATIONS,
    LINES_SHOWN,
    change_words,
    changed_values,
    count_group_names,
    declare_input,
    first_change,
    first_texts,
    have_same_order,
    kernel_around,
    kernel_words,
    lines_are_equal,
    lines_of_all,
    memory_words,
    merged_keys,
    place_of_change,
    place_of_kernel,
    settings_in,
    shared_changes,
    shared_configurations,
    type_words,
    value_lines,
    without_common,
)
from compiler.logs.compilations import first_paragraph
from compiler.logs.events import Log
from compiler.logs.fingerprints import (
    KINDS,
    Collective,
    Compiled,
    Key,
    Line,
    Place,
    RankFacts,
    cache_folders,
    collectives_of,
    collectives_of_both,
    facts_of,
)
from compiler.record.plain_text import file_name, pluralize, rank_words

CUT_LOG = "cut log"
"""Kind of a difference for a rank whose log was cut: its compilations after the cut are unknown."""
_AUTOGRAD = ("joint graph", "inference graph", "forward graph", "backward graph")
_GRAPHS = ("graph", *_AUTOGRAD)
_NEVER_FIRST = {"tensors of kernels", "schedule of collectives"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a kind between `ranks` and `others`, the ranks of the reference.

    `kind` is "graph", "input", "guards", "collectives", "recompilation", …; `words` is a sentence. `was` are the lines
    of the others, `now` those of `ranks`. `hang` says who waits for whom because of it, "" if nobody does.
    `follows` are the kinds that differ because of this difference; `more` is the number of later ones of this kind.
    """

    kind: str
    words: str
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    compile_id: str = ""
    function: str = ""
    file: str = ""
    line: int = 0
    code: str = ""
    was: tuple[str, ...] = ()
    now: tuple[str, ...] = ()
    hang: str = ""
    follows: tuple[str, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        where = f" ({self.file}:{self.line})" if self.line else ""
        return f"{self.kind}: {self.words}{where}" + (f" {self.hang}" if self.hang else "")


@dataclass(frozen=True, slots=True)
class RankComparison:
    """The groups of equal ranks, largest first, and where the others differ from the first group.

    A rank whose log was `cut` is in a group of its own, behind the others: nobody knows what it did later. `missing`
    ranks of the job have no log.
    """

    groups: tuple[tuple[int, ...], ...]
    differences: tuple[Difference, ...]
    cut: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


def compare_ranks(logs: Mapping[int, Log]) -> RankComparison:
    """Compare the ranks of a job by their logs."""
    ranks = {number: facts_of(log, number) for number, log in sorted(logs.items())}
    whole = {number: facts for number, facts in ranks.items() if not facts.is_cut}
    groups: list[list[int]] = []
    for number, facts in whole.items():
        group = next((group for group in groups if not _Pair(ranks[group[0]], facts).differ()), None)
        groups.append([number]) if group is None else group.append(number)
    groups.sort(key=lambda group: (-len(group), group[0]))
    cut = tuple(number for number in ranks if number not in whole)
    groups += [[number] for number in cut]
    found = [_cut_log(ranks[number], [each for each in groups[0] if each != number]) for number in cut]
    reference = ranks[groups[0][0]] if groups else RankFacts(0)
    for group in groups[1:]:
        found += _Pair(reference, ranks[group[0]], groups[0], group).differences()
    found += _group_differences(whole)
    count = max((max(number + 1, facts.world) for number, facts in ranks.items()), default=0)
    missing = tuple(number for number in range(count) if number not in ranks)
    return RankComparison(tuple(map(tuple, groups)), tuple(_first_of_each_kind(found)), cut, missing)


def _cut_log(rank: RankFacts, others: Sequence[int]) -> Difference:
    """A log that ends in the middle of an event, which says nothing of what came after."""
    last, when = rank.cut_in, "while it compiles"
    if last is None:
        last, when = next(reversed(rank.compilations.values()), None), "after it compiled"
    at = f" {when} `{last.name}` ({last.id})" if last is not None else ""
    words = (
        f"the log of rank {rank.rank} ends in the middle of an event{at}: the file was cut, or the process was ended "
        "there; what came after is not known"
    )
    of, compile_id = (last.place, last.id) if last is not None else (Place(), "")
    where = of.function, of.file, of.line, of.code
    return Difference(CUT_LOG, words, (rank.rank,), tuple(others), compile_id, *where)


def _first_of_each_kind(found: Sequence[Difference]) -> Iterator[Difference]:
    counts = Counter((each.kind, each.ranks) for each in found)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for each in found:
        if (key := (each.kind, each.ranks)) not in seen:
            seen.add(key)
            yield replace(each, more=counts[key] - 1)


class _Pair:
    """Compares a rank, `b`, with a rank of the reference, `a`; each stands for the ranks that are equal to it."""

    def __init__(
        self, a: RankFacts, b: RankFacts, like_a: Sequence[int] | None = None, like_b: Sequence[int] | None = None
    ) -> None:
        self.a, self.b = a, b
        self.others, self.ranks = tuple(like_a or (a.rank,)), tuple(like_b or (b.rank,))
        self.names = rank_words(self.others), rank_words(self.ranks)
        self._own_numbers = False

    def differ(self) -> bool:
        return next(self._all(), None) is not None

    def differences(self) -> list[Difference]:
        return list(self._all())

    def _all(self) -> Iterator[Difference]:
        yield from self._process_differences()
        ended = self._end()
        if ended is not None:
            yield ended
        yield from self._compilations(ended)

    def _difference(
        self, kind: str, words: str, compiled: Compiled | None, place: Place | None = None, **more: Any
    ) -> Difference:
        of = place if place is not None and place.line else compiled.place if compiled is not None else Place()
        compile_id = compiled.id if compiled is not None else ""
        return Difference(
            kind, words, self.ranks, self.others, compile_id, of.function, of.file, of.line, of.code, **more
        )

    # Facts of the process

    def _process_differences(self) -> Iterator[Difference]:
        a, b = self.a, self.b
        first = next(iter(b.compilations.values()), None)
        sides = ("torch version", a.versions, b.versions), ("environment", a.environment, b.environment)
        for kind, one, other in sides:
            if one is None or other is None:
                continue
            changed = changed_values(one, other) if kind == "environment" else shared_changes(one, other)
            if changed:
                yield self._of_values(kind, changed, first)
        yield from self._setting_differences()

    def _setting_differences(self) -> Iterator[Difference]:
        """The settings that differ at the first compilation that both ranks made with different ones."""
        for key, one in self.a.compilations.items():
            other = self.b.compilations.get(key)
            if other is None or one.configs == other.configs:
                continue
            both = one.configs.keys() & other.configs.keys()
            changed = sorted(shared_changes(settings_in(one, both), settings_in(other, both)))
            if changed:
                yield self._of_values("configuration", changed, other)
                return

    def _of_values(self, kind: str, changed: Sequence[tuple[str, str, str]], compiled: Compiled | None) -> Difference:
        """The difference of values such as versions and settings: name, value on each side."""
        name, was, now = changed[0]
        count = len(changed) - 1
        more = f"; {pluralize(count, 'more value')} differ{'s' if count == 1 else ''}" if count else ""
        words = f"`{name}` is {was or 'unset'} on {self.names[0]} and {now or 'unset'} on {self.names[1]}{more}"
        return self._difference(kind, words, compiled, was=value_lines(changed, 1), now=value_lines(changed, 2))

    # The end of the log

    def _end(self) -> Difference | None:
        """A rank whose log ends inside a compilation that the other rank has finished."""
        for rank, other, name, other_name in (
            (self.b, self.a, self.names[1], self.names[0]), (self.a, self.b, self.names[0], self.names[1])
        ):  # fmt: skip
            last = rank.unfinished
            if last is None or rank.is_cut:
                continue
            same = other.compilations.get(last.key)
            if same is not None and same.metrics:
                words = (
                    f"the log of {name} ends while it compiles `{last.name}` ({last.id}); "
                    f"{other_name} finished that compilation"
                )
                hang = self._wait_words(other, same, name, other_name)
                return self._difference("end of the log", words, last, hang=hang)
        return None

    def _wait_words(self, waiting: RankFacts, since: Compiled, name: str, other_name: str) -> str:
        """Where a rank waits for one that went no further than a compilation."""
        reached = False
        for compiled in waiting.compilations.values():
            reached = reached or compiled is since
            if reached and (found := next(collectives_of(compiled), None)) is not None:
                where = f"at {_short(found.place)} (graph {compiled.id})"
                return (
                    f"{_capital(name)} never reached {found}; {other_name} {_verb(other_name, 'wait')} there, {where}."
                )
        waits = f"{other_name} {_verb(other_name, 'wait')} in it for {name}"
        return f"No collective follows in compiled graphs. If eager code calls one, as DDP and FSDP do, {waits}."

    # Compilations

    def _compilations(self, ended: Difference | None) -> Iterator[Difference]:
        a, b = self.a.compilations, self.b.compilations
        absent = {rank.rank for rank in (self.a, self.b) if rank.unfinished is not None}
        resumed = False
        missing: list[tuple[Key, RankFacts, RankFacts]] = []
        for key in merged_keys(list(a), list(b)):
            if key in a and key in b:
                found = list(self._compilation(a[key], b[key], absent))
                resumed = resumed or any(each.kind in ("graph break", "failure") for each in found)
                yield from found
            else:
                has, lacks = (self.a, self.b) if key in a else (self.b, self.a)
                missing += [] if _was_cut_before(key, has, lacks) else [(key, has, lacks)]
        yield from self._missing_compilations(missing, ended is not None or resumed)
        if not missing and not have_same_order(a, b):
            words = "the ranks compile the same functions in another order"
            yield self._difference("order", words, next(iter(b.values())))

    def _missing_compilations(
        self, missing: Sequence[tuple[Key, RankFacts, RankFacts]], explained: bool
    ) -> Iterator[Difference]:
        """Compilations that only one of the ranks made."""
        left = list(missing)
        for key, has, lacks in missing:
            compiled = has.compilations[key]
            if explained and (key.function.startswith("torch_dynamo_resume") or lacks.unfinished is not None):
                continue
            moved = next((each for each in left if _is_same_code(each, key, has)), None)
            if moved is not None:
                if has is self.a:
                    yield self._moved_function(compiled, moved[1].compilations[moved[0]])
                continue
            yield self._unmatched_compilation(compiled, has, lacks)

    def _moved_function(self, a: Compiled, b: Compiled) -> Difference:
        words = (
            f"`{a.key.function}` is at line {a.key.line} of {file_name(a.key.file)} on {self.names[0]}, "
            f"and at line {b.key.line} of {file_name(b.key.file)} on {self.names[1]}: not the same source"
        )
        return self._difference("source", words, b)

    def _unmatched_compilation(self, compiled: Compiled, has: RankFacts, lacks: RankFacts) -> Difference:
        who, other = self._name(has), self._name(lacks)
        reasons = compiled.recompile_reasons
        seconds = f"{compiled.seconds:.1f} s" if compiled.seconds >= 1 else f"{compiled.seconds * 1e3:.0f} ms"
        waits = self._delay_words(compiled, has, lacks)
        now = tuple(line.text for line in reasons[:LINES_SHOWN])
        was, now = ((), now) if has is self.b else (now, ())
        if compiled.key.number or reasons:
            why = f": {reasons[0].text.partition(' # ')[0].strip()}" if reasons else ""
            words = f"{who} compiled `{compiled.name}` again ({compiled.id}, {seconds}), {other} did not{why}"
            place = reasons[0].place if reasons else None
            return self._difference("recompilation", words, compiled, place, was=was, now=now, hang=waits)
        if compiled.key.function.startswith(("compiled autograd", "backward graph of")):
            compiles, does = _verb(who, "compile"), "does" if other.startswith("rank ") else "do"
            words = f"{who} {compiles} the backward with compiled autograd ({compiled.id}), {other} {does} not"
            return self._difference("compiled autograd", words, compiled, hang=waits)
        last = next(reversed(lacks.compilations.values()), None)
        after = f"; its last is `{last.name}` ({last.id})" if last and lacks.end < compiled.start else ""
        words = f"{who} compiled `{compiled.name}` ({compiled.id}, {seconds}), {other} did not{after}"
        return self._difference("compilations", words, compiled, hang=waits)

    def _delay_words(self, compiled: Compiled, has: RankFacts, lacks: RankFacts) -> str:
        """Who waits at which collective while one rank alone compiles; "" if no graph has a collective.

        Nobody waits in vain if the graph calls what another one of the same code calls, which all ranks have: they may
        run that one meanwhile.
        """
        who, other = self._name(has), self._name(lacks)
        shared = (has.compilations[key] for key in has.compilations.keys() & lacks.compilations.keys())
        if any(_call_the_same(compiled, each) for each in shared):
            return ""
        if own := next(collectives_of(compiled), None):
            enters, owns = _verb(who, "enter"), "has" if who.startswith("rank ") else "have"
            return (
                f"{_capital(who)} {enters} {own} at {_short(own.place)}, in a graph that only {who} {owns}: "
                f"if {other} never {_verb(other, 'call')} it, the job hangs."
            )
        later = [each for each in lacks.compilations.values() if each.start > compiled.start]
        found = next((found for each in later for found in collectives_of(each)), None)
        timeout = "compiling longer than the process group's timeout ends the job."
        if found is not None:
            at = f"{found} at {_short(found.place)} (graph {found.compile_id})"
            return f"Meanwhile {other} {_verb(other, 'wait')} in {at}; {timeout}"
        if (known := next(iter(lacks.collectives), None)) is None:
            return ""
        at = f"{known} at {_short(known.place)} (graph {known.compile_id})"
        return (
            f"If {other} meanwhile {_verb(other, 'call')} {at} again, {other} {_verb(other, 'wait')} there; {timeout}"
        )

    def _name(self, rank: RankFacts) -> str:
        return self.names[0] if rank is self.a else self.names[1]

    # Facts of one compilation

    def _compilation(self, a: Compiled, b: Compiled, absent: set[int]) -> Iterator[Difference]:
        failed = self._failure(a, b)
        self._own_numbers = False
        changed = {kind: lines for kind in KINDS if (lines := self._compare_facts(kind, a, b)) is not None}
        if self._own_numbers:  # the graphs differ by the ranks' own numbers, and what is made of them, too
            changed = {kind: lines for kind, lines in changed.items() if kind in ("graph", "graph break", "guards")}
        cache = self._cache(a, b)
        if cache is not None or absent:
            changed = {kind: lines for kind, lines in changed.items() if lines[0] and lines[1]}
        if failed is not None:
            yield replace(failed, follows=tuple(changed))
            return
        kinds = [kind for kind in changed if kind not in _NEVER_FIRST]
        collectives = list(self._collective(a, b))
        yield from collectives
        if kinds:
            first = self._first(kinds, changed, a, b, told=bool(collectives))
            follows = [*dict.fromkeys(_group_of(kind) for kind in kinds[1:])]
            if first is not None:
                memory = memory_words(a, b, self.names)
                yield replace(first, follows=tuple(kind for kind in (*follows, memory) if kind and kind != first.kind))
        if cache is not None:
            yield cache

    def _failure(self, a: Compiled, b: Compiled) -> Difference | None:
        if not (a.metrics and b.metrics) or bool(a.metrics.get("fail_type")) == bool(b.metrics.get("fail_type")):
            return None
        failed, who, other = (b, *self.names[::-1]) if b.metrics.get("fail_type") else (a, *self.names)
        reason = first_paragraph(str(failed.metrics.get("fail_reason") or ""))
        line = failed.metrics.get("fail_user_frame_lineno")
        place = Place(str(failed.metrics.get("fail_user_frame_filename")), line) if isinstance(line, int) else None
        words = f"compiling `{failed.name}` ({failed.id}) failed on {who}: {reason}; it succeeded on {other}"
        return self._difference("failure", words, failed, place)

    def _compare_facts(self, kind: str, a: Compiled, b: Compiled) -> tuple[list[Line], list[Line]] | None:
        """The lines of both sides if a fact differs; None if it is equal but for each rank's own number."""
        one, other = a.facts.get(kind, []), b.facts.get(kind, [])
        if self.a.is_cut or self.b.is_cut:  # what one side lacks may have been logged later
            count = min(len(one), len(other))
            one, other = one[:count], other[:count]
        if [event.payload_raw for event in one] == [event.payload_raw for event in other]:
            return None
        left, right = lines_of_all(one, kind), lines_of_all(other, kind)
        if len(left) == len(right):
            pairs = list(zip(left, right, strict=True))
            if all(lines_are_equal(x, y, self.a.rank, self.b.rank) for x, y in pairs):
                self._own_numbers |= kind in _GRAPHS and any(x.same != y.same for x, y in pairs)
                return None
        if kind == CONFIGURATIONS:
            left, right = shared_configurations(left, right)
            return (left, right) if left else None
        if kind == "guards":
            left, right = without_common(left, right), without_common(right, left)
            left, right = self._without_own_numbers(left, right)
            return (left, right) if left or right else None
        return left, right

    def _without_own_numbers(self, left: list[Line], right: list[Line]) -> tuple[list[Line], list[Line]]:
        """Guards without pairs that differ only by each rank's own number."""
        rest = list(right)
        kept: list[Line] = []
        for line in left:
            same = next((each for each in rest if lines_are_equal(line, each, self.a.rank, self.b.rank)), None)
            rest.remove(same) if same is not None else kept.append(line)
        return kept, rest

    def _first(
        self,
        kinds: Sequence[str],
        changed: Mapping[str, tuple[list[Line], list[Line]]],
        a: Compiled,
        b: Compiled,
        told: bool,
    ) -> Difference | None:
        """The difference that the others of a compilation follow from; None if it is the collective that was told."""
        kind = kinds[0]
        left, right = changed[kind]
        was, now = first_change(left, right) if kind != "guards" else (left, right)
        place = place_of_change(was, now, left + right)
        if kind == "kernels":
            place = place_of_kernel(kernel_around(left, was) or kernel_around(right, now), b)
        shown = {"was": first_texts(was), "now": first_texts(now)}
        if told and kind == "graph" and any("_c10d_functional" in line.same for line in (*was[:1], *now[:1])):
            return None
        if kind in _AUTOGRAD:
            return self._difference("autograd", self._autograd_words(changed, a, b), b, place, **shown)
        if kind == "graph" and declare_input(was, now):
            types = f"{type_words(was)} on {self.names[0]} and {type_words(now)} on {self.names[1]}"
            words = f"an input of `{b.name}` ({b.id}) is {types}"
            return self._difference("input", words, b, place, **shown)
        if kind == "kernels" and (chosen := kernel_words(left, right, self.names)):
            return self._difference(kind, f"the kernels of `{b.name}` ({b.id}) differ: {chosen}", b, place, **shown)
        if kind == CONFIGURATIONS:
            return self._configuration_difference(was[0].text, now[0].text, b)
        subject = _SUBJECTS.get(kind, f"the {kind}")
        words = f"{subject} of `{b.name}` ({b.id}) differs: {change_words(was, now, self.names)}"
        return self._difference(kind, words, b, place, **shown)

    def _configuration_difference(self, was: str, now: str, b: Compiled) -> Difference:
        """A kernel that two ranks run with other tile sizes or numbers of warps."""
        name, _, one = was.partition(": ")
        other = now.partition(": ")[2]
        words = (
            f"the kernel `{name}` of `{b.name}` ({b.id}) runs with {one} on {self.names[0]}, with {other} on "
            f"{self.names[1]} (autotuning chose otherwise)"
        )
        return self._difference("kernels", words, b, place_of_kernel(name, b), was=(was,), now=(now,))

    def _autograd_words(self, changed: Mapping[str, object], a: Compiled, b: Compiled) -> str:
        inference = [each for each in (a, b) if "inference graph" in each.facts]
        if len(inference) == 1:
            quiet, loud = self.names if inference[0] is a else self.names[::-1]
            return f"`{b.name}` ({b.id}) is compiled for inference on {quiet}, with a backward on {loud}"
        which = next(kind for kind in _AUTOGRAD if kind in changed)
        return f"the {which} of `{b.name}` ({b.id}) differs, from the same captured graph"

    def _collective(self, a: Compiled, b: Compiled) -> Iterator[Difference]:
        """The first collective of a compilation at which two ranks differ. Names of groups are compared elsewhere."""
        left, right = collectives_of_both(a, b)
        for place in range(max(len(left), len(right))):
            one = left[place] if place < len(left) else None
            other = right[place] if place < len(right) else None
            if one is not None and other is not None and str(one) == str(other):
                continue
            was_cut = (one is None and self.a.is_cut) or (other is None and self.b.is_cut)
            if was_cut or not (a.metrics and b.metrics):
                return
            words, hang = self._collective_words(one, other, place, b)
            at = one or other
            yield self._difference("collectives", words, b, at.place if at else None, hang=hang,
                                   was=(str(one),) if one else (), now=(str(other),) if other else ())  # fmt: skip
            return

    def _collective_words(
        self, one: Collective | None, other: Collective | None, place: int, b: Compiled
    ) -> tuple[str, str]:
        number = f"collective {place + 1} of graph {b.id}"
        if one is None or other is None:
            present = one or other
            here, absent = self.names if other is None else self.names[::-1]
            has = "has" if absent.startswith("rank ") else "have"
            words = f"{number} is {present} on {here}, and {absent} {has} none there"
            waits, enters = _verb(here, "wait"), _verb(absent, "enter")
            hang = f"{_capital(here)} {waits} in {present}, which {absent} never {enters}: the job hangs there."
            return words, hang if present else ""
        words = f"{number} is {one} on {self.names[0]} and {other} on {self.names[1]}"
        first, second = self.names
        hang = f"{_capital(first)} {_verb(first, 'wait')} in {one.name}, {second} in {other.name}: neither can finish."
        if one.name == other.name:
            hang = f"Both call {one.name}, but with other arguments: the job hangs, fails, or mixes the values."
        return words, hang

    def _cache(self, a: Compiled, b: Compiled) -> Difference | None:
        """A cache outcome that differs, unless one rank took from a shared cache what the other had just compiled."""
        for cache in ("aotautograd", "fx_graph"):
            left, right = a.caches.get(cache, []), b.caches.get(cache, [])
            for one, other in zip(left, right, strict=False):
                if one[0] == other[0]:
                    continue
                if _was_shared(one, other, a, b):
                    return None
                outcomes = f"a {one[0]} on {self.names[0]} and a {other[0]} on {self.names[1]}"
                words = f"the {_CACHE_NAMES[cache]} cache of `{b.name}` ({b.id}) is {outcomes}"
                return self._difference("cache", words, b, was=(one[0],), now=(other[0],))
        return None


_SUBJECTS = {
    "graph": "the captured graph",
    "kernels": "the generated code",
    "guards": "a guard",
    "graph break": "a graph break",
}
_CACHE_NAMES = {"aotautograd": "AOTAutograd", "fx_graph": "FX graph"}


def _was_shared(one: tuple[str, str, float], other: tuple[str, str, float], a: Compiled, b: Compiled) -> bool:
    """Whether a hit came after the other rank had written its miss to the same directory."""
    hit, miss, slow = (one, other, b) if one[0] == "hit" else (other, one, a)
    if (hit[0], miss[0]) != ("hit", "miss") or cache_folders(a) != cache_folders(b):
        return False
    written = [event.seconds for event in slow.facts.get("kernels", ())]
    return bool(written) and hit[2] > min(written)


def _group_differences(ranks: Mapping[int, RankFacts]) -> Iterator[Difference]:
    """Collectives that equal ranks call in process groups of other names.

    Ranks of a mesh have groups of their own, each with as many ranks as the others; a numbered group that one rank
    alone calls, while others call another, is an error.
    """
    sizes = count_group_names(ranks)
    for place in sorted({place for place, _ in sizes}):
        at_place = {name: count for (where, name), count in sizes.items() if where == place}
        if len(at_place) < 2 or (len(set(at_place.values())) == 1 and min(at_place.values()) > 1):
            continue
        if not all(name.isdecimal() for name in at_place):
            continue
        called = {number: facts.collectives[place] for number, facts in ranks.items() if place < len(facts.collectives)}
        usual = max(at_place, key=lambda name: (at_place[name], -int(name)))
        odd = tuple(number for number, each in called.items() if each.group != usual)
        others = tuple(number for number, each in called.items() if each.group == usual)
        found = called[odd[0]]
        few, many, of = rank_words(odd), rank_words(others), found.place
        words = f"{found.name} is called in group {found.group} on {few} and in group {usual} on {many}"
        hang = f"{_capital(many)} and {few} wait for each other in different groups: the job hangs."
        where = of.function, of.file, of.line, of.code
        groups = (f"group {usual}",), (f"group {found.group}",)
        yield Difference("collectives", words, odd, others, found.compile_id, *where, *groups, hang)
        return


def _verb(ranks: str, verb: str) -> str:
    """The verb of `rank 0` or `ranks 0, 1`."""
    return f"{verb}s" if ranks.startswith("rank ") else verb


def _was_cut_before(key: Key, has: RankFacts, lacks: RankFacts) -> bool:
    """Whether a rank's log was cut before a compilation that another rank made, and may have been made by both."""
    if not lacks.is_cut:
        return False
    keys = list(has.compilations)
    return not any(later in lacks.compilations for later in keys[keys.index(key) + 1 :])


def _call_the_same(a: Compiled, b: Compiled) -> bool:
    """Whether two compilations of the same code call the same collectives, at least one, at the same lines."""
    if (a.key.function, a.key.file, a.key.line) != (b.key.function, b.key.file, b.key.line):
        return False
    one, other = ([(str(each), each.group, each.place) for each in side] for side in collectives_of_both(a, b))
    return bool(one) and one == other


def _is_same_code(each: tuple[Key, RankFacts, RankFacts], key: Key, has: RankFacts) -> bool:
    other, owner, _ = each
    same = (other.function, other.frame, other.number) == (key.function, key.frame, key.number)
    return owner is not has and same and file_name(other.file) == file_name(key.file)


def _group_of(kind: str) -> str:
    return "autograd" if kind in _AUTOGRAD else "kernels" if kind == CONFIGURATIONS else kind


def _short(place: Place) -> str:
    return f"{file_name(place.file)}:{place.line}" if place.line else "an unknown line"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
