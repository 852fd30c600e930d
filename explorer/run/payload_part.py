"""Compressed pieces of what the front end gets: of an artifact, and what the words of a language mean."""

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
    """One compressed piece of an artifact. `size` is its length in bytes before compression."""

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
"""Word as it stands in the text -> its name, one line about it, address of its documentation."""


def explain_words(language: str, text: str) -> Explained:
    """The words of a text that the glossary knows."""
    from explorer.glossary import for_text

    return {word: (meaning.name, meaning.words, meaning.link) for word, meaning in for_text(language, text).items()}


def words_part(artifact: Artifact) -> Part:
    return Part.pack(artifact.id, "words", explain_words(artifact.language, artifact.text))


def words_of_languages(record: Record) -> Iterator[Part]:
    """One part per language, for all its artifacts: texts of one language share most of their words."""
    found: dict[str, Explained] = {}
    for artifact in record.artifacts:
        found.setdefault(artifact.language, {}).update(explain_words(artifact.language, artifact.text))
    for language, words in found.items():
        if words:
            yield Part.pack(language, "words", dict(sorted(words.items())))
