"""Two records side by side: what TorchDynamo did, each stage as a unified diff, the ops whose count changed."""

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
"""Lines that only name places in the source."""
_NOISE = {
    "sass": re.compile(r"(?<=^ {4})/\*[0-9a-f]+\*/ *"),
    "ptx": re.compile(r"(?!)"),
    "amdgcn": re.compile(r"(?!)"),
    "llvm": re.compile(r",? !dbg !\d+"),
    "mlir": re.compile(r" loc\((?:#loc\w*|unknown)\)"),
}
"""Language of machine code -> what else in a line does."""

_ADDED, _REMOVED = "rgba(0,158,115,0.22)", "rgba(213,94,0,0.22)"
_PRE = "overflow:auto;max-height:32em;font-size:12px;line-height:1.35;text-align:left;white-space:pre"


@dataclass(frozen=True)
class ArtifactDiff:
    """One artifact on both sides; None where a side does not have it. Prints as a unified diff."""

    id: str
    stage: str
    names: tuple[str, str]
    before: Artifact | None
    after: Artifact | None
    uncompiled: str = ""
    """The side that has the kernel, but no machine code of it yet."""

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The unified diff, without line ends; empty when both sides are the same text."""
        before, after = (compared_lines(side) if side else [] for side in (self.before, self.after))
        ids = [side.id if side else self.id for side in (self.before, self.after)]
        first, second = (f"{name}: {side}" for name, side in zip(self.names, ids, strict=True))
        return tuple(difflib.unified_diff(before, after, first, second, lineterm=""))

    @property
    def added(self) -> int:
        """Lines that only the second side has."""
        return sum(line.startswith("+") for line in self.lines[2:])

    @property
    def removed(self) -> int:
        """Lines that only the first side has."""
        return sum(line.startswith("-") for line in self.lines[2:])

    @property
    def changed(self) -> bool:
        """Whether both sides have it, with different text."""
        return bool(self.before and self.after and self.lines)

    @property
    def verdict(self) -> str:
        """As text: the same, how many lines changed, or which side lacks it or has not compiled it."""
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
    """The lines of an artifact, without addresses of instructions and places in the source."""
    noise = _NOISE.get(artifact.language)
    lines = text_lines(artifact.text)
    return lines if noise is None else [noise.sub("", line) for line in lines if not _PLACE.match(line)]


def recompile_diff(record: Record, frame: str = "") -> ArtifactDiff:
    """The captured graph of a recompilation beside that of the code that came closest. Raises KeyError."""
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
    """What differs between two runs. Prints as text; in a notebook it shows as HTML, and `widget()` is for exploring.

    Machine code is compiled on both sides when it is asked for: `diff["ptx"]`, `diff.kernels`. `print(diff)` then tells
    which facts of which kernels changed, `print(diff["sass"])` how.
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
        """Compile the Triton kernels of both sides that are not compiled yet; returns this diff."""
        for side in self._sides:
            side.compile()
        return self

    @property
    def artifacts(self) -> tuple[ArtifactDiff, ...]:
        """Every artifact of either side, in pipeline order. A pair has the same id, or is of kernels that match."""
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
        """The side that lacks an artifact only because nobody has asked for it; empty where there is none."""
        sides = zip(self.names, self._sides, found, strict=True)
        return next((name for name, side, own in sides if own is None and side.has_yet_to_make(stage)), "")

    def __getitem__(self, name: str) -> ArtifactDiff:
        """The diff of the artifact with this id, or of the first of this stage. Raises KeyError."""
        key = stage_key(name)
        if any(side.has_yet_to_make(key.partition("[")[0]) for side in self._sides):
            self.compile_kernels()
        for artifact in self.artifacts:
            if key in (artifact.id, artifact.stage):
                return artifact
        stages = ", ".join(dict.fromkeys(artifact.stage for artifact in self.artifacts))
        raise KeyError(f"neither side has an artifact or stage {name!r}; they have: {stages or 'nothing'}")

    @property
    def kernels(self) -> pd.DataFrame:
        """One row per kernel of either side, matched by name or by what it computes; facts of both sides side by side.

        Columns are named by fact and side: `registers h100`, `registers a100`. The kernels are compiled for this.
        """
        self.compile_kernels()
        return kernel_facts(self.before, self.after, self.labels)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Ops whose count changed in stages of both sides: `stage`, `op`, a count for each side, and `change`."""
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
        """One row per graph break that is gone or new: where, its code, what it was. Matched by kind and code."""
        return capture_diff.changed_breaks(self.before, self.after)

    @property
    def guards(self) -> pd.DataFrame:
        """One row per guard that is gone or new, in words. A guard that several graphs make counts once."""
        return capture_diff.changed_guards(self.before, self.after)

    @property
    def recompiles(self) -> pd.DataFrame:
        """One row per recompilation that is gone or new. Matched by function, cause and argument."""
        return capture_diff.changed_recompiles(self.before, self.after)

    @property
    def merged(self) -> dict[str, tuple[str, ...]]:
        """Graph of the second side -> the graphs of the first that it replaces, where these were several."""
        return capture_diff.merged_graphs(self.before, self.after)

    @property
    def capture(self) -> str:
        """What TorchDynamo did differently, as text: graphs merged, breaks, recompilations, guards gone and new.

        Empty where it did the same.
        """
        return "\n".join(capture_diff.change_lines(self.before, self.after, self.names))

    def widget(self) -> Any:
        """Both sides in one live view, opened where they first differ: any two artifacts can be compared there."""
        from explorer.run.both_sides import BothSides
        from explorer.run.widget import Explorer

        return Explorer(BothSides(*self._sides, self.labels))

    def save(self, path: str | Path) -> Path:
        """Save both sides as one page to explore (`.html`), with the machine code that has been asked for.

        Returns the path. Raises ValueError for another suffix, OSError when it can't be written.
        """
        from explorer.run import files
        from explorer.run.both_sides import both_sides

        if Path(path).suffix.lower() != ".html":
            raise ValueError(f"a comparison is saved as .html; got {str(path)!r}")
        return files.write(both_sides(self.before, self.after, self.labels), path)

    def __str__(self) -> str:
        kernels = kernel_changes(self.before, self.after, self.labels)
        parts = [
            self._heading(),
            self.capture,
            self._stages(),
            "\n".join(kernels),
            *self._changed_ops(),
            *self._texts(),
        ]
        return "\n\n".join(part for part in parts if part)

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
    """A name for each side that tells them apart: titles, else the options that differ, else first and second."""
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
    """A word for each side, for the head of a column: the targets or backends where they differ, else first and
    second.
    """
    backends = (before.options.backend, after.options.backend)
    if backends[0] != backends[1]:
        return backends
    targets = (before.target or before.options.target, after.target or after.options.target)
    return targets if targets[0] != targets[1] and all(targets) else ("first", "second")


def _settings(record: Record) -> list[str]:
    """The options that were set, and what code was written for."""
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
