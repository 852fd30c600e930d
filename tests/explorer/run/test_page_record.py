"""The record in a page loads exactly; a changed page gives an error that says what is wrong."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from compiler.record import Artifact, Record, RecordError
from explorer.run import page as html
from explorer.run import page_record
from explorer.run.page_record import record_of, with_facts
from tests.explorer.explored import broken_record, mlp_record
from tests.explorer.small_record import small_record


def page(record: Record) -> str:
    return with_facts(html.page(record), record)


def odd_record() -> Record:
    """Ids and texts with all characters that are special in HTML, and line numbers of an excerpt."""
    odd = "</script></body><!-- \" ' & &amp; \u2028 \x0c"
    artifact = Artifact(odd, odd, odd, odd, odd, odd, attrs={"numbers": [0, 7], "path": odd})
    return replace(small_record(), title=odd, artifacts=(artifact,))


@pytest.mark.parametrize("make", [small_record, mlp_record, broken_record, odd_record])
def test_record_round_trips_through_a_page(make: Callable[[], Record]) -> None:
    record = make()
    assert record_of(page(record)) == record


def test_the_page_holds_the_text_once() -> None:
    """Facts are a small part of a page."""
    record = mlp_record()
    assert len(page(record)) - len(html.page(record)) < 0.1 * len(record.to_json())


def test_another_page_holds_no_record() -> None:
    with pytest.raises(RecordError, match="this is not a page saved by tcompile: it holds no record"):
        record_of("<!doctype html><script>1</script>")


def test_a_part_that_is_missing_is_named() -> None:
    block = re.compile(r'<script[^>]*data-artifact="forward\[0/0\]" data-part="text".*?</script>')
    without = block.sub("", page(small_record()))
    with pytest.raises(RecordError, match=r"the text of forward\[0/0\] is missing"):
        record_of(without)


@pytest.mark.parametrize("damage", ["!", "AAAA"])
def test_a_part_that_was_changed_is_named(damage: str) -> None:
    start = '<script type="application/x-tcompile" data-artifact="forward[0/0]" data-part="text"'
    before, after = page(small_record()).split(start)
    digest, _, rest = after.partition(">")
    with pytest.raises(RecordError, match=r"the text of forward\[0/0\] can't be read"):
        record_of(f"{before}{start}{digest}>{damage}{rest}")


def test_a_field_that_is_wrong_is_named() -> None:
    record = small_record()
    with pytest.raises(RecordError, match=r"Expected `str`, got `int` - at `\$\.title`"):
        record_of(with_facts(html.page(record), replace(record, title=3)))  # type: ignore[arg-type]


def test_parts_together_unpack_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them would be small enough."""
    text = page(small_record())
    sizes = [len(zlib.decompress(base64.b64decode(block["data"]))) for block in page_record._BLOCK.finditer(text)]
    monkeypatch.setattr(page_record, "MOST_BYTES", sum(sizes))
    assert record_of(text) == small_record()
    monkeypatch.setattr(page_record, "MOST_BYTES", max(sizes))
    with pytest.raises(RecordError, match="this page unpacks to more than"):
        record_of(text)
