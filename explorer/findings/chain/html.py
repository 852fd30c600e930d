"""The chain rule as HTML that a saved notebook keeps: two tables, forward and backward, with the numbers of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from compiler.autograd.chain import Arrival, ChainStep, Departure
from compiler.autograd.formulas import NOT_IN_TABLE
from compiler.autograd.values import Value
from compiler.record import Record
from compiler.record.plain_text import pluralize
from explorer.findings.chain.text import density, is_diagonal, number_text, value_text
from explorer.reading.provenance import place_text
from explorer.render.drawing import graph_picture
from explorer.render.html import CELL, SMALL, cell, details, left_out, muted, note, safe

MOST = 60
"""So many steps of each direction stand in the tables."""
SIDE = 6
"""Matrices of so many rows and columns are shown by their numbers."""

_NUMBERS = "font-family:monospace;font-size:12px;white-space:nowrap"
_BRACKET = "border-left:1px solid currentColor;border-right:1px solid currentColor;border-radius:4px"


def chain_html(record: Record, steps: Sequence[ChainStep]) -> str:
    """All of it in one `<div title="tcompile-static">`, which the live view takes the place of."""
    forward = [step for step in steps if step.direction == "forward"]
    backward = [step for step in steps if step.direction != "forward"]
    graph = record["autograd"]
    inside = [
        _heading(record.title, forward, backward),
        *map(note, graph.attrs.get("health", ())),
        graph_picture(record, graph, "the graph, as backward goes through it"),
        _forward_table(forward),
        _backward_table(backward),
        note('Static view. To go through it, run the cell, or open the page that .save("chain.html") writes.'),
    ]
    body = "\n".join(filter(None, inside))
    return f'<div class="tcompile-twin" title="tcompile-static" style="max-width:100%;overflow:auto">\n{body}\n</div>'


def step_html(step: ChainStep) -> str:
    """One step."""
    return _forward_table([step]) if step.direction == "forward" else _backward_table([step])


def _heading(title: str, forward: Sequence[ChainStep], backward: Sequence[ChainStep]) -> str:
    leaves = sum(step.direction == "leaf" for step in backward)
    words = (
        f"{pluralize(len(forward), 'operation')} forward, {pluralize(len(backward) - leaves, 'step')} backward, "
        f"{leaves} {'leaf' if leaves == 1 else 'leaves'}; the gradients are those of torch's own backward pass"
    )
    return f"<div><b>The chain rule on {safe(title)}</b> {muted(words)}</div>"


def _forward_table(steps: Sequence[ChainStep]) -> str:
    if not steps:
        return ""
    head = ("", "result", "rule", "of", "value")
    rows = [_forward_row(step) for step in steps[:MOST]]
    title = f"<b>Forward</b> {muted('with the values of this run')}"
    return details(title, _table(head, rows) + left_out(len(steps), MOST, "steps", "print(…)"), is_open=True)


def _forward_row(step: ChainStep) -> str:
    operands = [
        f"{_name(each.name)}{muted(' ' + each.source) if each.source else ''} = {value_html(each.value)}"
        for each in step.operands
    ]
    settings = [muted(f"{name} = {value}") for name, value in step.settings.items()]
    value = value_html(step.value) + (note(step.note) if step.note else "")
    result = _name(step.node) + _place(step)
    return _row([str(step.index), result, _code(step.forward), _lines([*operands, *settings]), value])


def _backward_table(steps: Sequence[ChainStep]) -> str:
    if not steps:
        return ""
    head = ("", "at", "incoming gradient", "local derivative", "gradient")
    rows = [row for step in steps[:MOST] for row in _backward_rows(step)]
    title = f"<b>Backward</b> {muted('incoming gradient times local derivative')}"
    return details(title, _table(head, rows) + left_out(len(steps), MOST, "steps", "print(…)"), is_open=True)


def _backward_rows(step: ChainStep) -> Iterator[str]:
    """A row for each gradient that leaves the node; what is the same in all stands in the first."""
    first, *rest = step.departures or (None,)
    at = f"{_name(step.node)}.grad" if step.direction == "leaf" else f"{_name(step.node)}<br>{_rule(step)}"
    yield _row([str(step.index), at + _place(step), _comes_in(step), *_departure(first)])
    for departure in rest:
        yield _row(["", "", "", *_departure(departure)])
    for stop in step.stops:
        yield _row(["", "", "", muted(stop.why), f"no gradient for {_name(stop.name)}"])


def _rule(step: ChainStep) -> str:
    return muted(f"{step.rule or NOT_IN_TABLE} ({step.op})")


def _comes_in(step: ChainStep) -> str:
    terms = [f"{value_html(each.value)} {_sender(each)}" for each in step.arrivals]
    if len(terms) <= 1:
        sender = _sender(step.arrivals[0]) if step.arrivals else ""
        return _lines([f"{value_html(step.gradient)} {sender}", *([muted(step.note)] if step.note else [])])
    exactly = muted("bit-exact") if step.adds_exactly else ""
    total = f"<b>summed</b> {value_html(step.gradient)} {exactly}"
    return _lines([*terms, total, *([muted(step.note)] if step.note else [])])


def _sender(arrival: Arrival) -> str:
    return muted(f"from {arrival.source}, its {arrival.name}" if arrival.source else "backward begins with it")


def _departure(departure: Departure | None) -> tuple[str, str]:
    if departure is None:
        return "", ""
    formula = f"d {departure.name} = {departure.formula or NOT_IN_TABLE}"
    parts = [_code(formula)]
    if departure.derivative is not None and departure.derivative.numbers is not None:
        parts.append(f"{value_html(departure.derivative)} {muted('element by element')}")
    elif departure.jacobian is not None:
        parts.append(_jacobian(departure.jacobian))
    return _lines(parts), f"{value_html(departure.value)} → {_name(departure.target)}"


def _jacobian(jacobian: Value) -> str:
    size = " × ".join(map(str, jacobian.shape))
    if max(jacobian.shape) > SIDE:
        diagonal = "diagonal" if is_diagonal(jacobian) else density(jacobian)
        return muted(f"Jacobian J {size}, {diagonal}; grad · J")
    return f"{muted(f'grad · J, J {size}')} {value_html(jacobian)}"


def value_html(value: Value | None) -> str:
    """Its numbers in brackets, a row a row, or in words."""
    if value is None:
        return "?"
    if value.numbers is None or len(value.shape) > 2 or max((1, *value.shape)) > SIDE:
        return safe(value_text(value) if value.numbers is None else _shortened(value))
    rows = value.numbers if len(value.shape) == 2 else (value.numbers,)
    if not value.shape:
        return f'<span style="{_NUMBERS}">{number_text(value.numbers)}</span>'
    body = "".join(
        f"<tr>{''.join(cell(number_text(number), 'border:0;padding:0 0.35em;text-align:right') for number in row)}</tr>"
        for row in rows
    )
    style = f"{_NUMBERS};{_BRACKET};border-collapse:collapse;display:inline-table;vertical-align:middle;margin:1px 0"
    return f'<table style="{style}">{body}</table>'


def _shortened(value: Value) -> str:
    """As of a tensor of many elements."""
    return value_text(replace(value, numbers=None))


def _table(head: Sequence[str], rows: Sequence[str]) -> str:
    titles = "".join(f'<th style="{CELL}">{safe(title)}</th>' for title in head)
    return (
        '<div style="overflow:auto"><table style="margin:0.4em 0;border-collapse:collapse;font-size:12px">'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(cell(content, CELL) for content in cells)}</tr>"


def _lines(parts: Sequence[str]) -> str:
    return "".join(f"<div>{part}</div>" for part in parts)


def _name(name: str) -> str:
    return f"<code>{safe(name)}</code>"


def _code(text: str) -> str:
    return f'<span style="font-family:monospace">{safe(text)}</span>'


def _place(step: ChainStep) -> str:
    if "line" not in step.place:
        return ""
    where = place_text(step.place["file"], step.place["line"])
    return (
        f'<div style="{SMALL};font-family:monospace" title="{escape(where)}">{safe(step.place.get("code", ""))}</div>'
    )
