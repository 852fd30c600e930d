"""Decompositions of one operator as a document: a table of levels, and a fold for each level."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.decompose.levels import ABOUT
from compiler.decompose.one_op import Decomposition, Level
from compiler.record.plain_text import pluralize
from explorer.findings.decompose.text import call_text, numbers_text, sources_text, stays, tree_lines
from explorer.render.document import Code, Document, Fold, Parts, Row, Table, Tag, Text

HEAD = ("level", "ops", "different", "against eager")


def decomposition_document(found: Decomposition) -> Document:
    """Document of a decomposition: the call, a table of levels, and a fold for each level."""
    about = (Text((Tag(words, "muted"),)) for words in (str(found.source or ""), found.note) if words)
    levels = (level_fold(level, is_open=level.name == "Inductor") for level in found.levels)
    return [Text(Tag(call_text(found), "strong")), *about, Table(HEAD, tuple(map(_row, found.levels))), *levels]


def _row(level: Level) -> Row:
    ops = level.ops()
    checks = "; ".join(dict.fromkeys(map(numbers_text, level.numbers))) or "nothing to compare"
    return Row((level.name, str(len(ops)), str(len(set(ops))), checks))


def level_fold(level: Level, *, is_open: bool = True) -> Fold:
    """Fold of one level: its trees, the operators that are not decomposed, code, and graph."""
    about = f" {pluralize(len(level.ops()), 'op')}; {ABOUT[level.name]}"
    return Fold((Tag(level.name, "strong"), Tag(about, "muted")), tuple(_body(level)), is_open)


def _body(level: Level) -> Iterator[Parts]:
    yield _code("\n".join(line for root in level.roots for line in tree_lines(root)))
    if reasons := stays(level):
        yield Table(("left as it is", "why"), tuple(map(Row, reasons)))
    sources = [pair for root in level.roots for pair in root.sources() if pair[1].text]
    if sources:
        yield Fold("code of the decompositions", (_code(sources_text(sources)),))
    yield Fold("the graph", (_code(level.code),))


def _code(text: str) -> Code:
    return Code(tuple(text.splitlines()), language="")
