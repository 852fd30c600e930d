"""Results of `--check` as text: for the whole call, its results, the stages, and the kernels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compiler.record import Check, Record
from compiler.record.plain_text import one_line, pluralize
from explorer.reading.plain_text import clip_name, columns
from explorer.reading.shapes import error_text
from explorer.render.document import Parts, Row, Section, Table, Text
from explorer.render.finding import Finding
from explorer.render.text import document_finding

HEAD = ("result", "verdict", "off by", "99 % ULPs", "most", "to float64", "eager's")
COLUMNS = ("result", "verdict", "off by", "ULPs, 99 % within", "ULPs, most", "from float64", "eager from it", "note")
SHOWN = 8
_WORST_FIRST = ("differs", "not comparable", "close", "equal")


@dataclass(frozen=True, slots=True)
class Checked:
    """Checks of a record, grouped by subject. `call` is the check of the whole call, or None."""

    call: Check | None
    results: tuple[Check, ...]
    stages: tuple[Check, ...]
    kernels: tuple[Check, ...]

    @classmethod
    def of(cls, record: Record) -> Checked:
        """Group the checks of a record. Results and kernels are sorted, worst first."""
        stages = tuple(check for check in record.checks if check.stage)
        own = [check for check in record.checks if not check.stage]
        whole = own[0] if own and own[0].subject == "the call" else None
        rest = tuple(sorted(own[1:] if whole else own, key=_badness))
        return cls(whole, rest if whole else (), stages, () if whole else rest)


def _badness(check: Check) -> tuple[int, float]:
    order = _WORST_FIRST.index(check.verdict) if check.verdict in _WORST_FIRST else 0
    return order, -(check.max_relative or 0.0)


def summary_lines(record: Record, width: int) -> list[str]:
    """Lines about all checks of a record, for its summary."""
    checked = Checked.of(record)
    lines = [line for sentence in sentences(checked) for line in _wrap(sentence, width)]
    if checked.results:
        lines += [f"  {line}" for line in _table(checked.results)]
    for sentence in stage_sentences(checked.stages):
        lines += _wrap(sentence, width, "  ")
    return lines + list(_kernel_lines(checked.kernels))


def sentences(checked: Checked) -> Iterator[str]:
    """Sentences on the whole call: the verdict, then its note if there is one."""
    if checked.call is not None:
        yield f"compiled against eager: {checked.call.words}"
        if checked.call.note:
            yield checked.call.note


def result_cells(check: Check) -> tuple[str, ...]:
    """Table cells of a result, in the order of `HEAD`."""
    exact, own = check.max_absolute_float64, check.eager_absolute_float64
    return (
        check.subject,
        check.verdict,
        "" if check.verdict == "equal" else error_text(check.max_absolute),
        _steps(check.p99_ulps),
        _steps(check.max_ulps),
        "" if exact is None else error_text(exact),
        "" if own is None else error_text(own),
    )


def _steps(ulps: float | None) -> str:
    """Format an error in ULPs: "many" from a million on (as between numbers of opposite sign), "" if unknown."""
    if ulps is None:
        return ""
    return f"{ulps:,.0f}" if ulps < 1e6 else "many"


def _table(results: Sequence[Check]) -> list[str]:
    rows = [HEAD, *((clip_name(name, 40), *cells) for name, *cells in map(result_cells, results[:SHOWN]))]
    used = [place for place in range(len(HEAD)) if any(row[place] for row in rows[1:])]
    shown = columns([[row[place] for place in used] for row in rows], right=range(2, len(used)))
    hidden = len(results) - SHOWN
    return [*shown, *([f"… and {hidden} more: run.tables.checks"] if hidden > 0 else [])]


def stage_sentences(stages: Sequence[Check]) -> Iterator[str]:
    """Sentences on the stages: the first that differs from eager, stages that match, stages that can't be compared."""
    agree = [check for check in stages if check.verdict in ("equal", "close")]
    wrong = [check for check in stages if check.verdict == "differs"]
    named = [check for check in wrong if check.node] or wrong
    if named:
        first = named[0]
        where = f", at {first.node}" if first.node else ""
        off = f"off by {error_text(first.max_absolute)}, {one_line(first.note)}"
        yield f"the first stage that departs from eager is {stage_name(first)}{where}: {off}"
    if later := _names(check for check in wrong if stage_name(check) != stage_name(named[0])):
        yield f"other stages that do: {later}"
    if names := _names(check for check in agree if check.stage not in {other.stage for other in wrong}):
        all_agree = len(agree) == len(stages) > 1
        yield f"{'every stage gives' if all_agree else 'these give'} eager's numbers: {names}"
    reasons: dict[str, list[str]] = {}
    for check in stages:
        if check.verdict == "not comparable":
            reasons.setdefault(one_line(check.note), []).append(stage_name(check))
    yield from (f"not comparable: {', '.join(names)}: {reason}" for reason, names in reasons.items())


def stage_name(check: Check) -> str:
    """Name of a checked stage: `joint[0/0]` for one capture, `joint` for the whole call."""
    return f"{check.stage}[{check.graph}]" if check.graph else check.stage


def _names(checks: Iterator[Check]) -> str:
    """Comma-separated stage names, in order; the levels of decomposition are combined."""
    names = dict.fromkeys(check.stage for check in checks)
    levels = [name.removeprefix("decomposed ") for name in names if name.startswith("decomposed ")]
    together = f"decomposed ({', '.join(levels)})"
    return ", ".join(dict.fromkeys(together if name.startswith("decomposed ") else name for name in names))


def _kernel_lines(kernels: Sequence[Check]) -> Iterator[str]:
    if kernels:
        yield pluralize(len(kernels), "check")
    yield from (f"  {_kernel(check)}" for check in kernels[:SHOWN])
    if len(kernels) > SHOWN:
        yield f"  … and {len(kernels) - SHOWN} more: run.tables.checks"


def _kernel(check: Check) -> str:
    is_off = check.verdict not in ("equal", "not comparable")
    off = f", off by at most {error_text(check.max_absolute)}" if is_off else ""
    note = f" ({one_line(check.note)})" if check.note else ""
    return f"{check.subject}: {check.verdict}{off}{note}"


def checks_finding(record: Record) -> Finding | None:
    """Finding with the verdicts as sentences, then a table of results; None if nothing was checked."""
    if not record.checks:
        return None
    checked = Checked.of(record)
    told: tuple[Parts, ...] = tuple(Text(words) for words in (*sentences(checked), *stage_sentences(checked.stages)))
    rows = [(*result_cells(check), check.note if checked.kernels else "")
            for check in checked.results or checked.kernels]  # fmt: skip
    used = [place for place in range(len(COLUMNS)) if any(row[place] for row in rows)]
    shown = tuple(Row(tuple(row[place] for place in used)) for row in rows)
    head = tuple(COLUMNS[place] for place in used)
    right = tuple(range(2, len(used) - bool(checked.kernels)))
    document = [Section((*told, Table(head, shown, right=right)) if rows else told)]
    return document_finding("checks", "compared with eager", document, {}, pluralize(len(record.checks), "check"))


def _wrap(sentence: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(sentence, width, initial_indent=indent, subsequent_indent=f"{indent}  ",
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip
