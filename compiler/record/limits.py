"""Size limits of a record, checked before it is decoded.

A record of 100 MB is read in seconds, and in less than 1 GiB of memory including all that is built from it. A few bytes
of JSON can decode to much larger objects, so values are counted in the text; views take time in proportion to entities.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compiler.record import Record

MOST_BYTES = 128 * 2**20
"""Maximum bytes of a file, and of a page after unpacking."""
MOST_MEMORY = 600 * 2**20
MOST_ENTITIES = 200_000
MOST_FACTS = 100_000
"""Maximum number of facts of each kind: guards, decisions, steps, …"""
MOST_STATES = 12
"""Maximum number of states of a program that an x-ray captures, and that a map shows besides the one without fixes."""

_BYTES_OF = {b"{": 240, b"[": 120, b",": 32}
_BYTES_OF_TEXT = 56
_PIECE = 2**20
_DIGITS = 20
_LONG_NUMBER = re.compile(rb"(?<![.\d])\d{%d}" % _DIGITS)


class TooLargeError(ValueError):
    """A file would take too much memory, or too long to show. The message has the numbers."""


def check_json(data: bytes) -> None:
    """Check that decoding JSON stays below the memory limit. Raises TooLargeError."""
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
    for path, facts in (("$", record), ("$.xray", record.xray)):
        for name in getattr(facts, "__dataclass_fields__", ()):
            value = getattr(facts, name)
            if isinstance(value, tuple) and len(value) > MOST_FACTS:
                raise TooLargeError(f"`{path}.{name}` has {len(value):,} items; at most {MOST_FACTS:,} are shown")


def _memory_for(data: bytes) -> int:
    """Upper bound of the bytes that the JSON values take in Python. Raises TooLargeError for very long numbers."""
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
    """Yield the JSON outside of strings in pieces, as splitting it at once would take many times the memory."""
    inside = 0
    for start in range(0, len(data), _PIECE):
        pieces = data[start : start + _PIECE].split(b'"')
        yield b"".join(pieces[inside::2])
        inside ^= (len(pieces) - 1) % 2


def _bytes_a_character(data: bytes) -> int:
    """Bytes that Python may need for each character of a string, by the widest character in the JSON."""
    if data.isascii() and rb"\u" not in data:
        return 1
    is_wide = any(bytes([lead]) in data for lead in range(0xF0, 0xF5)) or rb"\ud" in data.lower()
    return 4 if is_wide else 2
