"""C++ libraries that Inductor failed to build: it keeps the failure and what was written, and this forgets both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch._inductor.codecache import (
    CppCodeCache,
    CppPythonBindingsCodeCache,
    CppWrapperCodeCache,
    get_lock_dir,
    get_path,
)
from torch.utils._filelock import FileLock

CACHES = (CppCodeCache, CppPythonBindingsCodeCache, CppWrapperCodeCache)
BUILD_ENDS_SECONDS = 10.0
"""How long to wait for a compiler that was killed. One that goes on finishes its file."""


@contextmanager
def failed_builds_forgotten() -> Iterator[None]:
    """If the block raises, drop the libraries requested in it, so that the next compilation builds them again.

    Inductor caches a library before it is built. When g++ is killed (an interrupt in Jupyter reaches it too, so does
    the kernel's OOM killer), every later request for the same code raises the error of that first build, or loads the
    half-written file that the linker left.
    """
    before = [set(owner.cache) for owner in CACHES]
    try:
        yield
    except BaseException:
        for owner, known in zip(CACHES, before, strict=True):
            _drop(owner, set(owner.cache) - known)
        raise


def _drop(owner: type[CppCodeCache], keys: Iterable[str]) -> None:
    for key in keys:
        owner.cache.pop(key, None)
        folder = Path(get_path(key, "main.cpp")[1])
        with suppress(TimeoutError), FileLock(str(Path(get_lock_dir(), f"{key}.lock")), timeout=BUILD_ENDS_SECONDS):
            for written in folder.glob(f"{key}.main.*"):
                if written.suffix != ".cpp":
                    written.unlink(missing_ok=True)
