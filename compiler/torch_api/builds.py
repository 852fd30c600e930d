"""Inductor's C++ builds: drop failed ones, and skip build preparations if only text is generated.

Inductor caches the failure of a build, and any file that the failed build left. Build preparations need g++ and take
seconds, but do not change the generated text:
- Inductor builds and loads a small library for each CPU vector instruction set (torch._inductor.cpu_vec_isa);
- it searches for the C++ compiler (torch._inductor.cpp_builder);
- it hashes all of Triton for a cache key of GPU measurements (torch._inductor.codecache), unused without a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import torch
import torch._inductor.codecache as codecache
import torch._inductor.config as inductor_config
import torch._inductor.cpp_builder as cpp_builder
import torch._inductor.cpu_vec_isa as cpu_vec_isa
import torch._inductor.runtime.triton_compat as triton_compat
from torch._inductor.codecache import (
    CppCodeCache,
    CppPythonBindingsCodeCache,
    CppWrapperCodeCache,
    get_lock_dir,
    get_path,
)
from torch._inductor.exc import InvalidCxxCompiler
from torch.utils._filelock import FileLock

from compiler.torch_api.patching import Function, Wrapper, call_instead, replace_attributes

CACHES = (CppCodeCache, CppPythonBindingsCodeCache, CppWrapperCodeCache)
BUILD_ENDS_SECONDS = 10.0
"""Longest wait for the build's file lock, so that a compiler that still runs can finish its file."""


@contextmanager
def failed_builds_forgotten() -> Iterator[None]:
    """Drop the libraries requested in the block if it raises, so that they are built again.

    Inductor caches a library before it is built. If g++ is killed (by an interrupt in Jupyter, or by the OOM killer),
    every later request for the same code raises the error of that first build, or loads the half-written file that
    the linker left.
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


def without_preparations() -> AbstractContextManager[None]:
    """Trust the CPU's reported instruction sets in the block, and skip the other preparations.

    Results that torch has already probed stay cached. Assumptions made in the block are dropped at its end, so the
    user's own torch.compile probes with g++.
    """
    wrappers: list[Wrapper] = [(cpp_builder, "cpp_compiler_search", call_instead(_search_or_gcc))]
    is_probed = cpu_vec_isa.valid_vec_isa_list.cache_info().currsize
    if not is_probed and inductor_config.cpp.vec_isa_ok is None:
        # `bool()` of an instruction set would run g++.
        classes = {cpu_vec_isa.VecISA, *(type(isa) for isa in cpu_vec_isa.supported_vec_isa_list)}
        wrappers += [(owner, "__bool__", lambda _: _is_true) for owner in classes if "__bool__" in vars(owner)]
        wrappers.append((cpu_vec_isa, "valid_vec_isa_list", lambda probe: functools.cache(probe.__wrapped__)))
    if not torch.cuda.is_available():
        owner = codecache if hasattr(codecache, "triton_key") else triton_compat
        wrappers.append((owner, "triton_key", lambda _: lambda: ""))
    return replace_attributes(wrappers)


def _search_or_gcc(search: Function, names: tuple[str, ...]) -> str:
    """Find a C++ compiler; "g++" if none is installed."""
    try:
        return str(search(names))
    except InvalidCxxCompiler:
        return "g++"


def _is_true(_isa: cpu_vec_isa.VecISA) -> bool:
    return True
