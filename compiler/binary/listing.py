"""Texts of the binary stages: their instructions, and a form that does not depend on the machine.

`language` is "mlir" (TTIR, TTGIR), "llvm", "ptx", "sass" or "amdgcn".

SASS is the output of `nvdisasm` with `NVDISASM_OPTIONS`. `-gi` would not help: LLVM's PTX for Triton describes
inlining only in comments, so ptxas attributes code of `tl.sum` to lines of standard.py. `-gp` gives the PTX line of
each instruction (`//## File ".nv_debug_ptx_txt", line 131`). The comment of the `.loc` for that PTX line names the
kernel's line, which `sass_listing` adds to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

LANGUAGES = {"ttir": "mlir", "ttgir": "mlir", "llir": "llvm", "ptx": "ptx", "sass": "sass", "amdgcn": "amdgcn"}
"""The language of each stage's text."""
NVDISASM_OPTIONS: tuple[str, ...] = ("-gp", "-c")
"""Options of nvdisasm for `sass_listing`: code only, with the PTX line of each instruction."""

_MLIR = re.compile(r'^\s*(?:%[^=]*= )?"?([a-z_]\w*(?:\.\w+)+)"?')
_LLVM = re.compile(r"^\s+(?:%\S+ = )?(?:(?:tail|musttail|notail) )?([a-z_]\w*)")
_PTX = re.compile(r"^[\s{}]*(?:@!?%?\w+\s+)?([a-z][\w.:]*)(.*)", re.DOTALL)
_PTX_LABEL = re.compile(r"^\s*[\w$%]+:(?!:)\s*")
_SASS = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_AMDGCN = re.compile(r"^\s+([a-z]\w+)([^;]*)")
_CPU = re.compile(r"^ {8}([a-z][\w.]*)\s*(.*)")
_PTX_LINE = re.compile(r'^\s*//## File "\.nv_debug_ptx_txt", line (\d+)')
_ADDRESS = re.compile(r"^\s+(/\*[0-9a-f]+\*/)\s+")
_NOP = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+NOP\s*;\s*$")

Operation = tuple[int, str, str]
"""Line number, from 1; the mnemonic with its suffixes; and the operands as written."""


def instructions(language: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield every instruction: its line (from 1) and its mnemonic with all suffixes.

    Labels, directives, comments and function headers are not instructions. A line may contain several instructions.
    Raises ValueError for an unknown language.
    """
    for line, mnemonic, _operands in operations(language, text):
        yield line, mnemonic


def operations(language: str, text: str) -> Iterator[Operation]:
    """Yield every instruction with its operands, which are "" for mlir and llvm."""
    if language not in _READERS:
        raise ValueError(f"no instructions are known of {language!r}: it has to be one of {', '.join(_READERS)}")
    return _READERS[language](text)


def _mlir(text: str) -> Iterator[Operation]:
    for number, line in enumerate(text.split("\n"), 1):
        found = _MLIR.match(line)
        if found and found[1] != "tt.func" and not line.startswith("#"):
            yield number, found[1], ""


def _llvm(text: str) -> Iterator[Operation]:
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        inside = (inside or line.startswith("define ")) and line != "}"
        found = _LLVM.match(line)
        if inside and found:
            yield number, found[1], ""


def _ptx(text: str) -> Iterator[Operation]:
    """Parse PTX statements: inline assembly has several on a line, and a call spans several lines."""
    started, statement = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        code = _PTX_LABEL.sub("", line.partition("//")[0]).strip()
        if line.startswith(("}", ".file", "\t.file")):
            statement = ""
        if not code or (not statement and (code.startswith((".loc", ".file")) or not code.strip("{}() "))):
            continue
        *complete, rest = f"{statement} {code}".split(";")
        for each in complete:
            found = _PTX.match(each)
            if found:
                yield (started if statement else number), found[1], found[2].strip()
            statement = ""
        started, statement = (started if statement else number), rest.strip("{} \t")


def _sass(text: str) -> Iterator[Operation]:
    for number, line in enumerate(text.split("\n"), 1):
        found = _SASS.match(line)
        if found and not line.lstrip().startswith("//"):
            yield number, found[1], found[2].strip()


def _amdgcn(text: str) -> Iterator[Operation]:
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        directive = line.strip().partition(" ")[0].partition("\t")[0]
        if directive in (".text", ".section"):
            inside = directive == ".text"
        found = _AMDGCN.match(line)
        if inside and found and not line.rstrip().endswith(":"):
            yield number, found[1], found[2].strip()


def _cpu(text: str) -> Iterator[Operation]:
    for number, line in enumerate(text.split("\n"), 1):
        if found := _CPU.match(line):
            yield number, found[1], found[2].strip()


_READERS: dict[str, Callable[[str], Iterator[Operation]]] = {
    "mlir": _mlir,
    "llvm": _llvm,
    "ptx": _ptx,
    "sass": _sass,
    "amdgcn": _amdgcn,
    "x86": _cpu,
    "aarch64": _cpu,
}


def canonical(language: str, text: str) -> str:
    """The text without folder names and debug sections, which depend on the machine.

    Line numbers are unchanged up to the end of the code. For "sass", see `sass_listing`.
    """
    return _CANONICAL.get(language, str.strip)(text).rstrip() + "\n"


def _without_folders(text: str) -> str:
    return re.sub(r'(loc\(")[^"]*[/\\]', r"\1", text)


def _llvm_without_folders(text: str) -> str:
    return re.sub(r'(!DIFile\(filename: "[^"]*", directory: ")[^"]*', r"\1", text)


def _ptx_without_debug(text: str) -> str:
    code = re.split(r"^\s*\.section\s+\.debug_", text, maxsplit=1, flags=re.MULTILINE)[0]
    return re.sub(r'^(\s*\.file\s+\d+ ")[^"]*/', r"\1", code, flags=re.MULTILINE)


def _amdgcn_without_debug(text: str) -> str:
    """Keep code, kernel descriptor and metadata; `.file 1 "folder" "name"` becomes `.file 1 "name"`."""
    parts = re.split(r"^(?=\s*\.section\s)", text, flags=re.MULTILINE)
    kept = "".join(part for part in parts if not re.match(r"\s*\.section\s+\.debug_", part))
    return re.sub(r'^(\s*\.file\s+\d+) "[^"]*" ("[^"]*")', r"\1 \2", kept, flags=re.MULTILINE)


_CANONICAL: dict[str, Callable[[str], str]] = {
    "mlir": _without_folders,
    "llvm": _llvm_without_folders,
    "ptx": _ptx_without_debug,
    "amdgcn": _amdgcn_without_debug,
}


def sass_listing(disassembly: str, ptx: str, file: str) -> str:
    """SASS with the origin of each run of instructions, from nvdisasm's output and the PTX given to ptxas.

    `//## kernel.py:40 (random.py:36), PTX line 131` means that line 40 of the kernel's own `file` called the code in
    line 36 of random.py. See `NVDISASM_OPTIONS`. Addresses are kept, with less whitespace; encodings, NOPs after the
    end and sections without code are dropped.
    """
    from compiler.binary.lines import ptx_origins

    origins = ptx_origins(ptx, file)
    code = [_annotate(line, origins) for line in _without_padding(disassembly.split("\n"))]
    return "\n".join(code).strip("\n") + "\n"


def _annotate(line: str, origins: dict[int, str]) -> str:
    found = _PTX_LINE.match(line)
    if not found:
        return _ADDRESS.sub(r"    \1  ", line).rstrip()
    place = origins.get(int(found[1]), "")
    return f"\t//## {place + ', ' if place else ''}PTX line {found[1]}"


def _without_padding(lines: list[str]) -> list[str]:
    """Drop NOPs after a function's last instruction, and the symbol table."""
    kept: list[str] = []
    for line in lines:
        if "--- SYMBOLS ---" in line:
            break
        if line.startswith(".L_") and kept and _NOP.match(kept[-1]):
            kept = _trim(kept)
        kept.append(line)
    return _trim(kept)


def _trim(lines: list[str]) -> list[str]:
    end = len(lines)
    while end and (_NOP.match(lines[end - 1]) or not lines[end - 1].strip()):
        end -= 1
    return lines[:end]
