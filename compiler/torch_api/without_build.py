"""What Inductor prepares for a build, left out where nothing is built: it takes g++ and seconds, and changes no text.

It builds and loads a small library for each of the CPU's vector instruction sets, to see whether the compiler knows
them (torch._inductor.cpu_vec_isa); it looks for that compiler (torch._inductor.cpp_builder); and it hashes the whole of
Triton for the key of a cache of GPU measurements (torch._inductor.codecache), which without a GPU goes into nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch._inductor.codecache as codecache
import torch._inductor.config as inductor_config
import torch._inductor.cpp_builder as cpp_builder
import torch._inductor.cpu_vec_isa as cpu_vec_isa
import torch._inductor.runtime.triton_compat as triton_compat
from torch._inductor.exc import InvalidCxxCompiler

from compiler.torch_api.patching import replaced


@contextmanager
def unprepared() -> Iterator[None]:
    """Inductor takes the CPU at its word in the block. What torch had found out before, it keeps; what is assumed
    here it does not: the user's own torch.compile asks g++.
    """
    with ExitStack() as stack:
        stack.enter_context(replaced(cpp_builder, "cpp_compiler_search", _else_gcc))
        if not _is_probed() and inductor_config.cpp.vec_isa_ok is None:
            _take_the_cpu_at_its_word(stack)
        if not torch.cuda.is_available():
            owner = codecache if hasattr(codecache, "triton_key") else triton_compat
            stack.enter_context(replaced(owner, "triton_key", lambda _: lambda: ""))
        yield


def _else_gcc(search: Callable[..., str]) -> Callable[..., str]:
    """Where no C++ compiler is installed, the code is written for g++."""

    def found(names: tuple[str, ...]) -> str:
        try:
            return search(names)
        except InvalidCxxCompiler:
            return "g++"

    return found


def _is_probed() -> bool:
    return bool(cpu_vec_isa.valid_vec_isa_list.cache_info().currsize)


def _take_the_cpu_at_its_word(stack: ExitStack) -> None:
    """The sets that the CPU reports are in the list when they are true, and `bool()` is what runs g++."""
    classes = {cpu_vec_isa.VecISA, *(type(isa) for isa in cpu_vec_isa.supported_vec_isa_list)}
    for owner in (found for found in classes if "__bool__" in vars(found)):
        stack.enter_context(replaced(owner, "__bool__", lambda _: _true))
    stack.enter_context(replaced(cpu_vec_isa, "valid_vec_isa_list", lambda probe: functools.cache(probe.__wrapped__)))


def _true(_isa: cpu_vec_isa.VecISA) -> bool:
    return True
