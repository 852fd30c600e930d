"""What a C++ kernel of a loaded record may be made of: one function, in the words that our own backend writes.

What all kernels share is not taken from the record: `emit_cpp.shared_text` writes it anew. The check is of words, not
of memory: a kernel that passes can still read and write outside of its tensors, in the process that it runs in.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

from compiler.backend.cpp.emit import RANDOM_TEXT, called_functions
from compiler.backend.cpp.text import PRELUDE
from compiler.untrusted.triton_source import RefusedSourceError

_TYPES = "bool|char|double|float|int|long|short|signed|unsigned|_Float16"
_STATEMENTS = frozenset({"for", "if", "return"})
_PRAGMA_WORDS = frozenset({"parallel", "simd", "collapse", "num_threads", "reduction", "omp", "pragma", "if", "for"})
_CONSTANTS = frozenset({"__builtin_inf", "__builtin_inff", "__builtin_nan", "__builtin_nanf"})
_KEYWORDS = """
alignas and asm auto break case catch class const_cast continue decltype default delete do dynamic_cast else enum
explicit export friend goto inline mutable namespace new not operator or private protected public register
reinterpret_cast sizeof static static_cast struct switch template this throw try typedef typename union using virtual
void volatile while xor
"""
_REFUSED_WORDS = frozenset(_KEYWORDS.split())
_TOKEN = re.compile(r'"[^"\n]*"|[A-Za-z_]\w*|\d[\w.]*|\S')
_CAST = re.compile(rf"\(\s*(?:(?:un)?signed )?(?:{_TYPES})\s*\)")
_HEAD = re.compile(r'\s*extern "C" int kernel_\w+\([^(){}]*\) \{')


def check_cpp(source: str) -> None:
    """Check the source of one kernel's function. Raises RefusedSourceError for what our backend does not write."""
    text = re.sub(r"//[^\n]*", "", source)
    if not _HEAD.match(text):
        raise RefusedSourceError('it does not begin as a kernel does: extern "C" int kernel_NAME(…) {')
    if re.search(r"/\*|\\|\?\?|[\]})]\s*\(", _CAST.sub(" ", _HEAD.sub("{", text, count=1)).replace(") (", ")(")):
        raise RefusedSourceError("a comment over lines, an escape, or a call of what is no name")
    _check_braces(text)
    for number, line in enumerate(text.split("\n"), 1):
        is_pragma = line.lstrip().startswith("#")
        if is_pragma and not re.match(r"\s*#pragma omp (parallel for|simd)\b", line):
            raise RefusedSourceError(f"line {number}: the directive {line.strip()[:60]}")
        for word, following in _words(line):
            _check_word(word, following, is_pragma, number)


def _words(line: str) -> list[tuple[str, str]]:
    """Each token, and what follows: "(" where it is called, with or without a type in angle brackets."""
    called = re.sub(rf"<(?:(?:un)?signed )?(?:{_TYPES})>\s*\(", "(", line)
    return [*pairwise([*_TOKEN.findall(called), ""])]


def _check_word(word: str, following: str, is_pragma: bool, line: int) -> None:
    if word.startswith('"') and word not in ('"C"', '""'):
        raise RefusedSourceError(f"line {line}: the text {word[:60]}")
    if not re.match(r"[A-Za-z_]", word) or (is_pragma and word in _PRAGMA_WORDS):
        return
    if word in _REFUSED_WORDS or (word.startswith("__") and word not in _called() | {"__restrict"}):
        raise RefusedSourceError(f"line {line}: the word {word}")
    is_kernel = word.startswith("kernel_") and line <= 2
    if following == "(" and not (word in _STATEMENTS | _called() or is_kernel):
        raise RefusedSourceError(f"line {line}: the call of {word}")


@cache
def _called() -> frozenset[str]:
    """What kernels call: the functions that they share, and those of mathematics."""
    shared = frozenset(re.findall(r"(?<!\w)([a-z]\w*)\(", PRELUDE + RANDOM_TEXT))
    return (shared - _REFUSED_WORDS) | called_functions() | _CONSTANTS


def _check_braces(text: str) -> None:
    depth = 0
    for place, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "}" and depth <= 0 and text[place + 1 :].strip():
            raise RefusedSourceError("something follows the kernel's function")
    if depth:
        raise RefusedSourceError("its braces are not balanced")
