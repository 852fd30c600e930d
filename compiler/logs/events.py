"""The events of a structured trace (TORCH_TRACE) of one process, decoded on demand.

A trace is a text file: each event is a glog line with a JSON object, and may have a payload, whose lines begin with a
tab. Strings such as file names are interned: an event `str` gives a string its number. Other libraries may write
lines of their own between events. The format is that of `torch/_logging/_internal.py` (`trace_structured`).
"""

from __future__ import annotations

import json
import mmap as mapping
import re
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import md5
from mmap import mmap
from typing import Any

import msgspec

Text = bytes | mmap
"""The content of a file: a mapped file, or a member of an archive in memory."""

_HEAD = re.compile(
    rb"^V(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) +(\d{1,18}) ([^\n\]]{1,500}):(\d+)\] (?=\{)", re.MULTILINE
)
_LINE_OF_V = re.compile(rb"\nV\d")  # a literal start: found some ten times as fast as the start of a line
_END_OF_PAYLOAD = re.compile(rb"\n(?!\t)")
_KIND = re.compile(rb'\{"([a-z_0-9]{1,64})"')
_FREE: int | None = getattr(mapping, "MADV_DONTNEED", None)  # Windows has none
_PAGES_KEPT = 64 * 2**20
_LONGEST_START = 2048
"""Maximum bytes of an event before its JSON."""
_LONGEST_HEAD = 8 * 2**20
"""Maximum bytes of an event's JSON; torch's longest (stacks, sizes of large graphs) have a few hundred kilobytes."""
_MOST_LAST = 4_000
"""Maximum number of events at the end of a log in which its last event of a kind is looked for."""

_FRAME = re.compile(rb'"frame_id": ?(\d+), ?"frame_compile_id": ?(\d+)')
_AUTOGRAD = re.compile(rb'"compiled_autograd_id": ?(\d+)')
_CHECKSUM = re.compile(rb'"has_payload": ?"([0-9a-f]{32})"')
_HELPER = re.compile(r"str|chromium_event|describe_\w+")

CACHE_EVENT = re.compile(r"(fx_graph|aotautograd)_cache_(hit|miss|bypass)")
"""Names of artifacts that are the outcome of a look-up in a cache."""

_NAMED = ("artifact", "graph_dump")
_BESIDES = frozenset(
    ("frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "has_payload", "rank", "stack", "process")
)
"""Fields that an event of any kind may have, besides the field that names its kind."""


@dataclass(frozen=True, slots=True)
class LogProblem:
    """A part of a log that can't be read; `at` is the byte offset of its start. The rest of the log is read."""

    file: str
    at: int
    reason: str


@dataclass(frozen=True, slots=True)
class CompileId:
    """Torch's id of a compilation (`torch._guards.CompileId`): "0/1", "!0" or "!0/0/1" as text, "" for none.

    `frame` is the number of the frame, and `number` counts the frame's compilations from 0. `autograd` is the number of
    the compiled-autograd run that the compilation is part of. Without a frame, the id is that of the run itself.
    """

    autograd: str = ""
    frame: str = ""
    number: str = ""

    @property
    def run(self) -> str:
        """Id of the compiled-autograd run; "" outside of one."""
        return f"!{self.autograd}" if self.autograd else ""

    @property
    def in_run(self) -> str:
        """The id without the compiled-autograd run: "0/1"; "" for the run itself."""
        return f"{self.frame}/{self.number}" if self.frame else ""

    @property
    def frame_id(self) -> str:
        """Id of the frame, with the run that it is part of: "0", "!0/0"."""
        return "/".join(filter(None, (self.run, self.frame))) if self.frame else ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.run, self.in_run)))


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind` is torch's name for it ("dynamo_output_graph"); an artifact or dumped graph has a `name`.

    `compile_id` is the text of `id_parts`, and `attempt` is the number of the analysis in this compilation, from 0.
    `fields` is the value that the kind names, `all_fields` the whole object.
    """

    kind: str
    name: str
    compile_id: str
    id_parts: CompileId
    attempt: int
    fields: Any
    all_fields: dict[str, Any]
    _head: re.Match[bytes] = field(repr=False, compare=False)
    _log: Log = field(repr=False, compare=False)
    _payload: tuple[int, int, int] = field(repr=False)

    @property
    def seconds(self) -> float:
        """Time of day; the log has no year."""
        hours, minutes, seconds, fraction = self._head.group(3, 4, 5, 6)
        return int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(b"0." + fraction)

    @property
    def process(self) -> int:
        """Id of the process that wrote the event."""
        return int(self._head[7])

    @property
    def written(self) -> bytes:
        """Month, day and time of day, in a form that sorts; the log has no year."""
        return b" ".join(self._head.group(1, 2, 3, 4, 5, 6))

    @property
    def where(self) -> str:
        """The line of torch that wrote the event."""
        return f"{self._head[8].decode(errors='replace')}:{int(self._head[9])}"

    @property
    def payload(self) -> str:
        """The payload's text; "" without one. Invalid UTF-8 is replaced."""
        return self._log.text_between(*self._payload)

    @property
    def payload_raw(self) -> bytes:
        """The payload as it is in the file: each line begins with a tab."""
        part, start, end = self._payload
        return self._log.texts[part][start:end]


@dataclass
class Log:
    """The structured trace of one process: one file, or the parts of a rotated one, in order.

    `rank` is the rank that the file's name or the events give; None if the process had none.
    """

    names: tuple[str, ...]
    texts: tuple[Text, ...]
    rank: int | None = None
    problems: list[LogProblem] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._index.starts)

    def __iter__(self) -> Iterator[Event]:
        return (event for place in range(len(self)) if (event := self._event(place)) is not None)

    def events_of(self, *kinds: str) -> Iterator[Event]:
        """Events of these kinds, in order; the others are not decoded."""
        return (event for place in self._walk(kinds) if (event := self._event(place)) is not None)

    def _walk(self, kinds: Container[str]) -> Iterator[int]:
        """Positions of the events of some kinds, in order. The memory of mapped files is given back on the way."""
        index, given_back = self._index, 0
        wanted = {number for kind, number in index.kinds.items() if kind in kinds}
        for place, kind in enumerate(index.of_kind):
            if kind not in wanted:
                continue
            yield place
            text, start = self.texts[index.parts[place]], index.starts[place]
            if isinstance(text, mmap) and not 0 <= start - given_back < _PAGES_KEPT:
                give_back(text)
                given_back = start

    @property
    def ends(self) -> tuple[Event, ...]:
        """The first and the last event; () if one is damaged."""
        found = [self._event(place) for place in (0, len(self) - 1)] if len(self) else []
        return tuple(event for event in found if event is not None) if None not in found else ()

    @cached_property
    def counts(self) -> Counter[str]:
        """The number of events of each kind."""
        names = {number: kind for kind, number in self._index.kinds.items()}
        return Counter({names[number]: count for number, count in Counter(self._index.of_kind).items()})

    @cached_property
    def strings(self) -> dict[int, str]:
        """Interned strings by their number. They belong to this log: each rank numbers its own."""
        pairs = (event.fields for event in self.events_of("str"))
        return {
            number: text.replace("\0", "?")
            for pair in pairs
            if isinstance(pair, list) and len(pair) == 2
            for text, number in (pair,)
            if isinstance(text, str) and isinstance(number, int)
        }

    def heads(self, *kinds: str) -> Iterator[bytes]:
        """The first line of each event, undecoded; with `kinds`, of the events of these kinds."""
        index = self._index
        for place in self._walk(kinds or index.kinds):
            yield self.texts[index.parts[place]][index.starts[place] : index.payloads[place]]

    def payloads_of(self, kind: str) -> Iterator[tuple[str, int, bytes]]:
        """The compilation's id, the process and the raw payload of each event of a kind; the events are not decoded."""
        index, names = self._index, list(self._index.ids)
        for place in self._walk((kind,)):
            start, end = index.payloads[place], index.ends[place]
            payload = self.texts[index.parts[place]][min(start + 1, end) : end]
            yield names[index.of_id[place]], index.processes[place], payload

    def last_event(self, kind: str, words: bytes) -> Event | None:
        """The last event of a kind whose payload has some words, among the last events; None if there is none."""
        index, wanted = self._index, self._index.kinds.get(kind)
        for place in reversed(range(max(0, len(self) - _MOST_LAST), len(self))):
            text, start, end = self.texts[index.parts[place]], index.payloads[place], index.ends[place]
            if index.of_kind[place] == wanted and words in text[start:end]:
                return self._event(place)
        return None

    def texts_of_events(self) -> Iterator[tuple[bytes, bytes]]:
        """The first line and the whole text of each event, undecoded."""
        index = self._index
        for head, part, start, end in zip(self.heads(), index.parts, index.starts, index.ends, strict=True):
            yield head, self.texts[part][start:end]

    def count_wrong_checksums(self) -> int:
        """The number of events whose content has another checksum than was written: the file was cut or edited."""
        return sum(_has_wrong_checksum(head, text) for head, text in self.texts_of_events())

    @cached_property
    def is_cut(self) -> bool:
        """Whether the log ends in the middle of an event: it was cut, or the process was ended while it wrote."""
        if not len(self):
            return False
        index, text = self._index, self.texts[-1]
        start, line_end, end = index.starts[-1], index.payloads[-1], index.ends[-1]
        rest = text[max(end, len(text) - _LONGEST_START) :]
        is_torn = _LINE_OF_V.search(rest) is not None and not rest.endswith(b"\n")
        is_damaged = self._event(len(self) - 1) is None
        return is_torn or is_damaged or _has_wrong_checksum(text[start:line_end], text[start:end])

    def select(self, compile_id: str, autograd: str = "") -> Log:
        """The events of one of torch's ids, of the compiled-autograd run around it, and of no compilation."""
        wanted = {compile_id, CompileId(autograd).run, ""}
        places = sorted(place for name in wanted for place in self._places.get(name, ()))
        part = Log(self.names, self.texts, self.rank, self.problems)
        part.__dict__ |= {"_index": self._index.select(places), "strings": self.strings}
        return part

    def bytes_of(self, compile_id: str) -> int:
        """The number of bytes of the events of one of torch's ids."""
        index = self._index
        return sum(index.ends[place] - index.starts[place] for place in self._places.get(compile_id, ()))

    @cached_property
    def _places(self) -> dict[str, array[int]]:
        """Positions of the events of each of torch's ids; chromium events and strings without an id are left out."""
        index = self._index
        helpers = {number for kind, number in index.kinds.items() if _HELPER.fullmatch(kind)}
        found = {name: array("Q") for name in index.ids}
        lists = list(found.values())
        none = index.ids.get("", -1)
        for place, (number, kind) in enumerate(zip(index.of_id, index.of_kind, strict=True)):
            if number != none or kind not in helpers:
                lists[number].append(place)
        return found

    def text_between(self, part: int, start: int, end: int) -> str:
        """The text of a payload, without its indentation."""
        text = self.texts[part][start:end].replace(b"\n\t", b"\n").replace(b"\0", b"?")  # no file's name may have it
        return text.decode(errors="replace").removeprefix("\t")

    @cached_property
    def _index(self) -> _Index:
        index = _Index()
        for part, text in enumerate(self.texts):
            index.scan(part, text)
        return index

    def _event(self, place: int) -> Event | None:
        """Decode one event; None, and a problem, if its JSON is damaged."""
        index = self._index
        part, start, end = index.parts[place], index.starts[place], index.payloads[place]
        text = self.texts[part]
        head = _HEAD.match(text, start)
        assert head is not None, "the index holds only places at which a head was found"
        try:
            values = msgspec.json.decode(text[head.end() : end])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            why = str(error).partition(" (byte ")[0]
            problem = LogProblem(self.names[part], start, f"an event's JSON is damaged, and left out: {why}")
            if problem not in self.problems:
                self.problems.append(problem)
            return None
        kind = next((key for key in values if key not in _BESIDES), "")
        fields = values.get(kind)
        id_parts, compile_id = _compile_id(values)
        return Event(
            kind=kind,
            name=str(fields.get("name", "")) if kind in _NAMED and isinstance(fields, dict) else "",
            compile_id=compile_id,
            id_parts=id_parts,
            attempt=number if isinstance(number := values.get("attempt"), int) else 0,
            fields=fields,
            all_fields=values,
            _head=head,
            _log=self,
            _payload=(part, min(end + 1, index.ends[place]), index.ends[place]),
        )


def _has_wrong_checksum(head: bytes, text: bytes) -> bool:
    """Whether the content of an event has another checksum than its first line says."""
    if (checksum := _CHECKSUM.search(head)) is None:
        return False
    payload = text[len(head) + 1 :].replace(b"\n\t", b"\n").removeprefix(b"\t")
    return md5(payload, usedforsecurity=False).hexdigest().encode() != checksum[1]


def _compile_id(values: dict[str, Any]) -> tuple[CompileId, str]:
    """The id of the compilation that an event belongs to, and its text."""
    autograd, frame = values.get("compiled_autograd_id"), values.get("frame_id")
    outer = "" if autograd is None else str(autograd)
    return _named_id(outer) if frame is None else _named_id(outer, str(frame), str(values.get("frame_compile_id")))


@lru_cache(maxsize=4096)
def _named_id(*parts: str) -> tuple[CompileId, str]:
    made = CompileId(*parts)
    return made, str(made)


def read_object(text: str) -> dict[str, Any]:
    """A JSON object; {} for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _next_head(text: Text, place: int) -> re.Match[bytes] | None:
    """The next start of an event. Lines of gigabytes are searched in pieces, which are not kept in memory."""
    if (head := _HEAD.match(text, place, place + _LONGEST_START)) is not None:
        return head
    while place < len(text):
        line = _LINE_OF_V.search(text, place, place + _PAGES_KEPT)
        if line is not None:
            place = line.start() + 1
            if (head := _HEAD.match(text, place, place + _LONGEST_START)) is not None:
                return head
            continue
        place += _PAGES_KEPT - 2  # the last two bytes may be the start of such a line
        if isinstance(text, mmap):
            give_back(text)
    return None


def _end_of_payload(text: Text, place: int) -> int:
    """The end of the last line from here that begins with a tab, searched in pieces that are not kept in memory."""
    while place < len(text):
        after = _END_OF_PAYLOAD.search(text, place, place + _PAGES_KEPT)
        if after is not None and after.start() < place + _PAGES_KEPT - 1:
            return after.start()
        place += _PAGES_KEPT - 1  # the last byte may be a line's end before a tab: it is the next piece's first
        if isinstance(text, mmap):
            give_back(text)
    return len(text)


def give_back(text: mmap) -> None:
    """Let the system take back the memory of a mapped file; it is read again when it is needed."""
    if _FREE is not None:
        text.madvise(_FREE)


def _id_in(head: bytes) -> str:
    """The id of the compilation that an event's first line names, as text; it is not decoded."""
    outer = _AUTOGRAD.search(head) if b'"compiled_autograd_id"' in head else None
    frame = _FRAME.search(head) if b'"frame_id"' in head else None
    numbers = (str(int(frame[1])), str(int(frame[2]))) if frame is not None else ()
    return _named_id(str(int(outer[1])) if outer is not None else "", *numbers)[1]


class _Index:
    """Positions, kinds, compilations and processes of events, in arrays: about 40 bytes per event."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.ids: dict[str, int] = {}
        self.of_kind = array("L")
        self.of_id = array("L")
        self.processes = array("Q")
        self.parts = array("H")
        self.starts = array("Q")
        self.payloads = array("Q")
        self.ends = array("Q")

    def select(self, places: Sequence[int]) -> _Index:
        """The index of the events at some places."""
        index = _Index()
        index.kinds, index.ids = self.kinds, self.ids
        for name in ("of_kind", "of_id", "processes", "parts", "starts", "payloads", "ends"):
            own = getattr(self, name)
            setattr(index, name, array(own.typecode, (own[place] for place in places)))
        return index

    def scan(self, part: int, text: Text) -> None:
        """Add the events of one file. An event ends before the next line that doesn't begin with a tab."""
        place = given_back = 0
        while (head := _next_head(text, place)) is not None:
            line_end = text.find(b"\n", head.end(), head.end() + _LONGEST_HEAD)
            line_end = min(head.end() + _LONGEST_HEAD, len(text)) if line_end < 0 else line_end
            end = _end_of_payload(text, line_end)
            named = _KIND.match(text, head.end())
            kind = named.group(1).decode() if named is not None else ""
            self.of_kind.append(self.kinds.setdefault(kind, len(self.kinds)))
            self.of_id.append(self.ids.setdefault(_id_in(text[head.end() : line_end]), len(self.ids)))
            self.processes.append(int(head[7]))
            self.parts.append(part)
            self.starts.append(head.start())
            self.payloads.append(line_end)
            self.ends.append(end)
            place = end
            if isinstance(text, mmap) and place - given_back > _PAGES_KEPT:
                give_back(text)
                given_back = place
        if isinstance(text, mmap):
            give_back(text)
