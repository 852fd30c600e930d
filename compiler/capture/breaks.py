"""Graph breaks as facts: the source place, the construct, torch's explanation, the cost, and suggested changes."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from compiler.capture.by_design import WRAPPERS
from compiler.capture.sources import SourceBook, is_installed, is_standard, span_of
from compiler.capture.suggestions import Advice, Case, advise, case_of, kind_in_rules, narrow_to_header, quoted_code
from compiler.record import GraphBreak, Span, Suggestion
from compiler.record.break_facts import BreakFacts, Place, is_dynamo

_TORCH = f"{Path(str(found.origin)).parent}/" if (found := find_spec("torch")) else "/torch/"
_PARTS = {
    "/distributed/": "torch.distributed keeps its hooks and collectives out of graphs. ",
    "/optim/": "Optimizers keep their updates out of the graphs around them. ",
}
"""Notes on parts of torch that break graphs on purpose, by folder."""
SITE = "https://meta-pytorch.github.io/compile-graph-break-site/gb/"
_EXPLANATION = re.compile(r"^ {2}Explanation: (.*(?:\n {4}.*)*)$", re.MULTILINE)
_HINT = re.compile(r"^ {2}Hint: (.*(?:\n {4}.*)*)$", re.MULTILINE)
_CONTEXT = re.compile(r"^ {2}Developer debug context: (.*)", re.MULTILINE)
_LINK = re.compile(r"https://\S+/gb/gb(\d+)\.html")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_SENTENCE_END = re.compile(r"(?<=\.)(?<!e\.g\.)(?<!i\.e\.) ")
_FOLDERS = re.compile(r"(?<=[\s`'\"])/\S*/(?:site-packages|python3\.\d+)/")


def graph_break(
    identity: str,
    frame: str,
    facts: BreakFacts,
    book: SourceBook,
    *,
    registry: Mapping[str, Mapping[str, Any]],
    fullgraph: bool = False,
    outermost: bool = True,
) -> GraphBreak:
    """Convert torch's facts about a break to a GraphBreak, with source spans.

    Details missing from the message come from the `registry` that ships with torch. `outermost` is whether the frame
    runs the function that the user compiled.
    """
    known = registry.get(facts.kind, {})
    explanation, link = _EXPLANATION.search(facts.message), _LINK.search(facts.message)
    hints = [_one_line(hint) for hint in _HINT.findall(facts.message)]
    gb_id = f"GB{link[1]}" if link else str(known.get("id", ""))
    # Without torch's Python replacements (polyfills) for functions written in C.
    places = [narrow_to_header(place) for place in facts.places if not is_dynamo(place.file)]
    chain = tuple(span_of(place, book) for place in places)
    culprit = chain[-1] if chain else Span("", 0)
    advice = _advice(facts, places, book, outermost)
    return GraphBreak(
        id=identity,
        frame=frame,
        kind=facts.kind,
        reason=book.shorten(facts.reason.strip()),
        file=culprit.file,
        line=culprit.line,
        function=culprit.function,
        code=linecache.getline(places[-1].file, culprit.line).strip() if places else "",
        explanation=_one_line(explanation[1]) if explanation else str(known.get("Explanation", "")),
        hints=tuple(hints) or tuple(known.get("Hints", ())),
        gb_id=gb_id,
        stack=tuple(f"{span.file}:{span.line} in {span.function}" for span in chain),
        what=advice.what or _first_sentence(explanation[1] if explanation else facts.message),
        chain=chain,
        link=link[0] if link else f"{SITE}{gb_id.lower()}.html" if gb_id else "",
        outcome=_outcome(facts, fullgraph),
        consequence=facts.consequence,
        suggestions=advice.suggestions,
        whose=_whose(places),
    )


def _advice(facts: BreakFacts, places: Sequence[Place], book: SourceBook, outermost: bool) -> Advice:
    """Advice for the innermost line of the user's own code, as users don't edit installed packages.

    If a rule knows the user's call, its advice is used. Otherwise the advice explains what the package does inside the
    call, and suggests only settings.
    """
    if not places:
        return Advice()

    def case(place: Place) -> Case:
        index = places.index(place)
        return _case(facts, place, book, len(places) - 1 - index, index > 0 or not outermost)

    own = next((place for place in reversed(places) if not is_installed(place.file)), None)
    if (known := _advice_on_wrapper(facts, places, book)) is not None:
        return known
    if own is places[-1]:
        return advise(case(own))
    if own and (known := advise(case(own), of_calls=True)).what:
        return known
    found = advise(case(places[-1]))
    part = next((words for folder, words in _PARTS.items() if folder in places[-1].file), "")
    if _whose(places) == "package" or part or own is None:
        settings = (item for item in found.suggestions if item.settings and not item.rewrite)
        others = tuple(replace(item, text=f"Or by a setting: {item.text}") for item in settings)
        found = replace(found, suggestions=(_of_library(places, book, part, facts.goes_on), *others))
    found = replace(found, suggestions=tuple(_without_rewrite(item) for item in found.suggestions))
    if own is None or not found.what:
        return found
    return replace(found, what=f"{quoted_code(span_of(own, book).code)} leads to this: {found.what}")


def _advice_on_wrapper(facts: BreakFacts, places: Sequence[Place], book: SourceBook) -> Advice | None:
    """Advice for a break that FSDP or DDP makes on purpose; None for others."""
    own = next((place for place in reversed(places) if not is_installed(place.file)), places[-1])
    innermost = next((place.file for place in reversed(places) if not is_standard(place.file)), "")
    for pattern, what, text in WRAPPERS:
        if pattern.search(facts.message) or pattern.search(innermost):
            code = quoted_code(span_of(own, book).code)
            return Advice(what.replace("{code}", code), (Suggestion(text),))
    return None


def _case(facts: BreakFacts, place: Place, book: SourceBook, depth: int, inlined: bool) -> Case:
    context = _CONTEXT.search(facts.message)
    words = context[1].strip() if context else facts.message
    kind = kind_in_rules(facts.kind, facts.message)
    return case_of(kind, words, place, span_of(place, book), depth, inlined)


def rewrites_at(facts: BreakFacts, place: Place, book: SourceBook) -> tuple[Suggestion, ...]:
    """Suggestions with a rewrite for a place in an installed package, for which `graph_break` gives no rewrites."""
    suggestions = advise(_case(facts, place, book, 0, inlined=True)).suggestions
    return tuple(item for item in suggestions if item.rewrite)


def _without_rewrite(item: Suggestion) -> Suggestion:
    """A suggestion without its rewrite, for code that users don't edit."""
    if not item.rewrite or item.settings:
        return replace(item, rewrite="")
    return replace(item, rewrite="", applicability="explanation", caveat="")


def _whose(places: Sequence[Place]) -> Literal["user", "package", "torch"]:
    """Owner of the code at the innermost place."""
    if not places or not is_installed(places[-1].file):
        return "user"
    return "torch" if places[-1].file.startswith(_TORCH) else "package"


def _of_library(places: Sequence[Place], book: SourceBook, part: str, goes_on: bool) -> Suggestion:
    """Suggestion for a break in library code: an explanation, and the user's options.

    `part` is a note on the part of torch that breaks; `goes_on` is whether code after the break is compiled.
    """
    outcome = (
        "The graph ends there, that code runs as plain Python, and what follows is compiled in a graph of its own."
        if goes_on
        else "The function that it is in runs as plain Python; functions that it calls may be compiled by themselves."
    )
    return Suggestion(
        f"This line is in {_owner(places, book)}, so nothing in yours has to change. {part}{outcome} To lose fewer "
        "graphs to it, compile the parts that do not run it."
    )


def _owner(places: Sequence[Place], book: SourceBook) -> str:
    """Owner of the code at the innermost place, in words: torch, the standard library or a package."""
    if _whose(places) == "torch":
        return "torch's own code"
    package = book.name(places[-1].file).partition("/")[0].removesuffix(".py")
    is_standard = package in sys.stdlib_module_names or places[-1].file.startswith("<frozen ")
    return f"code of {'the standard library' if is_standard else package}"


def _outcome(facts: BreakFacts, fullgraph: bool) -> Literal["resumed", "plain", "skipped", "error"]:
    if fullgraph or facts.raises:
        return "error"
    if facts.goes_on:
        return "resumed"
    return "skipped" if facts.reason.startswith("Failed") else "plain"


def _one_line(text: str) -> str:
    """Join the text to one line, without addresses and paths of this machine."""
    return _FOLDERS.sub("", _ADDRESS.sub("", " ".join(text.split())))


def _first_sentence(text: str) -> str:
    return _SENTENCE_END.split(_one_line(text), maxsplit=1)[0]


def frames_after(
    identity: str, resumed_by: Mapping[str, Sequence[str]], breaks: Mapping[str, Sequence[str]]
) -> Set[str]:
    """Frames that resume after a break, directly or after the breaks that follow."""
    seen: set[str] = set()
    todo = list(resumed_by[identity])
    while todo:
        frame = todo.pop()
        if frame not in seen:
            seen.add(frame)
            todo.extend(follower for later in breaks.get(frame, ()) for follower in resumed_by[later])
    return seen
