"""The record: JSON in and out exactly, errors that name the field, nothing executed."""

from __future__ import annotations

import json
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import record as record_module
from compiler.record import SCHEMA, STAGES, Artifact, Entity, GraphBreak, Problem, Record, RecordError
from compiler.record.options import Options

text = st.text(max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
decimal = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | whole | decimal | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
attrs = st.dictionaries(text, json_values, max_size=3)

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: text,
    int: whole,
    float: decimal,
    bool: st.booleans(),
    Any: json_values,
    type(None): st.none(),
}


def strategy(annotation: Any) -> st.SearchStrategy[Any]:
    """Values for a field's annotation, for the loader to restore."""
    if annotation in LEAVES:
        return LEAVES[annotation]
    if is_dataclass(annotation):
        return instances(annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(strategy(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy, args))
    if origin is dict:
        return st.dictionaries(*map(strategy, args), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(args)
    return st.one_of(*map(strategy, args))


def instances(cls: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    of_record = {"schema": st.just(SCHEMA), "versus": st.none() | st.builds(simple)} if cls is Record else {}
    of_record |= {"trust": st.just(msgspec.UNSET)} if cls is Record else {}
    values = {field.name: strategy(hints[field.name]) for field in fields(cls) if field.name not in of_record}
    return st.builds(cls, **values, **of_record)


def simple() -> Record:
    entities = (Entity("source[a].L1", "line", "x"), Entity("forward[0/0].mm", "call", "mm", {}, (), ("source[a].L1",)))
    artifact = Artifact(
        "forward[0/0]", "forward", "Forward", "python", "mm", "0/0", {1: ("forward[0/0].mm",)}, entities
    )
    broken = GraphBreak("b", "0/0", "kind", "reason", "file", 3, "f")
    return Record("f", Options(), artifacts=(artifact,), breaks=(broken,))


@given(instances(Record))
@settings(max_examples=60, deadline=None)
def test_json_round_trips_exactly(record: Record) -> None:
    encoded = record.to_json()
    again = Record.decode(encoded.encode())
    assert again == record
    assert again.to_json() == encoded


@given(instances(Record))
@settings(max_examples=20, deadline=None)
def test_a_record_is_plain_json(record: Record) -> None:
    assert json.loads(record.to_json())["title"] == record.title


def test_lines_come_back_with_numbers_as_keys() -> None:
    assert Record.from_json(simple().to_json())["forward"].lines == {1: ("forward[0/0].mm",)}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"title": 3}, "Expected `str`, got `int` - at `$.title`"),
        ({"artifacts": [{"id": "a"}]}, "missing required field `stage` - at `$.artifacts[0]`"),
        ({"breaks": [{"line": "three"}]}, "at `$.breaks[0].line`"),
        ({"options": {"dynamic": "yes"}}, "at `$.options.dynamic`"),
        ({"frames": [{"outcome": "exploded"}]}, "Invalid enum value 'exploded' - at `$.frames[0].outcome`"),
        ({"kernels": {}}, "Expected `array`, got `object` - at `$.kernels`"),
        ({"artifacts": [{"lines": {"one": []}}]}, "at `key` in `$.artifacts[0].lines`"),
    ],
)
def test_a_wrong_field_is_named(damage: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError) as error:
        Record.from_json(json.dumps(json.loads(simple().to_json()) | damage))
    assert str(error.value).startswith("this tcompile record is damaged: ")
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"text"', "{}", b"\xff\xfe", b"\x80\x04pickle."])
def test_non_record_is_refused(content: str | bytes) -> None:
    with pytest.raises(RecordError, match="this is not a tcompile record"):
        Record.from_json(content)


@pytest.mark.parametrize("version", [0, SCHEMA + 1])
def test_another_schema_is_named(version: int) -> None:
    content = json.dumps(json.loads(simple().to_json()) | {"schema": version})
    with pytest.raises(RecordError, match=rf"record schema {version} at `\$\.schema`; .* reads schema {SCHEMA}"):
        Record.from_json(content)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=200)
def test_random_bytes_raise_only_record_error(content: bytes) -> None:
    try:
        Record.from_json(content)
    except RecordError:
        return
    raise AssertionError("random bytes are no record")


@given(st.data())
@settings(max_examples=100)
def test_truncated_file_is_refused(data: st.DataObject) -> None:
    whole_text = simple().to_json()
    end = data.draw(st.integers(0, len(whole_text) - 1))
    with pytest.raises(RecordError):
        Record.from_json(whole_text[:end])


def test_loading_executes_nothing(tmp_path: Path) -> None:
    """The loader reads JSON: it looks up no name from a file."""
    hostile = {"__class__": "os.system", "py/object": "os.system", "__reduce__": ["os.system", ["touch pwned"]]}
    artifact = {"id": "a", "stage": "s", "title": "t", "language": "l", "text": "", "attrs": hostile}
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schema": SCHEMA, "title": "t", "options": {}, "artifacts": [artifact]}))
    assert Record.load(path).artifacts[0].attrs == hostile
    source = Path(record_module.__file__).read_text()
    assert not any(word in source for word in ("pickle", "eval(", "exec(", "__import__"))


def test_an_artifact_by_id_or_stage() -> None:
    record = simple()
    assert record["forward"] is record["forward[0/0]"] is record.artifacts[0]
    assert str(record["forward"]) == "mm"
    with pytest.raises(KeyError, match="no artifact or stage 'backward' in this record; it has: forward"):
        record["backward"]


def test_missing_stage_says_why() -> None:
    record = simple().with_fields(problems=(Problem("sass", "this machine has no nvdisasm"),))
    with pytest.raises(KeyError, match="stage 'sass' is not in this record: this machine has no nvdisasm"):
        record["sass"]


def test_an_entity_by_id_or_name() -> None:
    artifact = simple()["forward"]
    assert artifact.entity("mm") is artifact.entity("forward[0/0].mm")
    with pytest.raises(KeyError, match="has no entity named 'addmm'"):
        artifact.entity("addmm")


def chain(*links: tuple[str, str]) -> Record:
    """A record of entities `name -> origin`."""
    names = dict.fromkeys(name for link in links for name in link)
    entities = tuple(
        Entity(name, "call", name, {}, (), tuple(origin for child, origin in links if child == name)) for name in names
    )
    return Record("t", Options(), artifacts=(Artifact("a", "forward", "", "", "", entities=entities),))


def test_linked_returns_all_ancestors_and_descendants() -> None:
    record = chain(("captured", "line"), ("forward", "captured"), ("kernel", "forward"), ("other", "line"))
    assert record.linked_ids("forward") == {"line", "captured", "forward", "kernel"}
    assert record.linked_ids("line") == {"line", "captured", "forward", "kernel", "other"}
    assert record.linked_ids("other") == {"other", "line"}


def test_circular_links_terminate() -> None:
    assert chain(("a", "b"), ("b", "a")).linked_ids("a") == {"a", "b"}


def test_stage_names_are_unique() -> None:
    assert len(set(STAGES)) == len(STAGES)
