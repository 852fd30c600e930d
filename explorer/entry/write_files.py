"""Write a patch to the user's files: all of them or none, each with a backup beside it."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from explorer.run.files import replace_file

if TYPE_CHECKING:
    from compiler.xray.patch import EditedFile


def write_files(files: Sequence[EditedFile]) -> list[Path]:
    """Write edited files, all or none; return the backups beside them. Mode bits and encoding are kept.

    Raises ValueError, before anything is written, if a file has changed since it was read or may not be written, and
    OSError if writing fails.
    """
    new = [(Path(file.path), file.data, file.after.encode(file.encoding)) for file in files if _must_be_the_same(file)]
    backups = [_write_backup(path) for path, _, _ in new]
    done: list[tuple[Path, bytes]] = []
    try:
        for path, before, after in new:
            replace_file(path, after)
            done.append((path, before or b""))
    except BaseException:
        for path, before in done:
            replace_file(path, before)
        for backup in backups:
            backup.unlink(missing_ok=True)
        raise
    return backups


def _must_be_the_same(file: EditedFile) -> bool:
    """Return True for a file that is unchanged and writable. Raises ValueError for any other file."""
    if file.is_cell:
        raise ValueError(f"{file.name} is no file: nothing was written")
    if file.data is None or Path(file.path).read_bytes() != file.data:
        raise ValueError(f"{file.name} has changed since it was read: nothing was written. X-ray it again")
    if not os.access(file.path, os.W_OK):
        raise ValueError(f"{file.name} may not be written (its mode bits say so): nothing was written")
    return True


def _write_backup(path: Path) -> Path:
    """Copy a file to a new one beside it, with its mode bits: `model.py.orig`, or `model.py.orig2` if that exists."""
    for number in itertools.count(1):
        backup = path.with_name(f"{path.name}.orig{number if number > 1 else ''}")
        try:
            with backup.open("xb") as stream:
                stream.write(path.read_bytes())
        except FileExistsError:
            continue
        shutil.copymode(path, backup)
        return backup
    raise AssertionError("there is always another number")
