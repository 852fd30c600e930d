"""A check's report as text, Markdown, annotations of GitHub, JUnit XML and SARIF."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from xml.etree import ElementTree

from compiler.record.plain_text import one_line, pluralize, size_text
from explorer.budget.compare import Change, Report
from explorer.budget.metrics import WORDS, Place
from explorer.reading.plain_text import columns
from explorer.reading.shapes import seconds_text
from explorer.run.answers import Answer

MOST_PLACES: Final = 20
SARIF_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_MARKS: Final = {"same": "", "regressed": "✗ more", "improved": "✓ less", "not compared": "not compared"}
Paths = Mapping[str, str]
"""Paths relative to the folder of the check, by the record's names of files."""


def report_text(report: Report) -> str:
    """The report for a terminal: a row for each metric that is not the same, and the places that are new."""
    changed = [change for change in report.changes if change.verdict != "same"]
    count = pluralize(len(report.regressions), "regression")
    head = f"{report.name}: {count if report.regressions else 'within the budget'}"
    parts = [head, *(["\n".join(columns(report_rows(changed)))] if changed else [])]
    parts += ["\n".join(_place_lines(change)) for change in report.regressions if change.new]
    parts += [f"{change.words}: {change.note}" for change in changed if change.note]
    if any(change.verdict == "improved" for change in changed) and report.holds:
        parts.append("It costs less than the baseline allows: --update keeps that.")
    return "\n\n".join(parts)


def report_rows(changes: Sequence[Change], *, with_limit: bool = True) -> list[tuple[str, ...]]:
    """The rows of a table of changes, with a header; without the limits, only before and after."""
    if not with_limit:
        return [("metric", "before", "after"), *(_row(change)[:3] for change in changes)]
    return [("metric", "before", "after", "allowed", ""), *map(_row, changes)]


def _row(change: Change) -> tuple[str, ...]:
    return (change.words, *_number_texts(change), _MARKS[change.verdict])


def _number_texts(change: Change) -> list[str]:
    """Before, after and the limit, "" for unknown ones; exact bytes if rounding would hide a difference."""
    values = (change.before, change.after, change.limit)
    texts = [_number_text(value, change.unit) for value in values]
    if change.unit == "bytes" and len({*texts}) < len({*values}):
        return ["" if value is None else f"{value:,.10g} B" for value in values]
    return texts


def _number_text(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return size_text(value) if unit == "bytes" else seconds_text(value) if unit == "seconds" else f"{value:,.10g}"


def _place_lines(change: Change) -> Iterator[str]:
    yield f"new {change.words}:"
    for place in change.new[:MOST_PLACES]:
        where = f"{place.file}:{place.line}  " if place.file else ""
        yield f"  {where}{place.message or place.what}"
    if len(change.new) > MOST_PLACES:
        yield f"  … and {len(change.new) - MOST_PLACES} more"


def markdown(reports: Sequence[Report], paths: Paths) -> str:
    """A summary for a pull request: a table of before and after for each call, and the new places."""
    return "\n".join(line for report in reports for line in _markdown(report, paths))


def _markdown(report: Report, paths: Paths) -> Iterator[str]:
    yield f"### tcompile: {_cell(report.name)}: {'within the budget' if report.holds else 'regressed'}\n"
    yield "| | before | after | allowed | |\n|---|---:|---:|---:|---|"
    for change in report.changes:
        yield f"| {' | '.join(map(_cell, _row(change)))} |"
    for change in report.regressions:
        if change.new:
            yield f"\n**New {change.words}**\n"
        for place in change.new[:MOST_PLACES]:
            where = f"`{paths.get(place.file, place.file)}:{place.line}` " if place.file else ""
            yield f"- {where}{_cell(place.message or place.what)}"
    yield ""


def _cell(text: str) -> str:
    """Text that is no Markdown: from the user's code, it may have anything."""
    plain = one_line(text)
    for mark in "\\`|<>*_[]#!@":
        plain = plain.replace(mark, f"\\{mark}")
    return plain


def github_lines(reports: Sequence[Report], paths: Paths) -> Iterator[str]:
    """Workflow commands that annotate the lines of a pull request, which are in files of `paths` alone."""
    for report in reports:
        for change in report.regressions:
            title = f"{report.name}: {change.words}"
            before, after, limit = _number_texts(change)
            counts = f"{before or '0'} -> {after}"
            for place in change.new[:MOST_PLACES]:
                place_words = f"{place.message or place.what} ({change.words} {counts})"
                yield _command("warning", title, place_words, *_local_place(place, paths))
            yield _command("error", title, f"{change.words}: {counts}, {limit} allowed")


def _local_place(place: Place, paths: Paths, default_file: str = "") -> tuple[str, int]:
    """File and line of a place; of one in another file than those of `paths`, the default file, without a line."""
    return (paths[place.file], place.line) if place.file in paths else (default_file, 0)


def _command(level: str, title: str, message: str, file: str = "", line: int = 0) -> str:
    known = {"file": file, "line": str(line or ""), "title": f"tcompile, {title}"}
    properties = ",".join(f"{name}={_property(value)}" for name, value in known.items() if value)
    return f"::{level} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def junit(reports: Sequence[Report], paths: Paths) -> bytes:
    """JUnit XML: a suite for each call, a test case for each metric."""
    root = ElementTree.Element("testsuites", name="tcompile")
    for report in reports:
        skipped = sum(change.verdict == "not compared" for change in report.changes)
        counts = {"tests": len(report.changes), "failures": len(report.regressions), "errors": 0, "skipped": skipped}
        known = {name: str(count) for name, count in counts.items()}
        suite = ElementTree.SubElement(root, "testsuite", {"name": _xml(report.name), **known})
        for change in report.changes:
            case = ElementTree.SubElement(suite, "testcase", classname=_xml(report.name), name=change.id, time="0")
            if change.verdict == "regressed":
                failure = ElementTree.SubElement(case, "failure", message=_xml(_sentence(change)))
                failure.text = _xml("\n".join(_places_with_paths(change, paths)))
            elif change.verdict == "not compared":
                ElementTree.SubElement(case, "skipped", message=_xml(change.note))
    ElementTree.indent(root)
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="utf-8") + b"\n"


def _sentence(change: Change) -> str:
    before, after, limit = _number_texts(change)
    return f"{change.words}: {before or 'no baseline'} before, now {after}, {limit} allowed"


def _places_with_paths(change: Change, paths: Paths) -> Iterator[str]:
    for place in change.new:
        where = f"{paths.get(place.file, place.file)}:{place.line}: " if place.file else ""
        yield f"{where}{place.message or place.what}"


def _xml(text: str) -> str:
    """Text without the characters that XML does not have."""
    return "".join(char for char in text if char in "\t\n\r" or (ord(char) >= 32 and ord(char) not in (0xFFFE, 0xFFFF)))


def sarif(reports: Sequence[Report], paths: Paths, version: str, default_file: str) -> dict[str, Any]:
    """SARIF 2.1.0: a result for each new place; GitHub needs one, so it is `default_file` if none is in `paths`."""
    rules = [{"id": name, "shortDescription": {"text": f"More {words} than allowed"}} for name, words in WORDS.items()]
    results = [
        _result(report, change, place, paths, default_file)
        for report in reports
        for change in report.regressions
        for place in change.new or (Place(f"{report.name}: {change.id}"),)
    ]
    driver = {"name": "tcompile", "version": version, "rules": rules}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(report: Report, change: Change, place: Place, paths: Paths, default_file: str) -> dict[str, Any]:
    path, line = _local_place(place, paths, default_file)
    location = {"artifactLocation": {"uri": _uri(path)}, "region": {"startLine": max(line, 1)}}
    digest = hashlib.sha256(f"{report.name}\n{change.id}\n{place.what}".encode()).hexdigest()[:20]
    told = f"{place.message}. " if place.message else ""
    return {
        "ruleId": change.id,
        "ruleIndex": list(WORDS).index(change.id),
        "level": "error",
        "message": {"text": f"{told}{_sentence(change)}."},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"tcompile/v1": digest},
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path.replace("\\", "/"))


def check_answer(reports: Sequence[Report], baseline: str, paths: Paths) -> Answer:
    """The reports for a program: an item for each metric of each call."""
    facts = {"holds": all(report.holds for report in reports), "baseline": baseline}
    items = [
        {
            "id": f"{report.name}.{change.id}" if len(reports) > 1 else change.id, "call": report.name,
            "metric": change.id, "verdict": change.verdict, "before": change.before, "after": change.after,
            "allowed": change.limit, "unit": change.unit,
            "new": [replace(place, file=paths.get(place.file, place.file)) for place in change.new],
            "gone": change.gone, "note": change.note,
        }
        for report in reports
        for change in report.changes
    ]  # fmt: skip
    return Answer("check", ", ".join(report.name for report in reports), facts, items)
