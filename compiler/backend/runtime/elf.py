"""Check that a shared library is complete: loading a truncated one ends the process with SIGBUS."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_HEADER = struct.Struct("=QQ4x2x4H")
"""Fields of a 64-bit ELF header from byte 32: offset of the segment headers, offset of the section headers, six bytes
that are skipped, size and number of the segment headers, size and number of the section headers."""
_SEGMENT = struct.Struct("=8xQ16xQ")
"""A segment header: the segment's offset and size in the file."""


def missing_bytes(library: Path) -> int:
    """Number of bytes missing at the end of a file, by its headers: 0 if complete, -1 if it is no 64-bit ELF file.

    Always 0 on systems other than Linux, as their loaders check this themselves.
    """
    if sys.platform != "linux":
        return 0
    content = library.read_bytes()
    if content[:5] != b"\x7fELF\x02" or len(content) < 64:
        return -1
    segments, sections, size, count, section_size, section_count = _HEADER.unpack_from(content, 32)
    ends = [segments + size * count, sections + section_size * section_count]  # linkers write the section headers last
    if ends[0] <= len(content):
        headers = (_SEGMENT.unpack_from(content, at) for at in range(segments, ends[0], size))
        ends += [begin + length for begin, length in headers]
    return max(0, *(end - len(content) for end in ends))
