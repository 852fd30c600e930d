"""Compile a record's C++ kernels to instructions of a CPU: `asm`, and `llir` where clang is installed.

Each kernel is compiled as its backend compiles it, with line tables added, in a private folder that is removed: the
user's caches are not touched, and nothing is linked or run. Compilers for other machines are used where they are
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compiler.binary import cpp_compiler, llvm_text
from compiler.binary.cpp_sources import CppKernel, Unit, cpp_units, refused_words
from compiler.binary.disassembly import OBJDUMP_OPTIONS, Function, read_functions
from compiler.process import kill_group, start_in_own_group
from compiler.record import Problem, Record
from compiler.targets.cpus import INSTRUCTION_SETS, InstructionSet, named_instruction_set

STAGES = ("llir", "asm")
SECONDS = 300
_REMARKS = "-fopt-info-vec-optimized-missed="
_LINE_TABLES = ("-g1", "-gdwarf-4")
"""Lines and inlined calls. objdump confuses a unit's first file with its source in DWARF 5 if there is a `#line`."""
_ONLY_GCC = ("-fno-tree-loop-vectorize", "-ftree-vectorize", "-fvect-cost-model=", "-fexcess-precision=", "-fno-openmp")
_ERROR = re.compile(r"^\S*?([\w.]+:\d+:\d+: (?:fatal )?error: .*)$", re.MULTILINE)
_GCC_REMARK = re.compile(r"^(?:\S*/)?([\w.]+):(\d+):\d+: (optimized|missed):\s+(.*)$", re.MULTILINE)
_CLANG_REMARK = re.compile(r"^(?:\S*/)?([\w.]+):(\d+):\d+: remark: (.*?) \[-Rpass(-missed|-analysis)?=", re.MULTILINE)
_TOLD = re.compile(r"loop vectorized|part vectorized|not vectorized:|couldn't vectorize|vectorized loop")


class ToolMissingError(RuntimeError):
    """A program is not installed. `hint` says how to get it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Remark:
    """The compiler's remark on vectorizing the code of a line."""

    file: str
    line: int
    is_vectorized: bool
    words: str


@dataclass(frozen=True, slots=True)
class Assembled:
    """A kernel as functions of instructions, or the reason and hint why there are none; `llvm` is its LLVM IR or "".

    `compiler` names the compiler with its version, `flags` are those that decide about the instructions.
    """

    source: CppKernel
    isa: InstructionSet
    functions: tuple[Function, ...] = ()
    remarks: tuple[Remark, ...] = ()
    llvm: str = ""
    compiler: str = ""
    flags: tuple[str, ...] = ()
    problem: tuple[str, str] | None = None
    llvm_problem: tuple[str, str] | None = None


def instruction_set_of(record: Record) -> InstructionSet | None:
    """The instruction set that the record's C++ was written for; by default the widest of this machine."""
    from compiler.torch_api.cpu_isa import detected_instruction_set

    if named := named_instruction_set(record.options.target):
        return named
    narrowest = [known for known in INSTRUCTION_SETS if not known.is_foreign][-1:]
    return detected_instruction_set() or next(iter(narrowest), None)


def assemble(
    record: Record, isa: InstructionSet, kernels: Collection[str] | None, workers: int, *, with_llvm: bool
) -> Generator[Assembled, None, None]:
    """Yield each C++ kernel's result as it completes, with its LLVM IR if that is asked for."""
    units = cpp_units(record, kernels)
    if record.is_loaded:
        for unit in units:
            if wrong := refused_words(unit):
                reason = f"its source is not what a code generator writes: {wrong}"
                hint = "it is not compiled: the file was edited, or made by another program than tcompile"
                yield from (Assembled(found, isa, problem=(reason, hint)) for found in unit.kernels)
        units = [unit for unit in units if not refused_words(unit)]
    named = named_instruction_set(record.options.target)
    pool = ThreadPoolExecutor(max(workers, 1), "tcompile C++")
    try:
        for future in as_completed([pool.submit(_assemble, unit, isa, named, with_llvm) for unit in units]):
            yield from future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _assemble(unit: Unit, isa: InstructionSet, named: InstructionSet | None, with_llvm: bool) -> list[Assembled]:
    """Compile a unit; if it fails, compile each of its kernels alone."""
    try:
        with _private_folder() as folder:
            return _compile(unit, isa, named, folder, with_llvm)
    except ToolMissingError as error:
        return [Assembled(found, isa, problem=(str(error), error.hint)) for found in unit.kernels]
    except (subprocess.SubprocessError, OSError) as error:
        if len(unit.kernels) > 1:
            return [result for each in unit.units_of_kernels() for result in _assemble(each, isa, named, with_llvm)]
        said = getattr(error, "stderr", "") or str(error)
        found = "\n".join(_ERROR.findall(said)[:3]) or said.strip()[-400:]
        return [Assembled(unit.kernels[0], isa, problem=(f"the C++ compiler failed: {found}", ""))]


@contextmanager
def _private_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tcompile-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _compile(
    unit: Unit, isa: InstructionSet, named: InstructionSet | None, folder: Path, with_llvm: bool
) -> list[Assembled]:
    """Compile a unit. Raises ToolMissingError, subprocess.SubprocessError, OSError."""
    program, flags = command_of(unit, isa, named)
    source, remarks = folder / "unit.cpp", folder / "remarks"
    source.write_text(unit.text, encoding="utf-8")
    if isa.is_foreign and not unit.is_own:
        flags += ["-include", str(_foreign_header(flags, folder))]
    is_clang = "clang" in Path(program[0]).name
    told = ["-Rpass=loop-vectorize", "-Rpass-missed=loop-vectorize", "-Rpass-analysis=loop-vectorize"]
    told = told if is_clang else [f"{_REMARKS}{remarks}"]
    made = folder / "unit.o"
    said = _run([*program, *flags, *told, *_LINE_TABLES, "-c", str(source), "-o", str(made)], folder)
    text = said if is_clang else remarks.read_text(errors="replace") if remarks.exists() else ""
    syntax = ["-M", "intel"] if isa.language == "x86" else []
    functions = read_functions(_run([_objdump(isa), *OBJDUMP_OPTIONS, *syntax, str(made)], folder))
    llvm, problem = _llvm_of(unit, isa, named, folder) if with_llvm else ("", None)
    version = _run([*program, "--version"], folder).partition("\n")[0]
    return [
        Assembled(
            found,
            isa,
            tuple(
                each.with_reductions(found.file, source.name)
                for each in functions
                if each.is_of(found.file) and not each.name.startswith("_GLOBAL_")
            ),
            tuple(remark for remark in remarks_in(text) if remark.file == found.file),
            llvm_text.of_file(llvm, found.file),
            version,
            tuple(flag for flag in flags if flag.startswith(("-O", "-m", "-f"))),
            llvm_problem=problem,
        )
        for found in unit.kernels
    ]


def command_of(unit: Unit, isa: InstructionSet, named: InstructionSet | None) -> tuple[list[str], list[str]]:
    """The compiler, and its flags, by which the unit's backend compiles it. Raises ToolMissingError.

    `named` is the instruction set that the user named; without one, code is for this machine, as the backends compile.
    """
    from compiler.torch_api.cpu_isa import InvalidCxxCompiler, compile_command

    if unit.is_own:
        program, flags = [*cpp_compiler.compiler()], [flag for flag in cpp_compiler.FLAGS if flag != "-shared"]
    else:
        try:
            name, *flags = compile_command(named.target if named else "cpu")
        except InvalidCxxCompiler:
            name = ""
        program = [name] if name and shutil.which(name) else []
    if isa.is_foreign:
        program = [_cross_compiler(isa)]
    if not program:
        raise ToolMissingError(
            "there is no C++ compiler here",
            "install g++ (Debian: apt-get install g++), or name one in the variable CXX",
        )
    march = isa.march if named else "native"
    return program, [*flags, f"-march={march}"]


def _cross_compiler(isa: InstructionSet) -> str:
    name = f"{isa.machine.replace('_', '-')}-linux-gnu-g++"
    if found := shutil.which(name):
        return found
    package = f"g++-{isa.machine.replace('_', '-')}-linux-gnu"
    raise ToolMissingError(
        f"{isa.title} is not an instruction set of this machine, and there is no {name} to cross-compile",
        f"Debian and Ubuntu have it: apt-get install {package}",
    )


def _objdump(isa: InstructionSet) -> str:
    name = f"{isa.machine.replace('_', '-')}-linux-gnu-objdump" if isa.is_foreign else "objdump"
    if found := shutil.which(name):
        return found
    package = f"binutils-{isa.machine.replace('_', '-')}-linux-gnu" if isa.is_foreign else "binutils"
    raise ToolMissingError(f"there is no {name} here, which reads compiled code", f"Debian: apt-get install {package}")


def _foreign_header(flags: Sequence[str], folder: Path) -> Path:
    """Declarations of SLEEF's functions for NEON, as this machine's torch has those of its own instruction set only."""
    found = next(
        (path for flag in flags if flag.startswith("-I") and (path := Path(flag[2:], "sleef.h")).exists()), None
    )
    declared = _DECLARATION.findall(found.read_text()) if found else []
    lines = dict.fromkeys(_NEON_NAMES.sub(lambda name: _NEON[name[0]], line) for line in declared)
    pairs = [f"typedef struct {{ {kind} x, y; }} Sleef_{kind}_2;" for kind in ("float32x4_t", "float64x2_t")]
    header = folder / "sleef_neon.h"
    header.write_text("\n".join(["#pragma once", "#include <arm_neon.h>", *pairs, 'extern "C" {', *lines, "}", ""]))
    return header


_DECLARATION = re.compile(r"^SLEEF_IMPORT SLEEF_CONST (.*Sleef_\w+?(?:f4|d2)(?:_u\d+)?\(.*\);)$", re.MULTILINE)
_NEON = {
    "Sleef___m128d_2": "Sleef_float64x2_t_2", "Sleef___m128_2": "Sleef_float32x4_t_2", "__m128d": "float64x2_t",
    "__m128i": "int32x4_t", "__m128": "float32x4_t",
}  # fmt: skip
_NEON_NAMES = re.compile("|".join(_NEON))


def _llvm_of(
    unit: Unit, isa: InstructionSet, named: InstructionSet | None, folder: Path
) -> tuple[str, tuple[str, str] | None]:
    """The unit's LLVM IR by clang, and if there is none, why and what to do."""
    clang = shutil.which("clang++")
    if clang is None:
        return "", ("LLVM IR of C++ needs clang++", "install it (Debian: apt-get install clang libomp-dev)")
    _, flags = command_of(unit, isa, named)
    flags = [flag for flag in flags if not flag.startswith(_ONLY_GCC)]
    flags += ["-fno-vectorize"] * (not unit.is_own)  # as Inductor's -fno-tree-loop-vectorize for g++
    target = [f"--target={isa.machine}-linux-gnu"] * isa.is_foreign
    if isa.is_foreign and not unit.is_own:
        flags += ["-include", str(_foreign_header(flags, folder))]
    made = folder / "unit.ll"
    command = [
        clang,
        *target,
        *flags,
        "-w",
        *_LINE_TABLES,
        "-S",
        "-emit-llvm",
        str(folder / "unit.cpp"),
        "-o",
        str(made),
    ]
    try:
        _run(command, folder)
    except subprocess.SubprocessError as error:
        said = _ERROR.findall(getattr(error, "stderr", "") or str(error))[:1] or [str(error)]
        hint = "Debian: apt-get install libomp-dev" if "omp.h" in said[0] else ""
        return "", (f"clang++ failed: {said[0]}", hint)
    return made.read_text(errors="replace"), None


def _run(command: Sequence[str], folder: Path) -> str:
    """Run a tool in the folder; returns what it printed, on stderr too. Raises SubprocessError, OSError."""
    environment = {**os.environ, "TMPDIR": str(folder), "LC_ALL": "C", "CCACHE_DISABLE": "1"}
    process = start_in_own_group(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        cwd=folder,
    )
    try:
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        kill_group(process)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[0], output, errors)
    return output + errors


def remarks_in(text: str) -> list[Remark]:
    """Remarks of g++ or clang++ on vectorizing loops and blocks: the first for each line, and each that succeeded."""
    found: dict[tuple[str, int, bool], Remark] = {}
    clang = ((file, line, "" if way else "optimized", words) for file, line, words, way in _CLANG_REMARK.findall(text))
    for file, line, way, words in (*_GCC_REMARK.findall(text), *clang):
        if not _TOLD.search(words):
            continue
        done = way == "optimized"
        remark = Remark(file, int(line), done, re.sub(r"^(?:not vectorized|loop not vectorized): ", "", words).strip())
        known = found.get((file, remark.line, done))
        if known is None or "couldn't" in known.words:  # the reason follows that there is none
            found[file, remark.line, done] = remark
    return sorted(found.values(), key=lambda remark: remark.line)


def problems_of(result: Assembled, stages: Collection[str]) -> Iterator[Problem]:
    """Problems of a result's missing stages."""
    kernel = result.source.kernel
    for stage, problem in (("asm", result.problem), ("llir", result.problem or result.llvm_problem)):
        if problem is not None and stage in stages:
            yield Problem(stage, f"{kernel.name}: {problem[0]}", problem[1], kernel.graph)
