"""Two backends' code for one call, side by side: how many kernels, what they move, how long it all takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compiler.record import Candidate, Kernel, Record
from compiler.record.plain_text import size_text
from explorer.reading.shapes import seconds_text

if TYPE_CHECKING:
    import pandas as pd

Value = float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a number of each side, None where it is not known, and how it is written."""

    title: str
    values: tuple[Value, Value]
    written: Callable[[float], str]

    @property
    def texts(self) -> tuple[str, str]:
        """The numbers as text."""
        first, second = ("" if value is None else self.written(value) for value in self.values)
        return first, second


def rows(before: Record, after: Record) -> list[Row]:
    """The table of two records of the same call; rows of which neither side knows anything are left out."""
    found = [
        Row("kernel launches", _both(before, after, _kernels), _whole),
        Row("extern calls", _both(before, after, _calls), _whole),
        Row("bytes moved by kernels", _both(before, after, lambda record: _bytes(record, extern=False)), size_text),
        Row("bytes moved by extern calls", _both(before, after, lambda record: _bytes(record, extern=True)), size_text),
        Row("compile time", _both(before, after, _seconds), seconds_text),
        *_measured(before, after),
    ]
    return [row for row in found if any(value is not None for value in row.values)]


def table_lines(before: Record, after: Record, names: tuple[str, str]) -> list[str]:
    """The table as text, a heading first."""
    cells = [("", *names), *((row.title, *row.texts) for row in rows(before, after))]
    widths = [max(len(line[column]) for line in cells) for column in range(3)]
    return [f"{title:{widths[0]}}  {first:>{widths[1]}}  {second:>{widths[2]}}".rstrip()
            for title, first, second in cells]  # fmt: skip


def table(before: Record, after: Record, names: tuple[str, str]) -> pd.DataFrame:
    """The table as a DataFrame: numbers, bytes and seconds; one column a side."""
    import pandas as pd

    found = rows(before, after)
    values = {name: [row.values[side] for row in found] for side, name in enumerate(names)}
    return pd.DataFrame(values, index=[row.title for row in found])


def names_of(record: Record) -> tuple[str, str]:
    """The backends of both sides of a record that has two."""
    return record.options.backend, record.versus.options.backend if record.versus else ""


def told(record: Record) -> str:
    """The table of a record that has two sides, and what its numbers are; "" for one that has not."""
    if record.versus is None:
        return ""
    notes = ["", "Bytes are counted: what the code reads and writes, once for each kernel."]
    if not any(_measured(record, record.versus)):
        notes.append("Nothing was timed: --time runs both in turns, where the tensors are.")
    return "\n".join([*table_lines(record, record.versus, names_of(record)), *notes])


def _both(before: Record, after: Record, fact: Callable[[Record], Value]) -> tuple[Value, Value]:
    return fact(before), fact(after)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _kernels(record: Record) -> Value:
    return (
        sum(kernel.calls for kernel in own_kernels(record) if kernel.category != "extern")
        if _has_code(record)
        else None
    )


def _calls(record: Record) -> Value:
    return (
        sum(kernel.calls for kernel in own_kernels(record) if kernel.category == "extern")
        if _has_code(record)
        else None
    )


def _bytes(record: Record, *, extern: bool) -> Value:
    found = [kernel.calls * kernel.bytes for kernel in own_kernels(record) if (kernel.category == "extern") == extern]
    return sum(found) if found and any(found) else None


def own_kernels(record: Record) -> list[Kernel]:
    """A record's kernels without those of the other side, which a view of both has too."""
    others = _artifacts_of_other(record)
    return [kernel for kernel in record.kernels if kernel.artifact not in others]


def _artifacts_of_other(record: Record) -> set[str]:
    """Ids of the other side's artifacts, in a view of both."""
    other = names_of(record)[1] if record.versus else None
    return {artifact.id for artifact in record.artifacts if other and artifact.attrs.get("side") == other}


def _has_code(record: Record) -> bool:
    others = _artifacts_of_other(record)
    return bool(own_kernels(record)) or any(artifact.id not in others for artifact in record.of_stage("kernels"))


def _seconds(record: Record) -> Value:
    return sum(timing.seconds for timing in record.timings if timing.what == "compile") or None


def _measured(before: Record, after: Record) -> Iterator[Row]:
    """What `--time` measured of both, in one run: the candidates are in the first record."""
    mine = [_candidate(before, record) for record in (before, after)]
    if not any(mine):
        return
    cold = tuple(found.compile_seconds if found else None for found in mine)
    warm = tuple(found.seconds if found else None for found in mine)
    yield Row("first call, cold", (cold[0], cold[1]), seconds_text)
    device = next(found.device for found in mine if found)
    yield Row(f"one call, on the {'GPU' if device == 'cuda' else 'CPU'}", (warm[0], warm[1]), seconds_text)


def _candidate(timed: Record, side: Record) -> Candidate | None:
    backend, mode = side.options.backend, side.options.mode
    return next(
        (found for found in timed.candidates
         if found.backend == backend and (found.mode or "default") == mode and not found.problem),
        None,
    )  # fmt: skip
