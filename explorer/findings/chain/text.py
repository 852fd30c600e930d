"""The chain rule as text: forward values, then each backward step with its gradients and the rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from compiler.autograd.chain import Arrival, ChainStep, Departure
from compiler.autograd.formulas import NOT_IN_TABLE
from compiler.autograd.values import Value
from compiler.record.plain_text import pluralize
from explorer.reading.provenance import place_text
from explorer.reading.shapes import number_text, tensor_type

WIDE = 8
"""Maximum rows and columns of a Jacobian that is printed; a larger one is shown by its size."""
INDENT = "      "
_HEADINGS = {
    "forward": "Forward, with the values of this run",
    "backward": "Backward: incoming gradient times local derivative",
}


def blocks(title: str, steps: Sequence[ChainStep], note: str) -> Iterator[tuple[str, ChainStep | None]]:
    """Blocks of the text, each with its step; None for headings and the note."""
    yield _head(title, steps), None
    if note:
        yield note, None
    seen: set[str] = set()
    for step in steps:
        part = "forward" if step.direction == "forward" else "backward"
        if part not in seen:
            yield _HEADINGS[part], None
            seen.add(part)
        yield step_text(step), step


def _head(title: str, steps: Sequence[ChainStep]) -> str:
    forward, backward, leaves = (
        sum(step.direction == kind for step in steps) for kind in ("forward", "backward", "leaf")
    )
    return (
        f"The chain rule on {title}: {pluralize(forward, 'operation')} forward, {pluralize(backward, 'step')} "
        f"backward, to {pluralize(leaves, 'leaf', 'leaves')}. The gradients are those of torch's own backward pass."
    )


def step_text(step: ChainStep) -> str:
    """Text of one step, several lines."""
    lines = {"forward": _forward, "backward": _backward, "leaf": _leaf}[step.direction](step)
    return "\n".join(line.rstrip() for line in lines)


def result_name(step: ChainStep) -> str:
    """A node's name, with the user's variable for its result: `mul, y`."""
    return f"{step.node}, {step.variable}" if step.variable not in ("", step.node) else step.node


def _title(step: ChainStep, text: str) -> str:
    where = place_text(step.place["file"], step.place["line"]) if "line" in step.place else ""
    place = "  ".join(part for part in (where, step.place.get("code", "")) if part)
    return f"{step.index:>4}  {text}" + (f"    # {place}" if place else "")


def _forward(step: ChainStep) -> Iterator[str]:
    yield _title(step, f"{result_name(step)} = {step.forward}")
    for operand in step.operands:
        source = f"{operand.source} = " if operand.source not in ("", operand.name) else ""
        yield f"{INDENT}{operand.name} = {source}{value_text(operand.value)}"
    if step.settings:
        yield f"{INDENT}with {', '.join(f'{name} = {value}' for name, value in step.settings.items())}"
    yield f"{INDENT}{step.variable or step.node} = {value_text(step.value)}"
    if step.note:
        yield f"{INDENT}note: {step.note}"


def _backward(step: ChainStep) -> Iterator[str]:
    yield _title(step, f"{step.node}: {step.rule or NOT_IN_TABLE} ({step.op})")
    yield from _comes_in(step)
    for departure in step.departures:
        yield from _departure(step, departure)
    for stop in step.stops:
        yield f"{INDENT}no gradient for {stop.name}: {stop.why}"


def _comes_in(step: ChainStep) -> Iterator[str]:
    terms = step.arrivals
    if len(terms) > 1:
        for arrival in terms:
            yield f"{INDENT}incoming gradient: {value_text(arrival.value)}  {_sender(arrival)}"
        exactly = ", bit-exact" if step.adds_exactly else ""
        yield f"{INDENT}summed: grad = {value_text(step.gradient)}{exactly}"
    else:
        senders = "".join(map(_sender, terms))
        yield f"{INDENT}incoming gradient: grad = {value_text(step.gradient)}  {senders}"
    if step.note:
        yield f"{INDENT}note: {step.note}"


def _sender(arrival: Arrival) -> str:
    return f"from {arrival.source}, its {arrival.name}" if arrival.source else "(the backward starts here)"


def _departure(step: ChainStep, departure: Departure) -> Iterator[str]:
    formula = departure.formula or NOT_IN_TABLE
    yield f"{INDENT}d {departure.name} = {formula}  ->  {departure.target}"
    into, out = value_text(step.gradient), value_text(departure.value)
    if departure.derivative is not None and departure.derivative.numbers is not None:
        yield f"{INDENT}  = {into} · {value_text(departure.derivative)} = {out}"
    else:
        yield f"{INDENT}  = {out}"
    if departure.jacobian is not None and not _is_told(departure):
        yield from _jacobian(departure.jacobian, departure)
    if departure.error is not None and departure.error > 0:
        yield f"{INDENT}  (the formula, on the same numbers, is off by {departure.error:.1e} of the largest number)"


def _is_told(departure: Departure) -> bool:
    """Whether the previous line already shows the Jacobian, because it is a single number."""
    has_number = departure.derivative is not None and departure.derivative.numbers is not None
    return has_number and departure.jacobian is not None and departure.jacobian.count == 1


def _jacobian(jacobian: Value, departure: Departure) -> Iterator[str]:
    rows, columns = jacobian.shape
    size = f"{rows} × {columns}"
    if max(rows, columns) > WIDE:
        yield f"{INDENT}  Jacobian J: {size}, {density(jacobian)}; d {departure.name} = grad · J"
        return
    if is_diagonal(jacobian) and departure.derivative is not None:
        yield f"{INDENT}  Jacobian J: {size}, diagonal: each element depends on one; d {departure.name} = grad · J"
        return
    cells = [[number_text(number) for number in row] for row in jacobian.numbers]
    width = max(len(cell) for row in cells for cell in row)
    yield f"{INDENT}  Jacobian J, {size} (a row a result, a column an input); d {departure.name} = grad · J"
    for row in cells:
        yield f"{INDENT}    [ {'  '.join(cell.rjust(width) for cell in row)} ]"


def density(jacobian: Value) -> str:
    """Count the non-zero entries: `5 of 9 not zero`."""
    return f"{jacobian.count - jacobian.zeros} of {jacobian.count} not zero"


def is_diagonal(jacobian: Value) -> bool:
    """Whether each result element depends only on the input element at the same index; False for a 1 × 1 Jacobian."""
    if jacobian.shape[0] != jacobian.shape[1] or jacobian.shape[0] == 1:
        return False
    pairs = ((row, column, number) for row, cells in enumerate(jacobian.numbers) for column, number in enumerate(cells))
    return all(row == column or number == 0 for row, column, number in pairs)


def _leaf(step: ChainStep) -> Iterator[str]:
    yield _title(step, f"{step.node}.grad: where all paths to {step.node} end")
    yield from _comes_in(step)


def value_text(value: Value | None) -> str:
    """Format a value: `[1, 2.5]`; a large value as `f32[64, 128], norm 3.2, -1.5 to 2`; an unknown value as `?`."""
    if value is None:
        return "?"
    if value.numbers is not None:
        return numbers_text(value.numbers)
    kind = tensor_type({"dtype": value.dtype, "shape": value.shape})
    bounds = f"norm {number_text(value.norm)}, {number_text(value.low)} to {number_text(value.high)}"
    return f"{kind}, {bounds}{not_finite_words(value)}"


def not_finite_words(value: Value) -> str:
    """Count non-finite elements: `, 3 NaN, 1 infinite`; "" if there are none."""
    words = [f", {value.nans:,} NaN"] if value.nans else []
    return "".join([*words, f", {value.infinite:,} infinite"] if value.infinite else words)


def numbers_text(numbers: Any) -> str:
    if isinstance(numbers, tuple):
        return f"[{', '.join(numbers_text(each) for each in numbers)}]"
    return number_text(numbers)
