"""Explain words in a stage's text (instructions, operations, functions) in one line, with a link.

The words are in the `.toml` files here, by language. Other operators of PyTorch are explained by the first sentence of
torch's own documentation.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from explorer.glossary.torch_docs import from_torch

__all__ = ["Meaning", "explain", "for_text"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The explanation of a word: its `name` in the documentation, one line of `words`, and a `link`."""

    name: str
    words: str
    link: str


@dataclass(frozen=True, slots=True)
class _Language:
    """The glossary of a language.

    `files` have its words. `tokens` finds the tokens of a text. `names` returns the names to look up for a token, the
    most specific first.
    """

    files: tuple[str, ...]
    tokens: Callable[[str], Iterator[str]]
    names: Callable[[str], Iterator[str]]


@dataclass(frozen=True, slots=True)
class _Book:
    words: dict[str, Meaning]
    suffixes: dict[str, str]


def explain(language: str, token: str) -> Meaning | None:
    """The meaning of a token ("LDG.E.128" in "sass", "aten.mm.default" in "python"); None if unknown.

    `language` is a value of `Artifact.language`.
    """
    known = _LANGUAGES.get(language)
    return _find_meaning(language, token) if known else None


def for_text(language: str, text: str, *, from_docs: bool = True) -> dict[str, Meaning]:
    """The known tokens of a text with their meanings, sorted by token; `from_docs` also looks in torch's own."""
    known = _LANGUAGES.get(language)
    found = {token: _find_meaning(language, token, from_docs) for token in set(known.tokens(text))} if known else {}
    return {token: meaning for token, meaning in sorted(found.items()) if meaning is not None}


@cache
def _find_meaning(language: str, token: str, from_docs: bool = True) -> Meaning | None:
    book, names = _book(_LANGUAGES[language].files), _LANGUAGES[language].names
    for name in names(token):
        if name in book.words:
            return _with_suffixes(book.words[name], token, book.suffixes)
    if from_docs and language in _OF_PYTHON and (found := from_torch(token)):
        return Meaning(*found)
    return None


def _with_suffixes(meaning: Meaning, token: str, suffixes: dict[str, str]) -> Meaning:
    """Add the meanings of the mnemonic's suffixes: `v4` of `ld.global.v4.b32`."""
    rest = token.removeprefix(meaning.name)
    present = [f"{part.strip('_.')}: {suffixes[part]}" for part in re.split(r"\.|(?=_)", rest) if part in suffixes]
    return Meaning(meaning.name, f"{meaning.words} ({'; '.join(present)})", meaning.link) if present else meaning


@cache
def _book(names: tuple[str, ...]) -> _Book:
    words: dict[str, Meaning] = {}
    suffixes: dict[str, str] = {}
    for name in names:
        content = tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text("utf-8"))
        suffixes |= content.get("suffixes", {})
        for group in content["group"]:
            words |= _group(group)
    return _Book(words, suffixes)


def _group(group: dict[str, Any]) -> dict[str, Meaning]:
    owner = next((group[key] for key in ("dialect", "module", "namespace") if key in group), "")
    return {
        f"{owner}.{key}" if owner else key: _make_meaning(key.partition(":")[0], owner, words, group["link"])
        for key, words in group["words"].items()
    }


def _make_meaning(name: str, owner: str, words: str, link: str) -> Meaning:
    kebab = re.sub(r"[._]", "-", name)
    address = link.replace("{name}", name).replace("{kebab}", kebab).replace("{plain}", re.sub(r"[._]", "", name))
    return Meaning(f"{owner}.{name}" if owner else name, words, address)


def _prefixes(name: str, separator: str = ".") -> Iterator[str]:
    """Yield the name, then its prefixes, longest first."""
    while name:
        yield name
        name = name.rpartition(separator)[0]


def _instructions(language: str) -> Callable[[str], Iterator[str]]:
    def tokens(text: str) -> Iterator[str]:
        from compiler.binary.listing import instructions

        return (mnemonic.partition("::")[0] for _line, mnemonic in instructions(language, text))

    return tokens


def _ptx_names(token: str) -> Iterator[str]:
    """Yield names of a PTX instruction, first with its type, as PTX documents float and half arithmetic separately."""
    parts = [part.partition("::")[0] for part in token.split(".")]
    kind = ":half" if re.match(r"b?f16", parts[-1]) else ":float" if re.match(r"f(32|64)", parts[-1]) else ""
    for name in _prefixes(".".join(parts)):
        yield from (name + kind, name) if kind else (name,)


def _sass_names(token: str) -> Iterator[str]:
    yield token.partition(".")[0]


def _amdgcn_names(token: str) -> Iterator[str]:
    bare = re.sub(r"_(e32|e64|dpp|sdwa)$", "", token)
    yield re.sub(r"x\d+$", "", bare)
    yield from _prefixes(bare, "_")


def _x86_names(token: str) -> Iterator[str]:
    """Yield names of an x86 instruction: `add` for `vaddps`, `jcc` for any conditional jump."""
    yield token
    yield from (f"{kind}cc" for kind in ("j", "cmov", "set") if token.startswith(kind))
    bare = token.removeprefix("v") if token.startswith("v") else token
    while bare:
        yield bare
        bare = bare[:-1]


_MLIR_TOKEN = re.compile(
    r"[#!]?\b(?:tt|ttg|ttng|amdg|arith|math|scf|cf|ub|gpu|rocdl|nvvm|llvm)\.[a-z_]\w*(?:\.[a-z_]\w*)*"
)


def _mlir_tokens(text: str) -> Iterator[str]:
    return (found[0] for found in _MLIR_TOKEN.finditer(text))


_LLVM_CALLED = re.compile(r"@(?:llvm\.|__nv_|__ocml_)[\w.]+")


def _llvm_tokens(text: str) -> Iterator[str]:
    yield from _instructions("llvm")(text)
    yield from (found[0] for found in _LLVM_CALLED.finditer(text))


def _llvm_names(token: str) -> Iterator[str]:
    """Yield names of an LLVM token; functions of libdevice and AMD's OCML map to those of Triton's libdevice."""
    library = re.match(r"@(?:__nv_|__ocml_)(\w+?)(?:_f\d+)?$", token)
    if library:
        yield from (f"libdevice.{library[1]}", f"libdevice.{library[1].removesuffix('f')}")
    else:
        yield from _prefixes(token)


_OWNERS = (
    "aten|prims|operator|inductor|extern_kernels|tl|tl_math|libdevice|triton_helpers|triton_heuristics|triton|torch"
)
_PYTHON_TOKEN = re.compile(rf"(?<![\w.])(?:torch\.ops\.)?((?:{_OWNERS})(?:\.[A-Za-z_]\w*)+)")


def _python_tokens(text: str) -> Iterator[str]:
    return (found[1] for found in _PYTHON_TOKEN.finditer(text))


def _python_names(token: str) -> Iterator[str]:
    """Yield names of a Python token: `aten.add` for `aten.add_.Tensor`, `aten.gelu` for `torch.nn.functional.gelu`."""
    name = token.removeprefix("torch.ops.").replace("tl.math.", "tl_math.")
    owner, _, rest = name.partition(".")
    if owner == "torch":
        owner, rest = "aten", re.sub(r"^(nn\.functional|Tensor)\.", "", rest)
    base = rest.partition(".")[0]
    base = f"bitwise_{base.strip('_')}" if base in ("__and__", "__or__", "__xor__") else base
    yield from (f"{owner}.{base}", f"{owner}.{base.rstrip('_')}")
    if owner == "prims":  # most prims are the ATen operator of the same name
        yield f"aten.{base}"


_OF_PYTHON = ("python", "ir", "program")
_LANGUAGES: dict[str, _Language] = {
    "ptx": _Language(("ptx",), _instructions("ptx"), _ptx_names),
    "sass": _Language(("sass",), _instructions("sass"), _sass_names),
    "amdgcn": _Language(("amdgcn",), _instructions("amdgcn"), _amdgcn_names),
    "x86": _Language(("x86",), _instructions("x86"), _x86_names),
    "aarch64": _Language(("aarch64",), _instructions("aarch64"), _prefixes),
    "mlir": _Language(("mlir",), _mlir_tokens, _prefixes),
    "llvm": _Language(("llvm", "triton"), _llvm_tokens, _llvm_names),
    **dict.fromkeys(_OF_PYTHON, _Language(("aten", "triton"), _python_tokens, _python_names)),
}
