"""Where the ranks of a job wait for each other in vain: collectives, sends and receives that other ranks never call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, permutations, takewhile, zip_longest
from typing import Any

from compiler.distributed.rank_branches import branch_before
from compiler.record import Collective, Record, Span
from compiler.record.distributed_facts import CALLED_BY_JOIN
from compiler.record.plain_text import rank_words

_POINT_TO_POINT = ("send", "recv", "point_to_point")
_SAME_SIZES = ("all_reduce", "reduce", "broadcast", "reduce_scatter")
_RECEIVES_LATER = "irecv"


@dataclass(frozen=True)
class Hang:
    """A collective that `waiting` ranks call and `others` do not: the job stops there.

    `lines` are those of the waiting ranks, `beside` those of what the others call instead, or called last, or the
    branch at which they went another way.
    """

    words: str
    waiting: tuple[int, ...]
    others: tuple[int, ...]
    lines: tuple[Span, ...] = ()
    beside: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return self.words


def find_hangs(records: Mapping[int, Record]) -> tuple[Hang, ...]:
    """Where ranks wait for ranks that never come, by the collectives that each pair of ranks has to call together.

    Ranks that stop at the same lines are reported together. Sends and receives are matched in `unmatched_messages`.
    """
    found: dict[tuple[str, str], list[_Stop]] = {}
    for one, other in combinations(records, 2):
        stop = _first_stop(one, other, records)
        if stop is not None:
            found.setdefault((call_words(stop.call), call_words(stop.instead)), []).append(stop)
    told = [_hang(stops, records) for stops in found.values()]
    return (*told, *unequal_arguments(records), *unmatched_messages(records), *circular_waits(records))


@dataclass(frozen=True, slots=True)
class _Stop:
    """`waiting` calls a collective that `other` must call too, which calls `instead`, or nothing after `last`."""

    waiting: int
    other: int
    call: Collective
    instead: Collective | None
    last: Collective | None = None


def _first_stop(one: int, other: int, records: Mapping[int, Record]) -> _Stop | None:
    """The first collective that two ranks of one group do not call together."""
    last: tuple[Collective | None, Collective | None] = None, None
    for call, instead in _calls_side_by_side(one, other, records):
        if call is None:
            return _Stop(other, one, instead[1], None, last[0])
        if instead is None:
            return _Stop(one, other, call[1], None, last[1])
        if call[0] != instead[0]:
            return _Stop(one, other, call[1], instead[1])
        last = call[1], instead[1]
    return None


def _calls_side_by_side(one: int, other: int, records: Mapping[int, Record]) -> Iterator[tuple[Any, Any]]:
    """The calls of two ranks that must be made together, None where one has no more, up to the first of Join.

    What a rank calls then depends on values, which simulated ranks don't exchange.
    """
    of_one, of_other = (_shared_calls(records[rank], {one, other}) for rank in (one, other))
    pairs = zip_longest(of_one, of_other)
    return takewhile(lambda pair: not any(each and each[1].cause == CALLED_BY_JOIN for each in pair), pairs)


def _shared_calls(record: Record, ranks: set[int]) -> list[tuple[tuple[Any, ...], Collective]]:
    """The collectives of groups that hold these ranks, in order, each with what must be equal on all ranks."""
    members = {group.name: group.ranks for group in record.groups}
    return [
        ((call.kind, members[call.group], call.reduction), call)
        for call in _calls_in_order(record)
        if call.kind not in _POINT_TO_POINT and ranks <= set(members.get(call.group, ()))
    ]


def _hang(stops: Sequence[_Stop], records: Mapping[int, Record]) -> Hang:
    first = stops[0]
    waiting = tuple(sorted({stop.waiting for stop in stops}))
    others = tuple(sorted({stop.other for stop in stops} - set(waiting)))
    who, them = rank_words(waiting), rank_words(others)
    verb, never = ("waits" if len(waiting) == 1 else "wait"), ("calls" if len(others) == 1 else "call")
    words = f"{who.capitalize()} {verb} in {call_words(first.call)}, which {them} never {never}: the job hangs there."
    if first.instead is not None:
        words += f" {them.capitalize()} {never} {call_words(first.instead)} instead."
    elif first.last is not None:
        words += f" {them.capitalize()} {never} none after {call_words(first.last)}."
    beside = first.instead or first.last
    lines = beside.lines if beside is not None else ()
    branch = _branch_to(first.call, records[first.waiting], records[first.other])
    if branch is None and first.instead is not None:
        branch = _branch_to(first.instead, records[first.other], records[first.waiting])
    if branch is not None:
        go = "goes" if len(others) == 1 else "go"
        words += f" {them.capitalize()} {go} another way at {branch.file}:{branch.line}: {branch.code}"
    return Hang(words, waiting, others, first.call.lines, lines or ((branch,) if branch else ()))


def _branch_to(call: Collective, record: Record, other: Record) -> Span | None:
    """The branch on the rank that leads to a call which another rank does not make; None if it is not known.

    A line at which the other rank calls a collective, too, does not tell: a loop may have another length there.
    """
    shared = {(line.file, line.line) for each in other.collectives for line in each.lines}
    return branch_before((line for line in call.lines if (line.file, line.line) not in shared), record)


def unequal_arguments(records: Mapping[int, Record]) -> Iterator[Hang]:
    """Collectives that ranks call together with other sizes, dtypes or roots, where all must be equal; first ones."""
    found: dict[tuple[str, ...], tuple[Collective, Collective, set[int], set[int]]] = {}
    for one, other in combinations(records, 2):
        pairs = _calls_side_by_side(one, other, records)
        together = takewhile(lambda pair: all(pair) and pair[0][0] == pair[1][0], pairs)
        calls = ({one: mine[1], other: theirs[1]} for mine, theirs in together)
        unequal = (each for each in calls if _unequal_facts(each[one], each[other]))
        for each in islice(unequal, 1):
            less, more = sorted(each, key=lambda rank: (each[rank].input_bytes, each[rank].dtype, each[rank].root))
            key = tuple(f"{_equal_facts(each[rank])} {call_words(each[rank])}" for rank in (less, more))
            *_, ranks, others = found.setdefault(key, (each[less], each[more], set(), set()))
            ranks.add(less)
            others.add(more)
    for first, second, ranks, others in found.values():
        own, theirs = (rank_words(tuple(sorted(each))) for each in (ranks, others))
        names = _unequal_facts(first, second)
        small, large = (
            f"{', '.join(_equal_facts(each)[name] for name in names)} in {call_words(each)}" for each in (first, second)
        )
        words = (
            f"{own.capitalize()}: {small}; {theirs}: {large}. All must pass the same {' and '.join(names)}: the job "
            "hangs there, or gets wrong values."
        )
        yield Hang(words, tuple(sorted(ranks)), tuple(sorted(others)), first.lines, second.lines)


def _unequal_facts(one: Collective, other: Collective) -> list[str]:
    """The names of what differs in two ranks' calls of a collective, and must not."""
    mine, theirs = _equal_facts(one), _equal_facts(other)
    return [name for name in mine if name in theirs and mine[name] != theirs[name]]


def _equal_facts(call: Collective) -> dict[str, str]:
    """What must be equal on all ranks that call a collective, in words."""
    sizes = {"size": f"{call.input_bytes:,} bytes", "dtype": call.dtype} if call.kind in _SAME_SIZES else {}
    return sizes | ({"root": f"root {call.root}"} if call.root >= 0 else {})


def unmatched_messages(records: Mapping[int, Record]) -> Iterator[Hang]:
    """Sends and receives between simulated ranks that no call of the other rank matches, and those of unequal sizes.

    The messages from one rank to another are matched in their order.
    """
    for one, other in permutations(records, 2):
        sent, received = _messages(records[one], "send", other), _messages(records[other], "recv", one)
        for send, receive in zip_longest(sent, received):
            if send is None or receive is None:
                yield _unmatched_hang(send or receive, one, other, records)
                break
            if send.input_bytes != receive.output_bytes:
                words = (
                    f"Rank {one} sends {send.input_bytes:,} bytes in {call_words(send)}, and rank {other} receives "
                    f"{receive.output_bytes:,} in {call_words(receive)}: the job hangs there, or gets wrong values."
                )
                yield Hang(words, (one,), (other,), send.lines, receive.lines)
                break


def _messages(record: Record, kind: str, peer: int) -> list[Collective]:
    return [call for call in _calls_in_order(record) if (call.kind, call.peer) == (kind, peer)]


def _unmatched_hang(call: Collective, sender: int, receiver: int, records: Mapping[int, Record]) -> Hang:
    one, other = (sender, receiver) if call.kind == "send" else (receiver, sender)
    never = "receives" if call.kind == "send" else "sends"
    words = f"Rank {one} waits in {call_words(call)}, which rank {other} never {never}: the job hangs there."
    last = max(records[other].collectives, key=lambda each: each.order, default=None)
    branch = _branch_to(call, records[one], records[other])
    if last is not None:
        words += f" Rank {other} calls {call_words(last)} last."
    if branch is not None:
        words += f" What rank {one} does is decided at {branch.file}:{branch.line}: {branch.code}"
    return Hang(words, (one,), (other,), call.lines, last.lines if last else (branch,) if branch else ())


def circular_waits(records: Mapping[int, Record]) -> Iterator[Hang]:
    """Two ranks that each wait to receive what the other sends only afterwards."""
    calls = {rank: [call for call in _calls_in_order(record) if call.peer >= 0] for rank, record in records.items()}
    left = _waiting_calls(calls)
    for rank, (call, *_) in left.items():
        other = left.get(call.peer, ())
        later = [each for each in other if (each.kind, each.peer) == ("send", rank)]
        if later and rank < call.peer:
            words = (
                f"Rank {rank} waits in {call_words(call)}. Rank {call.peer} sends it in {call_words(later[0])}, but "
                f"waits before in {call_words(other[0])}: the job hangs there."
            )
            yield Hang(words, (rank,), (call.peer,), call.lines, other[0].lines)


def _waiting_calls(calls: Mapping[int, Sequence[Collective]]) -> dict[int, Sequence[Collective]]:
    """The sends and receives that are left on each rank that waits, if all ranks go on as far as they can."""
    at, sent, received = dict.fromkeys(calls, 0), Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    todo = list(calls)
    while todo:
        rank = todo.pop()
        for call in calls[rank][at[rank] :]:
            message = (rank, call.peer) if call.kind == "send" else (call.peer, rank)
            waits = call.kind == "recv" and call.operator != _RECEIVES_LATER and call.peer in calls
            if waits and sent[message] <= received[message]:
                break
            (sent if call.kind == "send" else received)[message] += 1
            at[rank] += 1
            todo += [call.peer] if call.kind == "send" and call.peer in calls else []
    return {rank: own[at[rank] :] for rank, own in calls.items() if at[rank] < len(own)}


def _calls_in_order(record: Record) -> list[Collective]:
    return [call for call in sorted(record.collectives, key=lambda call: call.order) for _ in range(call.calls)]


def call_words(call: Collective | None) -> str:
    """A collective with its line: `all_reduce (train.py:31: dist.all_reduce(x))`."""
    if call is None:
        return ""
    kind = f"{call.kind} {'to' if call.kind == 'send' else 'from'} rank {call.peer}" if call.peer >= 0 else call.kind
    if not call.lines:
        return kind
    line = next((line for line in call.lines if not line.file.startswith("torch/")), call.lines[0])
    code = f": {line.code}" if line.code and not line.file.startswith("torch/") else ""
    return f"{kind} ({line.file}:{line.line}{code})"
