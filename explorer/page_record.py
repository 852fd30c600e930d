"""The record in a page, and back out of it: `explorer.load("run.html")`.

A page carries each artifact's text and entities as compressed parts for the front end. What the front end does not need
(guards, timings, …) goes along in one more data block, so that the page holds the whole record, and holds it once.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import msgspec

from compiler.record import Artifact, Record, RecordError
from explorer.findings.finding import VIEW, VIEWED
from explorer.payload_part import Part

PARTS_TYPE, FACTS_TYPE = "application/x-tcompile", "application/x-tcompile-facts"
_IN_PARTS = ("text", "entities", "lines")
_ATTRS_IN_PARTS = ("numbers", VIEWED)


def with_facts(page: str, record: Record) -> str:
    """The page with what its parts do not hold, in a block that no browser runs."""
    plain = msgspec.to_builtins(record)
    facts = Part.of("", "facts", plain | {"artifacts": [_outline(artifact) for artifact in record.artifacts]})
    data = base64.b64encode(facts.data).decode()
    before, end, after = page.rpartition("</body>")
    return f'{before}<script type="{FACTS_TYPE}" data-part="facts">{data}</script>\n{end}{after}'


def record_of(page: str) -> Record:
    """The record of a page that tcompile saved. Nothing in the page is executed. Raises RecordError."""
    blocks = _Blocks()
    blocks.feed(page)
    facts = next((block for block in blocks.found if block.type == FACTS_TYPE), None)
    if facts is None:
        raise RecordError("this is not a page saved by tcompile: it holds no record")
    parts = {(block.artifact, block.part): block for block in blocks.found}
    record = facts.content()
    for artifact in record["artifacts"]:
        text, entities = (_part(parts, artifact["id"], name).content() for name in ("text", "entities"))
        artifact |= {"text": text["text"], **entities}
        artifact["attrs"] |= {} if text["numbers"] is None else {"numbers": text["numbers"]}
        if artifact["attrs"].get(VIEW):
            artifact["attrs"][VIEWED] = _part(parts, artifact["id"], "view").content()
    return Record.from_json(msgspec.json.encode(record))


def _outline(artifact: Artifact) -> dict[str, Any]:
    """An artifact without what its parts hold."""
    kept = {name: getattr(artifact, name) for name in Artifact.__dataclass_fields__ if name not in _IN_PARTS}
    return kept | {"attrs": {name: value for name, value in artifact.attrs.items() if name not in _ATTRS_IN_PARTS}}


@dataclass
class _Block:
    """A data block of a page as it stands there."""

    type: str
    artifact: str
    part: str
    data: str = ""

    def content(self) -> Any:
        """The JSON value in it. Raises RecordError where it is not what was written."""
        try:
            return msgspec.json.decode(zlib.decompress(base64.b64decode(self.data, validate=True)))
        except (binascii.Error, zlib.error, msgspec.MsgspecError) as error:
            what = f"the {self.part} of {self.artifact or 'the record'}"
            raise RecordError(f"this page is damaged: {what} can't be read: {error}") from None


def _part(parts: dict[tuple[str, str], _Block], artifact: str, name: str) -> _Block:
    if (artifact, name) not in parts:
        raise RecordError(f"this page is damaged: the {name} of {artifact} is missing")
    return parts[artifact, name]


class _Blocks(HTMLParser):
    """Collects the data blocks of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Block] = []
        self._open: _Block | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "script" and given.get("type") in (PARTS_TYPE, FACTS_TYPE):
            self._open = _Block(given["type"], given.get("data-artifact", ""), given.get("data-part", ""))
            self.found.append(self._open)

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.data += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._open = None
