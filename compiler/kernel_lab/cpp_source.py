"""Check C++ kernels of loaded records: each is a single function, of tokens that our backend writes.

The code that all kernels share is not taken from the record: `cpp.emit.shared_text` generates it again. In the function
each token must be known: types, operators, OpenMP's clauses, functions that kernels call, and names that are
declared. The check is lexical and does not make memory accesses safe: a kernel that passes can still read and write out
of bounds in its process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from compiler.backend.cpp.emit import RANDOM_TEXT
from compiler.backend.cpp.text import PRELUDE, identifier
from compiler.backend.ir.scalar import OPERATIONS
from compiler.untrusted.triton_source import RefusedSourceError

_TYPES = frozenset({"bool", "char", "double", "float", "int", "long", "short", "signed", "unsigned", "_Float16"})
_WORDS = _TYPES | {"break", "const", "continue", "else", "false", "for", "if", "return", "true", "__restrict"}
_STATEMENTS = frozenset({"for", "if", "return"})
_CONSTANTS = frozenset({"__builtin_inf", "__builtin_inff", "__builtin_nan", "__builtin_nanf"})
_HEAD = re.compile(r'\s*extern "C" int kernel_\w+(?=\([^(){}]*\) \{)', re.ASCII)
_TOKEN = re.compile(r'""|\w+|/\*|<%|%>|<:|:>|%:|\[\[|\S', re.ASCII)
_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SIGN = re.compile(r'""|\d\w*|[-+*/%<>=!&|^~?:;,.()\[\]{}]', re.ASCII)
"""Allowed tokens that are not words. Block comments, attributes, and digraphs (for `#` and brackets) are refused."""
_PRAGMA = re.compile(r"#pragma omp (parallel for|simd)\b( simd\b)?")
_CLAUSE = re.compile(r"\b(?:(?:collapse|num_threads|if)\(|reduction\((?:[-+*|&]|most|least):)")
_ANY_TYPE = rf"(?:(?:un)?signed )?(?:{'|'.join(sorted(_TYPES))})"
_CAST = re.compile(rf"\( {_ANY_TYPE} \) ")
_TYPE_ARGUMENT = re.compile(rf"< {_ANY_TYPE} > (?=\()")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|\\[ \t]*$", re.MULTILINE)
"""Control characters, which compilers may take for line ends, and backslashes that join lines."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int


def check_cpp(source: str) -> None:
    """Check a kernel's function. Raises RefusedSourceError for code that our backend does not write."""
    head = _HEAD.match(source)
    if not head:
        raise RefusedSourceError('it does not begin as a kernel does: extern "C" int kernel_NAME(…) {')
    if found := _CONTROL.search(source):
        raise RefusedSourceError(f"the character {found[0]!r}")
    tokens = [*_tokens(source[head.end() :], source.count("\n", 0, head.end()) + 1)]
    _check_calls(tokens)
    _check_words(tokens)
    _check_braces(tokens)


def _tokens(function: str, first: int) -> Iterator[_Token]:
    """Tokens after the function's name, without comments. Raises RefusedSourceError for unknown directives."""
    for number, line in enumerate(function.split("\n"), first):
        code = line.partition("//")[0]
        if code.lstrip().startswith("#"):
            pragma = _PRAGMA.match(code.strip())
            if not pragma:
                raise RefusedSourceError(f"line {number}: the directive {code.strip()[:60]}")
            code = _CLAUSE.sub(";(", code.strip()[pragma.end() :])
        yield from (_Token(token, number) for token in _TOKEN.findall(code))


def _check_words(tokens: Sequence[_Token]) -> None:
    """Check that each word is known or declared, and that all other tokens are operators or punctuation."""
    known = _WORDS | _called_names() | _declared_names([token.text for token in tokens])
    for token in tokens:
        if _WORD.fullmatch(token.text):
            if token.text not in known:
                raise RefusedSourceError(f"line {token.line}: the word {token.text}")
        elif not _SIGN.fullmatch(token.text):
            raise RefusedSourceError(f"line {token.line}: {token.text[:60]}")


def _declared_names(texts: Sequence[str]) -> frozenset[str]:
    """Names of parameters and variables: they follow a type, a type and `*`, or `__restrict`."""
    triples = zip(["", *texts], texts, texts[1:], strict=False)
    names = (
        name
        for kind, before, name in triples
        if before in _TYPES or before == "__restrict" or (kind in _TYPES and before == "*")
    )
    own = ("failed", "lane", "lanes", "threads", "tile")  # names that the backend reserves
    return frozenset(name for name in names if name in own or (name[0].isalpha() and identifier(name) == name))


def _check_calls(tokens: Sequence[_Token]) -> None:
    """Check that only shared functions and math functions are called."""
    text = _TYPE_ARGUMENT.sub("", " ".join(token.text for token in tokens))
    for word in re.findall(r"(\w+) \(", text):
        if word not in _STATEMENTS | _called_names():
            raise RefusedSourceError(f"the call of {word}")
    if re.search(r"[\]})] \(", _CAST.sub("", text)):
        raise RefusedSourceError("a call of what is no name")


def called_functions() -> frozenset[str]:
    """Names of the C++ functions that scalar operations call, for float and double."""
    texts = (operation.cpp.replace("{f}", suffix) for operation in OPERATIONS.values() for suffix in ("", "f"))
    return frozenset(name for text in texts for name in re.findall(r"(\w+)(?:<\w+>)?\(", text))


@cache
def _called_names() -> frozenset[str]:
    """Names of the functions that kernels may call: shared functions and math functions."""
    shared = frozenset(re.findall(r"(?:inline [\w ]*?)(\w+)\(", PRELUDE + RANDOM_TEXT))
    return shared | called_functions() | _CONSTANTS


def _check_braces(tokens: Sequence[_Token]) -> None:
    depth = 0
    for place, token in enumerate(tokens):
        depth += {"{": 1, "}": -1}.get(token.text, 0)
        if token.text == "}" and depth <= 0 and place + 1 < len(tokens):
            raise RefusedSourceError("something follows the kernel's function")
    if depth:
        raise RefusedSourceError("its braces are not balanced")
