"""Graph breaks and recompilations as text: where, what, what it cost, what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from compiler.capture.function_names import function_name
from compiler.capture.guard_words import quoted
from compiler.record import GraphBreak, GuardFailure, Recompile, Record, Suggestion
from explorer.reading.cause import closest_failure, rewritten_lines, users_span
from explorer.reading.plain_text import counted
from explorer.reading.shapes import seconds_text, size_text
from explorer.reading.sites import break_groups, recompile_groups

WIDTH = 100
MOST_ALIKE = 4
INDENT = "  "
_CODE = "      "


def break_card(found: GraphBreak, number: int = 1, total: int = 1, others: Sequence[GraphBreak] = ()) -> str:
    """The card of a site, number `number` of `total`. The user's own line comes first; calls inside of packages follow.
    `others` are breaks there in other compilations.
    """
    times = f", {1 + len(others)} times" if others else ""
    head = f"graph break {number} of {total}{times}: {found.kind}" + (f" ({found.gb_id})" if found.gb_id else "")
    lines = [head, *place_lines(found), *_again(others), *_wrapped(found.what), *_wrapped(outcome_words(found))]
    lines += _wrapped(first_call_words(found))
    lines += _wrapped(cost_words(found))
    for index, suggestion in enumerate(found.suggestions):
        lines += _suggestion(suggestion, index)
    if found.link:
        lines.append(INDENT + found.link)
    return "\n".join(lines)


def recompile_card(found: Recompile, number: int = 1, total: int = 1, others: Sequence[Recompile] = ()) -> str:
    """The card of a cause, number `number` of `total`: every guard that failed in its first recompilation, entry by
    entry. `others` are later recompilations for the same cause.
    """
    blamed = f", {_blamed(found)}" if found.cause and found.argument else ""
    times = f", {1 + len(others)} times" if others else ""
    lines = [f"recompilation {number} of {total}{times}: {_name(found)} ({found.file}:{found.line}){blamed}"]
    if found.call is not None:
        which = f"call {found.call_number}, " if found.call_number else ""
        lines.append(f"{INDENT}{which}in {found.call.file}:{found.call.line}  {found.call.code}")
    lines += failure_lines(found)
    if found.graph_change:
        lines += _wrapped(
            f"{found.graph_change} (run.recompile_diff({found.frame!r}) shows it)", f"graph, against {found.closest}: "
        )
    lines += _wrapped("; ".join(map(again_words, others)), "and again: ")
    last = (found, *others)[-1]
    lines += _wrapped(last.advice, f"change ({last.applicability}): ")
    lines += [f"{_CODE}{setting}" for setting in last.settings]
    if last.limit:
        lines += _wrapped(f"torch gave up on this function: {limit_words(last)}")
    return "\n".join(lines)


def again_words(found: Recompile) -> str:
    """A later recompilation for a cause that a card has told: `0/2 in call 3, `n` was the int 4, is the int 5`."""
    call = f" in call {found.call_number}" if found.call_number else ""
    closest = closest_failure(found)
    return f"{found.frame}{call}" + (f", {closest.words}" if closest else "")


def limit_words(found: Recompile) -> str:
    """Which limit is reached, and what ran as plain Python from then on."""
    plain = f"; {runs_of('call', found.plain_calls)} ran as plain Python" if found.plain_calls else ""
    return f"{found.limit} is reached{plain}"


def runs_of(name: str, numbers: Sequence[int]) -> str:
    """`calls 9 to 12 and 14`, `call 9`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    told = [" to ".join(map(str, run)) for run in runs]
    listed = " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
    return f"{name if len(numbers) == 1 else name + 's'} {listed}"


def break_cards(breaks: Sequence[GraphBreak]) -> list[str]:
    """A card for each site."""
    groups = break_groups(breaks)
    return [break_card(found, number, len(groups), others) for number, (found, *others) in enumerate(groups, 1)]


def recompile_cards(recompiles: Sequence[Recompile]) -> list[str]:
    """A card for each cause."""
    groups = recompile_groups(recompiles)
    return [recompile_card(found, number, len(groups), others) for number, (found, *others) in enumerate(groups, 1)]


def all_cards(record: Record) -> Cards:
    """All breaks, then all recompilations."""
    return Cards([*break_cards(record.breaks), *recompile_cards(record.recompiles)])


def cards(record: Record) -> str:
    """All breaks, then all recompilations, as one text; "" where there are none."""
    return "\n\n".join(all_cards(record))


class Cards(tuple[str, ...]):
    """The cards of a run, one text each: breaks first, then recompilations. Prints as all of them."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(self) or "no graph breaks and no recompilations"

    __repr__ = __str__


def place_lines(found: GraphBreak) -> Iterator[str]:
    """The user's line and its code, then the calls that lead there, or on from there."""
    span = users_span(found)
    if span is None:
        return
    yield f"{INDENT}{span.file}:{span.line}:{span.column + 1} in {span.function}"
    code = span.code.splitlines()
    yield from (f"{_CODE}{line.strip()}" for line in code[:3])
    for other in found.chain:
        if other != span:
            text = " ".join(other.code.split())
            yield f"{INDENT}{'through' if other.installed else 'called in'} {other.file}:{other.line}  {text[:60]}"


def _again(others: Sequence[GraphBreak]) -> list[str]:
    if not others:
        return []
    return _wrapped(f"and here again in {', '.join(found.frame for found in others)}")


def outcome_words(found: GraphBreak, at_once: bool = True) -> str:
    """What followed, and what it costs. `at_once` is whether a graph follows before another break."""
    kinds = f" (a {found.consequence})" if found.consequence.startswith("graph break in") else ""
    if found.outcome == "error" and found.of_export:
        return "torch.export raises here: nothing is exported."
    if found.outcome == "error":
        return "torch.compile raises here: nothing is compiled."
    if found.outcome == "skipped":
        return f"The whole function runs as plain Python{kinds}.{unread_words(found)}"
    size = f" ({size_text(found.crossing_bytes)})" if found.crossing_bytes else ""
    cost = f"; {counted(found.crossing, 'tensor')}{size} handed back to Python" if found.ended else ""
    before = f"{counted(found.nodes[0], 'op')} in the graph before" if found.ended else "No graph before"
    ops = f"{before}, {counted(found.nodes[1], 'op')} after{cost}."
    if found.outcome == "plain":
        return f"The rest of the function runs as plain Python. {ops}{unread_words(found)}"
    following = (
        "The function resumes in a graph of its own." if at_once else "Its next graph comes after another break."
    )
    if found.unread is not None:
        return f"{ops}{unread_words(found)}"
    goes_on = following if found.nodes[1] else "What is left of the function has no ops of its own."
    return f"{goes_on} {ops}"


def unread_words(found: GraphBreak) -> str:
    """Which lines torch did not analyse because of the break, as a sentence to append; "" where it read them all."""
    if found.unread is None:
        return ""
    first, last = found.unread
    lines = f"Line {first}" if first == last else f"Lines {first} to {last}"
    where = function_name(found.chain[0].function) if found.chain else function_name(found.function)
    return (
        f" {lines} of `{where}` {'was' if first == last else 'were'} not analysed: more breaks may follow there. "
        "Functions that are called from there are compiled by themselves, if at all."
    )


def first_call_words(found: GraphBreak) -> str:
    """Said of a break that a second call does not have; "" of others."""
    if not found.first_call:
        return ""
    return (
        "Only the first call breaks here: captured once more after it, the call does not. Code that runs once (lazy "
        "initialisation, a lock around it) is the reason; a call in eager mode before torch.compile takes the break "
        "away."
    )


def cost_words(found: GraphBreak) -> str:
    """What it costs in time, or why that is not known; "" where nobody asked."""
    if found.lost_seconds is None:
        return f"Time lost is not known: {found.lost_note}." if found.lost_note else ""
    change = "costs" if found.lost_seconds >= 0 else "saves"
    return f"It {change} {seconds_text(abs(found.lost_seconds))} a call: {found.lost_note}."


def _suggestion(suggestion: Suggestion, index: int) -> Iterator[str]:
    label = f"{'change' if index == 0 else 'or'} ({suggestion.applicability}): "
    yield from _wrapped(advice_text(suggestion), label)
    if suggestion.rewrite:
        yield f"{_CODE}{rewritten_lines(suggestion)}:"
        yield from (f"{_CODE}+ {line}" for line in textwrap.dedent(suggestion.rewrite).splitlines())
    yield from (f"{_CODE}{setting}" for setting in suggestion.settings)


def advice_text(suggestion: Suggestion) -> str:
    """The advice as a sentence of its own, and what a "maybe" may lead to."""
    text = suggestion.text.removeprefix("Or ")
    return f"{text[:1].upper()}{text[1:]} {suggestion.caveat}".rstrip()


def _blamed(found: Recompile) -> str:
    """A cause and whose it is; a global is called one already."""
    return quoted(found.argument) if found.cause == "global" else f"{found.cause} of {quoted(found.argument)}"


def _name(found: Recompile) -> str:
    name = function_name(found.function)
    return name if name == found.function else f"the rest of {name}"


def failure_lines(found: Recompile) -> Iterator[str]:
    """Every guard that failed, entry by entry; torch's own words where it is not known what differed."""
    entries: dict[str, list[GuardFailure]] = {}
    for failure in found.failures:
        entries.setdefault(failure.entry, []).append(failure)
    for entry, failures in entries.items():
        yield f"{INDENT}code of {entry} does not fit:"
        yield from (f"{INDENT}{INDENT}{words}" for words in _folded(failures))
    if not entries:
        yield from (f"{INDENT}{line}" for reason in found.reasons for line in reason.splitlines()[:1])


def _folded(failures: Sequence[GuardFailure]) -> Iterator[str]:
    """The words of each; of many that changed in the same way (`training` of each layer) the first, and a count."""
    alike: dict[tuple[str, str, str], list[GuardFailure]] = {}
    for failure in failures:
        alike.setdefault((failure.cause, failure.old, failure.new), []).append(failure)
    for group in alike.values():
        shown = group if len(group) <= MOST_ALIKE else group[:1]
        yield from (failure.words for failure in shown)
        if len(group) > len(shown):
            yield f"{INDENT}and so for {len(group) - 1} more: run.recompiles has all"


def _wrapped(text: str, label: str = "") -> list[str]:
    if not text:
        return []
    return textwrap.wrap(
        text, WIDTH, initial_indent=INDENT + label, subsequent_indent=INDENT + " " * len(label), break_long_words=False
    )
