"""Whether a shared library is whole: loading one that is shorter than its headers say ends the process by SIGBUS."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_OFFSETS = {1: "I", 2: "Q"}
"""The format of an offset by the class of a file, 32 or 64 bits."""
_HEADERS = 28
"""Where a file says at which offset the headers of its segments are."""
_SIZES = {"I": (4, 16), "Q": (8, 32)}
"""Where the header of a segment says at which offset it begins, and how large it is."""


def missing_bytes(library: Path) -> int:
    """How many bytes the file lacks of what its headers promise, 0 if it is whole, -1 if it is no ELF file.

    The loaders of other systems than Linux check this themselves: there every file counts as whole.
    """
    if sys.platform != "linux":
        return 0
    content = library.read_bytes()
    if content[:4] != b"\x7fELF" or len(content) < 64 or content[4] not in _OFFSETS:
        return -1
    return max(0, _promised_size(content, _OFFSETS[content[4]]) - len(content))


def _promised_size(content: bytes, offset: str) -> int:
    """Where the last segment and the table of sections end, which linkers write last."""
    order = "<" if content[5] == 1 else ">"
    at = _HEADERS if offset == "I" else 32
    segments, sections = struct.unpack_from(f"{order}2{offset}", content, at)
    counts = at + 2 * struct.calcsize(f"{order}{offset}") + 6
    size, count, section_size, section_count = struct.unpack_from(f"{order}4H", content, counts)
    ends = [segments + size * count, sections + section_size * section_count]
    if ends[0] <= len(content):
        for header in range(segments, ends[0], size):
            begin, length = (struct.unpack_from(f"{order}{offset}", content, header + at)[0] for at in _SIZES[offset])
            ends.append(begin + length)
    return int(max(ends))
