"""Group graph breaks by site, recompilations by cause, and problems by what is told of them.

If code is compiled several times, the same break, guard failure or problem occurs several times.
"""

from __future__ import annotations

from collections.abc import Sequence

from compiler.capture.function_names import function_name
from compiler.record import GraphBreak, Problem, Recompile, Record, Span
from compiler.record.plain_text import pluralize
from explorer.reading.cause import users_span


def break_groups(breaks: Sequence[GraphBreak]) -> list[list[GraphBreak]]:
    """Group breaks by kind and by the user's line; in each group, breaks that ended a graph come first."""
    groups: dict[tuple[str, Span | None], list[GraphBreak]] = {}
    for found in breaks:
        groups.setdefault((found.kind, users_span(found)), []).append(found)
    return [sorted(group, key=lambda found: not found.ended) for group in groups.values()]


def recompile_groups(recompiles: Sequence[Recompile]) -> list[list[Recompile]]:
    """Group recompilations by function (its resume functions included), cause and argument."""
    groups: dict[tuple[str, str, str], list[Recompile]] = {}
    for found in recompiles:
        blamed = found.cause or " ".join(found.reasons)
        groups.setdefault((function_name(found.function), blamed, found.argument), []).append(found)
    return list(groups.values())


def break_count(breaks: Sequence[GraphBreak], name: str = "graph break") -> str:
    """Count sites and breaks: `4 sites, 19 graph breaks`; `2 graph breaks` if each has its own site."""
    return _count(len(break_groups(breaks)), "site", len(breaks), name)


def recompile_count(recompiles: Sequence[Recompile]) -> str:
    """Count causes and recompilations: `3 causes, 13 recompilations`; only the latter if the counts are equal."""
    return _count(len(recompile_groups(recompiles)), "cause", len(recompiles), "recompilation")


def break_of(problem: Problem, record: Record) -> GraphBreak | None:
    """The graph break behind a capture problem; None for other problems."""
    if problem.stage != "captured":
        return None
    return next((found for found in reversed(record.breaks) if found.frame == problem.graph), None)


def card_number(problem: Problem, record: Record) -> int | None:
    """Number, from 1, of the card that shows the break behind a problem; None if there is no such break."""
    found = break_of(problem, record)
    groups = break_groups(record.breaks) if found is not None else []
    return next((number for number, group in enumerate(groups, 1) if found in group), None)


def problem_groups(record: Record, stage: str = "") -> list[list[Problem]]:
    """Group problems of each stage, or of one, with the same reason, hint and card: they differ in their graphs."""
    groups: dict[tuple[str, str, str, int | None], list[Problem]] = {}
    for problem in record.problems:
        if stage in ("", problem.stage):
            told = (problem.stage, problem.reason, problem.hint, card_number(problem, record))
            groups.setdefault(told, []).append(problem)
    return list(groups.values())


def graphs_of(problems: Sequence[Problem]) -> str:
    """The graphs of problems: `1/0, 3/0`; "" if none has one."""
    return ", ".join(dict.fromkeys(problem.graph for problem in problems if problem.graph))


def _count(groups: int, group: str, facts: int, fact: str) -> str:
    of_facts = pluralize(facts, fact)
    return of_facts if groups == facts else f"{pluralize(groups, group)}, {of_facts}"
