"""Cache of compiled GPU kernels and their times on disk.

Cached binaries are executed, so the folder must be one that no other user can change. TCOMPILE_CACHE_DIR names it; the
default is `tcompile` in TorchInductor's cache. An entry is a JSON file named by its key, with a digest of its facts;
its binary is a file named by the hash of its content. An entry that does not match its hashes counts as missing.
"""

from __future__ import annotations

import atexit
import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from getpass import getuser
from pathlib import Path
from typing import Any

import torch
import triton

from compiler.torch_api.cuda_launch import driver_version


def folder() -> Path:
    """The cache's folder, created if needed; a private temporary folder if it can't be used or others can change it."""
    inductors = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{_user()}")
    chosen = Path(os.environ.get("TCOMPILE_CACHE_DIR") or Path(inductors, "tcompile")).absolute()
    return _check_folder(chosen, chosen.exists())


def _user() -> str:
    with suppress(KeyError):
        return getuser()
    return str(os.getuid())  # in containers, a user id may have no name


@cache
def _check_folder(chosen: Path, exists: bool) -> Path:
    """Create and check the folder; return it, or a private folder if it can't be used.

    `exists` is part of this function's cache key, so that a folder that was removed is created again.
    """
    try:
        if not exists:
            chosen.parent.mkdir(parents=True, exist_ok=True)
            chosen.mkdir(mode=0o700, exist_ok=True)
        why = reason_untrusted(chosen)
    except OSError as error:
        why = str(error)
    if why:
        advice = "set TCOMPILE_CACHE_DIR to a folder of your own to keep compiled kernels between processes"
        warnings.warn(f"tcompile does not use its cache {chosen}: {why}; {advice}", stacklevel=2)
        return _private_folder()
    chosen.chmod(0o700)
    return chosen


@cache
def _private_folder() -> Path:
    made = tempfile.mkdtemp(prefix="tcompile-cache-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def reason_untrusted(path: Path) -> str:
    """Why users other than the current user and root could change a folder's content; "" if they can't."""
    if path.stat().st_uid != os.getuid():
        return f"{path} belongs to user {path.stat().st_uid}"
    for part in dict.fromkeys((path, *path.parents, path.resolve(), *path.resolve().parents)):
        found = part.lstat()
        if found.st_uid not in (0, os.getuid()):
            return f"{part} belongs to user {found.st_uid}"
        if not stat.S_ISLNK(found.st_mode) and _others_write(found):
            return f"others may write to {part}"
    return ""


def _others_write(found: os.stat_result) -> bool:
    """Whether other users can remove or replace files in a folder. The sticky bit prevents this."""
    if found.st_mode & stat.S_ISVTX:
        return False
    by_group = bool(found.st_mode & stat.S_IWGRP) and found.st_gid not in (0, *_private_groups())
    return by_group or bool(found.st_mode & stat.S_IWOTH)


def _private_groups() -> Iterator[int]:
    """The user's primary group, if it is a private group of the user's name, as many systems have."""
    try:
        user = pwd.getpwuid(os.getuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return
    if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}:
        yield group.gr_gid


@cache
def versions() -> str:
    """Versions that binaries and times depend on: of torch, Triton, ptxas and the driver."""
    ptxas = triton.knobs.nvidia.ptxas.version
    return f"torch {torch.__version__} triton {triton.__version__} ptxas {ptxas} driver {driver_version()}"


def key(*parts: str) -> str:
    """Cache key: a hash of the given texts and of `versions()`."""
    return hashlib.sha256("\n".join((*parts, versions())).encode()).hexdigest()[:40]


def binary_path(content: bytes) -> Path:
    """Path of a binary with this content."""
    return folder() / f"{_name(content)}.cubin"


def read(key: str) -> tuple[Mapping[str, Any], bytes] | None:
    """Read an entry's facts and binary; None if it is missing, or if one of its files was changed."""
    try:
        kept = json.loads((folder() / f"{key}.json").read_bytes())
        facts, name = kept["facts"], kept["binary"]
        content = (folder() / f"{name}.cubin").read_bytes() if name else b""
        is_right = kept["digest"] == _digest(facts, name) and _name(content) == name
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (facts, content) if is_right else None


def write(key: str, facts: Mapping[str, Any], content: bytes = b"") -> None:
    """Write an entry: the binary first, then the JSON file that refers to it. Raises OSError."""
    name = _name(content)
    if name:
        _replace(binary_path(content), content)
    entry = {"facts": facts, "binary": name, "digest": _digest(facts, name)}
    _replace(folder() / f"{key}.json", json.dumps(entry).encode())


def _name(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if content else ""


def _digest(facts: Mapping[str, Any], binary: str) -> str:
    return hashlib.sha256(json.dumps([facts, binary], sort_keys=True).encode()).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file atomically, safe against concurrent writers."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
