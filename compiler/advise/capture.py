"""Rules about graph breaks, recompilations and specialized sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.advise.facts import Advice, Change, Evidence, Gain, seconds
from compiler.advise.reading import Reading
from compiler.advise.waiting import CALL_SECONDS
from compiler.capture.by_design import is_by_design
from compiler.capture.function_names import function_name
from compiler.capture.recompile_advice import DYNAMIC
from compiler.record import GraphBreak, Recompile, Span, Symbol
from compiler.record.plain_text import pluralize, size_text

PLAIN_WORDS = {
    "plain": "the rest of the function runs as plain Python",
    "skipped": "all of the function runs as plain Python",
}


def breaks(reading: Reading) -> Iterator[Advice]:
    """Report graph breaks that can be avoided, with the measured or estimated time that each costs, if known."""
    groups: dict[tuple[str, str, int], list[GraphBreak]] = {}
    for found in reading.record.breaks:
        if not is_by_design(found):
            groups.setdefault((found.kind, found.file, found.line), []).append(found)
    yield from (_break(reading, group) for group in groups.values())


def _break(reading: Reading, group: Sequence[GraphBreak]) -> Advice:
    first = next((found for found in group if found.suggestions), group[0])
    place = f"{first.file}:{first.line}"
    if first.unread is not None:
        effect = f"lines {first.unread[0]} to {first.unread[1]} run as plain Python"
    elif first.outcome in PLAIN_WORDS:
        effect = PLAIN_WORDS[first.outcome]
    else:
        effect = f"{pluralize(first.nodes[0], 'op')} before it and {first.nodes[1]} after are compiled apart"
    found = f"{(first.what or first.kind).rstrip('.')} ({place}): {effect}."
    edits = (item for item in first.suggestions if item.can_be_applied)
    suggestion = next(edits, first.suggestions[0] if first.suggestions else None)
    text = "torch's own words say what it could not read."
    if suggestion is not None:
        text = f"{suggestion.text} {suggestion.caveat}".rstrip()
    settings = suggestion.settings if suggestion is not None and not suggestion.rewrite else ()
    change = Change(text, settings=settings, suggestion=suggestion)
    ids = tuple(f"breaks.{item.id}" for item in group)
    evidence = [Evidence(f"{pluralize(len(group), 'break')} of a graph there.", "recorded", ids)]
    if first.crossing:
        told = (
            f"{pluralize(first.crossing, 'tensor')} ({size_text(first.crossing_bytes)}) go back to Python there: "
            "nothing is fused across it."
        )
        evidence.append(Evidence(told))
    lines = first.unread[1] - first.unread[0] + 1 if first.unread is not None else 0
    gain = _lost_time(reading, first)
    return Advice("break", f"Graph break at {place}", found, tuple(evidence), gain, change, plain_lines=lines)


def _lost_time(reading: Reading, found: GraphBreak) -> Gain | None:
    if found.unread is not None and found.lost_seconds is None:  # the cost of the untraced code is unknown
        return None
    if found.lost_seconds is None and reading.gpu is not None and any(found.nodes):
        how = f"half of the {seconds(CALL_SECONDS)} that calling one more piece of compiled code takes on the CPU"
        return Gain(0.5 * CALL_SECONDS, "call", how)
    if found.lost_seconds is None or found.lost_seconds <= 0 or "within how much" in found.lost_note:
        return None
    share = found.lost_seconds / reading.seconds if reading.seconds else None
    return Gain(found.lost_seconds, "call", found.lost_note, "measured", share)


def recompiles(reading: Reading) -> Iterator[Advice]:
    """Report recompilations: their cost, and how to avoid them."""
    groups: dict[tuple[str, str, str], list[Recompile]] = {}
    for found in reading.record.recompiles:
        if not is_by_design(found):
            groups.setdefault((found.function, found.cause, found.argument), []).append(found)
    yield from (_recompile(reading, group) for group in groups.values())


def _recompile(reading: Reading, group: Sequence[Recompile]) -> Advice:
    first = group[-1]
    spent = sum(reading.compile_seconds_of(item.frame) for item in group)
    about = first.argument or first.cause or "guards"
    if first.argument and not first.argument.startswith(first.cause):  # `global log` names its cause itself
        about = f"{first.cause} of {first.argument}"
    times = "once" if len(group) == 1 else f"{len(group)} times"
    found = f"{function_name(first.function)} was compiled again {times} because the {about} changed."
    if first.limit:
        found += f" Then {first.limit} was reached: calls that fit no code run as plain Python."
    ids = tuple(f"recompiles.{item.id}" for item in group)
    closest = next((failure.words for failure in first.failures), first.reasons[0] if first.reasons else "")
    gain = _compile_gain(reading, spent)
    options = {"dynamic": True} if DYNAMIC in first.advice else {}
    change = Change(first.advice or "Call it with the same kind of arguments every time.", options, first.settings)
    evidence = (Evidence(closest or f"{len(group)} in all.", "recorded", ids),)
    return Advice("recompile", f"Compiled again: {about}", found, evidence, gain, change)


def _compile_gain(reading: Reading, spent: float) -> Gain | None:
    """Half of the compile time, as code with symbolic shapes takes longer to compile; None if the time is unknown."""
    if not spent:
        return None
    how = f"half of the {seconds(spent)} that torch spent on these compilations"
    return Gain(0.5 * spent, "compile", how, "estimate", 0.5 * spent / reading.compile_seconds)


def specialized_sizes(reading: Reading) -> Iterator[Advice]:
    """Report symbolic sizes of arguments that a line of code made a number; another symbol is no code for one size."""
    for symbol in reading.record.symbols:
        is_torchs_own = symbol.source.startswith("<")  # such as <ephemeral: …>, which no argument has
        if symbol.became.isdigit() and symbol.specialized_by is not None and not is_torchs_own:
            yield _specialized_size(symbol, symbol.specialized_by)


_ASKED_IN_CODE = (
    "Compute with the size and don't ask what it is: no comparison with a number, no loop or list of that length on "
    "that line. If there is one size only, mark nothing as dynamic."
)
_MET_IN_OPERATOR = (
    "An operator there combines it with a size that is fixed, or makes that many results. If a weight has that size, "
    "nothing has to change: no other size runs. If the line has the number itself, as in view(-1, 8), compute it from "
    "the shape of the input."
)


def _specialized_size(symbol: Symbol, at: Span) -> Advice:
    where = f"{at.file}:{at.line}" + (f" (`{code}`)" if (code := at.code.strip()) else "")
    found = f"{symbol.source} was symbolic, and {where} made it {symbol.became}: code for one size"
    found += "." if symbol.asked_by == "operator" else ", compiled again for the next."
    ids = (f"source[{at.file}].L{at.line}",)
    change = Change(_MET_IN_OPERATOR if symbol.asked_by == "operator" else _ASKED_IN_CODE)
    evidence = (Evidence(f"Traced with {symbol.hint}.", "recorded", ids),)
    return Advice("specialised", f"Specialised: {symbol.source}", found, evidence, None, change)
