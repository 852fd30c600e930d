"""Limits of a record's size, checked before it is decoded.

A record of 100 MB is read in seconds, and in less than 1 GiB of memory with all that is made of it. JSON of a few bytes
can stand for objects of many more, so these are counted in the text; and views take as long as a record has entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.record import Record

MOST_BYTES = 128 * 2**20
"""A file has at most so many bytes, and a page unpacks to at most so many."""
MOST_MEMORY = 600 * 2**20
MOST_ENTITIES = 200_000
MOST_FACTS = 100_000
"""At most so many of each kind: guards, decisions, steps, …"""

_BYTES_OF = {b"{": 240, b"[": 120, b",": 32}
_BYTES_OF_TEXT = 56
_PIECE = 2**20
_DIGITS = 20
_LONG_NUMBER = re.compile(rb"(?<![.\d])\d{%d}" % _DIGITS)


class TooLargeError(ValueError):
    """A file that would take more memory, or time to show, than is allowed. The message has the numbers."""


def check_json(data: bytes) -> None:
    """Check that decoding JSON stays below the limit of memory. Raises TooLargeError."""
    if len(data) > MOST_BYTES:
        raise TooLargeError(f"it has {len(data) / 1e6:,.0f} MB; at most {MOST_BYTES / 1e6:,.0f} MB are read")
    needed = _memory_for(data)
    if needed > MOST_MEMORY:
        raise TooLargeError(
            f"its values would take some {needed / 1e6:,.0f} MB of memory (estimate); at most {MOST_MEMORY / 1e6:,.0f} "
            "MB are allowed"
        )


def check_counts(record: Record) -> None:
    """Check that a record is small enough to be shown. Raises TooLargeError naming the field."""
    entities = sum(len(artifact.entities) for artifact in record.artifacts)
    if entities > MOST_ENTITIES:
        raise TooLargeError(f"`$.artifacts` have {entities:,} entities; at most {MOST_ENTITIES:,} are shown")
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if isinstance(value, tuple) and len(value) > MOST_FACTS:
            raise TooLargeError(f"`$.{name}` has {len(value):,} items; at most {MOST_FACTS:,} are shown")


def _memory_for(data: bytes) -> int:
    """An upper bound of the bytes that JSON's values take in Python."""
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    texts = unescaped.count(b'"') // 2
    fixed = texts * _BYTES_OF_TEXT + len(data) * _bytes_a_character(data)
    if fixed > MOST_MEMORY:
        return fixed
    last = b""
    for structure in _outside_texts(unescaped):
        fixed += sum(structure.count(sign) * size for sign, size in _BYTES_OF.items())
        if _LONG_NUMBER.search(last + structure):
            raise TooLargeError("it holds a number of 20 digits or more")
        last = structure[-_DIGITS:]
    return fixed


def _outside_texts(data: bytes) -> Iterator[bytes]:
    """The JSON outside of strings, in pieces, as all at once would take many times the memory."""
    inside = 0
    for start in range(0, len(data), _PIECE):
        pieces = data[start : start + _PIECE].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) % 2


def _bytes_a_character(data: bytes) -> int:
    """The bytes that Python stores for each character of a text: those of the widest one."""
    if data.isascii() and rb"\u" not in data:
        return 1
    is_wide = any(bytes([lead]) in data for lead in range(0xF0, 0xF5)) or rb"\ud" in data.lower()
    return 4 if is_wide else 2
