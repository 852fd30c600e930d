"""Compare two backends' code for one call: kernel counts, bytes moved and time. Pairs of kernels that do the same work
are shown with their facts and sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compiler.record import Binary, Candidate, Kernel, Record
from compiler.record.plain_text import pluralize, size_text
from explorer.findings.kernel_diff import Pair, match_kernels
from explorer.reading.kernel_table import BINARY_COLUMNS, KERNEL_COLUMNS, LAST_COLUMNS, binaries_of, fact_text
from explorer.reading.shapes import seconds_text
from explorer.render.document import Card, Code, Document, Fold, Only, Row, Section, Table, Tag, Text, Words
from explorer.render.finding import Finding
from explorer.render.text import document_finding

STAGE = "versus"
COLUMNS = (*KERNEL_COLUMNS[1:], *BINARY_COLUMNS, *LAST_COLUMNS)
"""Columns of the comparison of two kernels."""
Value = float | None


@dataclass(frozen=True, slots=True)
class Total:
    """A row of the comparison. `values` has one value per side, None if unknown; `written` formats a value."""

    title: str
    values: tuple[Value, Value]
    written: Callable[[float], str]

    @property
    def texts(self) -> tuple[str, str]:
        """The values as text."""
        first, second = ("" if value is None else self.written(value) for value in self.values)
        return first, second


def versus_finding(record: Record) -> Finding | None:
    """Finding that compares both sides, with cards of their kernel pairs; None if the record has only one side."""
    if record.versus is None:
        return None
    title = "{} and {} side by side".format(*names_of(record))
    document = [*versus_document(record), Only(("view",), tuple(_pair_cards(record, record.versus)))]
    return document_finding(STAGE, title, document, {}, pluralize(len(totals(record, record.versus)), "row"))


def versus_document(record: Record) -> Document:
    """Table that compares both sides, with notes on the numbers; empty if the record has only one side."""
    if record.versus is None:
        return ()
    rows = (Row((found.title, *found.texts)) for found in totals(record, record.versus))
    notes = ["Bytes are counted: what the code reads and writes, once for each kernel."]
    if not any(_timed_totals(record, record.versus)):
        notes.append("Nothing was timed: --time runs both in turns, where the tensors are.")
    table = Table(("", *names_of(record)), tuple(rows), right=(1, 2))
    return table, Section(tuple(Text(words, "line") for words in notes), style="prose")


def totals(before: Record, after: Record) -> list[Total]:
    """Rows of the comparison of two records of the same call; rows without any value are left out."""
    found = [
        Total("kernel launches", (_calls(before), _calls(after)), _whole),
        Total("extern calls", (_calls(before, extern=True), _calls(after, extern=True)), _whole),
        Total("bytes moved by kernels", (_bytes(before), _bytes(after)), size_text),
        Total("bytes moved by extern calls", (_bytes(before, extern=True), _bytes(after, extern=True)), size_text),
        Total("compile time", (_seconds(before), _seconds(after)), seconds_text),
        *_timed_totals(before, after),
    ]
    return [total for total in found if any(value is not None for value in total.values)]


def names_of(record: Record) -> tuple[str, str]:
    """Backends of the two sides; the second is "" if the record has only one side."""
    return record.options.backend, record.versus.options.backend if record.versus else ""


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _calls(record: Record, *, extern: bool = False) -> Value:
    others = _artifacts_of_other(record)
    kernels = own_kernels(record)
    if not kernels and all(artifact.id in others for artifact in record.of_stage("kernels")):
        return None
    return sum(kernel.calls for kernel in kernels if (kernel.category == "extern") == extern)


def _bytes(record: Record, *, extern: bool = False) -> Value:
    found = [kernel.calls * kernel.bytes for kernel in own_kernels(record) if (kernel.category == "extern") == extern]
    return sum(found) or None


def own_kernels(record: Record) -> list[Kernel]:
    """Kernels of the record's own side. A record that shows both sides also contains the other side's kernels."""
    others = _artifacts_of_other(record)
    return [kernel for kernel in record.kernels if kernel.artifact not in others]


def _artifacts_of_other(record: Record) -> set[str]:
    """Ids of the other side's artifacts; empty unless the record shows both sides."""
    other = names_of(record)[1] if record.versus else None
    return {artifact.id for artifact in record.artifacts if other and artifact.attrs.get("side") == other}


def _seconds(record: Record) -> Value:
    return sum(timing.seconds for timing in record.timings if timing.what == "compile") or None


def _timed_totals(before: Record, after: Record) -> Iterator[Total]:
    """Rows of times, measured by `--time`. Both sides were timed in one run: the first record has all candidates."""
    mine = [_candidate(before, record) for record in (before, after)]
    if not any(mine):
        return
    cold = tuple(found.compile_seconds if found else None for found in mine)
    warm = tuple(found.seconds if found else None for found in mine)
    yield Total("first call, cold", (cold[0], cold[1]), seconds_text)
    device = next(found.device for found in mine if found)
    yield Total(f"one call, on the {'GPU' if device == 'cuda' else 'CPU'}", (warm[0], warm[1]), seconds_text)


def _candidate(timed: Record, side: Record) -> Candidate | None:
    backend, mode = side.options.backend, side.options.mode
    return next(
        (found for found in timed.candidates
         if found.backend == backend and (found.mode or "default") == mode and not found.problem),
        None,
    )  # fmt: skip


# Pairs of kernels


def _pair_cards(record: Record, other: Record) -> Iterator[Text | Card]:
    """A heading, then a card for each pair of kernels. Ids of the second side have its backend as a prefix."""
    names = names_of(record)
    yield Text(f"Kernels of {names[0]} and {names[1]} that compute the same, by name or by their nodes:", "why")
    binaries = binaries_of(record), binaries_of(other)
    for pair in match_kernels(record.with_fields(kernels=tuple(own_kernels(record))), other):
        yield _pair_card(pair, names, binaries, ("", f"{names[1]}: "))


def _pair_card(
    pair: Pair, names: Sequence[str], binaries: Sequence[dict[str, Binary]], prefixes: Sequence[str]
) -> Card:
    of_each = [found.get(kernel.id) if kernel else None for kernel, found in zip(pair, binaries, strict=True)]
    sides = list(zip(pair, prefixes, names, strict=True))
    rows = []
    for column in COLUMNS:
        facts = [column.fact(kernel, binary) if kernel else None for kernel, binary in zip(pair, of_each, strict=True)]
        if facts != [None, None]:
            texts = (fact_text(fact, column.unit) or "-" for fact in facts)
            rows.append(Row((column.title, *texts), title=column.about))
    heads: list[Words] = [(Tag(name, "small"), f"`{kernel.name}`" if kernel else "no kernel of its own")
                          for kernel, _, name in sides]  # fmt: skip
    sources = (
        Section((Text(name, "why"), Code(source=(prefix + kernel.artifact, *kernel.lines),
                                         label=f"{kernel.name} of {name}")), style="side")
        for kernel, prefix, name in sides if kernel
    )  # fmt: skip
    table = Table(("", *heads), tuple(rows), style="pair")
    fold = Fold("Sources", (Section(tuple(sources), style="sides"),))
    ids = tuple(prefix + kernel.id for kernel, prefix, _ in sides if kernel)
    return Card("", ids, "", (table, fold), kind="pair", warns=False)
