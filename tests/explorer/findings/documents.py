"""Helpers to read documents in tests: the parts of a kind in a document or below a part, and text without links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Part = dict[str, Any]


def parts_of(value: Any, kind: str) -> list[Part]:
    """All parts of this kind in a document's payload, outermost first."""
    return list(_parts(value, kind))


def _parts(value: Any, kind: str) -> Iterator[Part]:
    if isinstance(value, dict):
        if value.get("part") == kind:
            yield value
        for inside in value.values():
            yield from _parts(inside, kind)
    elif isinstance(value, list | tuple):
        for inside in value:
            yield from _parts(inside, kind)


def words_of(words: Any) -> str:
    """A sentence of a document's payload as text."""
    if isinstance(words, list | tuple):
        return "".join(map(words_of, words))
    return words if isinstance(words, str) else str(words.get("words", ""))
