"""Map lines of a kernel's TTIR, TTGIR, LLIR, PTX, SASS or AMDGCN to lines of its source.

Code that Triton inlined (`tl.sum` in standard.py, Inductor's triton_helpers.py) is mapped to the kernel's line that
called it: in a chain of calls, to the outermost place in the kernel's file.

- MLIR: `loc(#loc12)` at the end of an operation, `#loc12 = loc("kernel.py":30:18)`; also
  `callsite(#callee at #caller)`, names `"tmp5"(#loc3)` and `fused[...]`.
  https://mlir.llvm.org/docs/Dialects/Builtin/#location-attributes
- LLVM: `!dbg !34`, `!34 = !DILocation(line: 30, scope: !5, inlinedAt: !40)`.
  https://llvm.org/docs/LangRef.html#dilocation
- PTX and AMDGCN: `.loc file line column`, valid until the next `.loc`, and the comment that LLVM adds:
  `random.py:36:40 @[ kernel.py:40:25 ]`; Triton 3.9's PTX has `inlined_at file line column` instead.
- SASS: the comments of `listing.sass_listing`, or nvdisasm's own with `-g` and `-gi`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from compiler.binary.listing import instructions

_TRAILING_LOC = re.compile(r"\bloc\(((?:(?!\bloc\().)*)\)$")
_LOC_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE_PLACE = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAMED = re.compile(r'^"(?:[^"\\]|\\.)*"\((.*)\)$')
_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$")
_DBG = re.compile(r"!dbg (!\d+)")
_LOC_DIRECTIVE = re.compile(
    r"^\s*\.loc\s+(\d+)\s+(\d+)(?:\s+(\d+))?(?:[^/;\n]*inlined_at\s+(\d+)\s+(\d+)(?:\s+(\d+))?)?[^/;\n]*(?://|;)?(.*)"
)
_FILE_DIRECTIVE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"', re.MULTILINE)
_PLACE = re.compile(r"([^\s:\[\]@/\\]+):(\d+):\d+")
_SASS_PLACE = re.compile(r"^\s*//## (?:([^\s:]+):(\d+))?")
_LISTED_PLACE = re.compile(r"^ *(?://)?##(?: line (\d+):)?")
_NVDISASM_PLACE = re.compile(r'"([^"]*)", line (\d+)')

Place = tuple[str, int]
"""A file's base name, and a line number, from 1."""


def source_lines(language: str, text: str, file: str) -> dict[int, int]:
    """Map the lines of `text` that contain instructions to lines of the kernel's source; both count from 1.

    `file` is the base name of the kernel's source. Instructions without a place in that file are left out. In MLIR, the
    lines that open and close a region map to the same line. Raises ValueError for an unknown language.
    """
    if language == "mlir":
        return _mlir(text, file)
    readers: dict[str, Callable[[str, str], dict[int, int]]] = {
        "llvm": _llvm,
        "ptx": _assembly,
        "amdgcn": _assembly,
        "sass": _sass,
        "x86": _places_in_listing,
        "aarch64": _places_in_listing,
    }
    places = readers[language](text, file) if language in readers else {}
    return {line: places[line] for line, _mnemonic in instructions(language, text) if line in places}


# MLIR


def _mlir(text: str, file: str) -> dict[int, int]:
    lines = text.split("\n")
    resolve = _mlir_resolver(lines, file)
    found: dict[int, int] = {}
    for numbers, last in _mlir_operations(lines):
        trailing = _TRAILING_LOC.search(last)
        line = resolve(trailing[1]) if trailing else None
        if line is not None:
            found |= dict.fromkeys(numbers, line)
    return dict(sorted(found.items()))


def _mlir_operations(lines: list[str]) -> Iterator[tuple[list[int], str]]:
    """Yield the line numbers of each operation, without those in its regions, and the text of its last line.

    Modules and functions have no line numbers.
    """
    open_regions: list[list[int]] = []
    for number, line in enumerate(lines, 1):
        code = line.strip()
        opens, closes = code.endswith("{"), code.startswith("}")
        own = open_regions.pop() if closes and open_regions else []
        if opens and (not own or own[0] > 0):
            own.append(-number if code.startswith(("module", "tt.func")) else number)
        if opens:
            open_regions.append(own)
        elif closes:
            yield [*own, number] if own and own[0] > 0 else [], code
        elif code and not code.startswith(("#", "^", "//")):
            yield [number], code


def _mlir_resolver(lines: list[str], file: str) -> Callable[[str], int | None]:
    definitions = {found[1]: found[2] for line in lines if (found := _LOC_DEFINITION.match(line))}

    @cache
    def resolve(location: str) -> int | None:
        if location.startswith("#"):
            return resolve(definitions[location]) if location in definitions else None
        if place := _FILE_PLACE.match(location):
            return _in_file((place[1], int(place[2])), file)
        if named := _NAMED.match(location):
            return resolve(named[1])
        if location.startswith("callsite("):
            callee, caller = _split(location[len("callsite(") : -1], " at ")
            return _first(resolve(caller), resolve(callee))
        if location.startswith("fused"):
            return _first(*map(resolve, _split(location[location.index("[") + 1 : -1], ", ")))
        return None

    return resolve


def _first(*lines: int | None) -> int | None:
    return next((line for line in lines if line is not None), None)


def _split(text: str, separator: str) -> list[str]:
    """Split at the separator, except inside brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for index, character in enumerate(text):
        quoted ^= character == '"'
        if quoted:
            continue
        depth += (character in "([<") - (character in ")]>")
        if depth == 0 and text.startswith(separator, index):
            parts.append(text[start:index])
            start = index + len(separator)
    return [*parts, text[start:]]


# LLVM


def _llvm(text: str, file: str) -> dict[int, int]:
    lines = text.split("\n")
    metadata = {found[1]: found[3] for line in lines if (found := _METADATA.match(line))}

    @cache
    def line_of(location: str) -> int | None:
        fields = metadata.get(location, "")
        caller = _field(fields, "inlinedAt")
        if caller:
            return _first(line_of(caller), _llvm_place(fields, metadata, file))
        return _llvm_place(fields, metadata, file)

    located = ((number, _DBG.search(line)) for number, line in enumerate(lines, 1))
    places = {number: line_of(found[1]) for number, found in located if found}
    return {number: line for number, line in places.items() if line is not None}


def _llvm_place(fields: str, metadata: dict[str, str], file: str) -> int | None:
    line, scope = _field(fields, "line"), _field(fields, "scope")
    while scope and not _field(metadata.get(scope, ""), "file"):
        scope = _field(metadata.get(scope, ""), "scope")
    named = metadata.get(_field(metadata.get(scope, ""), "file"), "")
    return _in_file((_field(named, "filename").strip('"'), int(line or 0)), file)


def _field(fields: str, name: str) -> str:
    found = re.search(rf'\b{name}: ("[^"]*"|[^,)]*)', fields)
    return found[1] if found else ""


# PTX and AMDGCN


def _assembly(text: str, file: str) -> dict[int, int]:
    places = {number: chain[-1] for number, chain in _locate(text)}
    own = {number: _in_file(place, file) for number, place in places.items()}
    return {number: line for number, line in own.items() if line is not None}


def ptx_origins(ptx: str, file: str) -> dict[int, str]:
    """The origin of each PTX line: `kernel.py:40`, or `kernel.py:40 (random.py:36)` if inlined.

    Lines before the function's first place (braces and parameters) get the same origin as that place.
    """
    located = {number: _words(chain) for number, chain in _locate(ptx) if _in_file(chain[-1], file) is not None}
    if not located:
        return {}
    first = next(iter(located))
    begin = next((number for number, line in enumerate(ptx.split("\n"), 1) if line.startswith("{")), first)
    return dict.fromkeys(range(begin, first), located[first]) | located


def _words(chain: list[Place]) -> str:
    (file, line), (inner_file, inner_line) = chain[-1], chain[0]
    inlined = f" ({inner_file}:{inner_line})" if inner_line and len(chain) > 1 else ""
    return f"{file}:{line}{inlined}"


def _locate(text: str) -> Iterator[tuple[int, list[Place]]]:
    """Yield every line to which a `.loc` applies, with its chain of places, innermost first."""
    files = {number: name.rsplit("/", 1)[-1] for number, name in _FILE_DIRECTIVE.findall(text)}
    callers: dict[tuple[str, str, str], list[Place]] = {}
    chain: list[Place] = []
    for number, line in enumerate(text.split("\n"), 1):
        found = _LOC_DIRECTIVE.match(line)
        if found:
            chain = _chain(found, files, callers)
        elif line.startswith("}"):
            chain = []
        if chain:
            yield number, chain


def _chain(
    directive: re.Match[str], files: dict[str, str], callers: dict[tuple[str, str, str], list[Place]]
) -> list[Place]:
    """Parse the chain of places of a `.loc`: from its comment, or else from the directive and its `inlined_at`."""
    file, line, column, *caller, comment = directive.groups()
    chain = [(name, int(at)) for name, at in _PLACE.findall(comment)] or [(files.get(file, ""), int(line))]
    if len(chain) == 1 and caller[0]:
        chain += callers.get((caller[0], caller[1], caller[2] or "0"), [])
    callers[file, line, column or "0"] = chain
    return chain


# SASS


def _sass(text: str, file: str) -> dict[int, int]:
    """Places of SASS lines: the last comment of a run applies, which is the outermost call with `-gi`."""
    found: dict[int, int] = {}
    current: int | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if "//##" in line:
            current = _in_file(_sass_place(line), file)
        elif current is not None:
            found[number] = current
    return found


def _places_in_listing(text: str, _file: str) -> dict[int, int]:
    """Places of CPU instructions, by the comments of `disassembly.listing_of`."""
    found: dict[int, int] = {}
    current: int | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if comment := _LISTED_PLACE.match(line):
            current = int(comment[1]) if comment[1] else None
        elif current is not None:
            found[number] = current
    return found


def _sass_place(comment: str) -> Place:
    named = _NVDISASM_PLACE.findall(comment)
    if named:
        return named[-1][0], int(named[-1][1])
    place = _SASS_PLACE.match(comment)
    return (place[1], int(place[2])) if place and place[1] else ("", 0)


def _in_file(place: Place, file: str) -> int | None:
    """Line number of a place; None if it is unknown (0), or if the place is in another file."""
    name, line = place
    return line if line and re.split(r"[/\\]", name)[-1] == file else None
