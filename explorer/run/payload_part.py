"""Compressed parts of the front end's data: parts of an artifact, or the glossary of a language."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from compiler.record import Artifact, Record

COMPRESSION = 9


@dataclass(frozen=True, slots=True)
class Part:
    """One compressed part of an artifact. `size` is its uncompressed length in bytes."""

    artifact: str
    name: str
    data: bytes
    digest: str
    size: int

    @classmethod
    def pack(cls, artifact: str, name: str, content: Any) -> Part:
        raw = msgspec.json.encode(content)
        digest = blake2b(raw, digest_size=8).hexdigest()
        return cls(artifact, name, zlib.compress(raw, COMPRESSION), digest, len(raw))

    def content(self) -> Any:
        return msgspec.json.decode(zlib.decompress(self.data))


Explained = dict[str, tuple[str, str, str]]
"""Name, one-line explanation and documentation URL of each word, by its spelling in the text."""


def explain_words(language: str, text: str, *, from_docs: bool = True) -> Explained:
    """Explanations of the words in a text that the glossary knows, or else torch's documentation (`from_docs`)."""
    from explorer.glossary import for_text

    found = for_text(language, text, from_docs=from_docs)
    return {word: (meaning.name, meaning.words, meaning.link) for word, meaning in found.items()}


def words_part(artifact: Artifact) -> Part:
    return Part.pack(artifact.id, "words", explain_words(artifact.language, artifact.text))


def words_of_languages(record: Record, *, from_docs: bool = True) -> Iterator[Part]:
    """One glossary part per language for all its artifacts, because texts of one language share most words."""
    found: dict[str, Explained] = {}
    for artifact in record.artifacts:
        found.setdefault(artifact.language, {}).update(
            explain_words(artifact.language, artifact.text, from_docs=from_docs)
        )
    for language, words in found.items():
        if words:
            yield Part.pack(language, "words", dict(sorted(words.items())))
