"""The saved page: one file that loads nothing, runs only its own script, and shows what users wrote as text."""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from compiler.record import Artifact, Record
from explorer.run.compiling import KernelCompiler
from explorer.run.frontend import page_script
from explorer.run.page import page, stage_page
from explorer.run.payload import Payload
from tests.explorer.explored import mlp_record
from tests.explorer.small_record import small_record

BLOCK = re.compile(r'<script type="application/x-tcompile" ([^>]*)>([^<]*)</script>')
HOSTILE = "</script><script>alert('title')</script><!--<img src=x onerror=alert(1)>"


def blocks(html: str) -> dict[tuple[str, str], object]:
    """The contents of the data blocks, by artifact and part."""
    found = {}
    for attributes, data in BLOCK.findall(html):
        named = dict(re.findall(r'data-(\w+)="([^"]*)"', attributes))
        found[named["artifact"], named["part"]] = msgspec.json.decode(zlib.decompress(base64.b64decode(data)))
    return found


def test_the_page_holds_the_whole_record() -> None:
    record = mlp_record()
    found = blocks(page(record))
    payload = Payload(record, pending=KernelCompiler(record).pending_stages())
    assert {key: found[key] for key in found if key[0] and key[1] != "words"} == {
        (part.artifact, part.name): part.content() for part in payload.parts()
    }
    assert found["", "manifest"] == msgspec.json.decode(msgspec.json.encode(payload.manifest()))


def test_the_same_record_gives_the_same_page() -> None:
    record = mlp_record()
    assert page(record) == page(Record.from_json(record.to_json()))


def test_csp_allows_exactly_these_scripts_and_styles() -> None:
    html = page(small_record())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    hashes = [base64.b64encode(sha256(text.encode()).digest()).decode() for text in (script, page_script(), style)]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert set(re.findall(r"([\w-]+-src) ", policy)) == {"default-src", "script-src", "style-src"}


def test_page_contains_no_urls() -> None:
    html = BLOCK.sub("", page(small_record()))
    assert not re.findall(r"(?:src|href)\s*=", re.sub(r"<script.*</script>", "", html, flags=re.DOTALL))
    assert re.findall(r"https?://[^\s\"']+", html + page_script()) == ["http://www.w3.org/2000/svg"]


def test_user_text_cannot_close_elements() -> None:
    record = replace(small_record(), title=HOSTILE)
    hostile = Artifact("source[</script>]", "source", HOSTILE, "python", HOSTILE)
    html = page(replace(record, artifacts=(hostile, *record.artifacts)))
    assert "alert('title')" not in html
    assert "<img" not in html
    assert html.count("</script>") == len(BLOCK.findall(html)) + 1
    assert "<!--" not in html
    assert "&lt;/script&gt;&lt;script&gt;alert(" in re.findall("<title>(.*)</title>", html)[0]


def test_page_without_javascript_says_so() -> None:
    assert "needs JavaScript" in re.findall("<noscript>(.*?)</noscript>", page(small_record()), re.DOTALL)[0]


def test_mlp_page_is_at_most_300_kb() -> None:
    assert len(page(mlp_record()).encode()) <= 300_000


def test_page_of_one_stage_is_small_and_linked_to_its_source() -> None:
    html = stage_page(mlp_record(), "kernels")
    assert len(html.encode()) <= 300_000
    parts = blocks(html)
    manifest: Any = parts["", "manifest"]
    assert [stage["name"] for stage in manifest["stages"]] == ["source", "kernels"]
    named = {name for name, part in parts if part == "entities"}
    entities: Any = [entity for name in named for entity in parts[name, "entities"]["entities"]]  # type: ignore[index]
    known = {entity["id"] for entity in entities}
    origins = {name for entity in entities for name in entity.get("origins", ())}
    assert origins <= known
    assert any(name.startswith("source") for name in origins)
    with pytest.raises(KeyError, match="no artifact or stage 'kernel'"):
        stage_page(mlp_record(), "kernel")
