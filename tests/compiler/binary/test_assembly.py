"""C++ kernels as instructions of a CPU: linked to their lines, for other machines too, with facts of the hot loop."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from compiler.binary import compile_record
from compiler.binary.assembling import remarks_in
from compiler.binary.disassembly import read_functions
from compiler.binary.listing import operations
from compiler.binary.loops import hot_loop, spills_of, work_of
from compiler.engine import explore
from compiler.option_checks import parse_options
from compiler.record import Record, UntrustedError
from compiler.record.options import OptionError
from compiler.targets.cpus import INSTRUCTION_SETS

NEEDS_GCC = pytest.mark.skipif(not (shutil.which("g++") and shutil.which("objdump")), reason="needs g++ and objdump")
LOOP = """
0000000000000000 <kernel>:
kernel():
/tmp/kernel.cpp:2
   0:	mov    QWORD PTR [rsp+0x8],rdi
_mm256_add_ps():
/usr/lib/avxintrin.h:150
inlined by /tmp/kernel.cpp:3 (kernel)
   8:	vaddps ymm0,ymm1,YMMWORD PTR [rdi+rax*1]
inlined by /tmp/kernel.cpp:3 (kernel)
   c:	vfmadd213ps ymm0,ymm1,ymm2
kernel():
/tmp/kernel.cpp:4
  10:	vmovups YMMWORD PTR [rsi+rax*1],ymm0
  14:	call   19 <kernel+0x19>	15: R_X86_64_PLT32	std::expf(float)-0x4
  19:	nop
  1a:	jne    8 <kernel+0x8>
  1c:	mov    rdi,QWORD PTR [rsp+0x8]
  20:	ret
"""


def softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x + w)
    return torch.softmax(y, -1)


def explored(**options: object) -> Record:
    return explore(softmax, (torch.randn(8, 96), torch.randn(96)), options=parse_options(**options)).record


@pytest.fixture(scope="module")
def inductor() -> Record:
    return compile_record(explored(target="cpu:avx2"))


@pytest.fixture(scope="module")
def own() -> Record:
    return explored(target="cpu", backend="tcompile")


def test_hot_loop_is_found_and_counted() -> None:
    functions = read_functions(LOOP)
    (function,) = functions
    assert [each.mnemonic for each in function.instructions][-3:] == ["jne", "mov", "ret"]
    assert function.instructions[1].places == (("avxintrin.h", 150), ("kernel.cpp", 3))
    assert function.is_of("kernel.cpp")
    of_unit = read_functions(LOOP.replace("/tmp/kernel.cpp:4", "/tmp/unit.cpp:46"))[0].with_reductions(
        "kernel.cpp", "unit.cpp"
    )
    assert of_unit.instructions[3].places == (("unit.cpp", 46), ("kernel.cpp", 3)), "it ends the loop before it"
    loop = hot_loop(functions, "x86")
    assert loop is not None
    assert (loop.label, loop.calls, loop.lines) == (".L1", ("std::expf",), (3, 4))
    work = work_of(loop.body, "x86")
    assert (work.loaded, work.stored, work.flops, work.vector_bytes) == (32, 32, 8 + 16, 32)
    assert spills_of(functions, "x86") == (8, 1, 1)


SLOW_PATH = """
0000000000000000 <kernel>:
   0:	jmp    10 <kernel+0x10>
   4:	vmovss xmm0,DWORD PTR [r14]
   8:	nop    WORD PTR [rax]
   c:	vucomiss xmm1,xmm0
  10:	ja     30 <kernel+0x30>
  14:	vsqrtss xmm0,xmm0,xmm0
  18:	vmulps ymm0,ymm0,YMMWORD PTR [rdi]
  1c:	cmp    rbx,0x400
  20:	jne    4 <kernel+0x4>
  24:	inc    rcx
  28:	jne    0 <kernel+0x0>
  2c:	ret
  30:	call   34 <kernel+0x34>	31: R_X86_64_PLT32	sqrtf-0x4
  34:	jmp    18 <kernel+0x18>
  38:	call   3c <kernel+0x3c>	39: R_X86_64_PLT32	_Unwind_Resume-0x4
  3c:	vaddps ymm0,ymm0,YMMWORD PTR [rdi]
  40:	jmp    38 <kernel+0x38>
"""


def test_hot_loop_has_no_code_from_behind_the_function() -> None:
    loop = hot_loop(read_functions(SLOW_PATH), "x86")
    assert loop is not None
    assert [each.address for each in loop.body] == [0x4, 0xC, 0x10, 0x14, 0x18, 0x1C, 0x20]
    assert (loop.calls, loop.depth) == ((), 1)


INTO_THE_MIDDLE = """
0000000000000000 <kernel>:
   0:	je     8 <kernel+0x8>
   4:	vaddps ymm0,ymm0,YMMWORD PTR [rdi]
   8:	vmulps ymm0,ymm0,YMMWORD PTR [rsi]
   c:	jne    4 <kernel+0x4>
  10:	ret
"""
TABLE = """
0000000000000000 <kernel>:
   0:	xor    eax,eax
   4:	notrack jmp rdx
   8:	vaddps ymm0,ymm0,YMMWORD PTR [rdi]
   c:	jmp    14 <kernel+0x14>
  10:	vmulps ymm0,ymm0,YMMWORD PTR [rsi]
  14:	jne    0 <kernel+0x0>
  18:	ret
"""


@pytest.mark.parametrize(("code", "span"), [(INTO_THE_MIDDLE, (1, 3)), (TABLE, (0, 5))])
def test_hot_loop_of_jumps_into_its_middle(code: str, span: tuple[int, int]) -> None:
    loop = hot_loop(read_functions(code), "x86")
    assert loop is not None
    assert loop.span == span


def test_remarks_have_the_reason_of_a_refusal() -> None:
    text = (
        "kernel.cpp:7:9: missed: couldn't vectorize loop\n"
        "kernel.cpp:7:9: missed: not vectorized: control flow in loop.\n"
        "kernel.cpp:9:9: optimized: loop vectorized using 32 byte vectors\n"
        "kernel.cpp:9:1: missed: statement clobbers memory: f ();\n"
    )
    told = [(remark.line, remark.is_vectorized, remark.words) for remark in remarks_in(text)]
    assert told == [(7, False, "control flow in loop."), (9, True, "loop vectorized using 32 byte vectors")]


@NEEDS_GCC
def test_instructions_link_to_lines_of_inductors_kernel(inductor: Record) -> None:
    (listing,) = inductor.of_stage("asm")
    (binary,) = inductor.binaries
    code = [*operations("x86", listing.text)]
    assert len([line for line, _, _ in code if line in listing.lines]) > 0.95 * len(code)
    clamps = {entity.id for entity in listing.entities if "clamp_min" in entity.label}
    largest = {name for line, mnemonic, _ in code if mnemonic == "vmaxps" for name in listing.lines[line]}
    assert clamps & largest
    assert all("captured[0/0].y" in inductor.linked_ids(name) for name in clamps)
    assert "hot loop (estimate)" in listing.text.split("\n")[listing.attrs["start"] - 1]
    assert (binary.target, binary.vector_bits, binary.load_bits) == ("cpu:avx2", 256, 256)
    assert "ymm" in listing.text
    assert "zmm" not in listing.text
    assert "/tmp" not in listing.text
    assert not [problem for problem in inductor.problems if problem.stage == "asm"]


@NEEDS_GCC
def test_instructions_link_to_lines_of_our_kernel(own: Record) -> None:
    record = compile_record(own, stages=("asm",))
    (listing,) = record.of_stage("asm")
    source = {entity.id for entity in record.of_stage("source")[0].entities if "softmax(" in entity.label}
    groups = [entity.id for entity in listing.entities if "expf" in entity.label]
    assert groups
    assert all(source & record.linked_ids(name) for name in groups)
    assert Record.from_json(record.to_json()) == record


@pytest.mark.usefixtures("own")
def test_other_machine_says_how_to_get_its_compiler(own: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(isa for isa in INSTRUCTION_SETS if isa.is_foreign)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    record = compile_record(replace(own, options=replace(own.options, target=foreign.target)), stages=("asm",))
    (problem,) = record.problems
    assert problem.stage == "asm"
    assert foreign.title in problem.reason
    assert "apt-get install g++-" in problem.hint
    with pytest.raises(OptionError, match=foreign.title):
        parse_options(target=foreign.target, time=True)
    with pytest.raises(OptionError, match="cpu:avx512"):
        parse_options(target="cpu:avx3")


@NEEDS_GCC
def test_loaded_source_that_reads_other_files_is_refused(own: Record) -> None:
    loaded = Record.from_json(own.to_json())
    with pytest.raises(UntrustedError):
        compile_record(loaded)
    kernels = loaded.of_stage("kernels")[0]
    for words in ('#include "/etc/passwd"', '__asm__(".incbin \\"secret\\"");'):
        edited = replace(kernels, text=kernels.text.replace("for (long i0", f"\n{words} for (long i0", 1))
        assert edited.text != kernels.text
        others = tuple(artifact for artifact in loaded.artifacts if artifact is not kernels)
        record = compile_record(replace(loaded, artifacts=(*others, edited)).with_trust("trusted"), stages=("asm",))
        assert not record.of_stage("asm")
        assert "is not what a code generator writes" in record.problems[-1].reason
    assert compile_record(loaded.with_trust("trusted"), stages=("asm",)).of_stage("asm")
