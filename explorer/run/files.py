"""Read and write records as `.json`, or inside a saved page (`.html`). Files are replaced atomically."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from compiler.record import Record, RecordError
from compiler.record.limits import MOST_BYTES

SUFFIXES = (".html", ".json")


def read(path: str | Path) -> Record:
    """Read a record from a `.json` file or from a page saved as `.html`; nothing in it is executed.

    Raises RecordError with the file and the invalid field, ValueError for another suffix, and OSError if the file can't
    be read.
    """
    path = Path(path)
    suffix = known_suffix(path)
    try:
        data = _content(path)
        return Record.from_json(data) if suffix == ".json" else _from_page(data)
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from None


def is_record(path: str | Path) -> bool:
    """Whether a path names a saved record by its suffix, rather than the logs of a job."""
    return Path(path).suffix.lower() in SUFFIXES


def _content(path: Path) -> bytes:
    """The bytes of a regular file. Raises RecordError for other kinds of files and for large files, and OSError.

    The file is opened without blocking and checked first, because opening a FIFO would wait for a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RecordError("this is no regular file")
        if found.st_size > MOST_BYTES:
            raise RecordError(f"it has {found.st_size / 1e6:,.0f} MB; at most {MOST_BYTES / 1e6:,.0f} MB are read")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)


def write(record: Record, path: str | Path) -> Path:
    """Write a record as `.json`, or as one self-contained `.html` page. Returns the path.

    Raises ValueError for another suffix, before anything is written, and OSError if the file can't be written.
    """
    path = Path(path)
    text = record.to_json() if known_suffix(path) == ".json" else _page(record)
    return replace_file(path, text.encode())


def write_stage(record: Record, path: str | Path, stage: str, *, as_graph: bool = False) -> Path:
    """Write a small `.html` page of one stage, for an `<iframe>`. Returns the path.

    Raises ValueError for another suffix or an unknown stage, and OSError if the file can't be written.
    """
    from explorer.run.page import stage_page

    path = Path(path)
    if known_suffix(path) != ".html":
        raise ValueError(f"{str(path)!r}: one stage is saved as a page, '.html'")
    try:
        text = stage_page(record, stage, as_graph=as_graph)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    return replace_file(path, text.encode())


def known_suffix(path: Path) -> str:
    """The lower-case suffix of a record file. Raises ValueError for an unknown suffix."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        given = f"ends in {path.suffix!r}" if path.suffix else "has no suffix"
        raise ValueError(f"{str(path)!r} {given}; a run is saved as '.html' (a page to explore) or '.json' (data)")
    return suffix


def replace_file(path: Path, data: bytes) -> Path:
    """Write a file atomically, by renaming a temporary file in the same folder; return the path."""
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as stream:
            stream.write(data)
        if target.exists():
            draft.chmod(target.stat().st_mode & 0o777)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return path


def _page(record: Record) -> str:
    from explorer.run import page as html
    from explorer.run import page_record
    from explorer.run.both_sides import with_other_side

    return page_record.with_facts(html.page(with_other_side(record)), record)


def _from_page(data: bytes) -> Record:
    from explorer.run import page_record

    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RecordError("this is not a page saved by tcompile: it is not UTF-8 text") from None
    return page_record.record_of(text)
