"""A record's C++ kernels as translation units: Inductor's, and those of our own backend.

The kernels of one artifact share a unit, as their headers take the compiler longer than they do themselves. `#line`
directives give each kernel a file of its own, in which lines count as in the kernel's entities.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from compiler.binary.sources import launch_of
from compiler.record import Artifact, Entity, Kernel, Record

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t].*$", re.MULTILINE)
_ALLOWED_INCLUDE = re.compile(r'#\s*include\s*[<"](?:(?:torch|ATen|c10)(?:/\w[\w.-]*)+|[a-z_]+(?:\.h)?)[>"]\s*')
_NOT_IN_KERNELS = re.compile(r"\b(?:(?:__)?asm(?:__)?|_Pragma|__has_include\w*|__has_embed|incbin)\b")
_KNOWN_DIRECTIVES = r"pragma (?:omp|unroll|GCC (?:ivdep|unroll))\b|include\b|if|else|elif|endif|define|undef"
_DIRECTIVE = re.compile(rf"^[ \t]*(?:#|%:|\?\?=)[ \t]*(?!{_KNOWN_DIRECTIVES})\S.*$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class CppKernel:
    """A C++ kernel: its source, in which line 1 is the first one of its entities (`.L1`), and its function's name.

    `lines` has the origins of each line that computes something, and of each line that serves such lines (a loop, a
    declaration) those lines.
    """

    kernel: Kernel
    text: str
    function: str
    origins: Mapping[int, tuple[str, ...]]

    @property
    def file(self) -> str:
        """The file name by which the compiler refers to the source."""
        return f"{self.kernel.name}.cpp"


@dataclass(frozen=True, slots=True)
class Unit:
    """Kernels that are compiled together. `is_own`: our own backend wrote them, else Inductor."""

    kernels: tuple[CppKernel, ...]
    prelude: str
    is_own: bool

    @property
    def text(self) -> str:
        """The unit's source."""
        own = [self._text_of_kernel(found) for found in self.kernels]
        return "\n".join([self.prelude, *own])

    def _text_of_kernel(self, found: CppKernel) -> str:
        if self.is_own:
            return f'#line 1 "{found.file}"\n{found.text}'
        name = f"#define {found.function} {found.kernel.name}\n"
        return f'{name}#line 1 "{found.file}"\n{_INCLUDE.sub("", found.text)}\n#undef {found.function}'

    def units_of_kernels(self) -> list[Unit]:
        """A unit for each kernel."""
        return [cpp_unit((found,), self.prelude if self.is_own else None) for found in self.kernels]


def cpp_kernels(record: Record, wanted: Collection[str] | None = None) -> tuple[Kernel, ...]:
    """The record's generated C++ kernels, or the wanted ones, by id or name."""
    return tuple(
        kernel
        for kernel in record.kernels
        if kernel.language == "cpp" and (wanted is None or kernel.id in wanted or kernel.name in wanted)
    )


def cpp_units(record: Record, wanted: Collection[str] | None = None) -> list[Unit]:
    """Translation units of the record's C++ kernels. A kernel without its source in the record is left out."""
    artifacts = {artifact.id: artifact for artifact in record.of_stage("kernels")}
    found: dict[tuple[str, bool], list[CppKernel]] = {}
    for kernel in cpp_kernels(record, wanted):
        artifact = artifacts.get(kernel.artifact)
        if artifact is not None and (source := _source(artifact, kernel)) is not None:
            found.setdefault((artifact.id, bool(launch_of(artifact, kernel))), []).append(source)
    return [
        cpp_unit(tuple(kernels), _prelude(record, artifacts[artifact]) if is_own else None)
        for (artifact, is_own), kernels in found.items()
    ]


def cpp_unit(kernels: tuple[CppKernel, ...], prelude: str | None) -> Unit:
    """A unit of our own kernels below their prelude, or of Inductor's below all of their includes."""
    if prelude is not None:
        return Unit(kernels, prelude, is_own=True)
    included = dict.fromkeys(line.strip() for found in kernels for line in _INCLUDE.findall(found.text))
    return Unit(kernels, "\n".join(included), is_own=False)


def refused_words(unit: Unit) -> str:
    """What no code generator writes into C++, and a loaded record may not ask the compiler for; "" if there is nothing.

    The code is compiled, and never run. Such words would make the compiler read other files of this machine.
    """
    if odd := next((found.kernel.name for found in unit.kernels if not found.kernel.name.isidentifier()), ""):
        return odd
    for text in (unit.prelude, *(found.text for found in unit.kernels)):
        for line in _INCLUDE.findall(text):
            if not _ALLOWED_INCLUDE.fullmatch(line.strip()):
                return str(line.strip())
        if wrong := _NOT_IN_KERNELS.search(text) or _DIRECTIVE.search(text):
            return wrong[0].strip()
    return ""


def _source(artifact: Artifact, kernel: Kernel) -> CppKernel | None:
    first, last = kernel.lines
    rows = artifact.text.split("\n")[first - 1 : last]
    known = {entity.id: entity for entity in artifact.entities}
    if launch_of(artifact, kernel):
        text, function = "\n".join(rows), kernel.name
    elif (found := _inductor_source("\n".join(rows))) is not None:
        text, function = found
    else:
        return None
    return CppKernel(kernel, text, function, _origins(kernel, text.split("\n"), known))


def _prelude(record: Record, artifact: Artifact) -> str:
    """Lines above the first kernel of an artifact of our own backend."""
    own = (kernel for kernel in record.kernels if kernel.artifact == artifact.id and kernel.language == "cpp")
    first = min(kernel.lines[0] for kernel in own)
    return "\n".join(artifact.text.split("\n")[: first - 1])


def _inductor_source(statement: str) -> tuple[str, str] | None:
    """The C++ in `NAME = async_compile.cpp_pybinding([…], r'''SOURCE''')`, and its function's name; else None."""
    try:
        tree = ast.parse(statement)
    except SyntaxError:
        return None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and "cpp" in ast.unparse(call.func):
            texts = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            for text in texts:
                if found := re.search(r'extern "C"[^;{]*?(\w+)\s*\(', text):
                    return text, found[1]
    return None


# Lines that compute nothing themselves


def _origins(kernel: Kernel, rows: Sequence[str], known: Mapping[str, Entity]) -> dict[int, tuple[str, ...]]:
    """The origin of each line: its own entity, and for a line that only serves others, those lines as well."""
    ids = {number: f"{kernel.id}.L{number}" for number in range(1, len(rows) + 1)}
    computing = [number for number, name in ids.items() if name in known and known[name].origins]
    found = {}
    for number, name in ids.items():
        own = (name,) if name in known else (kernel.id,)
        served = () if number in computing else _lines_served_by(number, rows, computing)
        found[number] = tuple(dict.fromkeys((*own, *(ids[line] for line in served))))
    return found


def _lines_served_by(number: int, rows: Sequence[str], computing: Sequence[int]) -> list[int]:
    """The computing lines that a line serves: those in its block, those that use its variable, or those around it."""
    row = rows[number - 1]
    if row.lstrip().startswith(("for", "#pragma", "if", "while", "{")):
        start, end = _block(number, rows)
        if inside := [line for line in computing if start <= line <= end]:
            return inside
    if declared := re.match(r"\s*(?:[\w:<>,*& \[\]]+?[\s*&])?(\w+)(?:\[[^\]]*\])*\s*(?:=|\+=|\*=|;|\{|\()", row):
        word = re.compile(rf"\b{re.escape(declared[1])}\b")
        if users := [line for line in computing if word.search(rows[line - 1])]:
            return users
    start, end = _block_around(number, rows)
    return [line for line in computing if start <= line <= end] or list(computing)


def _block(number: int, rows: Sequence[str]) -> tuple[int, int]:
    """First and last line of the block that opens at this line or below it."""
    depth, opened = 0, False
    for line in range(number, len(rows) + 1):
        depth += rows[line - 1].count("{") - rows[line - 1].count("}")
        opened = opened or "{" in rows[line - 1]
        if opened and depth <= 0:
            return number, line
    return number, len(rows)


def _block_around(number: int, rows: Sequence[str]) -> tuple[int, int]:
    """First and last line of the block around a line; the whole source if there is none."""
    depth = 0
    for line in range(number - 1, 0, -1):
        depth += rows[line - 1].count("}") - rows[line - 1].count("{")
        if depth < 0:
            return _block(line, rows)
    return 1, len(rows)
