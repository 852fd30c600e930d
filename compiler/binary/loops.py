"""The hot loop of a C++ kernel: its vectors, its work in each iteration, its spilled registers, its port pressure.

Which loop is hot is an estimate, as no iteration is counted: the innermost one with the most vector arithmetic. Bytes
are those that its instructions load and store, without the stack and constants; called functions are not included.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.binary.disassembly import Function, Instruction, operands_in
from compiler.process import run_in_own_group
from compiler.targets.cpus import InstructionSet

_SIZES = {"ZMMWORD": 64, "YMMWORD": 32, "XMMWORD": 16, "QWORD": 8, "DWORD": 4, "WORD": 2, "BYTE": 1}
_MEMORY = re.compile(r"(?:(\w+) (?:PTR|BCST) )(?:\w\w:)?\[([^\]]*)\]")
_STACK = re.compile(r"r[bs]p[+-]0x[0-9a-f]+|r[bs]p")
_X86_FLOAT = re.compile(
    r"v?(?:(fn?m(?:add|sub|addsub|subadd)\w*?)|add|sub|mul|div|sqrt|max|min|rcp14|rsqrt14|rndscale|round|addsub|hadd)"
    r"([ps])([shd])$"
)
_X86_PACKED = re.compile(r"vp|.*(?:p[sd]$|mov[ua]|movdq)")
_X86_STORE = re.compile(r"v?mov(?!z|sx)|vpmov|vextract|vscatter|vcompress|vp?mask|mov$|push|set")
_X86_LOAD_AND_STORE = re.compile(r"(?:add|sub|inc|dec|and|or|xor|neg|not|sh[lr]|sar)$")
_ARM_FLOAT = re.compile(
    r"f(?:(n?m(?:add|sub|la|ls))|add|sub|mul|div|sqrt|max|min|maxnm|minnm|addp|abd|recpe|rsqrte|nmul)$"
)
_ARM_REGISTERS = {"q": 16, "d": 8, "s": 4, "h": 2, "b": 1, "x": 8, "w": 4}
_ARM_LANES = re.compile(r"\bv\d+\.(\d+)([bhsd])")
_CALLEE_SAVED = re.compile(r"\b(?:x(?:19|2\d|30)|d(?:8|9|1[0-5]))\b")
_THROUGHPUT = re.compile(r"^Block RThroughput:\s+([\d.]+)$", re.MULTILINE)
_TOTAL = re.compile(r"^Total Cycles:\s+(\d+)$", re.MULTILINE)
_RESOURCE = re.compile(r"^\[(\d+(?:\.\d+)?)\]\s+- (\S+)$", re.MULTILINE)
_ITERATIONS = 100
FMA_UNITS, BYTES_A_CYCLE = 2, 8
"""Assumptions of the roofline: units that multiply and add, and bytes from memory in each cycle, for each core."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop: indices of its first and last instruction in its function, and how many loops it is in."""

    function: Function
    first: int
    last: int
    depth: int = 0

    @property
    def span(self) -> tuple[int, int]:
        return self.first, self.last

    @property
    def body(self) -> tuple[Instruction, ...]:
        return self.function.instructions[self.first : self.last + 1]

    @property
    def label(self) -> str:
        return self.function.labels.get(self.body[0].address, "")

    @property
    def lines(self) -> tuple[int, ...]:
        """Lines of the kernel that it comes from."""
        return tuple(sorted({each.place[1] for each in self.body if each.place[1]}))

    @property
    def calls(self) -> tuple[str, ...]:
        """Functions that it calls."""
        return tuple(dict.fromkeys(each.operands for each in self.body if each.mnemonic in ("call", "bl")))


@dataclass(frozen=True, slots=True)
class Work:
    """What one iteration of a loop does. `vector_bytes` is the width of its vectors, 0 if it computes on scalars."""

    loaded: int = 0
    stored: int = 0
    flops: int = 0
    vector_bytes: int = 0

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte."""
        moved = self.loaded + self.stored
        return self.flops / moved if moved else 0.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """What llvm-mca says of a loop: cycles of an iteration, and of each port in it."""

    cycles: float
    ports: dict[str, float] = field(default_factory=dict)


def loops_of(functions: Sequence[Function]) -> list[Loop]:
    """All loops, in the order of the code."""
    return [loop for function in functions for loop in _loops_in(function)]


def _loops_in(function: Function) -> list[Loop]:
    """Natural loops: a jump back to a block that dominates it, and all blocks on the way from there to the jump.

    Code that the compiler puts elsewhere, such as the error path of `sqrt` behind the function's end, is left out.
    """
    import networkx  # the import takes a tenth of a second

    blocks = _blocks(function)
    graph = networkx.DiGraph(_edges(function, blocks))
    dominators = networkx.immediate_dominators(graph, _ENTRY)
    ends: dict[int, set[int]] = {}
    for end, header in graph.edges:
        if _dominates(header, end, dominators):
            ends.setdefault(header, set()).add(end)
    spans = set()
    for header, jumps in ends.items():
        inside = graph.subgraph(graph.nodes - {header})
        body = {header} | jumps.union(*(networkx.ancestors(inside, jump) for jump in jumps - {header}))
        spans.add(_contiguous_span(header, body, blocks))
    for body in networkx.strongly_connected_components(graph):
        if len(body) > 1 and body.isdisjoint(ends):  # jumps lead into its middle
            spans.add(_contiguous_span(min(body), body, blocks))
    depths = {span: sum(other != span and _is_within(span, other) for other in spans) for span in spans}
    return [Loop(function, *span, depths[span]) for span in sorted(spans)]


_ENTRY = -1
_END = re.compile(
    r"(?:(?:notrack|bnd|repz?) +)?(?:ret|jmp|ud2|b|br|brk)\b(?!\.)"
    r"|(?:call|bl) +(?:_Unwind_Resume|__cxa_(?:re)?throw|abort|std::(?:terminate|__throw)|__stack_chk_fail"
    r"|__assert_fail|c10::detail::torch)"
)
"""An instruction after which the next one does not run."""


def _blocks(function: Function) -> list[range]:
    """Indices of the instructions of each basic block."""
    places = {each.address: index for index, each in enumerate(function.instructions)}
    starts = {0, len(places)}
    for index, each in enumerate(function.instructions):
        if each.target is not None or _ends(each):
            starts |= {index + 1, places.get(each.target or 0, 0)}
    return [range(*pair) for pair in itertools.pairwise(sorted(starts))]


def _edges(function: Function, blocks: Sequence[range]) -> list[tuple[int, int]]:
    """Which block runs after which; the entry is before the first and before those that no jump leads to."""
    at = {function.instructions[block.start].address: number for number, block in enumerate(blocks)}
    found = []
    for number, block in enumerate(blocks):
        last = function.instructions[block[-1]]
        if last.target in at:
            found.append((number, at[last.target]))
        if not _ends(last) and number + 1 < len(blocks):
            found.append((number, number + 1))
    reached = {after for _, after in found}
    tables = [number for number, block in enumerate(blocks) if _jumps_by_table(function.instructions[block[-1]])]
    found += [(number, other) for number in tables for other in range(1, len(blocks)) if other not in reached]
    reached |= {after for _, after in found}
    return [*found, *((_ENTRY, number) for number in range(len(blocks)) if not number or number not in reached)]


def _ends(each: Instruction) -> bool:
    return _END.match(f"{each.mnemonic} {each.operands}") is not None


def _jumps_by_table(each: Instruction) -> bool:
    """Whether the target of a jump is computed, as for a `switch`."""
    return each.target is None and re.search(r"\b(?:jmp|br)\b", f"{each.mnemonic} {each.operands}") is not None


def _dominates(header: int, block: int, dominators: Mapping[int, int]) -> bool:
    """Whether each way from the entry to a block leads through the header."""
    while block not in (header, _ENTRY) and block in dominators:
        block = dominators[block]
    return block == header


def _contiguous_span(header: int, body: Container[int], blocks: Sequence[range]) -> tuple[int, int]:
    """The first and last instruction of the loop's blocks that stand in one row with its header."""
    first = last = header
    while first - 1 in body:
        first -= 1
    while last + 1 in body:
        last += 1
    return blocks[first].start, blocks[last][-1]


def _is_within(span: tuple[int, int], other: tuple[int, int]) -> bool:
    return other[0] <= span[0] and span[1] <= other[1]


def hot_loop(functions: Sequence[Function], language: str) -> Loop | None:
    """The innermost loop with the most vector arithmetic; None without a loop."""
    every = loops_of(functions)
    inner = [
        loop
        for loop in every
        if not any(
            other.function is loop.function and other.depth > loop.depth and _is_within(other.span, loop.span)
            for other in every
        )
    ]

    def heat(loop: Loop) -> tuple[int, int, int, int]:
        flops = [_flops(each, language) for each in loop.body]
        return sum(count > 1 for count in flops) + len(loop.calls), loop.depth, sum(flops), len(loop.body)

    return max(inner, key=heat, default=None)


def work_of(body: Sequence[Instruction], language: str) -> Work:
    """What these instructions do if each runs once."""
    accesses = [access for each in body for access in _accesses(each, language)]
    return Work(
        sum(size for size, kind, _ in accesses if kind == "load"),
        sum(size for size, kind, _ in accesses if kind == "store"),
        sum(_flops(each, language) for each in body),
        max((_vector_bytes(each, language) for each in body), default=0),
    )


def spills_of(functions: Sequence[Function], language: str) -> tuple[int, int, int]:
    """Bytes of stack that hold spilled registers, and the instructions that store and reload these.

    A slot counts if it is stored and loaded at a constant distance from the stack's pointers: at most this was spilled.
    """
    size = stores = loads = 0
    for function in functions:
        found = [access for each in function.instructions for access in _accesses(each, language, stack=True)]
        slots = {place for _, kind, place in found if kind == "store"} & {
            place for _, kind, place in found if kind == "load"
        }
        size += sum(max(width for width, _, place in found if place == slot) for slot in slots)
        stores += sum(place in slots and kind == "store" for _, kind, place in found)
        loads += sum(place in slots and kind == "load" for _, kind, place in found)
    return size, stores, loads


def access_bits(body: Sequence[Instruction], language: str) -> tuple[int | None, int | None]:
    """The widest load and store of one instruction, in bits; None if there is none."""
    found = [access for each in body for access in _accesses(each, language)]
    load, store = (max((8 * size for size, kind, _ in found if kind == way), default=None) for way in ("load", "store"))
    return load, store


# Instructions


def _flops(each: Instruction, language: str) -> int:
    if language == "x86":
        found = _X86_FLOAT.match(each.mnemonic)
        size = {"s": 4, "d": 8, "h": 2}[found[3]] if found else 0
        lanes = _x86_width(each) // size if found and found[2] == "p" else 1
    else:
        found = _ARM_FLOAT.match(each.mnemonic)
        vector = _ARM_LANES.search(each.operands)
        lanes = int(vector[1]) if vector else 1
    return max(lanes, 1) * (2 if found[1] else 1) if found else 0


def _vector_bytes(each: Instruction, language: str) -> int:
    if language == "x86":
        found = _X86_FLOAT.match(each.mnemonic)
        is_packed = found[2] == "p" if found else _X86_PACKED.match(each.mnemonic) is not None
        return _x86_width(each) if is_packed else 0
    lanes = _ARM_LANES.search(each.operands)
    return int(lanes[1]) * _ARM_REGISTERS[lanes[2]] if lanes else 0


def _x86_width(each: Instruction) -> int:
    return next((size for name, size in (("zmm", 64), ("ymm", 32), ("xmm", 16)) if name in each.operands), 0)


Access = tuple[int, str, str]
"""Bytes, "load" or "store", and the address as written."""


def _accesses(each: Instruction, language: str, *, stack: bool = False) -> Iterator[Access]:
    """The instruction's accesses to memory: to the stack at constant places, or else to all but it and constants."""
    reader = _x86_accesses if language == "x86" else _arm_accesses
    for size, kind, place in reader(each):
        if _is_stack(place, language) == stack and not place.startswith("rip"):
            yield size, kind, place


def _is_stack(place: str, language: str) -> bool:
    return bool(_STACK.fullmatch(place) if language == "x86" else re.match(r"(?:sp|x29)(?:, #-?\d+)?$", place))


def _x86_accesses(each: Instruction) -> Iterator[Access]:
    found = _MEMORY.search(each.operands)
    if not found or each.mnemonic in ("lea", "push", "pop", "nop", "call") or each.mnemonic.startswith("prefetch"):
        return
    size = _SIZES.get(found[1], 0)
    is_first = each.operands.startswith(found[0])
    if is_first and _X86_LOAD_AND_STORE.match(each.mnemonic):
        yield size, "load", found[2]
        yield size, "store", found[2]
    else:
        yield size, "store" if is_first and _X86_STORE.match(each.mnemonic) else "load", found[2]


def _arm_accesses(each: Instruction) -> Iterator[Access]:
    found = re.search(r"\[([^\]]*)\]", each.operands)
    if not found or not re.match(r"(?:ld|st)(?!r?ex)", each.mnemonic):
        return
    registers = each.operands[: found.start()]
    if "sp" in found[1] and _CALLEE_SAVED.search(registers):
        return
    lanes = [int(count) * _ARM_REGISTERS[kind] for count, kind in _ARM_LANES.findall(registers)]
    names = re.findall(r"\b([qdshbxw])(?:\d+|zr)\b", registers)
    byte = {"b": 1, "h": 2}.get(each.mnemonic[-1]) if names and names[0] == "w" else None
    size = sum(lanes) or (byte or sum(_ARM_REGISTERS[name] for name in names))
    yield size, "load" if each.mnemonic.startswith("ld") else "store", found[1]


# llvm-mca


def find_mca() -> str | None:
    """The path of llvm-mca; Debian's package `llvm` has it."""
    return shutil.which("llvm-mca")


def throughput_of(loop: Loop, isa: InstructionSet) -> Throughput | None:
    """Simulate the loop with llvm-mca on the model of its instruction set; None if the tool can't read it."""
    program = find_mca()
    if program is None:
        return None
    code = [".intel_syntax noprefix"] if isa.language == "x86" else []
    for each in loop.body:
        if each.address in loop.function.labels:
            code.append(f"{loop.function.labels[each.address]}:")
        if each.mnemonic not in ("call", "bl"):
            code.append(f"{each.mnemonic} {_readable(each, loop.function)}")
    machine = "x86_64" if isa.language == "x86" else "aarch64"
    options = [f"-mtriple={machine}-linux-gnu", f"-mcpu={isa.model}", f"-iterations={_ITERATIONS}"]
    try:
        done = run_in_own_group([program, *options], "\n".join(code) + "\n", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _read_mca(done.stdout) if done.returncode == 0 else None


def _readable(each: Instruction, function: Function) -> str:
    """Operands in the form that LLVM's assembler reads: symbols of C++ by a plain name."""
    return re.sub(r"\[rip\+[^\]]*\]", "[rip+symbol]", operands_in(each, function))


def _read_mca(text: str) -> Throughput | None:
    total, bound = _TOTAL.search(text), _THROUGHPUT.search(text)
    if not total or not bound:
        return None
    names = dict(_RESOURCE.findall(text))
    _, _, table = text.partition("Resource pressure per iteration:\n")
    head, _, rest = table.partition("\n")
    columns, values = re.findall(r"\[([\d.]+)\]", head), rest.partition("\n")[0].split()
    ports = {
        names.get(column, column): float(value)
        for column, value in zip(columns, values, strict=False)
        if re.fullmatch(r"[\d.]+", value)
    }
    return Throughput(
        max(int(total[1]) / _ITERATIONS, float(bound[1])), {name: use for name, use in ports.items() if use}
    )
