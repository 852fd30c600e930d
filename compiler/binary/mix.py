"""Number of a kernel's instructions by class, and the width of its global memory accesses.

Instructions are counted in the text, not as executed: a loop's body counts once. The meanings of mnemonics are from
NVIDIA's PTX ISA and "CUDA Binary Utilities" (instruction set reference), and AMD's "CDNA3 ISA".
"""

from __future__ import annotations

import re
from collections import Counter

from compiler.binary.listing import operations

CLASSES: dict[str, str] = {
    "global load": "reads of global memory, through generic addresses and textures too",
    "global store": "writes to global memory",
    "shared load": "reads of a block's shared memory (LDS with AMD), ldmatrix",
    "shared store": "writes to shared memory, stmatrix",
    "local load": "reads of a thread's own memory: spilled registers, and arrays indexed at run time",
    "local store": "writes to a thread's own memory",
    "memory load": "reads of memory by a CPU",
    "memory store": "writes to memory by a CPU",
    "constant load": "reads of parameters and constants (param, const; scalar loads with AMD)",
    "async copy": "copies from global to shared memory that no register holds: cp.async, TMA, buffer loads to LDS",
    "atomic": "read-modify-write of memory, with or without a result",
    "tensor core": "products of small matrices: mma, wgmma, tcgen05.mma, MFMA",
    "fma": "fused multiply-add of floats, pairs of halves too",
    "float": "other float arithmetic: add, multiply, compare, minimum, absolute value",
    "special": "units of transcendentals: exponential, logarithm, reciprocal, square root, sine, hyperbolic tangent",
    "convert": "from one number format to another, rounding to a whole number",
    "integer": "integer arithmetic, addresses, comparisons, bits and predicates",
    "move": "moves between registers, constants put in registers, reads of special registers, selects",
    "shuffle": "exchange between the threads of a warp: shuffles, votes, warp-wide reductions",
    "barrier": "waiting for threads or copies, and memory fences",
    "branch": "jumps, calls, ends, reconvergence",
    "other": "all else: hints to caches and the scheduler, s_waitcnt, access to tensor memory, NOP",
}
"""Instruction classes in display order, with descriptions."""

_FLOAT_TYPE = r"\.(?:t?f|bf|e)(?:16|32|64|\d+m\d+)"

_PTX: tuple[tuple[str, str], ...] = (
    ("tensor core", r"(mma|wmma\.mma|wgmma\.mma_async|tcgen05\.mma)\b"),
    ("barrier", r"(bar|barrier|membar|fence|mbarrier|wgmma|griddepcontrol)\b|tcgen05\.(wait|commit|fence)"),
    ("barrier", r"cp\.async(\.bulk)?\.(wait|commit|mbarrier)"),
    ("async copy", r"cp\."),
    ("atomic", r"(atom|red|multimem\.red)\b"),
    ("shared load", r"ld(\.\w+)*\.shared|ldmatrix|wmma\.load"),
    ("shared store", r"st(\.\w+)*\.shared|stmatrix|wmma\.store"),
    ("local load", r"ld(\.\w+)*\.local"),
    ("local store", r"st(\.\w+)*\.local"),
    ("constant load", r"ld(\.\w+)*\.(param|const)|ldu\b"),
    ("global load", r"(ld|tex|tld4|multimem\.ld_reduce)\b"),
    ("global store", r"(st|multimem\.st)\b"),
    ("shuffle", r"(shfl|vote|match|redux|elect|activemask)\b"),
    ("other", r"(createpolicy|applypriority|discard|prefetch|prefetchu|tcgen05)\b"),
    ("branch", r"(bra|brx|call|ret|exit|trap|brkpt|nanosleep)\b"),
    ("special", rf"(rcp|sqrt|rsqrt|sin|cos|lg2|ex2|tanh)\b|div\b.*{_FLOAT_TYPE}"),
    ("convert", r"cvt\b"),
    ("fma", rf"(fma|mad)\b.*{_FLOAT_TYPE}"),
    ("move", r"(mov|movmatrix|selp|slct|pack|unpack|mapa|getctarank)\b"),
    ("float", rf"\w+\b.*{_FLOAT_TYPE}"),
    ("integer", r"\w+\b.*\.(b|s|u)\d+|\w+\.pred|(prmt|lop3|cvta|isspacep)\b"),
)

_SASS: tuple[tuple[str, str], ...] = (
    ("tensor core", r"(H|I|B|D|Q|O|F)G?MMA|UTC\wMMA"),
    ("async copy", r"LDGSTS|UBLKCP|UBLKPF|UTMALDG|UTMASTG|UTMAPF|UTMACCTL"),
    ("atomic", r"ATOM[GS]?|RED[GS]?|UTMAREDG|UBLKRED|SUATOM|SURED"),
    ("barrier", r"BAR|B2R|R2B|MEMBAR|ERRBAR|CGAERRBAR|DEPBAR|LDGDEPBAR|ARRIVES|SYNCS|FENCE|WARPGROUP|WARPGROUPSET"),
    ("barrier", r"UTCBAR|UTMACMDFLUSH|UCGABAR_\w+|ACQBULK|ACQSHMINIT|ENDCOLLECTIVE|BARARV|UBAR"),
    ("global load", r"LDG|LD|LDGMC|TEX|TLD|TLD4|TXD|SULD"),
    ("global store", r"STG|ST|SUST"),
    ("shared load", r"LDS|LDSM"),
    ("shared store", r"STS|STSM|STAS"),
    ("local load", r"LDL"),
    ("local store", r"STL"),
    ("constant load", r"LDC|ULDC|LDCU"),
    ("shuffle", r"SHFL|VOTEU?|MATCH|C?REDUX|ELECT"),
    ("special", r"MUFU|RRO"),
    ("convert", r"U?[FI]2[FI]P?|F2F|FRND|I2I|U?I2IP"),
    ("fma", r"FFMA(32I|2)?|DFMA|HFMA2(_32I)?|UFFMA|F?HFMA2"),
    ("float", r"U?FADD(32I|2)?|U?FMUL(32I|2)?|U?FMNMX3?|U?FSETP?|FCHK|FSWZADD|D(ADD|MUL|MNMX|SETP)"),
    ("float", r"H(ADD|MUL|MNMX|SET|SETP)2?(_32I)?|HSETP2|VHMNMX"),
    ("move", r"U?MOV(32I)?|U?F?SEL|CS2U?R|S2U?R|R2UR|R2P|P2R|UP2UR|UR2UP|LEPC|MOVM|UMOV\w*|BMOV"),
    ("branch", r"BRAU?|BRXU?|JMPU?|JMXU?|CALL|RET|EXIT|BSSY|BSYNC|BREAK|BPT|KILL|NANOSLEEP|WARPSYNC|YIELD|RTT|RPCMOV"),
    ("integer", r"U?(VIADD|VIMNMX|VABSDIFF|IADD|IABS|IMAD|IMUL|IMNMX|ISCADD|ISETP|LEA|LOP|PLOP|SHF|SHL|SHR)\w*"),
    ("integer", r"U?(SGXT|BMSK|BREV|POPC|FLO|PRMT|IDP|XMAD|PSETP|ICMP|LOP32I)\w*"),
)

_AMDGCN: tuple[tuple[str, str], ...] = (
    ("tensor core", r"v_(mfma|smfmac|wmma)\w*"),
    ("async copy", r"(global|buffer)_load_lds\w*"),
    ("atomic", r"(global|buffer|flat)_atomic\w*|ds_(add|sub|inc|dec|min|max|and|or|xor|cmpst|wrxchg|pk_add)\w*"),
    ("global load", r"(global|buffer|flat|image)_load\w*"),
    ("global store", r"(global|buffer|flat|image)_store\w*"),
    ("local load", r"scratch_load\w*"),
    ("local store", r"scratch_store\w*"),
    ("shuffle", r"ds_(bpermute|permute|swizzle)\w*|v_mov_b32_dpp|v_(read|write)(first)?lane\w*|v_permlane\w*"),
    ("shared load", r"ds_(read|load|consume)\w*"),
    ("shared store", r"ds_(write|store)\w*"),
    ("constant load", r"s_(buffer_)?load\w*"),
    ("barrier", r"s_barrier\w*|buffer_(wbl2|inv|wbinvl1)\w*|ds_gws\w*"),
    ("branch", r"s_(branch|cbranch|endpgm|setpc|swappc|call|trap|getpc)\w*"),
    ("fma", r"v_(pk_)?(fma|fmac|fmamk|fmaak|mad_mix|mac|mad_f|dot2)\w*"),
    ("special", r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_\w+"),
    ("convert", r"v_(cvt|rndne|trunc|floor|ceil|fract)_\w+"),
    ("move", r"[sv]_(mov|movk|cmov|cndmask|cselect|swap|pack|accvgpr)\w*|v_(mov|pk_mov)\w*"),
    ("float", r"v_\w*_b?f(16|32|64)\w*"),
    ("integer", r"[sv]_\w*_([iub]\d+|co_[iu]32)\w*"),
)

_X86: tuple[tuple[str, str], ...] = (
    ("branch", r"j\w+|call|ret|leave|ud2|loop\w*"),
    ("fma", r"vf?n?m(add|sub)\w*|vfn?m(add|sub)\w*|vdp\w+|vpdp\w+"),
    ("special", r"v?(sqrt|div|rcp|rsqrt|exp2|getexp|getmant|scalef|fixupimm)\w*[ps][sdh]|v?r(cp|sqrt)\w+"),
    ("convert", r"v?cvt\w+|v?round\w+|vrndscale\w+|vreduce\w+"),
    ("float", r"v?(add|sub|mul|max|min|cmp\w*|u?comis|and|andn|or|xor|h(add|sub)|addsub|range|abs)(p|s)?[sdh]"),
    ("shuffle", r"v?(perm\w*|shuf\w*|unpck\w*|broadcast\w*|insert\w*|extract\w*|blend\w*|align\w*|pack\w*)"),
    (
        "shuffle",
        r"vp?(perm\w*|shuf\w*|unpck\w*|broadcast\w*|blend\w*|gather\w*|scatter\w*|align\w*)|v?pins\w+|v?pextr\w+",
    ),
    ("move", r"v?mov\w*|cmov\w+|lea|push|pop|kmov\w|set\w+|c[wdq]+[eo]?|cdqe|cwde|vpmov\w+|vzero\w+|vpternlog\w*"),
    (
        "integer",
        r"add|sub|i?mul|i?div|inc|dec|neg|not|and|or|xor|sh[lr]x?|sa[lr]x?|ro[lr]x?|cmp|test|bt\w*|adc|sbb|mulx",
    ),
    ("integer", r"v?p\w+|k\w+|tzcnt|lzcnt|popcnt|andn|bzhi|blsr|bextr|bs[fr]"),
    ("other", r"nop\w*|endbr64|prefetch\w*|data16"),
)

_AARCH64: tuple[tuple[str, str], ...] = (
    ("branch", r"b(\.\w+)?|bl|blr|br|ret|cbn?z|tbn?z|brk"),
    ("fma", r"fn?m(add|sub|la|ls)\w*|bfdot|bfmmla"),
    ("special", r"f(div|sqrt|recp\w+|rsqrt\w+)"),
    ("convert", r"f?cvt\w+|[su]cvtf|frint\w+|fcvt\w+"),
    ("memory load", r"ld\w+"),
    ("memory store", r"st\w+"),
    ("float", r"f(add|sub|mul|max|min|cm\w+|ac\w+|abs|neg|nm\w+|ccmp\w*|abd|csel)\w*"),
    ("shuffle", r"dup|ins|ext|zip[12]|uzp[12]|trn[12]|rev\d*|tb[lx]|umov|smov"),
    ("move", r"(f?mov\w*|movi|mvni|adrp?|csel|cset\w*|csinc|bsl|bi[ft])"),
    (
        "integer",
        r"[us]?(add|sub|mul|div|mull|mlal|shl|shr|max|min|xtl|addlv|addl)\w*|m(add|sub|ul|neg)|neg|and|orr|eor|orn",
    ),
    (
        "integer",
        r"(bic|l[sS]l|lsr|asr|ror|cmp|cmn|tst|ubfx|sbfx|ubfiz|sbfiz|bfi|bfxil|sxt\w|uxt\w|cm\w\w|ccmp|mvn|not)s?\d?",
    ),
    ("other", r"nop|dmb|dsb|isb|prfm|hint|bti|pac\w+"),
)

_RULES = {
    language: tuple((name, re.compile(pattern)) for name, pattern in rules)
    for language, rules in {
        "ptx": _PTX, "sass": _SASS, "amdgcn": _AMDGCN, "x86": _X86, "aarch64": _AARCH64,
    }.items()
}  # fmt: skip


def instruction_mix(language: str, text: str) -> dict[str, int]:
    """Number of instructions in each class of `CLASSES`; empty classes are left out.

    `language` is one of machine code: "ptx", "sass", "amdgcn", "x86", "aarch64"; raises ValueError for any other.
    """
    if language not in _RULES:
        raise ValueError(f"the instruction mix is of machine code (ptx, sass or amdgcn), not of {language!r}")
    counts = Counter(
        instruction_class(language, mnemonic, rest) for _line, mnemonic, rest in operations(language, text)
    )
    return {name: counts[name] for name in CLASSES if counts[name]}


def instruction_class(language: str, mnemonic: str, operands: str = "") -> str:
    """The class of one instruction; operands are needed if a mnemonic has two meanings."""
    if language == "sass":
        return _sass_class(mnemonic, operands)
    if language == "amdgcn" and re.search(r"\blds\b", operands) and mnemonic.startswith("buffer_load"):
        return "async copy"
    if language == "x86" and (moved := _x86_move(mnemonic, operands)):
        return moved
    match = "match" if language == "ptx" else "fullmatch"
    return next((name for name, rule in _RULES[language] if getattr(rule, match)(mnemonic)), "other")


def _x86_move(mnemonic: str, operands: str) -> str:
    """The class of a move between registers and memory; "" for any other instruction."""
    if not re.match(r"v?mov|push|pop|vmask|vp?broadcast", mnemonic) or (
        "[" not in operands and mnemonic not in ("push", "pop")
    ):
        return ""
    is_store = mnemonic == "push" or "[" in operands.partition(",")[0]
    return "memory store" if is_store and mnemonic != "pop" else "memory load"


def _sass_class(mnemonic: str, operands: str) -> str:
    """The class of a SASS instruction; a multiply-add with zero operands is a move."""
    base = mnemonic.partition(".")[0]
    if mnemonic.startswith("IMAD.MOV") or (base == "HFMA2" and "-RZ, RZ," in operands):
        return "move"
    if mnemonic == "HADD2.F32" and "-RZ" in operands:
        return "convert"
    return next((name for name, rule in _RULES["sass"] if rule.fullmatch(base)), "other")


def access_bits(language: str, text: str) -> tuple[int | None, int | None]:
    """The widest global read and write of one thread in one instruction, in bits.

    None if there is no such instruction, or if hardware copies tiles (TMA). Copies from global to shared memory count
    as reads.
    """
    widths: dict[str, int] = {}
    for _line, mnemonic, operands in operations(language, text):
        kind = instruction_class(language, mnemonic, operands)
        kind = "global load" if kind == "async copy" else kind
        if kind in ("global load", "global store"):
            width = _WIDTHS[language](mnemonic, operands)
            widths[kind] = max(widths.get(kind, 0), width)
    return widths.get("global load") or None, widths.get("global store") or None


def _ptx_width(mnemonic: str, operands: str) -> int:
    if mnemonic.startswith("cp.async.c"):  # cp.async.ca.shared.global [to], [from], bytes
        sizes = re.findall(r",\s*(0x[0-9a-f]+|\d+)\b", operands)
        return 8 * int(sizes[0], 0) if sizes else 0
    found = re.search(r"(?:\.v(\d))?\.[busf](\d+)$", mnemonic)
    return int(found[1] or 1) * int(found[2]) if found else 0


def _sass_width(mnemonic: str, _operands: str) -> int:
    if mnemonic.startswith("U"):
        return 0
    found = re.search(r"\.(?:U|S)?(8|16|64|128|256)\b", mnemonic)
    return int(found[1]) if found else 32


_AMD_SIZES = {"byte": 8, "ubyte": 8, "sbyte": 8, "short": 16, "ushort": 16, "sshort": 16, "dword": 32}


def _amdgcn_width(mnemonic: str, _operands: str) -> int:
    found = re.search(r"_(?:lds_)?(?:(dword|[us]?byte|[us]?short)(?:x(\d))?|[biu](\d+))(?:_d16\w*)?$", mnemonic)
    if not found:
        return 0
    return int(found[3]) if found[3] else _AMD_SIZES[found[1]] * int(found[2] or 1)


_WIDTHS = {"ptx": _ptx_width, "sass": _sass_width, "amdgcn": _amdgcn_width}
