"""Write the JSON schemas of answers and records into docs/reference/schemas: python -m build_tools.write_schemas."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from compiler.record import READABLE, SCHEMA, Record
from explorer.findings.diagnosis import Diagnostic
from explorer.findings.numerics_across import ComparedValue
from explorer.run import answers

FOLDER = Path(__file__).parents[1] / "docs/reference/schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """The schemas by file name."""
    (page, record, *_), known = msgspec.json.schema_components(
        (answers.Page, Record, Diagnostic, ComparedValue), ref_template="#/$defs/{name}"
    )
    of_answers = {name: known[name] for name in ("Page", "ComparedValue", *_reached("Diagnostic", known))}
    of_records = {name: known[name] for name in _reached("Record", known)}
    return {
        f"answer-{answers.SCHEMA}.json": {
            "$schema": DIALECT, "title": f"Answer of tcompile, schema {answers.SCHEMA}",
            "$comment": "Items of an answer of kind `diagnosis` are `#/$defs/Diagnostic`, of `numerics` "
            "`#/$defs/ComparedValue`.", **page, "$defs": of_answers,
        },
        f"record-{SCHEMA}.json": {
            "$schema": DIALECT, "title": f"Record of tcompile, schema {SCHEMA}",
            "$comment": f"Schemas {', '.join(map(str, READABLE))} are read.", **record, "$defs": of_records,
        },
    }  # fmt: skip


def _reached(name: str, known: Mapping[str, Any]) -> list[str]:
    """A definition's name, and the names of those that it refers to, sorted."""
    found, todo = {name}, [name]
    while todo:
        text = json.dumps(known[todo.pop()])
        new = {other for other in known if f'"#/$defs/{other}"' in text} - found
        found |= new
        todo += new
    return sorted(found)


def _with_plain_words(schema: Any) -> Any:
    """A schema with docstrings as they are read: Python versions differ in their indentation."""
    if isinstance(schema, dict):
        return {
            name: inspect.cleandoc(each) if name == "description" and isinstance(each, str) else _with_plain_words(each)
            for name, each in schema.items()
        }
    return [_with_plain_words(each) for each in schema] if isinstance(schema, list) else schema


def text_of(schema: Mapping[str, Any]) -> str:
    """A schema as it is stored."""
    return json.dumps(_with_plain_words(schema), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, schema in schemas().items():
        (FOLDER / file).write_text(text_of(schema))
