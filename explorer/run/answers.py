"""Answers as JSON for programs: a schema with a version, ids that stay, and pages of at most 20 kB.

An answer is a list of items, each a JSON object with an `id`, and a few facts of the whole. What does not fit on a page
comes on the next one, at its `next_cursor`. A text that alone is too long is cut, and `cut` says which and how long it
was; without a limit of bytes nothing is cut.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

SCHEMA: Final = 1
READABLE: Final = (SCHEMA,)
MOST_BYTES: Final = 20_000
LEAST_BYTES: Final = 1_000
_SHORTEST_CUT = 40
_UNSEEN: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
_FACTS_SHARE = 0.4


class AnswerError(ValueError):
    """Raised for an invalid cursor, limit or answer; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """What was asked for, before it is divided into pages. `kind` names the form of the items: "diagnosis", "breaks".

    `facts` and `items` are dataclasses, or what JSON has. Each item has an `id`.
    """

    kind: str
    title: str
    facts: Any = field(default_factory=dict)
    items: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page of an answer, as it is written. `total` is the number of items of all pages.

    `next_cursor` asks for the next page, None on the last one. `cut` maps a place in this page (`/items/0/edit`) to the
    number of characters or elements that it has uncut.
    """

    kind: str
    title: str
    facts: dict[str, Any]
    items: list[dict[str, Any]]
    total: int
    next_cursor: str | None = None
    cut: dict[str, int] = field(default_factory=dict)
    schema: int = SCHEMA


def answer_json(answer: Answer, limit: int | None = None, cursor: str = "", most_bytes: int | None = MOST_BYTES) -> str:
    """The page of an answer that begins at a cursor, as JSON; the first page without one.

    It has at most `limit` items and `most_bytes` bytes, None for no limit. Raises AnswerError for an invalid limit, and
    for a cursor of an answer that has changed since.
    """
    check_limits(limit, most_bytes)
    items: list[Any] = [_plain(item) for item in answer.items]
    digest = _digest(answer.kind, items)
    start = _start_of(cursor, digest, len(items))
    facts = dict(_plain(answer.facts))
    most = len(items) - start if limit is None else min(limit, len(items) - start)
    cut: dict[str, int] = {}
    if most_bytes is not None:
        facts = _cut_to_fit(facts, "/facts", int(most_bytes * _FACTS_SHARE), cut)
        frame = _encode(Page(answer.kind, answer.title[:200], facts, [], len(items), f"{len(items)}.{digest}", cut))
        most = _count_that_fits(items[start : start + most], most_bytes - len(frame))
    while True:
        chosen, of_items = items[start : start + most], dict(cut)
        if most_bytes is not None and most == 1:
            room = most_bytes - len(_encode(Page(answer.kind, answer.title[:200], facts, [], 0, "", cut))) - 200
            chosen = [_cut_to_fit(chosen[0], "/items/0", room, of_items)]
        end = start + most
        following = f"{end}.{digest}" if end < len(items) else None
        title = answer.title if most_bytes is None else answer.title[:200]
        text = _encode(Page(answer.kind, title, facts, chosen, len(items), following, of_items))
        if most_bytes is None or len(text) <= most_bytes or most <= 1:
            return text.decode()
        most -= 1


def check_limits(limit: int | None, most_bytes: int | None) -> None:
    """Raise AnswerError if no page can have so few items or bytes."""
    if limit is not None and limit < 1:
        raise AnswerError(f"a page has at least 1 item, got a limit of {limit}")
    if most_bytes is not None and most_bytes < LEAST_BYTES:
        raise AnswerError(f"a page has at least {LEAST_BYTES:,} bytes, got {most_bytes:,}")


def _count_that_fits(items: Sequence[Any], most_bytes: int) -> int:
    """How many of the first items have at most so many bytes with a comma each; 1 if the first has more."""
    used = 0
    for number, item in enumerate(items):
        used += len(_encode(item)) + 1
        if used > most_bytes:
            return max(number, 1)
    return len(items)


def read_page(text: str | bytes) -> Page:
    """Read a page that `answer_json` wrote. Raises AnswerError for another schema, and for what is no page."""
    try:
        found = msgspec.json.decode(text, type=Page)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise AnswerError(f"this is no answer of tcompile: {error}") from None
    if found.schema not in READABLE:
        raise AnswerError(f"answer schema {found.schema}; this version of tcompile reads schema {SCHEMA}")
    return found


def _encode(value: Any) -> bytes:
    """JSON in which characters that are not seen, or turn text around, are escapes: names may hold any."""
    return _UNSEEN.sub(_escape, msgspec.json.encode(value).decode()).encode()


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str, str_keys=True)


def _digest(kind: str, items: Iterable[Any]) -> str:
    return hashlib.sha256(_encode([kind, list(items)])).hexdigest()[:10]


def _start_of(cursor: str, digest: str, count: int) -> int:
    if not cursor:
        return 0
    number, _, known = cursor.partition(".")
    if not number.isdecimal() or len(number) > 9 or int(number) > count or not known:
        raise AnswerError(f"{cursor!r} is no cursor of this answer; ask without one")
    if known != digest:
        raise AnswerError(f"the answer has changed since the cursor {cursor!r} was given; ask again without one")
    return int(number)


def _cut_to_fit(value: dict[str, Any], place: str, most_bytes: int, cut: dict[str, int]) -> dict[str, Any]:
    """`value` with its longest texts and lists cut until it fits; `cut` gets their places and full lengths."""
    longest = max(most_bytes, _SHORTEST_CUT)
    found, own = value, dict[str, int]()
    while len(_encode([found, own])) > most_bytes and longest >= _SHORTEST_CUT:
        longest, own = longest // 2, {}
        found = _shorten(value, place, longest, own)
    if len(_encode([found, own])) > most_bytes:  # of many short parts
        found, own = {name: found[name] for name in ("id",) if name in found}, {place: len(value)}
    cut.update(own)
    return found


def _shorten(value: Any, place: str, longest: int, cut: dict[str, int]) -> Any:
    if isinstance(value, str) and len(value) > longest:
        cut[place] = len(value)
        return f"{value[:longest]}…"
    if isinstance(value, Mapping):
        return {name: _shorten(each, f"{place}/{name}", longest, cut) for name, each in value.items()}
    if isinstance(value, list | tuple):
        most = max(longest // _SHORTEST_CUT, 1)
        if len(value) > most:
            cut[place] = len(value)
        return [_shorten(each, f"{place}/{number}", longest, cut) for number, each in enumerate(value[:most])]
    return value
