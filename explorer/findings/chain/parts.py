"""Each step of the chain rule as a card: the inputs, the rule, the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.autograd.chain import Arrival, ChainStep, Departure
from compiler.autograd.formulas import NOT_IN_TABLE
from compiler.autograd.values import Value
from compiler.record import Record
from compiler.record.plain_text import pluralize
from explorer.findings.chain.text import density, is_diagonal, result_name, value_text
from explorer.findings.chain.values import Room, value_piece
from explorer.reading.provenance import place_text
from explorer.render.document import Card, Document, Fold, Link, Parts, Row, Section, Table, Tag, Text, Words
from explorer.render.drawing import graph_picture
from explorer.render.html import details, left_out_note, muted_html, note, safe
from explorer.render.static import document_html

MOST = 60
"""Maximum number of steps of each direction in HTML."""
_EVERY = Room(10**9)


def chain_html(record: Record, steps: Sequence[ChainStep]) -> str:
    """HTML of the steps (at most `MOST` of each direction) in a `<div title="tcompile-static">`.

    The live view replaces this `<div>`.
    """
    forward = [step for step in steps if step.direction == "forward"]
    backward = [step for step in steps if step.direction != "forward"]
    leaves = sum(step.direction == "leaf" for step in backward)
    words = (
        f"{pluralize(len(forward), 'operation')} forward, {pluralize(len(backward) - leaves, 'step')} backward, "
        f"{leaves} {'leaf' if leaves == 1 else 'leaves'}; the gradients are those of torch's own backward pass"
    )
    graph = record["autograd"]
    inside = [
        f"<div><b>The chain rule on {safe(record.title)}</b> {muted_html(words)}</div>",
        *map(note, graph.attrs.get("health", ())),
        graph_picture(record, graph, "the graph, as backward goes through it"),
        _direction("Forward", "with the values of this run", forward),
        _direction("Backward", "incoming gradient times local derivative", backward),
        note('Static view. To go through it, run the cell, or open the page that .save("chain.html") writes.'),
    ]
    body = "\n".join(filter(None, inside))
    return f'<div class="tcompile-twin" title="tcompile-static" style="max-width:100%;overflow:auto">\n{body}\n</div>'


def _direction(name: str, about: str, steps: Sequence[ChainStep]) -> str:
    if not steps:
        return ""
    cards = document_html([step_card(step, _EVERY) for step in steps[:MOST]])
    return details(
        f"<b>{name}</b> {muted_html(about)}", cards + left_out_note(len(steps), MOST, "steps", "print(…)"), is_open=True
    )


def step_document(step: ChainStep) -> Document:
    """One step as a document, unfolded."""
    card = step_card(step, _EVERY)
    return [Text((Tag(card.title, "strong"), " ", card.lead if isinstance(card.lead, str) else "")), *card.parts]


def step_card(step: ChainStep, room: Room) -> Card:
    """Card of a step. The numbers of a Jacobian are included if they fit in `room`."""
    title = {
        "forward": f"{result_name(step)} = {step.forward}",
        "backward": f"d {result_name(step)}",
        "leaf": f"{step.node}.grad",
    }
    rule = {"forward": step.rule, "backward": f"{step.rule or NOT_IN_TABLE} ({step.op})",
            "leaf": "where all paths to it end"}[step.direction]  # fmt: skip
    shown = step.value if step.direction == "forward" else step.gradient
    parts = {"forward": _forward, "backward": _backward, "leaf": _leaf}[step.direction](step, room)
    place = " · ".join(filter(None, [_place_words(step), str(step.place.get("module", ""))]))
    code = step.place.get("code", "")
    return Card(
        title[step.direction],
        (),
        rule,
        (Text((Tag(place or "made before it could be recorded", "muted"), f" `{code}`" if code else "")), *parts),
        kind="chain",
        summary=f"{rule}: {value_text(shown)}" if rule else value_text(shown),
        warns=False,
    )


def _place_words(step: ChainStep) -> str:
    return place_text(step.place["file"], step.place["line"]) if "line" in step.place else ""


def _forward(step: ChainStep, _: Room) -> Iterator[Parts]:
    operands = [_line(each.name, each.value, "of", each.source) for each in step.operands]
    yield _section("Inputs", operands)
    if step.settings:
        yield Text(f"with {', '.join(f'{name} = {value}' for name, value in step.settings.items())}", "why")
    yield from _stops(step)
    yield _section("Result", [_line(step.variable or step.node, step.value)])
    yield from _note(step)


def _backward(step: ChainStep, room: Room) -> Iterator[Parts]:
    yield Text(f"forward: {step.variable or step.node} = {step.forward}", "why")
    yield from _incoming_parts(step, "grad")
    for departure in step.departures:
        yield _gradient(step, departure, room)
    yield from _stops(step)


def _leaf(step: ChainStep, _: Room) -> Iterator[Parts]:
    yield from _incoming_parts(step, f"{step.node}.grad")
    if step.value is not None:
        yield _section("Its value", [_line(step.node, step.value)])


def _note(step: ChainStep) -> Iterator[Text]:
    if step.note:
        yield Text(step.note, "why")


def _stops(step: ChainStep) -> Iterator[Section]:
    """Section of the inputs without a gradient, with the reasons; none if all have one."""
    rows = [Row((Tag(stop.name, "strong"), Tag(stop.kind, "badge"), stop.why)) for stop in step.stops]
    if rows:
        yield _section("Inputs without a gradient", rows)


def _incoming_parts(step: ChainStep, name: str) -> Iterator[Parts]:
    """The incoming gradients, and their sum."""
    if len(step.arrivals) <= 1:
        arrival = step.arrivals[0] if step.arrivals else Arrival("", "", None)
        yield _section("Incoming gradient", [_line(name, step.gradient, "from", arrival.source, arrival.name)])
    else:
        terms = [_line("", each.value, "from", each.source, each.name) for each in step.arrivals]
        words = "summed, bit-exact" if step.adds_exactly else "summed"
        title = f"Incoming gradient: the sum of {len(terms)}"
        yield _section(title, [*terms, _line(name, step.gradient, words)])
    yield from _note(step)


def _gradient(step: ChainStep, departure: Departure, room: Room) -> Section:
    """Section on one input's gradient: formula, vector-Jacobian product (with numbers if available), receiving node."""
    name, jacobian = departure.name, departure.jacobian
    parts: list[Parts] = [Text(f"`d {name} = {departure.formula or NOT_IN_TABLE}`")]
    result = _table([_line(f"d {name}", departure.value, "to", departure.target)])
    derivative = departure.derivative
    if (
        derivative is not None
        and derivative.numbers is not None
        and step.gradient
        and step.gradient.numbers is not None
    ):
        factors = (value_piece(step.gradient, "grad"), " · ", value_piece(derivative, "local derivative"))
        parts += [Text((*factors, Tag("element by element", "muted")), "equation"), result]
        if jacobian is not None and jacobian.count > 1:
            parts.append(_diagonal(jacobian, room))
    elif jacobian is None:
        parts.append(result)
    elif room.takes(jacobian.count) and jacobian.numbers is not None:
        rows = value_piece(step.gradient, "grad, as a row", flat=True)
        factors = (rows, " · ", value_piece(jacobian, f"Jacobian J, {_size(jacobian)}"))
        parts += [Text(factors, "equation"), result]
    else:
        diagonal = "diagonal" if is_diagonal(jacobian) else density(jacobian)
        parts += [Text(f"d {name} = grad · J; J is {_size(jacobian)}, {diagonal}", "why"), result]
    if departure.error is not None and departure.error > 0:
        off = f"The formula on the same numbers differs by {departure.error:.1e} of the largest number."
        parts.append(Text(off, "why"))
    return Section(tuple(parts), f"Gradient of {name}", "chain-section")


def _diagonal(jacobian: Value, room: Room) -> Parts:
    words = f"Jacobian J, {_size(jacobian)}: diagonal, as each element depends on one"
    if not room.takes(jacobian.count) or jacobian.numbers is None:
        return Text(f"{words}, {density(jacobian)}", "why")
    return Fold(words, (Text((value_piece(jacobian),)),))


def _size(jacobian: Value) -> str:
    return " × ".join(map(str, jacobian.shape))


def _section(title: str, rows: Sequence[Row]) -> Section:
    return Section((_table(rows),), title, "chain-section")


def _table(rows: Sequence[Row]) -> Table:
    return Table((), tuple(rows), style="chain-lines")


def _line(name: str, value: Value | None, words: str = "", node: str = "", which: str = "") -> Row:
    """Row with a named value, and a link to its source or target node."""
    told: Words = {"from": "the backward starts here", "of": "", "to": ""}.get(words, words)
    if node:
        told = f"{words} ", Link(node, id=node, title=f"Go to {node}"), f", its {which}" if which else ""
    return Row((Tag(f"{name} =" if name else "+", "strong"), value_piece(value), told))
