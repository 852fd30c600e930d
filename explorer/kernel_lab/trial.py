"""Trial of an edited kernel: its facts, results and times beside the original's, as data, text and HTML."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from compiler.binary.sources import CannotCompileError, launch_of
from compiler.kernel_lab.edit import (
    check_executable,
    configurations,
    cpp_source,
    function_of,
    source_of,
    with_configuration,
    with_cpp_edit,
    with_edit,
)
from compiler.record import Artifact, Binary, Check, Kernel, Record, Timing
from compiler.targets.destination import DEFAULT_TARGET
from explorer.reading.kernel_table import config_text, occupancy_percent
from explorer.reading.plain_text import columns
from explorer.reading.shapes import error_text
from explorer.render.html import note, safe, table_html

if TYPE_CHECKING:
    import pandas as pd

    from compiler.kernel_lab.numbers import Tried
    from explorer.run.run import Run

_BAD, _GOOD = "var(--jp-error-color1,#b3261e)", "var(--jp-success-color1,#1b7f4b)"
_FACT_HEAD = ("", "original", "edited", "")
_WITH_UNIT = {
    "registers": ("registers per thread", ""),
    "spilled bytes": ("spilled per thread", "B"),
    "shared memory": ("shared memory per block", "B"),
    "threads": ("threads per block", ""),
    "programs": ("programs (blocks)", ""),
    "occupancy percent": ("occupancy", "%"),
    "load bits": ("widest load", "bits"),
    "store bits": ("widest store", "bits"),
    "vector bits": ("vectors of the hot loop", "bits"),
    "cycles of the hot loop, estimate": ("an iteration of the hot loop, estimate", "cycles"),
}
"""Display names of facts, with their units; counts have the unit ""."""


@dataclass(frozen=True, slots=True)
class Version:
    """The original or the edited kernel; `version["ptx"]` is the text of a stage.

    `binary` has the facts of the compiled kernel, None if it was not compiled. `artifacts` are its compiled stages.
    """

    source: str
    binary: Binary | None = None
    artifacts: tuple[Artifact, ...] = ()

    def __getitem__(self, stage: str) -> str:
        """The text of a stage. Raises KeyError with the known stages."""
        for artifact in self.artifacts:
            if artifact.stage == stage:
                return artifact.text
        raise KeyError(f"no stage {stage!r}; there are: {', '.join(a.stage for a in self.artifacts) or 'none'}")


@dataclass(frozen=True, slots=True)
class Finding:
    """An error in the edited kernel; `line` is its line in the cell, 0 if unknown."""

    what: str
    line: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class KernelTrial:
    """The result of a `%%tkernel` cell; `original` and `edited` are the two versions of the kernel.

    `findings` are errors in the edit; `notes` describe how the kernel was checked.
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
        """One row per fact, with columns `original` and `edited`."""
        import pandas as pd

        facts = _facts(self.original.binary, self.edited.binary)
        table = pd.DataFrame(facts.values(), index=[*facts], columns=["original", "edited"], dtype="object")
        return table.rename_axis("fact")

    @property
    def check(self) -> pd.DataFrame:
        """One row per tensor that the kernel stores: the edited kernel's results against the original's."""
        import pandas as pd

        names = ("subject", "verdict", "max_absolute", "max_relative", "note")
        return pd.DataFrame([{name: getattr(check, name) for name in names} for check in self.checks], columns=names)

    @property
    def diff(self) -> str:
        """The edit as a unified diff of the source."""
        before, after = self.original.source.strip("\n"), self.edited.source.strip("\n")
        return "\n".join(difflib.unified_diff(before.split("\n"), after.split("\n"), "original", "edited", lineterm=""))

    @property
    def is_right(self) -> bool:
        """Whether no errors were found; True also if nothing was checked."""
        return not self.findings

    def __str__(self) -> str:
        rows = _fact_rows(self.original.binary, self.edited.binary)
        facts = columns([_FACT_HEAD, *rows], right=(1, 2)) if rows else []
        checks = [f"{check.subject}: {check.verdict}{_error_words(check)}" for check in self.checks]
        times = [f"{timing.subject}: {_time_text(timing.seconds)}" for timing in self.timings]
        notes = [f"({note})" for note in self.notes]
        lines = [*self._finding_lines(), *facts, *checks, *times, *notes]
        return "\n".join([f"{self.kernel.name}: {self.verdict}", *(f"  {line}" for line in lines)])

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": self._html()}

    @property
    def verdict(self) -> str:
        """The outcome in words."""
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
            f"line {finding.line}: {finding.what}\n      {lines[finding.line - 1].strip()}"
            if 0 < finding.line <= len(lines)
            else finding.what
            for finding in self.findings
        ]

    def _html(self) -> str:
        colour = _BAD if self.findings else _GOOD
        parts = [
            f'<div><code>{safe(self.kernel.name)}</code>: <b style="color:{colour}">{safe(self.verdict)}</b></div>'
        ]
        parts += [f'<pre style="color:{_BAD};margin:0.3em 0">{safe(line)}</pre>' for line in self._finding_lines()]
        checks = [(c.subject, c.verdict, error_text(c.max_absolute), c.note) for c in self.checks]
        times = [(t.subject, *map(_time_text, (t.seconds, t.low, t.high))) for t in self.timings]
        tables = (
            (_FACT_HEAD, _fact_rows(self.original.binary, self.edited.binary)),
            (("stored", "against the original", "largest error", ""), checks),
            (("time of one launch", "median", "lower quartile", "upper quartile"), times),
        )
        parts += [table_html(head, rows) for head, rows in tables if rows]
        notes = "".join(map(note, self.notes))
        return "".join([*parts, f'<div style="white-space:pre-line">{notes}</div>'])


def _error_words(check: Check) -> str:
    is_off = check.verdict in ("close", "differs") and check.max_absolute is not None
    where = f", off by at most {error_text(check.max_absolute)}" if is_off else ""
    return where + (f" ({check.note})" if check.note else "")


def _value_text(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    return f"{f'{value:.3g}' if isinstance(value, float) else value} {unit}".rstrip()


def _time_text(seconds: float | None) -> str:
    """A time with three significant digits in a suitable unit: `9.78 ns`, `12.3 µs`; "-" for None."""
    if seconds is None:
        return "-"
    unit, size = next(
        ((name, size) for name, size in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)) if seconds < 1e3 * size), ("s", 1.0)
    )
    return f"{seconds / size:.3g} {unit}"


def _facts(original: Binary | None, edited: Binary | None) -> dict[str, tuple[Any, Any]]:
    """Values of each fact for the original and the edited kernel; facts that neither has are left out."""
    before, after = (_facts_of(binary) if binary is not None else {} for binary in (original, edited))
    both = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {name: pair for name, pair in both.items() if pair != (None, None)}


def _fact_rows(original: Binary | None, edited: Binary | None) -> list[tuple[str, str, str, str]]:
    """The facts as rows of text, with changed ones marked."""
    rows = []
    for name, (before, after) in _facts(original, edited).items():
        title, unit = _WITH_UNIT.get(name, (name, ""))
        rows.append((title, _value_text(before, unit), _value_text(after, unit), "" if before == after else "changed"))
    return rows


def _facts_of(binary: Binary) -> dict[str, Any]:
    return {
        "configuration": config_text(binary.config),
        "registers": binary.registers,
        "spilled bytes": binary.spill_bytes,
        "shared memory": binary.shared_memory,
        "threads": binary.threads or None,
        "programs": binary.programs or None,
        "occupancy percent": occupancy_percent(binary),
        "limit": binary.limiter or None,
        "load bits": binary.load_bits,
        "store bits": binary.store_bits,
        "least time, estimate": None if binary.bound_seconds is None else _time_text(binary.bound_seconds),
        "vector bits": binary.vector_bits,
        "cycles of the hot loop, estimate": binary.loop_cycles,
        "bound by": binary.bound or None,
        **{f"{kind} instructions": count for kind, count in binary.mix.items()},
    }


def try_edit(
    run: Run, kernel: Kernel, edited: str, target: str, config: int, chosen: Mapping[str, int], *, check: bool
) -> KernelTrial:
    """Compile an edited kernel, and compare its results with the original's.

    The first line of `edited` takes the place of the cell's magic. `chosen` has parameters of the user's own launch
    configuration. Errors in the edit become findings of the result.
    Raises UntrustedError for a loaded run that the user has not trusted.
    """
    original, gpu = source_of(run.record, kernel), target or run.record.target or DEFAULT_TARGET
    run.record.require_trust()
    # Imported here because it imports modules that run graphs, which reading a run does not need.
    from compiler.kernel_lab.numbers import Tried

    try:
        for source in (original, edited) if run.record.is_loaded else ():
            check_executable(run.record, kernel, source)
        if kernel.language == "cpp":
            return _try_edit_in_cpp(run, kernel, edited, bool(target or config or chosen), check=check)
        ast.parse(edited)
        source, launch = _apply_configuration(run.record, kernel, edited, gpu, config, chosen)
    except SyntaxError as error:
        wrong = Finding(f"SyntaxError: {error.msg}", error.lineno or 0)
        return KernelTrial(kernel, Version(original), Version(edited), findings=(wrong,))
    except ValueError as error:
        wrong = Finding(*_find_line(str(error), kernel.name))
        return KernelTrial(kernel, Version(original), Version(edited), findings=(wrong,))
    own = 0 if chosen else config
    try:
        both, *names = with_edit(run.record, kernel, source, gpu, launch)
    except CannotCompileError as error:
        return KernelTrial(kernel, Version(original), Version(edited), findings=(Finding(str(error)),))
    both = _compile_both(both, names, config, own)
    findings = [Finding(*_find_line(problem.reason, kernel.name)) for problem in both.problems]
    versions = (_version(both, names[0], original), _version(both, names[1], edited))
    if not check or (findings and versions[1].binary is None):
        return KernelTrial(kernel, *versions, findings=_distinct(findings))
    function = function_of(run.record, kernel)
    before = Tried(function, original, config, launch_of(run.record[kernel.artifact], kernel))
    return _check_numbers(run, kernel, versions, (before, Tried(function, source, own, launch)), findings)


def _try_edit_in_cpp(run: Run, kernel: Kernel, edited: str, is_configured: bool, *, check: bool) -> KernelTrial:
    """Compare an edited C++ kernel with the original. Only the kernel's own function is edited.

    `is_configured`: the user chose a target or a configuration, which is an error for C++.
    """
    from compiler.backend.cpp.emit import shared_text
    from compiler.backend.runtime.build_cpp import has_vector_math
    from compiler.binary import compile_record
    from compiler.kernel_lab.numbers import Tried

    prelude, original = cpp_source(run.record, kernel)
    if run.record.is_loaded:  # of a loaded record, only the kernel's own function is built
        prelude = shared_text(kernel.name, set(re.findall(r"\w+", original)), has_vector_math())
    before, after = Version(f"\n{original}"), Version(edited)
    if is_configured:
        wrong = Finding("a kernel in C++ has no GPU to be compiled for, and no configuration")
        return KernelTrial(kernel, before, after, findings=(wrong,))
    both, *names = with_cpp_edit(run.record, kernel, edited, prelude)
    both = compile_record(both, stages=("asm",))
    before, after = _version(both, names[0], before.source), _version(both, names[1], edited)
    if not check:
        failed = after.binary is None and before.binary is not None
        findings = tuple(Finding(*_find_line(found.reason, kernel.name)) for found in both.problems if failed)
        return KernelTrial(kernel, before, after, findings=findings)
    launch = launch_of(run.record[kernel.artifact], kernel)
    function = partial(Tried, kernel.name, config=0, launch=launch, prelude=prelude)
    tried = (function(source=before.source), function(source=after.source))
    return _check_numbers(run, kernel, (before, after), tried, [])


def _check_numbers(
    run: Run, kernel: Kernel, versions: tuple[Version, Version], tried: tuple[Tried, Tried], findings: list[Finding]
) -> KernelTrial:
    """Run both versions and compare the tensors that they store; `findings` are compile errors."""
    from compiler.kernel_lab.numbers import numbers

    found, edited = numbers(run.record, kernel, run.kept, *tried), versions[1].source
    if found.error is not None and not findings:  # after a compile error, the run fails too
        findings.append(Finding(found.error.message, found.error.line))
    findings += [_difference(check, edited) for check in found.checks if check.verdict == "differs"]
    return KernelTrial(kernel, *versions, found.checks, found.timings, _distinct(findings), found.notes)


def _distinct(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first finding for each line, or for each message without a line."""
    return tuple({finding.line or finding.what: finding for finding in reversed(findings)}.values())[::-1]


def _apply_configuration(
    record: Record, kernel: Kernel, edited: str, gpu: str, config: int, chosen: Mapping[str, int]
) -> tuple[str, Mapping[str, Any]]:
    """The edited source and its launch, with the user's parameters applied to an autotuning candidate.

    For Inductor's kernels the configuration is in the source, for our own backend's in the launch.
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


def _compile_both(both: Record, names: Sequence[str], config: int, own_config: int) -> Record:
    from compiler.binary import compile_record

    if config == own_config:
        return compile_record(both, config=config)
    first, second = names
    return compile_record(compile_record(both, kernels=[first], config=config), kernels=[second], config=own_config)


def _version(record: Record, kernel: str, source: str) -> Version:
    binary = next((known for known in record.binaries if known.kernel == kernel), None)
    artifacts = tuple(artifact for artifact in record.artifacts if artifact.attrs.get("kernel") == kernel)
    return Version(source, binary, artifacts)


def _difference(check: Check, source: str) -> Finding:
    """The finding for a wrong result, at the line that stores it."""
    rows = source.split("\n")
    store = re.compile(rf"\.(?:store|atomic_\w+)\({check.subject}\b|\b{check.subject}\[.*\] ?\S?= ")
    stores = [line for line, row in enumerate(rows, 1) if store.search(row)]
    what = f"what it stores to {check.subject} differs from the original's{_error_words(check)}"
    return Finding(what, stores[-1] if stores else 0)


def _find_line(reason: str, kernel: str) -> tuple[str, int]:
    """The compiler's message without the kernel's name, and the line that it refers to, 0 if unknown."""
    text = reason.removeprefix(f"{kernel}: ")
    match = re.search(r"\.(?:py|cpp):(\d+):|\bat (\d+):\d+:|line (\d+)", text)
    return text, int(next(filter(None, match.groups()))) if match else 0
