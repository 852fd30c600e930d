"""The CPU instruction set that Inductor writes C++ for, and the command by which it compiles that C++."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager, nullcontext

import torch._inductor.cpu_vec_isa as cpu_vec_isa
from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
from torch._inductor.exc import InvalidCxxCompiler

from compiler.targets.cpus import INSTRUCTION_SETS, InstructionSet, named_instruction_set, this_machine
from compiler.torch_api.builds import without_preparations
from compiler.torch_api.patching import Wrapper, call_instead, replace_attributes

_UNUSED = ("-o", "-c")
_LINKED = ("-l", "-L", "-shared", "-Wl,", "-Wall", "-Wno-", "-pedantic", "-march=", "-mcpu=", "-include")


def write_for_target(target: str) -> AbstractContextManager[None]:
    """Make Inductor write C++ in the block for the instruction set that the target names, even if the CPU lacks it."""
    isa = named_instruction_set(target)
    if isa is None:
        return nullcontext()
    picked = [_of_inductor(isa)]
    wrappers: list[Wrapper] = [(cpu_vec_isa, "valid_vec_isa_list", call_instead(lambda _probe: picked))]
    if "__bool__" in vars(type(picked[0])):  # it would build a library and load it
        wrappers.append((type(picked[0]), "__bool__", call_instead(lambda _probe, _isa: True)))
    return replace_attributes(wrappers)


def has_instruction_set(isa: InstructionSet) -> bool:
    """Whether the CPU reports this instruction set."""
    if isa.is_foreign:
        return False
    with without_preparations():
        found = cpu_vec_isa.valid_vec_isa_list()
    return any(isinstance(known, type(_of_inductor(isa))) for known in found)


def detected_instruction_set() -> InstructionSet | None:
    """The instruction set that Inductor picks on this machine; None if it writes scalar code."""
    with without_preparations():
        bits = cpu_vec_isa.pick_vec_isa().bit_width()
    alike = (known for known in INSTRUCTION_SETS if known.machine == this_machine())
    return next((known for known in alike if 8 * known.vector_bytes == bits), None)


def instruction_sets_work() -> bool:
    """Whether a library for each instruction set that an x86 CPU reports can be built and loaded; builds them."""
    reported = set(cpu_vec_isa.x86_isa_checker())
    sets = [isa for isa in cpu_vec_isa.supported_vec_isa_list if set(str(isa).split()) <= reported]
    try:
        return bool(reported) and all(sets)
    except InvalidCxxCompiler:
        return False


def compile_command(target: str) -> list[str]:
    """Inductor's command to compile a C++ kernel for a target, without files and without -march.

    Raises InvalidCxxCompiler, which Inductor raises if there is no C++ compiler.
    """
    with without_preparations(), write_for_target(target):
        options = CppTorchDeviceOptions(vec_isa=cpu_vec_isa.pick_vec_isa(), device_type="cpu", compile_only=True)
        builder = CppBuilder(name="kernel", sources="kernel.cpp", BuildOption=options)
        words = shlex.split(builder.get_command_line().replace("-D ", "-D"))
    kept = []
    for before, word in zip(["", *words], words, strict=False):
        if word.endswith("kernel.cpp") or {before, word} & {*_UNUSED} or word.startswith(_LINKED):
            continue
        kept.append(word)
    return kept


def _of_inductor(isa: InstructionSet) -> cpu_vec_isa.VecISA:
    found: cpu_vec_isa.VecISA = getattr(cpu_vec_isa, isa.inductor)()
    return found


__all__ = [
    "InvalidCxxCompiler",
    "compile_command",
    "detected_instruction_set",
    "has_instruction_set",
    "instruction_sets_work",
    "write_for_target",
]
