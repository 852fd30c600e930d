"""Compare two records: their captures, a unified diff of each stage, and changed op counts."""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from compiler.record import MACHINE_STAGES, Artifact, Record, captured_by_frame
from explorer.findings.kernel_diff import kernel_changes, kernel_facts, matching_ids
from explorer.reading.plain_text import clip, columns, text_lines
from explorer.reading.stages import ranked_stage, stage_key
from explorer.run import capture_diff, tables, text
from explorer.run.compiling import KernelCompiler

LINES_SHOWN = 60
"""Lines of each changed artifact's diff in `print(diff)`; `print(diff["forward"])` has all."""

_PLACE = re.compile(r"\s*(//## |\.loc\s|\.file\s)|#loc\w* = |!\d+ = |\.Ltmp\d+:")
"""Lines that only contain source locations."""
_NOISE = {
    "sass": re.compile(r"(?<=^ {4})/\*[0-9a-f]+\*/ *"),
    "ptx": re.compile(r"(?!)"),
    "amdgcn": re.compile(r"(?!)"),
    "llvm": re.compile(r",? !dbg !\d+"),
    "mlir": re.compile(r" loc\((?:#loc\w*|unknown)\)"),
    "python": re.compile(r"(?<=# )File: .*?:\d+ (?=in )"),
}
"""Patterns of source locations and addresses within a line, by language."""

_ADDED, _REMOVED = "rgba(0,158,115,0.22)", "rgba(213,94,0,0.22)"
_PRE = "overflow:auto;max-height:32em;font-size:12px;line-height:1.35;text-align:left;white-space:pre"


@dataclass(frozen=True)
class ArtifactDiff:
    """Diff of one artifact; `before` or `after` is None if that side does not have it. Prints as a unified diff."""

    id: str
    stage: str
    names: tuple[str, str]
    before: Artifact | None
    after: Artifact | None
    uncompiled: str = ""
    """The name of the side whose kernel is not compiled yet, or ""."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The unified diff without line endings; empty if both texts are the same."""
        before, after = (compared_lines(side) if side else [] for side in (self.before, self.after))
        ids = [side.id if side else self.id for side in (self.before, self.after)]
        first, second = (f"{name}: {side}" for name, side in zip(self.names, ids, strict=True))
        return tuple(difflib.unified_diff(before, after, first, second, lineterm=""))

    @property
    def added(self) -> int:
        """Number of lines on only the second side."""
        return sum(line.startswith("+") for line in self.lines[2:])

    @property
    def removed(self) -> int:
        """Number of lines on only the first side."""
        return sum(line.startswith("-") for line in self.lines[2:])

    @property
    def changed(self) -> bool:
        """Whether both sides have the artifact, with different texts."""
        return bool(self.before and self.after and self.lines)

    @property
    def verdict(self) -> str:
        """The result as text: "the same", "+3 -1 lines", "only in f", or "not compiled yet in f"."""
        if self.uncompiled:
            return f"not compiled yet in {self.uncompiled}"
        if self.before is None:
            return f"only in {self.names[1]}"
        if self.after is None:
            return f"only in {self.names[0]}"
        return f"+{self.added} -{self.removed} lines" if self.lines else "the same"

    def __str__(self) -> str:
        return "\n".join(self.lines) or f"{self.id}: the same in {self.names[0]} and {self.names[1]}"

    def _repr_html_(self) -> str:
        return diff_html(self.lines) or f"<div>{_safe(str(self))}</div>"


def compared_lines(artifact: Artifact) -> list[str]:
    """The lines of an artifact, without instruction addresses and source locations."""
    return [line for _, line in compared_rows(artifact)]


def compared_rows(artifact: Artifact) -> list[tuple[int, str]]:
    """The compared lines, each with its row in the text, from 1."""
    noise, rows = _NOISE.get(artifact.language), list(enumerate(text_lines(artifact.text), 1))
    return rows if noise is None else [(row, noise.sub("", line)) for row, line in rows if not _PLACE.match(line)]


def recompile_diff(record: Record, frame: str = "") -> ArtifactDiff:
    """Diff of a recompilation's captured graph against that of its closest cache entry. Raises KeyError.

    `frame` is the recompilation, by default the first.
    """
    known = {found.frame: found for found in record.recompiles}
    found = known.get(frame) if frame else next(iter(known.values()), None)
    if found is None:
        raise KeyError(f"no recompilation {frame or 'at all'} in this record; it has: {', '.join(known) or 'none'}")
    graphs = captured_by_frame(record.frames, record.artifacts)
    missing = next((name for name in (found.closest, found.frame) if name not in graphs), None)
    if missing is not None:
        why = found.limit and f": torch gave up on it, {found.limit} is reached"
        raise KeyError(f"there is no captured graph of {missing or 'the code that came closest'}{why}")
    before, after = graphs[found.closest], graphs[found.frame]
    return ArtifactDiff(after.id, after.stage, (found.closest, found.frame), before, after)


class RunDiff:
    """Differences between two runs. Prints as text, displays as HTML in a notebook; `widget()` is a live view.

    Machine code is compiled on both sides on request: `diff["ptx"]`, `diff.kernels`. `print(diff)` then shows the
    changed facts of each kernel, and `print(diff["sass"])` the changed instructions.
    """

    def __init__(self, before: KernelCompiler, after: KernelCompiler) -> None:
        self._sides = (before, after)
        self.names = side_names(before.record, after.record)
        self.labels = side_labels(before.record, after.record)
        self._compared: tuple[Record, Record, tuple[ArtifactDiff, ...]] | None = None

    @property
    def before(self) -> Record:
        return self._sides[0].record

    @property
    def after(self) -> Record:
        return self._sides[1].record

    def compile_kernels(self) -> RunDiff:
        """Compile the remaining Triton kernels of both sides; returns this diff."""
        for side in self._sides:
            side.compile()
        return self

    @property
    def artifacts(self) -> tuple[ArtifactDiff, ...]:
        """All artifacts of both sides, in pipeline order; paired by id, or by matching kernels."""
        known = self._compared
        if known is None or known[0] is not self.before or known[1] is not self.after:
            self._compared = known = (self.before, self.after, tuple(self._pairs()))
        return known[2]

    def _pairs(self) -> Iterator[ArtifactDiff]:
        partner = matching_ids(self.before, self.after)
        before = {artifact.id: artifact for artifact in self.before.artifacts}
        after = {partner.get(artifact.id, artifact.id): artifact for artifact in self.after.artifacts}
        both = after | before
        for key in sorted(both, key=lambda artifact_id: ranked_stage(both[artifact_id].stage)):
            found = before.get(key), after.get(key)
            yield ArtifactDiff(key, both[key].stage, self.names, *found, self._uncompiled_side(both[key].stage, found))

    def _uncompiled_side(self, stage: str, found: tuple[Artifact | None, Artifact | None]) -> str:
        """Name of the side that lacks an artifact only because it has not been compiled yet; "" if there is none."""
        sides = zip(self.names, self._sides, found, strict=True)
        return next((name for name, side, own in sides if own is None and side.has_yet_to_make(stage)), "")

    def __getitem__(self, name: str) -> ArtifactDiff:
        """The diff of the artifact with this id, or of the stage's first artifact. Raises KeyError."""
        key = stage_key(name)
        stage = key.partition("[")[0]
        for side in self._sides:
            if side.has_yet_to_make(stage):
                side.make_of_kernels(stage)
        for artifact in self.artifacts:
            if key in (artifact.id, artifact.stage):
                return artifact
        stages = ", ".join(dict.fromkeys(artifact.stage for artifact in self.artifacts))
        raise KeyError(f"neither side has an artifact or stage {name!r}; they have: {stages or 'nothing'}")

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel, matched by name or computation, with the facts of both sides; compiles the kernels.

        Columns are named by fact and side: `registers h100`, `registers a100`.
        """
        self.compile_kernels()
        return kernel_facts(self.before, self.after, self.labels)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """One row per op and stage with a changed count: `stage`, `op`, a count for each side, `change`."""
        before, after = (tables.ops_by_stage(record) for record in (self.before, self.after))
        rows = [
            (stage, op, before[stage][op], after[stage][op], after[stage][op] - before[stage][op])
            for stage in before
            if stage in after
            for op in sorted({*before[stage], *after[stage]})
        ]
        rows.sort(key=lambda row: (ranked_stage(row[0])[0], -abs(row[4])))
        changed = [row for row in rows if row[4]]
        return pd.DataFrame(changed, columns=["stage", "op", *self.names, "change"]).convert_dtypes()

    @property
    def breaks(self) -> pd.DataFrame:
        """One row per graph break that is gone or new: place, code, description. Matched by kind and code."""
        return capture_diff.changed_breaks(self.before, self.after)

    @property
    def guards(self) -> pd.DataFrame:
        """One row per guard that is gone or new, in words. A guard of several compilations counts in each."""
        return capture_diff.changed_guards(self.before, self.after)

    @property
    def recompiles(self) -> pd.DataFrame:
        """One row per recompilation that is gone or new. Matched by function, cause and argument."""
        return capture_diff.changed_recompiles(self.before, self.after)

    @property
    def merged(self) -> dict[str, tuple[str, ...]]:
        """Merged graphs: for each graph of the second side, the several graphs of the first side that it contains."""
        return capture_diff.merged_graphs(self.before, self.after)

    @property
    def capture(self) -> str:
        """Differences of TorchDynamo's capture as text: merged graphs, changed breaks, recompilations, guards.

        Empty if there are none.
        """
        return "\n".join(capture_diff.change_lines(self.before, self.after, self.names))

    def widget(self) -> Any:
        """A live view of both sides, to compare any two artifacts; it opens at artifacts that differ."""
        from explorer.run.both_sides import BothSides
        from explorer.run.widget import Explorer

        return Explorer(BothSides(*self._sides, self.labels))

    def save(self, path: str | Path) -> Path:
        """Save both sides as one interactive page (`.html`), with the machine code compiled so far.

        Returns the path. Raises ValueError for another suffix, OSError if the file can't be written.
        """
        from explorer.run import files
        from explorer.run.both_sides import both_sides

        if Path(path).suffix.lower() != ".html":
            raise ValueError(f"a comparison is saved as .html; got {str(path)!r}")
        return files.write(both_sides(self.before, self.after, self.labels), path)

    def __str__(self) -> str:
        return "\n\n".join(filter(None, (self.summary, *self._changed_ops(), *self._texts())))

    @property
    def summary(self) -> str:
        """What changed, in the captured graphs, stages and kernels, without the texts of any stage."""
        kernels = kernel_changes(self.before, self.after, self.labels)
        return "\n\n".join(filter(None, (self._heading(), self.capture, self._stages(), "\n".join(kernels))))

    def _heading(self) -> str:
        sides = zip(self.names, (self.before, self.after), strict=True)
        return "\n".join(
            f"{mark} {name}  {text.settings(record)}" for mark, (name, record) in zip("-+", sides, strict=True)
        )

    def _stages(self) -> str:
        told = [found for found in self.artifacts if found.stage not in MACHINE_STAGES or found.verdict != "the same"]
        rows = [(artifact.id, artifact.verdict) for artifact in told]
        same = len(self.artifacts) - len(told)
        note = [f"… and {same} of machine code: the same"] if same else []
        return "\n".join([*columns([("artifact", "change"), *rows]), *note])

    def _changed_ops(self) -> Iterator[str]:
        if len(self.ops):
            yield self.ops.to_string(index=False)

    def _texts(self) -> Iterator[str]:
        for artifact in self.artifacts:
            if artifact.changed and artifact.stage not in MACHINE_STAGES:
                more = len(artifact.lines) - LINES_SHOWN
                note = [f"… {more} more lines: print(diff[{artifact.id!r}])"] if more > 0 else []
                yield "\n".join([*artifact.lines[:LINES_SHOWN], *note])

    def __repr__(self) -> str:
        return f"<RunDiff {self.names[0]} against {self.names[1]}; print(diff) tells what differs>"

    def _repr_html_(self) -> str:
        changed = [artifact for artifact in self.artifacts if artifact.changed]
        rest: dict[str, list[str]] = {}
        for artifact in self.artifacts:
            if not artifact.changed:
                rest.setdefault(artifact.verdict, []).append(artifact.id)
        kernels = kernel_changes(self.before, self.after, self.labels)
        parts = [f"<pre>{_safe(self._heading())}</pre>"]
        parts += [f"<pre>{_safe(part)}</pre>" for part in (self.capture, "\n".join(kernels)) if part]
        parts += [self.ops.to_html(index=False, border=0)] if len(self.ops) else []
        parts += [
            f"<details><summary><b>{_safe(artifact.id)}</b> {_safe(artifact.verdict)}</summary>"
            f"{diff_html(artifact.lines)}</details>"
            for artifact in changed
        ]
        parts += [f"<div>{_safe(verdict)}: {_safe(', '.join(ids))}</div>" for verdict, ids in rest.items()]
        return f'<div class="tcompile-diff">{"".join(parts)}</div>'


def side_names(before: Record, after: Record) -> tuple[str, str]:
    """Distinct names of the sides, made from their titles.

    Equal titles are followed by the options that differ, or by "(first)" and "(second)".
    """
    titles = (before.title or "first", after.title or "second")
    if titles[0] != titles[1]:
        return titles
    chosen = [_settings(record) for record in (before, after)]
    own = [[option for option in options if option not in chosen[1 - side]] for side, options in enumerate(chosen)]
    if own[0] == own[1]:
        return f"{titles[0]} (first)", f"{titles[1]} (second)"
    named = (" ".join(options) or "default options" for options in own)
    first, second = (f"{title} ({options})" for title, options in zip(titles, named, strict=True))
    return first, second


def side_labels(before: Record, after: Record) -> tuple[str, str]:
    """Short labels of the sides for column names: the backends or targets if they differ, else first and second."""
    backends = (before.options.backend, after.options.backend)
    if backends[0] != backends[1]:
        return backends
    targets = (before.target or before.options.target, after.target or after.options.target)
    return targets if targets[0] != targets[1] and all(targets) else ("first", "second")


def _settings(record: Record) -> list[str]:
    """The target of the code, and the options that differ from the defaults."""
    options = [option for option in text.changed_options(record.options) if not option.startswith("target=")]
    target = record.target or record.options.target
    return [*([target] if target else []), *options]


def diff_html(lines: tuple[str, ...]) -> str:
    """A unified diff as HTML, with added and removed lines tinted; "" without lines."""
    rows = "\n".join(_html_line(clip(line, 400)) for line in lines[: LINES_SHOWN * 10])
    more = len(lines) - LINES_SHOWN * 10
    note = f"<div>… {more} more lines: print it</div>" if more > 0 else ""
    return f'<pre style="{_PRE}">{rows}</pre>{note}' if lines else ""


def _html_line(line: str) -> str:
    colour = _ADDED if line.startswith("+") else _REMOVED if line.startswith("-") else ""
    return f'<span style="background-color:{colour}">{_safe(line)}</span>' if colour else _safe(line)


def _safe(content: str) -> str:
    return html.escape(content, quote=False)
