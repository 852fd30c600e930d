"""Print the size and structure of the code, each figure with its limit.

    .venv/bin/python -m build_tools.size [FOLDER]

A line of code has a token; blank lines, comments, docstrings and other standalone strings do not count. A function name
is bare if each of its words is a participle, an adverb or a preposition: `tried`, `looked_into`, `as_told`. Words are
classified by endings and word lists, so a few are misclassified. Properties do not count, because they are named like
attributes. An id is parsed if a string method that cuts or searches is called on a variable or attribute named `id` or
`…_id`, or on an attribute that holds an id: `kernel.artifact`, `found.frame`.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from build_tools.imports import ImportGraph

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "explorer")
BACKEND = "compiler.backend"
ADAPTER = "compiler.torch_api."

MOST_PYTHON = 42_500
MOST_FRONTEND = 13_500
MOST_BACKEND = 8_817
"""Five sixths of the 10,581 lines that the backend and its glue had when the limit was set."""
MOST_BARE_NAMES = 20
LARGEST_SHOWN = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PREPOSITIONS = _words("""
    about above across after against ahead along among apart around as at away back before behind below beneath beside
    between beyond by down during for from in inside into near of off on onto out outside over past per since through to
    toward towards under until unto up upon with within without
""")
_ADVERBS = _words("""
    again alike almost alone already also always anew beforehand else elsewhere enough ever far here how instead later
    least less more most never next not now often once only otherwise rather soon still then there thus together too
    twice well when where why yet
""")
_IRREGULAR_PARTICIPLES = _words("""
    been begun bent bound broken brought built bought caught chosen dealt done drawn driven eaten fallen fed felt flown
    forgotten found frozen given gone grown heard held hidden kept known laid led left lent lost made meant met paid
    rewritten said seen sent shown spent spoken spun stood stuck sunk taken taught told torn thought thrown understood
    undone unread unseen wanted won worn wound written
""")
_VERBS_AND_NOUNS = _words("""
    apply assembly bed breed bring drawing embed encoding exceed family feed heading hundred indeed king listing mapping
    multiply need padding ping proceed red rely reply ring seed setting shed sing speed spring string supply swing thing
    timing warning wing
""")
"""Words that end like participles or adverbs but are neither."""
_ATTRIBUTES_WITH_IDS = _words("artifact caller entity frame kernel")
_TEXT_METHODS = _words("""
    endswith find index lstrip partition removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split
    startswith strip
""")


class Bar(NamedTuple):
    """A figure and its limit; None if it has no limit."""

    what: str
    figure: int
    most: int | None = None

    def __str__(self) -> str:
        bar = "" if self.most is None else f"   at most {self.most:>7,}   {self._verdict}"
        return f"{self.what:<58}{self.figure:>8,}{bar}"

    @property
    def _verdict(self) -> str:
        assert self.most is not None
        return "ok" if self.figure <= self.most else f"{self.figure - self.most:,} too many"


class Source(NamedTuple):
    """One Python file."""

    text: str
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Source:
        text = path.read_text()
        return cls(text, ast.parse(text))

    def lines_of_code(self) -> int:
        return len(_lines_with_tokens(self.text) - _lines_of_docstrings(self.tree))

    def bare_names(self) -> Iterator[str]:
        """Names of functions and methods that are bare participles, adverbs or prepositions."""
        for node in ast.walk(self.tree):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and is_bare(node.name) and not _is_property(node):
                yield node.name

    def parsed_ids(self) -> Iterator[str]:
        """Calls that parse an id as text."""
        for node in ast.walk(self.tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in _TEXT_METHODS and _is_id(called.value):
                yield ast.unparse(node)


class Tree:
    """All code of a checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.graph = ImportGraph.of(root, PACKAGES)
        self.sources = {name: Source.read(path) for name, path in self.graph.files.items()}
        self.code = {name: source.lines_of_code() for name, source in self.sources.items()}

    def bars(self) -> list[Bar]:
        return [
            Bar("lines of code, Python", sum(self.code.values()), MOST_PYTHON),
            Bar("lines of JavaScript and CSS", self.frontend_lines(), MOST_FRONTEND),
            Bar(f"lines of code, {BACKEND} with its glue", self.backend_lines(), MOST_BACKEND),
            Bar("packages in circles of imports", sum(map(len, self.graph.package_circles())), 0),
            Bar("files in circles of more than two inside a package", sum(map(len, self.graph.file_circles())), 0),
            Bar("functions named by a bare participle, adverb, preposition", len(self.bare_names), MOST_BARE_NAMES),
            Bar("ids parsed as text", len(self.parsed_ids), 0),
            Bar("Python files", len(self.code)),
            Bar("lines of code of the median Python file", round(statistics.median(self.code.values()))),
        ]

    def frontend_lines(self) -> int:
        paths = (path for package in PACKAGES for path in (self.root / package).rglob("*"))
        return sum(len(path.read_text().splitlines()) for path in paths if path.suffix in (".js", ".css"))

    def backend_lines(self) -> int:
        own = {name for name in self.code if _is_in(name, BACKEND)}
        return sum(self.code[name] for name in own | self.glue())

    def glue(self) -> set[str]:
        """Modules of the torch adapter that only the backend imports, directly or through other such modules."""
        users: dict[str, set[str]] = {}
        for module, imported in self.graph.imports.items():
            for name in imported:
                users.setdefault(name, set()).add(module)
        candidates = {name for name in users if name.startswith(ADAPTER)}
        while others := {
            name for name in candidates if not all(_is_in(user, BACKEND) or user in candidates for user in users[name])
        }:
            candidates -= others
        return candidates

    @cached_property
    def bare_names(self) -> Counter[str]:
        return Counter(name for source in self.sources.values() for name in source.bare_names())

    @cached_property
    def parsed_ids(self) -> list[str]:
        return [f"{name}: {call}" for name, source in self.sources.items() for call in source.parsed_ids()]

    def rooms(self) -> Counter[str]:
        """Lines of code by package, subfolders included."""
        counts: Counter[str] = Counter()
        for name, lines in self.code.items():
            counts[".".join(self.graph.package(name).split(".")[:2])] += lines
        return counts


def is_bare(name: str) -> bool:
    """Whether every word of a function's name is a participle, an adverb or a preposition."""
    return not name.startswith("__") and all(map(_is_modifier, name.strip("_").split("_")))


def _is_modifier(word: str) -> bool:
    listed = word in _PREPOSITIONS or word in _ADVERBS or word in _IRREGULAR_PARTICIPLES
    return listed or (bool(re.fullmatch(r"\w{2,}(ed|ing|ly)", word)) and word not in _VERBS_AND_NOUNS)


def _is_id(value: ast.expr) -> bool:
    if isinstance(value, ast.Attribute) and value.attr in _ATTRIBUTES_WITH_IDS:
        return True
    name = getattr(value, "attr", getattr(value, "id", ""))
    return name == "id" or name.endswith("_id")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _lines_with_tokens(text: str) -> set[int]:
    without = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {line for token in tokens if token.type not in without for line in range(token.start[0], token.end[0] + 1)}


def _lines_of_docstrings(tree: ast.Module) -> set[int]:
    """The lines of standalone strings: docstrings of modules, classes, functions and attributes."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def report(tree: Tree) -> Iterator[str]:
    yield from map(str, tree.bars())
    yield from _section("lines of code by package", (f"{lines:>7,}  {name}" for name, lines in tree.rooms().items()))
    largest = Counter(tree.code).most_common(LARGEST_SHOWN)
    yield from _section("largest files", (f"{lines:>7,}  {name}" for name, lines in largest))
    circles = [*tree.graph.package_circles(), *tree.graph.file_circles()]
    yield from _section("circles of imports", (f"{len(circle):>7}  {', '.join(circle)}" for circle in circles))
    names = (f"{name} × {count}" if count > 1 else name for name, count in tree.bare_names.most_common())
    yield from _section("bare names", [", ".join(names)])
    yield from _section("ids parsed", tree.parsed_ids)


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield f"{title}:"
    yield from lines


if __name__ == "__main__":
    for line in report(Tree(Path(sys.argv[1]) if sys.argv[1:] else ROOT)):
        print(line)
