"""Plain text of a record: a summary for a terminal, and listings with line numbers and links to the source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from pygments import highlight
from pygments.formatters import TerminalFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from compiler.capture.function_names import function_name
from compiler.record import Artifact, Environment, GraphBreak, Problem, Recompile, Record
from compiler.record.options import Options
from compiler.record.plain_text import first_and_last, one_line, pluralize, size_text
from explorer.findings.check_text import summary_lines as check_lines
from explorer.findings.collectives import kinds_table
from explorer.findings.timing.heat_text import heat_text
from explorer.findings.timing.text import summary_lines as timing_lines
from explorer.findings.versus import versus_document
from explorer.reading.cause import break_reason, recompile_reason, users_place
from explorer.reading.plain_text import WIDTH, clip, clip_name, columns, text_lines
from explorer.reading.provenance import SourceLines, innermost_lines, place, place_text
from explorer.reading.shapes import seconds_text
from explorer.reading.sites import (
    break_count,
    card_number,
    graphs_of,
    problem_groups,
    recompile_count,
    recompile_groups,
)
from explorer.reading.stages import counts, stage_order, stage_seconds, stage_title, stages_not_in_log
from explorer.render.document import Row, Table
from explorer.render.text import align_rows, document_text

KERNELS_SHOWN = 12
FACTS_SHOWN = 8


def summary(record: Record, width: int = WIDTH) -> str:
    """A summary of the exploration: stages with counts, kernels, graph breaks, problems."""
    parts = [heading(record), _stages(record)]
    parts += [_kernels(record), _collectives(record), document_text(versus_document(record))]
    parts.append("\n".join(timing_lines(record, width)))
    parts += [heat_text(record), "\n".join(check_lines(record, width)), _regions(record)]
    parts += [_breaks(record), _xray(record), _recompiles(record), _plain_python(record), _problems(record)]
    lines = "\n\n".join(part for part in parts if part).splitlines()
    return "\n".join(clip(line.rstrip(), width) for line in lines)


def heading(record: Record) -> str:
    return "\n".join(part for part in (record.full_title, explored_line(record), settings(record)) if part)


def explored_line(record: Record) -> str:
    """The explored call, and how to explore another; "" if it is the only call, and the cell itself makes it."""
    call = record.explored
    if call is None or not (call.others or call.scripts or call.inside):
        return ""
    where = f", called in {call.inside} (line {call.line})" if call.inside else f" (line {call.line})"
    others = " or ".join(f"--fn {name}" for name in (*call.others, *call.scripts))
    again = f'\nrun.switch("{call.others[0]}") runs that call again, with its side effects' if call.others else ""
    return f"explored: {call.callee}{where}" + (f"; to switch: {others}" if others else "") + again


def settings(record: Record) -> str:
    """The versions and the non-default options, as one line."""
    return "  ".join([*versions(record.environment), *changed_options(record.options)])


def versions(environment: Environment) -> list[str]:
    named = {"torch": environment.torch, "triton": environment.triton, "python": environment.python}
    return [*(f"{name} {version}" for name, version in named.items() if version), *filter(None, [environment.gpu])]


def changed_options(options: Options) -> list[str]:
    """The non-default options as text: `mode=max-autotune`."""
    default = Options()
    names = Options.__dataclass_fields__
    changed = {name: value for name in names if (value := getattr(options, name)) != getattr(default, name)}
    return [f"{name}={','.join(value) if isinstance(value, tuple) else value}" for name, value in changed.items()]


def stages_table(record: Record) -> Table:
    """One row per stage: number of graphs, contents, compile time."""
    rows = []
    for stage in stage_order(record):
        artifacts = record.of_stage(stage)
        graphs = len({each.id if stage == "exported" else each.graph for each in artifacts} - {""})
        seconds = stage_seconds(record, stage)
        time = seconds_text(seconds) if seconds else ""
        rows.append(Row((stage_title(stage), str(graphs or ""), counts(artifacts), time)))
    return Table(("stage", "graphs", "what is in it", "time"), tuple(rows), right=(1, 3))


def _stages(record: Record) -> str:
    return "\n".join(align_rows(stages_table(record))) if record.artifacts else "no stage was recorded"


def kernel_totals(record: Record) -> list[tuple[str, str, str, str]]:
    """Name, kind, calls and bytes of all calls of each kernel name; most bytes first."""
    calls: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    names = _kernel_names(record)
    for kernel in record.kernels:
        calls[names[kernel.id], kernel.category] += kernel.calls
        moved[names[kernel.id], kernel.category] += kernel.calls * kernel.bytes
    order = sorted(calls, key=lambda key: -moved[key])
    return [(*key, str(calls[key]), size_text(moved[key]) if moved[key] else "") for key in order]


def _kernel_names(record: Record) -> dict[str, str]:
    """The name of each kernel by id, with its graph if other graphs have a kernel of the same name."""
    homes: dict[str, set[str]] = {}
    for kernel in record.kernels:
        homes.setdefault(kernel.name, set()).add(kernel.artifact)
    return {
        kernel.id: kernel.name if kernel.category == "extern" or len(homes[kernel.name]) == 1
        else f"{kernel.name} ({kernel.place})"
        for kernel in record.kernels
    }  # fmt: skip


def _kernels(record: Record) -> str:
    """A text table of the kernels; "" without stage `kernels`, as then only some graphs have been lowered."""
    if not (record.kernels and record.of_stage("kernels")):
        return ""
    totals = kernel_totals(record)
    facts = kernel_facts(record)
    shown = [
        (clip_name(name, 40 if facts else 56), *rest, *facts.get(name, ())) for name, *rest in totals[:KERNELS_SHOWN]
    ]
    head = ("kernel", "kind", "calls", "bytes", *(("registers", "spills", "occupancy") if facts else ()))
    rows = columns([(*row, *[""] * (len(head) - len(row))) for row in (head, *shown)], right=range(2, 7))
    return "\n".join([*rows, *_more_line(totals, KERNELS_SHOWN, "run.kernels")])


def _collectives(record: Record) -> str:
    """What a rank sends in one step, by kind; "" if it calls no collective."""
    if not record.collectives:
        return ""
    sent = size_text(sum(found.bytes for found in record.collectives))
    count = pluralize(len(record.collectives), "collective")
    return "\n".join([f"{count} in one step, {sent} (run.collectives):", *align_rows(kinds_table(record))])


def kernel_facts(record: Record) -> dict[str, tuple[str, str, str]]:
    """Registers and spilled bytes per thread, and occupancy, by kernel name; empty before kernels are compiled."""
    names = _kernel_names(record)
    return {
        names[binary.kernel]: (
            "" if binary.registers is None else str(binary.registers),
            "" if binary.spill_bytes is None else size_text(binary.spill_bytes),
            "" if binary.occupancy is None else f"{round(100 * binary.occupancy, 1):g} %",
        )
        for binary in record.binaries
        if binary.kernel in names
    }


def _breaks(record: Record) -> str:
    """The lines with graph breaks, their counts, and the first suggested change."""
    advice = {_break_line(found): _first_change(found) for found in reversed(record.breaks)}
    times = Counter(_break_line(found) for found in record.breaks)
    lines = [f"  {line}{_times(count)}{advice[line]}" for line, count in times.items()]
    return _titled_section(break_count(record.breaks), lines, "print(run.cards)")


def _xray(record: Record) -> str:
    """The sites that the x-ray found, each with the state of its fix, if tried."""
    if record.xray is None:
        return ""
    tried = {fix.site: f"\n    fix: {fix.state}" for fix in record.xray.fixes}
    lines = [
        f"  {place_text(site.file, site.line)}  {site.what or site.kind}{tried.get(site.id, '')}"
        for site in record.xray.sites
    ]
    patch = ["  the fixes that work together: print(run.patch())"] if record.xray.patch else []
    count = f"x-ray: {pluralize(len(lines), 'site')}"
    return "\n".join([_titled_section(count, lines, "print(run.xray())") or f"{count}: no graph breaks", *patch])


def _break_line(found: GraphBreak) -> str:
    code = "" if found.what else f"{one_line(found.code)}  "
    return f"{users_place(found)}  {code}{break_reason(found)}"


def _first_change(found: GraphBreak) -> str:
    return f"\n    change: {one_line(found.suggestions[0].text)}" if found.suggestions else ""


def _recompiles(record: Record) -> str:
    """The recompilations, grouped by reason, each group with the values of its last recompilation."""
    groups = recompile_groups(record.recompiles)
    lines = [f"  {recompile_reason(group[-1])}{_times(len(group))}{_advice(group[-1])}" for group in groups]
    return _titled_section(recompile_count(record.recompiles), lines, "print(run.cards)")


def _advice(found: Recompile) -> str:
    limit = f"\n    {found.limit} is reached: torch gave up on it" if found.limit else ""
    return limit + (f"\n    change: {one_line(found.advice)}" if found.advice else "")


def _times(count: int) -> str:
    return f"  ({count} times)" if count > 1 else ""


def _regions(record: Record) -> str:
    """Functions that several modules run, compiled on their own: each compilation, and the modules that ran it."""
    shared = {frame.code for frame in record.frames if len(frame.modules) > 1}
    found = [frame for frame in record.frames if frame.code in shared]
    lines = [
        f"  {function_name(frame.function)} ({place_text(frame.file, frame.line)}): graph {frame.id}, "
        f"{pluralize(frame.calls, 'call')}: {first_and_last(frame.modules)}"
        for frame in found
    ]
    return _section("compilation", found, lines, "run.tables.frames", " of modules compiled on their own")


def _plain_python(record: Record) -> str:
    """Functions that run as plain Python, with the reasons."""
    left = {
        f"  {function_name(frame.function)} ({place_text(frame.file, frame.line)}): {one_line(why)}": None
        for frame in record.frames
        for why in frame.reason.splitlines()[:1]
        if frame.outcome != "compiled"
    }
    return _section("function", list(left), list(left), "run.tables.frames", " left to Python")


def _problems(record: Record) -> str:
    """The problems of stages, each once, with its graphs and a hint; the index of a job says what no log has."""
    groups = [group for group in problem_groups(record) if not group[0].is_of_all_logs]
    problems = [problem for group in groups for problem in group]
    lines = [_problem(group, record) for group in groups]
    return "\n\n".join(filter(None, (_section("problem", problems, lines, "run.tables.problems"), not_in_log(record))))


def _problem(group: Sequence[Problem], record: Record) -> str:
    problem, card = group[0], card_number(group[0], record)
    where = "`breaks` of this compilation" if record.origin == "log" else f"print(run.cards[{(card or 1) - 1}])"
    told = problem.hint or (f"its card says what to change: {where}" if card else "")
    hint = f"\n    {one_line(told)}" if told else ""
    return f"  {stage_title(problem.stage)} {graphs_of(group)}".rstrip() + f": {one_line(problem.reason)}{hint}"


def not_in_log(record: Record) -> str:
    """The stages that no log has, in one line; "" if this record is not from a log."""
    stages = stages_not_in_log(record)
    return f"not in a log: {', '.join(stages)}" if stages else ""


def _section(name: str, facts: Sequence[object], lines: list[str], where: str, how: str = "") -> str:
    return _titled_section(pluralize(len(facts), name) + how, lines if facts else [], where)


def _titled_section(title: str, lines: list[str], where: str) -> str:
    """The first lines under a title; "" if there are none."""
    return "\n".join([title, *lines[:FACTS_SHOWN], *_more_line(lines, FACTS_SHOWN, where)]) if lines else ""


def _more_line(facts: Sequence[object], shown: int, where: str) -> list[str]:
    return [f"  … and {len(facts) - shown} more: {where}"] if len(facts) > shown else []


def listing(record: Record, artifact: Artifact, colour: bool = False) -> str:
    """An artifact with line numbers and, before each line, the source line it came from (`cell:3`)."""
    known = innermost_lines(record)
    shown = text_lines(_colourful(artifact.text, artifact.language) if colour else artifact.text)
    numbers = line_numbers(artifact, len(shown))
    links = [_link(artifact, line, known) for line in range(1, len(shown) + 1)]
    wide, far = max(map(len, numbers), default=0), max(map(len, links), default=0)
    return "\n".join(
        f"{number:>{wide}}  {link:<{far}}{'  ' if far else ''}{text}".rstrip()
        for number, link, text in zip(numbers, links, shown, strict=True)
    )


def line_numbers(artifact: Artifact, count: int) -> list[str]:
    """The number to show for each line of an artifact; "" for a line without a number."""
    given = artifact.attrs.get("numbers") or range(1, count + 1)
    return [str(number) if number else "" for number in [*given, *[0] * count][:count]]


def _link(artifact: Artifact, line: int, known: SourceLines) -> str:
    """Source locations of the entities on an artifact's line: the first two, then `+N` for the rest."""
    if artifact.stage == "source":
        return ""
    lines = (found for entity_id in artifact.lines.get(line, ()) for found in known.get(entity_id, ()))
    places = [place(found) for found in dict.fromkeys(lines)]
    more = f" +{len(places) - 2}" if len(places) > 2 else ""
    return " ".join(clip(found, 28) for found in places[:2]) + more


def _colourful(text: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return text
    return str(highlight(text, lexer, TerminalFormatter()))


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour text for a stream: it is a terminal, `NO_COLOR` is not set, and `TERM` is not "dumb"."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
