"""Documents lowered: which lines belong to which entity, what each medium shows."""

from __future__ import annotations

from compiler.record import Entity
from explorer.render.document import Bar, Choice, Fold, Only, Row, Section, Table, Text, payload
from explorer.render.static import document_html
from explorer.render.text import document_finding, document_text


def test_every_row_of_an_entity_leads_to_it() -> None:
    entity = Entity("timing.inductor", "candidate", "inductor")
    times, notes = (Table((head,), (Row(("inductor",), (entity.id,)),)) for head in ("times", "notes"))
    artifact = document_finding("timing", "times", (times, notes), {entity.id: entity}).artifact
    rows = [number for number, line in enumerate(artifact.text.split("\n"), 1) if line.strip() == "inductor"]
    assert len(rows) == 2
    assert artifact.lines == dict.fromkeys(rows, (entity.id,))
    assert artifact.entities == (entity,)


def test_choice_is_all_options_but_in_the_view() -> None:
    document = [Choice("Half", (("forward", (Text("one"),)), ("backward", (Text("two"),))))]
    assert document_text(document) == "one\n\ntwo"
    assert all(words in document_html(document) for words in ("one", "two"))
    [choice] = payload(document)["parts"]
    assert [name for name, _ in choice["options"]] == ["forward", "backward"]


def test_only_parts_inside_options_and_folds_reach_their_media() -> None:
    hidden = Only(("text",), (Text("for a terminal"),))
    document = [Choice("Half", (("forward", (Fold("more", (hidden, Text("for all"))),)),))]
    assert "for a terminal" not in str(payload(document))
    assert "for a terminal" not in document_html(document)
    assert "for all" in document_html(document)


def test_bars_share_the_largest_amount_of_their_scale() -> None:
    rows = tuple(Row((Bar(((amount, "now"),), scale),)) for amount, scale in ((2, "a"), (8, "a"), (3, "b")))
    document = [Section((Table((), rows),), "bytes")]
    assert payload(document)["most"] == {"a": 8, "b": 3}
    assert document_text(document) == "bytes"


def test_long_table_is_cut_in_html_alone() -> None:
    document = [Table(("number",), tuple(Row((str(number),)) for number in range(100)))]
    assert "and 70 more" in document_html(document)
    assert len(document_text(document).splitlines()) == 101
    assert len(payload(document)["parts"][0]["rows"]) == 100
