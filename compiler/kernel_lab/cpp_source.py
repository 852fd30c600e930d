"""Check C++ kernels of loaded records: one function, of tokens that our backend writes.

What all kernels share is not taken from the record: `cpp.emit.shared_text` writes it anew. Of the function every token
has to be known: types, operators, OpenMP's clauses, the functions that kernels call, and names that it declares. The
check is of words, not of memory: a kernel that passes can still read and write outside of its tensors, in the process
that it runs in.
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
"""What is no word. Not among them: comments over lines, attributes, and digraphs, which stand for `#` and brackets."""
_PRAGMA = re.compile(r"#pragma omp (parallel for|simd)\b( simd\b)?")
_CLAUSE = re.compile(r"\b(?:(?:collapse|num_threads|if)\(|reduction\((?:[-+*|&]|most|least):)")
_ANY_TYPE = rf"(?:(?:un)?signed )?(?:{'|'.join(sorted(_TYPES))})"
_CAST = re.compile(rf"\( {_ANY_TYPE} \) ")
_TYPE_ARGUMENT = re.compile(rf"< {_ANY_TYPE} > (?=\()")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]|\\[ \t]*$", re.MULTILINE)
"""Characters that compilers may take for the end of a line, and what joins a line to the next."""


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int


def check_cpp(source: str) -> None:
    """Check a kernel's function. Raises RefusedSourceError for what our backend does not write."""
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
    """A function's tokens after its name, without comments; of directives, OpenMP's."""
    for number, line in enumerate(function.split("\n"), first):
        code = line.partition("//")[0]
        if code.lstrip().startswith("#"):
            pragma = _PRAGMA.match(code.strip())
            if not pragma:
                raise RefusedSourceError(f"line {number}: the directive {code.strip()[:60]}")
            code = _CLAUSE.sub(";(", code.strip()[pragma.end() :])
        yield from (_Token(token, number) for token in _TOKEN.findall(code))


def _check_words(tokens: Sequence[_Token]) -> None:
    """Check that every word is known or declared, and that all else is an expression's punctuation."""
    known = _WORDS | _called_names() | _declared_names([token.text for token in tokens])
    for token in tokens:
        if _WORD.fullmatch(token.text):
            if token.text not in known:
                raise RefusedSourceError(f"line {token.line}: the word {token.text}")
        elif not _SIGN.fullmatch(token.text):
            raise RefusedSourceError(f"line {token.line}: {token.text[:60]}")


def _declared_names(texts: Sequence[str]) -> frozenset[str]:
    """Parameters and variables: names that follow a type, a type and `*`, or `__restrict`."""
    triples = zip(["", *texts], texts, texts[1:], strict=False)
    names = (
        name
        for kind, before, name in triples
        if before in _TYPES or before == "__restrict" or (kind in _TYPES and before == "*")
    )
    own = ("failed", "lane", "lanes", "threads", "tile")  # the backend's own; its values have other names
    return frozenset(name for name in names if name in own or (name[0].isalpha() and identifier(name) == name))


def _check_calls(tokens: Sequence[_Token]) -> None:
    """Check that only shared functions and those of mathematics are called."""
    text = _TYPE_ARGUMENT.sub("", " ".join(token.text for token in tokens))
    for word in re.findall(r"(\w+) \(", text):
        if word not in _STATEMENTS | _called_names():
            raise RefusedSourceError(f"the call of {word}")
    if re.search(r"[\]})] \(", _CAST.sub("", text)):
        raise RefusedSourceError("a call of what is no name")


def called_functions() -> frozenset[str]:
    """The names of all functions that operations call, for float and for double."""
    texts = (operation.cpp.replace("{f}", suffix) for operation in OPERATIONS.values() for suffix in ("", "f"))
    return frozenset(name for text in texts for name in re.findall(r"(\w+)(?:<\w+>)?\(", text))


@cache
def _called_names() -> frozenset[str]:
    """The functions that kernels call: the shared ones, and those of mathematics."""
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
