"""Whether a shared library is whole: loading one that is shorter than its headers say ends the process by SIGBUS."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_HEADER = struct.Struct("=QQ4x2x4H")
"""From byte 32 of a 64-bit file: where the headers of its segments and of its sections begin; then the size and number
of each, after four bytes of flags and the size of this header."""
_SEGMENT = struct.Struct("=8xQ16xQ")
"""The header of a segment: where it begins in the file, and its size there."""


def missing_bytes(library: Path) -> int:
    """How many bytes the file lacks of what its headers promise, 0 if it is whole, -1 if it is no ELF file.

    The loaders of other systems than Linux check this themselves: there every file counts as whole.
    """
    if sys.platform != "linux":
        return 0
    content = library.read_bytes()
    if content[:5] != b"\x7fELF\x02" or len(content) < 64:
        return -1
    segments, sections, size, count, section_size, section_count = _HEADER.unpack_from(content, 32)
    ends = [segments + size * count, sections + section_size * section_count]  # linkers write these last
    if ends[0] <= len(content):
        headers = (_SEGMENT.unpack_from(content, at) for at in range(segments, ends[0], size))
        ends += [begin + length for begin, length in headers]
    return max(0, *(end - len(content) for end in ends))
