"""Store the record in a page, and load it from the page: `tcompile.load("run.html")`.

A page has each artifact's text and entities as compressed parts for the front end. Fields that the front end does not
need (guards, timings, …) are in one more data block, so that the page has the whole record without duplication.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from dataclasses import dataclass
from html import unescape
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from compiler.record import Artifact, Record, RecordError
from compiler.record.limits import MOST_BYTES
from explorer.render.finding import VIEW, VIEWED
from explorer.run.payload_part import Part

PARTS_TYPE, FACTS_TYPE = "application/x-tcompile", "application/x-tcompile-facts"
_IN_PARTS = ("text", "entities", "lines")
_ATTRS_IN_PARTS = ("numbers", VIEWED)
T = TypeVar("T")
_BLOCK = re.compile(
    rf'<script type="(?P<type>{PARTS_TYPE}(?:-facts)?)"(?P<attributes>[^<>]*)>(?P<data>[^<>]*)</script>'
)
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


def with_facts(page: str, record: Record) -> str:
    """Add a data block to a page, with the record's fields that are not in the page's parts."""
    plain = msgspec.to_builtins(record.with_trust(msgspec.UNSET))
    facts = Part.pack("", "facts", plain | {"artifacts": [_outline(artifact) for artifact in record.artifacts]})
    data = base64.b64encode(facts.data).decode()
    before, end, after = page.rpartition("</body>")
    return f'{before}<script type="{FACTS_TYPE}" data-part="facts">{data}</script>\n{end}{after}'


def record_of(page: str) -> Record:
    """The record of a page saved by tcompile. Executes nothing in the page. Raises RecordError.

    Parts are joined as raw JSON, and validated when the whole record is decoded.
    """
    blocks = _Blocks(page)
    if blocks.is_of_job:
        raise RecordError("this is the page of a job, for a browser; give the logs that it was made from instead")
    if blocks.facts is None:
        raise RecordError("this is not a page saved by tcompile: it holds no record")
    facts = blocks.unpack(blocks.facts, dict[str, Raw])
    outlines = _decode(facts.get("artifacts", Raw(b"null")), list[dict[str, Raw]], "the list of artifacts")
    facts["artifacts"] = Raw(msgspec.json.encode([_whole(outline, blocks) for outline in outlines]))
    return Record.from_json(msgspec.json.encode(facts))


def _whole(outline: dict[str, Raw], blocks: _Blocks) -> dict[str, Any]:
    """An artifact's fields, including those from its parts."""
    name = _decode(outline.get("id", Raw(b"null")), str, "the id of an artifact")
    attrs: dict[str, Any] = _decode(outline.get("attrs", Raw(b"{}")), dict[str, Raw], f"the attrs of {name}")
    text, entities = (blocks.part(name, part, dict[str, Raw]) for part in ("text", "entities"))
    text.pop("folds", None)
    entities.pop("stacks", None)
    if bytes(numbers := text.pop("numbers", Raw(b"null"))) != b"null":
        attrs["numbers"] = numbers
    if bytes(attrs.get(VIEW, b"null")) not in (b'""', b"null"):
        attrs[VIEWED] = blocks.part(name, "view", Raw)
    return {**outline, **text, **entities, "attrs": attrs}


def _outline(artifact: Artifact) -> dict[str, Any]:
    """An artifact's fields, except those in its parts."""
    kept = {name: getattr(artifact, name) for name in Artifact.__dataclass_fields__ if name not in _IN_PARTS}
    return kept | {"attrs": {name: value for name, value in artifact.attrs.items() if name not in _ATTRS_IN_PARTS}}


class _Blocks:
    """The data blocks of a page, unpacked lazily, with a limit on their total unpacked size."""

    def __init__(self, page: str) -> None:
        self.facts: _Block | None = None
        self._parts: dict[tuple[str, str], _Block] = {}
        self._left = MOST_BYTES
        for match in _BLOCK.finditer(page):
            names = {key: unescape(value) for key, value in _ATTRIBUTE.findall(match["attributes"])}
            block = _Block(names.get("data-artifact", ""), names.get("data-part", ""), match["data"])
            self._parts[block.artifact, block.part] = block
            if match["type"] == FACTS_TYPE and self.facts is None:
                self.facts = block

    @property
    def is_of_job(self) -> bool:
        return ("", "index") in self._parts

    def part(self, artifact: str, name: str, kind: type[T]) -> T:
        if (artifact, name) not in self._parts:
            raise RecordError(f"this page is damaged: the {name} of {artifact} is missing")
        return self.unpack(self._parts[artifact, name], kind)

    def unpack(self, block: _Block, kind: type[T]) -> T:
        """The JSON value in a block. Raises RecordError if it is damaged or too large."""
        try:
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(base64.b64decode(block.data, validate=True), self._left + 1)
        except (binascii.Error, zlib.error) as error:
            raise RecordError(f"this page is damaged: {block.title} can't be read: {error}") from None
        self._left -= len(data)
        if self._left < 0:
            raise RecordError(f"this page unpacks to more than {MOST_BYTES / 1e6:,.0f} MB, the most that is read")
        if not unpacking.eof:
            raise RecordError(f"this page is damaged: {block.title} can't be read: it is cut off")
        return _decode(Raw(data), kind, block.title)


@dataclass(frozen=True, slots=True)
class _Block:
    """A data block of a page, still packed."""

    artifact: str
    part: str
    data: str

    @property
    def title(self) -> str:
        return f"the {self.part} of {self.artifact or 'the record'}"


def _decode(data: Raw, kind: type[T], title: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"this page is damaged: {title} can't be read: {error}") from None
