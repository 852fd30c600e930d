"""Find and read the logs at a path: a file, a directory of rank logs, or an archive of one.

A log is mapped into memory, or read if it is small. Archives are unpacked in memory, with bounds. Nothing is written to
disk, and links that lead out of a directory are not followed.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from compiler.logs.events import Log, LogProblem, Text
from compiler.record.plain_text import pluralize

MOST_UNPACKED = 400 * 2**20
"""Maximum bytes of an archive, and of its members together, unpacked: unlike files, they are held in memory."""
_MOST_PASSED = 2**32
"""Maximum unpacked bytes of a `.tar.gz`, with the members that are no logs and not kept."""
MOST_PACKED = 200
"""Maximum size of an unpacked log ÷ that of its archive, if the log is large; logs have 5 to 30."""
LARGE = 128 * 2**20
"""An unpacked log of at most this many bytes is read however well it was packed: a program may repeat itself."""
_PIECE = 2**18
MOST_FILES = 10_000
DEEPEST = 5
"""Maximum depth of the directories in which logs are looked for."""
SMALL_FILE = 16 * 2**20
"""A file of at most this many bytes is read, so that a program that shortens it later does no harm."""
MOST_SPLIT = 256 * 2**20
"""Maximum bytes of a file whose lines are sorted by rank, which needs a copy of it."""

_SEARCHED = f" (its first {SMALL_FILE / 1e6:.0f} MB were searched)"
_LOG_NAME = re.compile(r"(.*\.log)(?:[._-](\d+|\d{4}[-\d]*))?(\.gz)?$|(dedicated_log_torch_trace\S*?)(?:\.(\d+))?$")
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank_?(\d{1,6})(?!\d)", re.IGNORECASE)
_RANK_IN_EVENT = re.compile(rb'"rank": (\d{1,6})[,}]')
_COLOR = rb"(?:\x1b\[[\d;]*m)?"
_PREFIX = re.compile(
    rb"\[[\w/.-]{0,60}?(?P<rank>\d{1,6})\]: ?"
    + rb"|%b\((?P<process>[^()\n]{0,80}\bpid=\d+[^()\n]{0,80})\)%b " % (_COLOR, _COLOR),
    re.IGNORECASE,
)
"""What launchers write before each line: "[default3]:" (torchrun), "[rank3]:", "(Worker pid=12)" (vLLM, Ray)."""
_FIRST_EVENT = re.compile(
    rb"^(?P<prefix>\[[^\]\n]{1,40}\]: ?|%b\([^()\n]{1,180}\)%b )?" % (_COLOR, _COLOR)
    + rb"V\d{4} [\d:.]+ +\d+ [^\n\]]{1,500}\] \{",
    re.MULTILINE,
)
_TIME = re.compile(rb"^V(\d{4} [\d:.]+)", re.MULTILINE)


class LogError(ValueError):
    """A path holds no log that can be read; the message says why in one line."""


@dataclass
class _Found:
    """Texts of logs by name, and what was left out."""

    texts: dict[str, Text] = field(default_factory=dict)
    problems: list[LogProblem] = field(default_factory=list)

    def leave_out(self, name: str, reason: str) -> None:
        self.problems.append(LogProblem(name, 0, reason))


def read_logs(path: str | Path) -> tuple[Log, ...]:
    """The logs at a path, one for each process, in the order of their ranks.

    `path` is a file, a directory, or a `.tar.gz`, `.tar`, `.gz` or `.zip` of one. Parts of a rotated file are joined.
    What can't be read is a problem of the first log. Raises LogError if there is no event at all, and OSError.
    """
    path = Path(path)
    found = _Found()
    if path.is_dir():
        _read_directory(path, found)
    else:
        try:
            _add_content(path.name, _content(path), found)
        except LogError as error:
            raise LogError(f"{path.name}: {error}") from None
    named = path.name or str(path)
    if not found.texts:
        raise LogError(_no_log_message(named, found.problems))
    logs = [log for parts in _group_rotated_files(found.texts) for log in _logs_of(parts, found)]
    readable = [log for log in logs if len(log)]
    for log in logs:
        if not len(log):
            found.leave_out(log.names[0], _what_it_is(log.texts[0]))
    if not readable:
        raise LogError(_no_log_message(named, found.problems))
    readable.sort(key=lambda log: (log.rank is None, log.rank or 0, _start(log.texts[0])))
    readable[0].problems.extend(found.problems)
    return tuple(readable)


def _no_log_message(name: str, problems: list[LogProblem]) -> str:
    if not problems:
        return f"{name}: it has no log of TORCH_TRACE (dedicated_log_torch_trace_….log)"
    more = f" ({pluralize(len(problems) - 1, 'other file')} left out, too)" if len(problems) > 1 else ""
    where = "" if problems[0].file == name else f"{problems[0].file}: "
    return f"{name}: {where}{problems[0].reason}{more}"


def _read_directory(folder: Path, found: _Found) -> None:
    """Add the log files below a folder."""
    root = folder.resolve()
    for path in _log_files(folder, found):
        name = str(path.relative_to(folder))
        if not path.resolve().is_relative_to(root):
            found.leave_out(name, "it is a link that leads out of the directory; it is not read")
            continue
        try:
            _add_content(name, _content(path), found)
        except (LogError, OSError) as error:
            found.leave_out(name, str(error))


def _log_files(folder: Path, found: _Found) -> Iterator[Path]:
    count = 0
    for root, folders, names in os.walk(folder):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < DEEPEST else []
        for name in sorted(names):
            if not _LOG_NAME.fullmatch(name):
                continue
            if count == MOST_FILES:
                found.leave_out(folder.name, f"it has more than {MOST_FILES:,} logs; the others are left out")
                return
            count += 1
            yield Path(root) / name


def _content(path: Path) -> Text:
    """The content of a regular file, mapped unless it is small. Opening does not block. Raises LogError and OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        known = os.fstat(descriptor)
        if not stat.S_ISREG(known.st_mode):
            raise LogError("this is no regular file")
        if known.st_size <= SMALL_FILE:
            with open(descriptor, "rb", closefd=False) as stream:
                return stream.read(SMALL_FILE + 1)
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)


def _add_content(name: str, text: Text, found: _Found) -> None:
    """Add a log, or the logs of an archive."""
    start = bytes(text[:512])
    is_gzip = start[:2] == b"\x1f\x8b"
    is_archive = is_gzip or start[:4] == b"PK\x03\x04" or _is_tar(start)
    if is_archive and len(text) > MOST_UNPACKED:
        raise LogError(_too_large(MOST_UNPACKED))
    if start[:4] == b"PK\x03\x04":
        _add_zip(name, text, found)
    elif _is_tar(start) or (is_gzip and _is_tar(_start_of_gzip(text))):
        _add_tar(text, found)
    elif is_gzip:
        found.texts[name.removesuffix(".gz")] = _gunzip(text, MOST_UNPACKED)
    elif len(text) > SMALL_FILE and _FIRST_EVENT.search(text, 0, SMALL_FILE) is None:
        found.leave_out(name, f"{_what_it_is(text)}{_SEARCHED}")
    else:
        found.texts[name] = text


def _is_tar(start: bytes) -> bool:
    return start[257:262] == b"ustar"


def _too_large(most: int) -> str:
    return f"unpacked, it has more than {most / 1e6:,.0f} MB: unpack it first"


class _Unpacked:
    """Unpacked bytes, with bounds. What can't be a log is given up early: a small archive may hold terabytes."""

    def __init__(self, packed: int, most: int) -> None:
        self._packed, self._most = packed, most
        self._stream = io.BytesIO()

    @property
    def bytes_left(self) -> int:
        """The number of bytes that may follow, and one more, which is too many."""
        return self._most - self._stream.tell() + 1

    def add(self, part: bytes) -> None:
        """Add the next bytes. Raises LogError if they are too many, or too well packed to be a log."""
        size = self._stream.tell() + len(part)
        if size > self._most:
            raise LogError(_too_large(MOST_UNPACKED))
        was_small = self._stream.tell() <= SMALL_FILE
        self._stream.write(part)
        if was_small and size > SMALL_FILE:
            self._check_start()
        if size > LARGE and size > MOST_PACKED * self._packed:
            raise LogError(
                f"it is packed more than {MOST_PACKED} times, and has over {LARGE / 1e6:,.0f} MB: unpack it first"
            )

    def add_all(self, stream: IO[bytes]) -> bytes:
        """Add what is left of a stream, and return all bytes."""
        while part := stream.read(min(_PIECE, self.bytes_left)):
            self.add(part)
        return self.content()

    def _check_start(self) -> None:
        with self._stream.getbuffer() as content:
            if bytes(content[:2]) == b"\x1f\x8b" or _FIRST_EVENT.search(content) is not None:
                return
            start = bytes(content[:4096])
        raise LogError(f"{_what_it_is(start)}{_SEARCHED}")

    def content(self) -> bytes:
        return self._stream.getvalue()


def _unzip_parts(text: Text) -> Iterator[bytes]:
    """The unpacked parts of gzip data, which may be several files, one after the other. Raises zlib.error."""
    unpacker = zlib.decompressobj(wbits=31)
    for start in range(0, len(text), _PIECE):
        packed = text[start : start + _PIECE]
        while packed:
            if unpacker.eof:
                unpacker = zlib.decompressobj(wbits=31)
            if part := unpacker.decompress(packed, _PIECE):
                yield part
            packed = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail


def _start_of_gzip(text: Text) -> bytes:
    try:
        return next(_unzip_parts(text), b"")
    except zlib.error as error:
        raise LogError(f"it is a damaged gzip file: {error}") from None


def _gunzip(text: Text, most: int) -> bytes:
    """Unpack gzip data, as far as a damaged or truncated file can be read.

    Raises LogError if it is too large, or damaged from the start.
    """
    unpacked = _Unpacked(len(text), most)
    try:
        for part in _unzip_parts(text):
            unpacked.add(part)
    except zlib.error as error:
        if not unpacked.content():
            raise LogError(f"it is a damaged gzip file: {error}") from None
    return unpacked.content()


class _GzipStream:
    """Gzip data as a stream that keeps nothing. Raises LogError after `_MOST_PASSED` bytes."""

    def __init__(self, text: Text) -> None:
        self._parts, self._next, self._count = _unzip_parts(text), b"", 0

    def read(self, size: int) -> bytes:
        while len(self._next) < size and (part := next(self._parts, b"")):
            self._next += part
        found, self._next = self._next[:size], self._next[size:]
        self._count += len(found)
        if self._count > _MOST_PASSED:
            raise LogError(_too_large(_MOST_PASSED))
        return found


def _add_tar(text: Text, found: _Found) -> None:
    """Add the members of a tar archive, which may be packed; they are read in order, and others are passed over."""
    left = MOST_UNPACKED
    stream: Any = _GzipStream(text) if bytes(text[:2]) == b"\x1f\x8b" else io.BytesIO(text[:])
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_PIECE) as archive:
            for count, member in enumerate(archive):
                if not _is_wanted(member.name, count, found):
                    continue
                if not member.isreg():
                    found.leave_out(member.name, "it is a link or no regular file; it is not read")
                elif member.size > left:
                    found.leave_out(member.name, _too_large(MOST_UNPACKED))
                elif (content := archive.extractfile(member)) is not None:
                    left -= _add_member(member.name, content, len(text), left, found)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        found.leave_out("archive", f"it is damaged: {error}")
    except LogError as error:
        found.leave_out("archive", str(error))


def _add_zip(name: str, text: Text, found: _Found) -> None:
    left = MOST_UNPACKED
    try:
        with zipfile.ZipFile(io.BytesIO(text[:])) as archive:
            for count, member in enumerate(archive.infolist()):
                if member.is_dir() or not _is_wanted(member.filename, count, found):
                    continue
                if member.file_size > left:
                    found.leave_out(member.filename, _too_large(MOST_UNPACKED))
                    continue
                with archive.open(member) as content:
                    left -= _add_member(member.filename, content, len(text), left, found)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, zlib.error) as error:
        found.leave_out(name, f"the archive is damaged or encrypted: {error}")


def _is_wanted(name: str, count: int, found: _Found) -> bool:
    if count == MOST_FILES:
        found.leave_out(name, f"the archive has more than {MOST_FILES:,} files; the others are left out")
    return count < MOST_FILES and bool(_LOG_NAME.fullmatch(name.rpartition("/")[2]))


def _add_member(name: str, stream: IO[bytes], packed: int, most: int, found: _Found) -> int:
    """Add a member of an archive, and return its size; archives in it are not unpacked, except single `.gz` logs."""
    try:
        content = _Unpacked(packed, most).add_all(stream)
        if content[:2] == b"\x1f\x8b":
            content = _gunzip(content, most)
    except LogError as error:
        found.leave_out(name, str(error))
        return 0
    found.texts[name.removesuffix(".gz")] = content
    return len(content)


def _group_rotated_files(texts: dict[str, Text]) -> Iterator[dict[str, Text]]:
    """Group the files that are parts of one rotated log, in order of their first event."""
    groups: dict[str, dict[str, Text]] = {}
    for name, text in texts.items():
        matched = _LOG_NAME.fullmatch(name)
        base = (matched[1] or matched[4]) if matched else name
        groups.setdefault(base, {})[name] = text
    for parts in groups.values():
        yield dict(sorted(parts.items(), key=lambda part: _start(part[1])))


def _start(text: Text) -> bytes:
    """Month, day and time of the first event; they have no year."""
    matched = _TIME.search(text)
    return matched[1] if matched else b""


def _logs_of(parts: dict[str, Text], found: _Found) -> Iterator[Log]:
    """The log in the parts of a file; several if the lines of several ranks are interleaved in it."""
    names, texts = tuple(parts), tuple(parts.values())
    named = _RANK_IN_NAME.search(names[0].rpartition("/")[2])
    if any(_has_prefixes(text) for text in texts):
        yield from _by_prefix(names[0], texts, found)
        return
    log = Log(names, texts, int(named[1]) if named else None)
    ranks = _ranks_in_events(log)
    if len(ranks) > 1 and sum(map(len, texts)) <= MOST_SPLIT:
        listed = ", ".join(map(str, sorted(ranks)))
        found.leave_out(names[0], f"events of ranks {listed} are interleaved in one file; they are shown by rank")
        yield from (_only_rank(log, rank) for rank in sorted(ranks))
        return
    if ranks and log.rank not in ranks:
        logged = ranks.most_common(1)[0][0]
        if log.rank is not None:
            words = f"its name says rank {log.rank}, its events say rank {logged}, which is shown"
            found.leave_out(names[0], words)
        log.rank = logged
    yield log


def _has_prefixes(text: Text) -> bool:
    first = _FIRST_EVENT.search(text)
    return first is not None and first["prefix"] is not None


def _by_prefix(name: str, texts: Iterable[Text], found: _Found) -> Iterator[Log]:
    """Logs of the ranks or processes that are named before each line."""
    lines: dict[bytes, list[bytes]] = {}
    for text in texts:
        if len(text) > MOST_SPLIT:
            found.leave_out(name, f"its lines have a prefix of the process; it has over {MOST_SPLIT / 1e6:,.0f} MB")
            return
        for line in bytes(text).splitlines(keepends=True):
            if matched := _PREFIX.match(line):
                lines.setdefault(matched["rank"] or matched["process"], []).append(line[matched.end() :])
    for process, own in sorted(lines.items()):
        log = Log((name,), (b"".join(own),))
        logged = [rank for rank, _ in _ranks_in_events(log).most_common(1)]  # torchrun's prefix is the rank on a node
        named = [int(process)] if process.isdigit() else []
        log.rank = next(iter(logged + named), None)
        yield log


def _ranks_in_events(log: Log) -> Counter[int]:
    return Counter(int(matched[1]) for head in log.heads() if (matched := _RANK_IN_EVENT.search(head)))


def _only_rank(log: Log, rank: int) -> Log:
    """The events of one rank, and those without a rank, such as interned strings."""
    wanted = (
        text for head, text in log.texts_of_events()
        if (matched := _RANK_IN_EVENT.search(head)) is None or int(matched[1]) == rank
    )  # fmt: skip
    return Log(log.names, (b"\n".join(wanted) + b"\n",), rank)


def _what_it_is(text: Text) -> str:
    """Why a file has no event, in one line."""
    start = bytes(text[:4096])
    if not start:
        return "it is empty"
    if start[:2] in (b"\xff\xfe", b"\xfe\xff") or (b"V\x00" in start and start.count(b"\x00") > len(start) // 3):
        return "it is UTF-16 text; a structured trace is UTF-8: convert it first"
    if b"\x00" in start or sum(byte > 127 for byte in start) > len(start) // 3:
        return "it is binary, and no structured trace"
    if re.search(rb"^[VIWEF]\d{4} ", start, re.MULTILINE):
        return "it is a log of TORCH_LOGS or of another tool; a structured trace is made by TORCH_TRACE=directory"
    return "it has no event of a structured trace, which TORCH_TRACE=directory makes"
