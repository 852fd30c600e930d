"""Symbolic sizes and numbers in the `ShapeEnv` at the end of a capture."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils._sympy.functions import Max
from torch.utils._sympy.printers import PythonPrinter

from compiler.torch_api.fx import source_name
from compiler.torch_api.guards import Names, rename

__all__ = ["Max"]

# torch uses its largest int for "no bound".
UNBOUNDED = 2**62


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """A condition on symbols that torch assumed, as Python code, and the line that caused it.

    `asked` is the line in torch's form (`code # …/file.py:3 in f (…)`). `default` is True for torch's own lower bound,
    which exists because sizes 0 and 1 are specialized.
    """

    code: str
    asked: str
    default: bool = False


@dataclass(frozen=True, slots=True)
class SymbolFacts:
    """A size or number that is symbolic, or was symbolic until torch specialized it.

    `sources` share the symbol, because their first values were equal. `hint` is the first value, or None.
    `low` and `high` are inclusive bounds, or None.
    `became` is the number or expression that replaced the symbol, "" if it is still symbolic.
    `stack` is the user's stack at the replacement, outermost first. `asked` is the place that torch recorded, or "",
    and `frame` torch's own frame there, or None.
    """

    name: str
    sources: tuple[str, ...]
    hint: int | float | None
    low: int | float | None
    high: int | float | None
    became: str = ""
    stack: tuple[traceback.FrameSummary, ...] = ()
    asked: str = ""
    frame: traceback.FrameSummary | None = None
    conditions: tuple[ConditionFacts, ...] = ()


def symbols_of(shape_env: Any, names: Names) -> Iterator[SymbolFacts]:
    """The symbols of the user's values; `names` renames local variables."""
    modern = hasattr(shape_env, "backed_var_to_val")
    hints = shape_env.backed_var_to_val if modern else shape_env.var_to_val
    for symbol, sources in shape_env.var_to_sources.items():
        if sources and symbol in shape_env.var_to_range:
            yield _symbol(shape_env, symbol, sources, hints.get(symbol), names)


def _symbol(shape_env: Any, symbol: Any, sources: list[Any], hint: Any, names: Names) -> SymbolFacts:
    bounds, became = shape_env.var_to_range[symbol], shape_env.replacements.get(symbol)
    known = shape_env.specialization_stacks
    stacks = [known[source] for source in sources if source in known]
    place = shape_env.replacements_slocs.get(symbol)
    frame = place.framework_loc if place is not None else None
    return SymbolFacts(
        name=str(symbol),
        sources=tuple(rename(name, names) for name in dict.fromkeys(map(source_name, sources))),
        hint=_number(hint),
        low=_number(bounds.lower),
        high=_number(bounds.upper),
        became="" if became is None else str(_number(became) if _number(became) is not None else _python(became)),
        stack=tuple(stacks[0]) if stacks else (),
        asked=str(place or ""),
        frame=frame if isinstance(frame, traceback.FrameSummary) else None,
        conditions=tuple(_conditions(shape_env, symbol)),
    )


def _conditions(shape_env: Any, symbol: Any) -> Iterator[ConditionFacts]:
    low, lowest = shape_env.var_to_range_sloc[symbol].lower, _number(shape_env.var_to_range[symbol].lower)
    if isinstance(low.framework_loc, str) and lowest is not None:
        yield ConditionFacts(f"{lowest} <= {symbol}", str(low), default=True)
    for guard in shape_env.guards:
        if symbol in guard.expr.free_symbols:
            yield ConditionFacts(_python(guard.expr), str(guard.sloc))


def _python(expression: Any) -> str:
    return str(PythonPrinter().doprint(expression))


def _number(value: Any) -> int | float | None:
    """A value as a Python number; None if it is no number or means "no bound"."""
    try:
        size = abs(float(value))
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    if not size < UNBOUNDED:
        return None
    return float(value) if isinstance(value, float) or getattr(value, "is_Float", False) else int(value)
