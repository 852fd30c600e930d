"""What instructions, operations and functions in a text mean, for a reader who points at one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from compiler.record import Artifact, Record
from explorer.run.payload_part import Part

Explained = dict[str, tuple[str, str, str]]
"""Word as it stands in the text -> its name, one line about it, address of its documentation."""

PART: Final = "words"


def explained(language: str, text: str) -> Explained:
    """The words of a text that the glossary knows."""
    from explorer.glossary import for_text

    return {word: (meaning.name, meaning.words, meaning.link) for word, meaning in for_text(language, text).items()}


def words_part(artifact: Artifact) -> Part:
    return Part.of(artifact.id, PART, explained(artifact.language, artifact.text))


def words_of_languages(record: Record) -> Iterator[Part]:
    """One part a language, for all its artifacts: texts of one language share most of their words."""
    found: dict[str, Explained] = {}
    for artifact in record.artifacts:
        found.setdefault(artifact.language, {}).update(explained(artifact.language, artifact.text))
    for language, words in found.items():
        if words:
            yield Part.of(language, PART, dict(sorted(words.items())))
