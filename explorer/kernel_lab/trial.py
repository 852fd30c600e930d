"""One edit of a kernel tried out: facts, numbers and times beside the original's, as data, text and HTML."""

from __future__ import annotations

import ast
import difflib
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from compiler.binary.sources import CannotCompileError, launch_of
from compiler.kernel_lab.edit import (
    check_executable,
    configurations,
    cpp_source,
    function_of,
    source_of,
    with_configuration,
    with_edit,
)
from compiler.record import Artifact, Binary, Check, Kernel, Record, Timing
from compiler.targets.destination import DEFAULT_TARGET
from explorer.reading.kernel_table import config_text, occupancy_percent
from explorer.reading.shapes import error_text

if TYPE_CHECKING:
    import pandas as pd

    from explorer.run.run import Run

_STYLE = "border-collapse:collapse;margin:0.4em 0"
_CELL = "padding:0.1em 0.8em;text-align:right"
_BAD, _GOOD = "var(--jp-error-color1,#b3261e)", "var(--jp-success-color1,#1b7f4b)"
_WITH_UNIT = {
    "registers": ("registers a thread", ""),
    "spilled bytes": ("spilled a thread", "B"),
    "shared memory": ("shared memory a block", "B"),
    "threads": ("threads a block", ""),
    "programs": ("programs (blocks)", ""),
    "occupancy percent": ("occupancy", "%"),
    "load bits": ("widest load", "bits"),
    "store bits": ("widest store", "bits"),
}
"""Facts that are shown with a unit -> what they are called then, and the unit."""


@dataclass(frozen=True, slots=True)
class Version:
    """The kernel as it was, or as edited: source, facts where it compiled, and `version["ptx"]` its stages' texts."""

    source: str
    binary: Binary | None = None
    artifacts: tuple[Artifact, ...] = ()

    def __getitem__(self, stage: str) -> str:
        """The text of a stage. Raises KeyError that names those there are."""
        for artifact in self.artifacts:
            if artifact.stage == stage:
                return artifact.text
        raise KeyError(f"no stage {stage!r}; there are: {', '.join(a.stage for a in self.artifacts) or 'none'}")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with the edited kernel, and the line of the cell that it is on, 0 where that is not known."""

    what: str
    line: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class KernelTrial:
    """What came of running a `%%tkernel` cell; `original` and `edited` are its two versions of the kernel.

    `findings` say what is wrong with the edit, `notes` how it was checked.
    """

    kernel: Kernel
    original: Version
    edited: Version
    checks: tuple[Check, ...] = ()
    timings: tuple[Timing, ...] = ()
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def facts(self) -> pd.DataFrame:
        """One row a fact, with columns `original` and `edited`."""
        import pandas as pd

        rows = list(_facts(self.original.binary, self.edited.binary))
        table = {"original": [row[1] for row in rows], "edited": [row[2] for row in rows]}
        return pd.DataFrame(table, index=pd.Index([row[0] for row in rows], name="fact"), dtype="object")

    @property
    def check(self) -> pd.DataFrame:
        """One row for each tensor that the kernel stores: the edited kernel's numbers against the original's."""
        import pandas as pd

        names = ("subject", "verdict", "max_absolute", "max_relative", "note")
        return pd.DataFrame([{name: getattr(check, name) for name in names} for check in self.checks], columns=names)

    @property
    def diff(self) -> str:
        """What was edited, as a unified diff of the source."""
        before, after = self.original.source.strip("\n"), self.edited.source.strip("\n")
        return "\n".join(difflib.unified_diff(before.split("\n"), after.split("\n"), "original", "edited", lineterm=""))

    @property
    def is_right(self) -> bool:
        """Whether nothing was found wrong; what was not checked is not wrong."""
        return not self.findings

    def __str__(self) -> str:
        parts = [f"{self.kernel.name}: {self._verdict()}", *self._finding_lines(), self._facts_text()]
        parts += [f"  {check.subject}: {check.verdict}{_off_by(check)}" for check in self.checks]
        parts += [f"  {timing.subject}: {_time_text(timing.seconds)}" for timing in self.timings]
        return "\n".join([*filter(None, parts), *(f"  ({note})" for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    def _verdict(self) -> str:
        if self.findings:
            runs = self.edited.binary or self.checks
            return "the edited kernel is wrong" if runs else "the edited kernel does not work"
        verdicts = {check.verdict for check in self.checks}
        if not verdicts:
            return "compiled; its numbers were not checked"
        return "same numbers as the original" if verdicts == {"equal"} else "close to the original's numbers"

    def _finding_lines(self) -> list[str]:
        lines = self.edited.source.split("\n")
        return [
            f"  line {finding.line}: {finding.what}\n      {lines[finding.line - 1].strip()}"
            if 0 < finding.line <= len(lines)
            else f"  {finding.what}"
            for finding in self.findings
        ]

    def _facts_text(self) -> str:
        rows = [_shown(*row) for row in self._rows()]
        if not rows:
            return ""
        widths = [max(len(row[place]) for row in [*rows, ("", "original", "edited")]) for place in range(3)]
        every = [("", "original", "edited"), *rows]
        return "\n".join(f"  {name:<{widths[0]}}  {a:>{widths[1]}}  {b:>{widths[2]}}".rstrip() for name, a, b in every)

    def _rows(self) -> list[tuple[str, Any, Any]]:
        return list(_facts(self.original.binary, self.edited.binary))

    def _html(self) -> str:
        colour = _BAD if self.findings else _GOOD
        title = f'<b style="color:{colour}">{html.escape(self._verdict())}</b>'
        parts = [f"<div><code>{html.escape(self.kernel.name)}</code>: {title}</div>"]
        wrong = f"color:{_BAD};margin:0.3em 0"
        parts += [f'<pre style="{wrong}">{html.escape(line)}</pre>' for line in self._finding_lines()]
        rows = [_shown(*row) for row in self._rows()]
        parts.append(_table(("", "original", "edited"), rows, [before != after for _, before, after in rows]))
        checks = [(c.subject, c.verdict, error_text(c.max_absolute), c.note) for c in self.checks]
        parts.append(_table(("stored", "against the original", "largest error", ""), checks))
        times = [(t.subject, *map(_time_text, (t.seconds, t.low, t.high))) for t in self.timings]
        parts.append(_table(("time of one launch", "median", "lower quartile", "upper quartile"), times))
        parts += [f'<div style="opacity:0.7">{html.escape(note)}</div>' for note in self.notes]
        return "".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], strong: Sequence[bool] = ()) -> str:
    """A table; rows that are `strong` stand out. What a row is about is on the left."""
    if not rows:
        return ""
    weights = [f"{_CELL};font-weight:{'bold' if heavy else 'normal'}" for heavy in strong or [False] * len(rows)]
    body = "".join(_row("td", row, style) for row, style in zip(rows, weights, strict=True))
    return f'<table style="{_STYLE}">{_row("th", header, _CELL)}{body}</table>'


def _row(tag: str, cells: Sequence[str], style: str) -> str:
    styles = [f"{style};text-align:left;white-space:nowrap", *[style] * (len(cells) - 1)]
    each = [f'<{tag} style="{own}">{html.escape(cell)}</{tag}>' for cell, own in zip(cells, styles, strict=True)]
    return f"<tr>{''.join(each)}</tr>"


def _off_by(check: Check) -> str:
    where = f", off by at most {error_text(check.max_absolute)}" if check.verdict in ("close", "differs") else ""
    return where + (f" ({check.note})" if check.note else "")


def _shown(name: str, before: Any, after: Any) -> tuple[str, str, str]:
    """A fact as a row of text."""
    title, unit = _WITH_UNIT.get(name, (name, ""))
    return title, _value_text(before, unit), _value_text(after, unit)


def _value_text(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    return f"{f'{value:.3g}' if isinstance(value, float) else value} {unit}".rstrip()


def _time_text(seconds: float | None) -> str:
    """A time to three digits, in the unit that suits it: `9.78 ns`, `12.3 µs`."""
    if seconds is None:
        return "-"
    unit, size = next(
        ((name, size) for name, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)) if seconds < 1e3 * size), ("s", 1.0)
    )
    return f"{seconds / size:.3g} {unit}"


def _facts(original: Binary | None, edited: Binary | None) -> Iterator[tuple[str, Any, Any]]:
    """The facts of both, by name; those that neither has are left out."""
    both = [_facts_of(binary) if binary is not None else {} for binary in (original, edited)]
    for name in dict.fromkeys([*both[0], *both[1]]):
        before, after = (facts.get(name) for facts in both)
        if before is not None or after is not None:
            yield name, before, after


def _facts_of(binary: Binary) -> dict[str, Any]:
    return {
        "configuration": config_text(binary.config),
        "registers": binary.registers,
        "spilled bytes": binary.spill_bytes,
        "shared memory": binary.shared_memory,
        "threads": binary.threads,
        "programs": binary.programs or None,
        "occupancy percent": occupancy_percent(binary),
        "limit": binary.limiter or None,
        "load bits": binary.load_bits,
        "store bits": binary.store_bits,
        "least time, estimate": None if binary.bound_seconds is None else _time_text(binary.bound_seconds),
        "bound by": binary.bound or None,
        **{f"{kind} instructions": count for kind, count in binary.mix.items()},
    }


def tried(
    run: Run, kernel: Kernel, edited: str, target: str, config: int, chosen: Mapping[str, int], *, check: bool
) -> KernelTrial:
    """Compile an edited source, whose first line stands for the cell's header, and check it against the original.

    `chosen` are numbers of a launch configuration of the user's own. What is wrong with the edit is in the result.
    Raises UntrustedError for a loaded run that the user has not trusted.
    """
    original, gpu = source_of(run.record, kernel), target or run.record.target or DEFAULT_TARGET
    run.record.require_trust()
    try:
        for source in (original, edited) if run.record.is_loaded else ():
            check_executable(run.record, kernel, source)
        if kernel.language == "cpp":
            return _tried_in_cpp(run, kernel, edited, bool(target or config or chosen), check=check)
        ast.parse(edited)
        source, launch = _configured(run.record, kernel, edited, gpu, config, chosen)
    except SyntaxError as error:
        wrong = Finding(f"SyntaxError: {error.msg}", error.lineno or 0)
        return KernelTrial(kernel, Version(original), Version(edited), findings=(wrong,))
    except ValueError as error:
        return KernelTrial(kernel, Version(original), Version(edited), findings=(Finding(str(error)),))
    own = 0 if chosen else config
    return _Trial(run, kernel, original, edited, source, gpu, launch).result(config, own, check)


def _tried_in_cpp(run: Run, kernel: Kernel, edited: str, is_configured: bool, *, check: bool) -> KernelTrial:
    """The same for a kernel in C++, whose function alone is edited."""
    from compiler.backend.cpp.emit import shared_text
    from compiler.backend.runtime.build_cpp import has_vector_math
    from compiler.kernel_lab.numbers import Tried, numbers

    prelude, original = cpp_source(run.record, kernel)
    if run.record.is_loaded:  # of a file, the kernel's own function alone is built
        prelude = shared_text(kernel.name, set(re.findall(r"\w+", original)), has_vector_math())
    before, after = Version(f"\n{original}"), Version(edited)
    wrong = "a kernel in C++ has no GPU to be compiled for, and no configuration" if is_configured else ""
    if wrong or not check:
        return KernelTrial(kernel, before, after, findings=(Finding(wrong),) if wrong else ())
    launch = launch_of(run.record[kernel.artifact], kernel)
    versions = (Tried(kernel.name, version.source, 0, launch, prelude) for version in (before, after))
    found = numbers(run.record, kernel, run.kept, *versions)
    findings = [Finding(found.error.message, found.error.line)] if found.error else []
    findings += [_difference(check, edited) for check in found.checks if check.verdict == "differs"]
    return KernelTrial(kernel, before, after, found.checks, found.timings, tuple(findings), found.notes)


def _configured(
    record: Record, kernel: Kernel, edited: str, gpu: str, config: int, chosen: Mapping[str, int]
) -> tuple[str, Mapping[str, Any]]:
    """The edited source, and how it is launched, with a configuration of the user's own: the one that would be tried,
    with changes. Of Inductor's kernels it is in the source, of our own backend's in how they are launched.
    """
    launch = launch_of(record[kernel.artifact], kernel)
    if not chosen:
        return edited, launch
    every = configurations(record, kernel, gpu)
    if config >= len(every):
        raise ValueError(f"there is no configuration {config}: {len(every)} would be tried")
    unknown = [name for name in chosen if name not in every[config]]
    if unknown:
        raise ValueError(f"this kernel has no {unknown[0]}; it has {', '.join(every[config])}")
    numbers = {**every[config], **chosen}
    if launch:
        return edited, {**launch, "configs": [numbers]}
    return with_configuration(function_of(record, kernel), edited, numbers), {}


class _Trial:
    """Both versions of one kernel, compiled and run."""

    def __init__(
        self, run: Run, kernel: Kernel, original: str, edited: str, source: str, target: str, launch: Mapping[str, Any]
    ) -> None:
        self.run, self.kernel, self.target, self.launch = run, kernel, target, launch
        self.original, self.edited, self.source = original, edited, source
        self.findings: list[Finding] = []
        self.notes: list[str] = []

    def result(self, config: int, own_config: int, check: bool) -> KernelTrial:
        # It starts a process, and imports what runs graphs: not for a run that is only looked at.
        from compiler.kernel_lab.numbers import Tried, numbers

        original, edited = self._compiled(config, own_config)
        checks: tuple[Check, ...] = ()
        timings: tuple[Timing, ...] = ()
        if check:
            record, function = self.run.record, function_of(self.run.record, self.kernel)
            before = Tried(function, self.original, config, launch_of(record[self.kernel.artifact], self.kernel))
            after = Tried(function, self.source, own_config, self.launch)
            found = numbers(record, self.kernel, self.run.kept, before, after)
            checks, timings = found.checks, found.timings
            self.notes += found.notes
            if found.error is not None and not self.findings:  # what can't be compiled can't be run either
                self.findings.append(Finding(found.error.message, found.error.line))
            self.findings += [_difference(check, self.edited) for check in checks if check.verdict == "differs"]
        distinct = {finding.line or finding.what: finding for finding in reversed(self.findings)}
        return KernelTrial(
            self.kernel, original, edited, checks, timings, tuple(reversed(distinct.values())), tuple(self.notes)
        )

    def _compiled(self, config: int, own_config: int) -> tuple[Version, Version]:
        from compiler.binary import compile_record

        try:
            both, first, second = with_edit(self.run.record, self.kernel, self.source, self.target, self.launch)
        except CannotCompileError as error:
            self.findings.append(Finding(str(error)))
            return Version(self.original), Version(self.edited)
        if config == own_config:
            both = compile_record(both, config=config)
        else:
            both = compile_record(
                compile_record(both, kernels=[first], config=config), kernels=[second], config=own_config
            )
        self.findings += [Finding(*_located(problem.reason, self.kernel.name)) for problem in both.problems]
        return self._version(both, first, self.original), self._version(both, second, self.edited)

    def _version(self, record: Record, identity: str, source: str) -> Version:
        binary = next((known for known in record.binaries if known.kernel == identity), None)
        artifacts = tuple(artifact for artifact in record.artifacts if artifact.attrs.get("kernel") == identity)
        return Version(source, binary, artifacts)


def _difference(check: Check, source: str) -> Finding:
    """A wrong result, on the line where the kernel stores it."""
    rows = source.split("\n")
    store = re.compile(rf"\.(?:store|atomic_\w+)\({check.subject}\b|\b{check.subject}\[.*\] ?\S?= ")
    stores = [line for line, row in enumerate(rows, 1) if store.search(row)]
    what = f"what it stores to {check.subject} differs from the original's{_off_by(check)}"
    return Finding(what, stores[-1] if stores else 0)


def _located(reason: str, kernel: str) -> tuple[str, int]:
    """What the compiler said, without the kernel's name, and the line that it said it of."""
    text = reason.removeprefix(f"{kernel}: ")
    match = re.search(r"\.py:(\d+):|\bat (\d+):\d+:|line (\d+)", text)
    return text, int(next(filter(None, match.groups()))) if match else 0
