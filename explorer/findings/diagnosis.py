"""Diagnose a record: what is wrong with a program under torch.compile, what to change, and what is known of the change.

Every finding has its place, its cause, an edit as a unified diff if there is one, and the evidence for it. The order is
the order in which to work: wrong results, failures, graph breaks, recompilations, then what is only slow.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from compiler.advise import Advice, advise
from compiler.capture.by_design import is_by_design
from compiler.record import (
    OWN_STAGES,
    Cause,
    Check,
    Fix,
    GraphBreak,
    Problem,
    Recompile,
    Record,
    Site,
    Span,
    Suggestion,
)
from compiler.record.measure_facts import Trial
from compiler.record.plain_text import one_line, pluralize
from compiler.record.xray_facts import UNTRIED
from explorer.findings.advice.words import gain_words, holds, snippet, trial_words
from explorer.findings.edit_diff import edit_diff
from explorer.reading.cause import closest_failure, recompile_reason, users_span
from explorer.reading.provenance import innermost_lines
from explorer.reading.sites import break_groups, break_of, recompile_groups

Kind = Literal["wrong number", "failure", "graph break", "recompilation", "slow"]
FixOutcome = Literal["verified", "tried", "untried", "no fix"]
"""Whether a change holds. "verified": it was tried, and the results are the same; "tried": it was tried, and does not
do all of it; "untried": nobody ran it; "no fix": there is no edit, or none that was tried works.
"""
EvidenceBasis = Literal["measured", "recorded", "simulated", "inferred", "estimate"]

ORDER: Final[tuple[Kind, ...]] = ("wrong number", "failure", "graph break", "recompilation", "slow")
WHOLE: Final = "the call"
MOST_CHECKS: Final = 4
COMPILED: Final = (
    "captured",
    "forward",
    "backward",
    "inference",
    "post_grad",
    "ir",
    "fused_ir",
    *OWN_STAGES,
    "kernels",
)
"""Stages that torch.compile goes through to run a call: if one can't be made, the call fails or is not compiled."""
APPLY: Final = "Apply `patch` (git apply), then: "
CALL: Final = "Write `snippet` where the function is compiled or called, then: "
_NUMBER: Final = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True, slots=True)
class Support:
    """One fact that supports a finding. `basis` says where it comes from."""

    text: str
    basis: EvidenceBasis


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing that is wrong, at one place.

    `id` stays the same while the code around it changes. `rule` is torch's kind of the break, the class of the change
    that recompiles, or the name of the adviser's rule. `gb_id` is torch's number of a graph break (`GB0124`), and
    `link` its page. `chain` leads from the compiled function to the place.

    `fix` is the change in words. `edit` is a unified diff that makes the change, "" if none is known; `snippet` is code
    for the place where the function is compiled or called. `state` and `state_words` say what is known of the change.
    `count` is how often it happens. `next` is what to run next. `installed` marks code of packages.
    """

    id: str
    kind: Kind
    rule: str
    message: str
    file: str = ""
    line: int = 0
    span: Span | None = None
    gb_id: str = ""
    link: str = ""
    chain: tuple[Span, ...] = ()
    fix: str = ""
    edit: str = ""
    snippet: tuple[str, ...] = ()
    state: FixOutcome = "no fix"
    state_words: str = ""
    evidence: tuple[Support, ...] = ()
    count: int = 1
    next: str = ""
    installed: bool = False


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of a program, ranked.

    `patch` is the unified diff of all changes that were tried together and hold; lines that begin with `#` say what it
    achieves. `notes` are the limits of the search.
    """

    title: str
    findings: tuple[Diagnostic, ...] = ()
    patch: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return diagnosis_text(self)


@dataclass(frozen=True)
class Asked:
    """How findings are told: paths by the record's names of files, and the command that diagnosed the program."""

    paths: Mapping[str, str] = field(default_factory=dict)
    command: str = ""

    def path(self, file: str) -> str:
        return self.paths.get(file, file)

    def span(self, span: Span | None) -> Span | None:
        return span and replace(span, file=self.path(span.file))


def diagnose(record: Record, paths: Mapping[str, str] | None = None, command: str = "") -> Diagnosis:
    """Diagnose a record, also a loaded one; nothing is run.

    `paths` are paths to show, by the record's names of files. `command` are the words after `tcompile diagnose`, for
    what to run next. An x-ray in the record makes findings complete, and tried fixes make them verified.
    """
    asked = Asked(paths or {}, command)
    xray = record.xray
    found = [*_wrong_numbers(record, asked), *_failures(record, asked)]
    found += [*_sites(record, asked)] if xray is not None else [*_breaks(record, asked)]
    found += [*_causes(record, asked)] if xray is not None and xray.causes else [*_recompiles(record, asked)]
    found += _slow(record, asked)
    ranked = sorted(found, key=lambda each: ORDER.index(each.kind))
    notes = (*xray.problems, *xray.left_problems, *xray.cause_notes) if xray is not None else ()
    return Diagnosis(record.title, tuple(_with_ids(ranked)), xray.patch if xray else "", tuple(dict.fromkeys(notes)))


def _with_ids(found: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """Add ids that don't depend on line numbers: from kind, place and code, and a count for repeated ones."""
    seen: Counter[str] = Counter()
    for each in found:
        span = each.span or Span(each.file, each.line)
        code = span.code or _NUMBER.sub("#", each.message)  # measured numbers differ from run to run
        about = "\n".join((each.kind, each.rule, each.file, span.function, one_line(code)))
        digest = hashlib.sha256(f"{about}\n{seen[about]}".encode()).hexdigest()[:10]
        seen[about] += 1
        yield replace(each, id=f"{each.kind.replace(' ', '-')}-{digest}")


def _next_command(state: FixOutcome, asked: Asked, else_run: str = "", *, has_edit: bool = True) -> str:
    """What to run next: the same diagnosis after an edit, or what tries the fix."""
    again = f"tcompile diagnose {asked.command}" if asked.command else "tcompile.explore(…) again"
    if state == "verified":
        return (APPLY if has_edit else CALL) + again
    if state == "untried":
        return else_run or (again if asked.command else "print(run.xray().try_fixes())")
    return else_run


# Wrong results and failures


def _wrong_numbers(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """A finding for each stage that is the first to differ, or for the whole call: all its results and gradients."""
    wrong = [check for check in record.checks if check.verdict == "differs"]
    if any(not check.stage and check.subject != WHOLE for check in wrong):  # its results say more than the call
        wrong = [check for check in wrong if check.subject != WHOLE]
        wrong = [check for check in wrong if check.node or not check.stage] or wrong
    places = innermost_lines(record) if any(check.node for check in wrong) else {}
    labels = {entity.id: entity for artifact in record.of_stage("source") for entity in artifact.entities}
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in wrong:
        groups.setdefault((check.stage, check.node), []).append(check)
    for (stage, node), checks in groups.items():
        line = next((labels[name] for name in places.get(node, ()) if name in labels), None)
        file = str(line.attrs.get("file", "")) if line else ""
        number = int(line.attrs.get("line", 0)) if line else 0
        span = Span(file, number, number, code=line.label) if line else None
        evidence = [Support(f"{each.subject}: {each.words or each.verdict}", "measured") for each in checks]
        yield Diagnostic(
            "", "wrong number", stage or "compiled call", _differing_words(checks, stage), asked.path(file), number,
            asked.span(span), evidence=tuple(evidence[:MOST_CHECKS]), count=len(checks),
            next=_repro_of(asked),
        )  # fmt: skip


def _repro_of(asked: Asked) -> str:
    return f"tcompile repro {asked.command}" if asked.command else "tcompile.make_repro(run)"


def _differing_words(checks: Sequence[Check], stage: str) -> str:
    first = checks[0]
    more = f" and {len(checks) - 1} more" if len(checks) > 1 else ""
    where = f" in stage {stage}" if stage else ""
    told = f"{first.subject}{more} {'differ' if more else 'differs'} from eager{where}."
    return f"{told} {first.words or first.note}".strip()


def _failures(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """Stages that could not be made, without those that a graph break explains and those that no log has."""
    nothing = not any(frame.graphs for frame in record.frames)
    for problem in record.problems:
        is_fatal = problem.stage in COMPILED or nothing
        if is_fatal and not problem.is_of_all_logs and break_of(problem, record) is None:
            yield _failure(problem, asked)


def _failure(problem: Problem, asked: Asked) -> Diagnostic:
    basis = (Support(f"Stage {problem.stage} of {problem.graph or 'the call'} is missing.", "recorded"),)
    return Diagnostic(
        "", "failure", problem.stage, one_line(problem.reason), fix=problem.hint, evidence=basis, next=_repro_of(asked)
    )


# Graph breaks


def _sites(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """A finding for each site of the x-ray."""
    assert record.xray is not None
    fixes = {fix.site: fix for fix in record.xray.fixes}
    observed = {(found.file, found.line, found.kind): found for found in record.breaks}
    for site in record.xray.sites:
        yield _site(record, site, fixes.get(site.id), observed.get((site.file, site.line, site.kind)), asked)


def _site(record: Record, site: Site, fix: Fix | None, found: GraphBreak | None, asked: Asked) -> Diagnostic:
    state, words = _fix_state(fix, site.suggestions)
    changes = fix.suggestions if fix is not None and fix.suggestion is not None else site.suggestions[:1]
    evidence = [_support_of(site)]
    if found is not None and found.lost_seconds is not None:
        evidence.append(Support(f"It adds {found.lost_seconds * 1e6:,.0f} µs to a call.", "measured"))
    if fix is not None and fix.cost is not None and record.xray is not None and record.xray.cost is not None:
        before, after = record.xray.cost, fix.cost
        told = f"With this change alone: {pluralize(after.graphs, 'graph')} and {pluralize(after.breaks, 'break')}, "
        evidence.append(Support(f"{told}before {before.graphs} and {before.breaks}.", "measured"))
    return Diagnostic(
        "", "graph break", site.kind, one_line(site.what or site.reason), asked.path(site.file), site.line,
        asked.span(site.span), found.gb_id if found else "", found.link if found else "",
        tuple(filter(None, map(asked.span, site.chain))), _words_of(changes), edit_diff(record, changes, asked.paths),
        state=state, state_words=words, evidence=tuple(evidence), next=_next_command(state, asked),
        installed=site.span.installed,
    )  # fmt: skip


def _support_of(site: Site) -> Support:
    if site.as_it_is:
        return Support("TorchDynamo broke the graph there.", "recorded")
    return Support("It shows when the breaks before it are replaced by their values.", "simulated")


def _fix_state(fix: Fix | None, suggestions: Sequence[Suggestion]) -> tuple[FixOutcome, str]:
    if fix is None:
        return ("untried", "") if any(each.can_be_applied for each in suggestions) else ("no fix", "")
    if fix.state == "verified":
        return "verified", fix.words
    if fix.suggestion is None or not fix.suggestion.can_be_applied:
        return "no fix", fix.words
    return ("untried" if fix.words.endswith(UNTRIED) else "tried"), f"{fix.state}: {fix.words}"


def _breaks(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """A finding for each site of the graph breaks that were observed or logged."""
    for group in break_groups([found for found in record.breaks if not is_by_design(found)]):
        first = group[0]
        span = users_span(first) or Span(first.file, first.line, first.line, function=first.function, code=first.code)
        state, words = _fix_state(None, first.suggestions)
        crossing = f"{pluralize(first.crossing, 'tensor')} go back to Python there." if first.crossing else ""
        evidence = [Support(f"{pluralize(len(group), 'break')} there. {crossing}".strip(), "recorded")]
        if first.lost_seconds is not None:
            evidence.append(Support(f"It adds {first.lost_seconds * 1e6:,.0f} µs to a call.", "measured"))
        changes = [each for each in first.suggestions if each.can_be_applied][:1] or first.suggestions[:1]
        yield Diagnostic(
            "", "graph break", first.kind, one_line(first.what or first.explanation or first.reason),
            asked.path(span.file), span.line, asked.span(span), first.gb_id, first.link,
            tuple(filter(None, map(asked.span, first.chain))), _words_of(changes),
            edit_diff(record, changes, asked.paths), state=state, state_words=words, evidence=tuple(evidence),
            count=len(group), next=_next_command(state, asked), installed=span.installed,
        )  # fmt: skip


def _words_of(changes: Sequence[Suggestion]) -> str:
    return " ".join(f"{each.text} {each.caveat}".strip() for each in changes)


# Recompilations


def _causes(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """A finding for each cause of recompilation that the x-ray found."""
    assert record.xray is not None
    for cause in record.xray.causes:
        state, words = _cause_state(cause)
        fix = cause.fix
        evidence = [Support(f"{pluralize(cause.count, 'recompilation')}, of {', '.join(cause.functions)}.", "recorded")]
        if fix is not None and fix.before is not None and fix.after is not None:
            told = f"With this change {pluralize(fix.after, 'compilation')} of all calls, before {fix.before}."
            evidence.append(Support(told, "measured"))
        edits = fix.edits if fix is not None else ()
        yield Diagnostic(
            "", "recompilation", cause.kind, one_line(cause.what), asked.path(cause.file), cause.line,
            asked.span(cause.span), chain=tuple(filter(None, (asked.span(each.span) for each in cause.origins))),
            fix=fix.text if fix is not None else cause.advice, edit=edit_diff(record, edits, asked.paths),
            snippet=tuple(fix.code.splitlines()) if fix is not None else (), state=state, state_words=words,
            evidence=tuple(evidence), count=max(cause.count, 1), next=_next_command(state, asked, has_edit=bool(edits)),
            installed=cause.span.installed,
        )  # fmt: skip


def _cause_state(cause: Cause) -> tuple[FixOutcome, str]:
    if cause.fix is None:
        return ("untried" if cause.advice else "no fix"), ""
    if cause.fix.state == "verified":
        return "verified", cause.fix.words
    state: FixOutcome = "untried" if cause.fix.words.endswith(UNTRIED) else "tried"
    return (state if cause.fix.state != "no fix known" or state == "untried" else "no fix"), cause.fix.words


def _recompiles(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    for group in recompile_groups([found for found in record.recompiles if not is_by_design(found)]):
        last = group[-1]
        failure = closest_failure(last)
        limit = f" Then {last.limit} was reached." if last.limit else ""
        span = last.call or Span(last.file, last.line, last.line, function=last.function)
        yield Diagnostic(
            "", "recompilation", last.cause or "guards", f"{recompile_reason(last)}.{limit}", asked.path(last.file),
            last.line, asked.span(span), fix=last.advice, snippet=last.settings,
            state="untried" if last.advice else "no fix", evidence=(Support(_failure_text(last, failure), "recorded"),),
            count=len(group), next=_next_command("untried", asked), installed=span.installed,
        )  # fmt: skip


def _failure_text(found: Recompile, failure: object) -> str:
    code = getattr(failure, "code", "")
    return f"Guard that failed: {code}" if code else one_line("; ".join(found.reasons)) or "Compiled again."


# What is only slow


def _slow(record: Record, asked: Asked) -> Iterator[Diagnostic]:
    """Findings of the adviser, without those on breaks and recompilations, which have findings of their own."""
    trials = {trial.advice: trial for trial in record.trials}
    lines = {entity.id: entity for artifact in record.of_stage("source") for entity in artifact.entities}
    places = innermost_lines(record)
    for number, advice in enumerate(advise(record)):
        if advice.rule not in ("break", "recompile", "nothing", "nothing-compiled") and advice.change is not None:
            ids = [name for item in advice.evidence for name in item.ids]
            known = [line for name in ids if name not in lines for line in places.get(name, ())]
            line = next((lines[name] for name in (*known, *ids) if name in lines), None)
            yield _advice(record, advice, number, trials.get(advice.id), line, asked)


def _advice(record: Record, advice: Advice, number: int, trial: Trial | None, line: object, asked: Asked) -> Diagnostic:
    assert advice.change is not None
    attrs = getattr(line, "attrs", {})
    file, at = str(attrs.get("file", "")), int(attrs.get("line", 0))
    suggestion = advice.change.suggestion
    state: FixOutcome = "untried" if advice.change.can_be_tried else "no fix"
    if trial is not None and not trial.problem:
        state = "verified" if holds(trial) and trial.same in ("equal", "close") else "tried"
    evidence = [Support(item.text, item.basis) for item in advice.evidence]
    if advice.gain is not None:
        basis: EvidenceBasis = "simulated" if advice.is_simulated else advice.gain.basis
        evidence.append(Support(f"{gain_words(advice.gain)}: {advice.gain.how}", basis))
    return Diagnostic(
        "", "slow", advice.rule, f"{advice.title}. {advice.found}", asked.path(file), at,
        asked.span(Span(file, at, at, code=getattr(line, "label", ""))) if file else None,
        fix=f"{advice.change.text} {advice.numbers}".strip(),
        edit=edit_diff(record, (suggestion,) if suggestion else (), asked.paths),
        snippet=tuple(snippet(advice.change)), state=state, state_words=trial_words(trial) if trial else "",
        evidence=tuple(evidence), next=f"run.advice.measure({number})" if state == "untried" else "",
    )  # fmt: skip


# As text


def diagnosis_text(found: Diagnosis) -> str:
    """The findings in order, each with its place, its fix and its state; then the patch."""
    head = f"{found.title or 'the call'}: {pluralize(len(found.findings), 'finding')}"
    parts = [head, *(_finding_text(number, each) for number, each in enumerate(found.findings, 1))]
    parts += [f"note: {note}" for note in found.notes]
    return "\n\n".join([*parts, found.patch.rstrip()] if found.patch else parts)


def _finding_text(number: int, each: Diagnostic) -> str:
    place = f"{each.file}:{each.line}: " if each.file else ""
    gb_id = f" {each.gb_id}" if each.gb_id else ""
    times = f", {each.count} times" if each.count > 1 else ""
    lines = [f"[{number}] {place}{each.kind}{gb_id}{times} ({each.id})", f"  {each.message}"]
    state = "by hand" if each.state == "no fix" else each.state
    lines += [f"  change, {state}: {each.fix}"] if each.fix else [f"  {each.state}"]
    lines += [f"    {line}" for line in each.snippet]
    lines += [f"  why: {each.state_words}"] if each.state != "verified" and each.state_words else []
    lines += [f"  {item.basis}: {item.text}" for item in each.evidence]
    return "\n".join([*lines, f"  next: {each.next}"] if each.next else lines)
