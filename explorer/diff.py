"""Two records side by side: the text of each stage as a unified diff, and the ops whose count changed."""

from __future__ import annotations

import difflib
import html
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from compiler.record import Artifact, Record
from explorer import tables, text

LINES_SHOWN = 60
"""Lines of each changed artifact's diff in `print(diff)`; `print(diff["forward"])` has all."""

_ADDED, _REMOVED = "rgba(0,158,115,0.22)", "rgba(213,94,0,0.22)"
_PRE = "overflow:auto;max-height:32em;font-size:12px;line-height:1.35;text-align:left"


@dataclass(frozen=True)
class ArtifactDiff:
    """One artifact on both sides; None where a side does not have it. Prints as a unified diff."""

    id: str
    stage: str
    names: tuple[str, str]
    before: Artifact | None
    after: Artifact | None

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The unified diff, without line ends; empty when both sides are the same text."""
        before, after = (text.text_lines(side.text) if side else [] for side in (self.before, self.after))
        first, second = (f"{name}: {self.id}" for name in self.names)
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
        """In words: the same, how many lines changed, or which side alone has it."""
        if self.before is None:
            return f"only in {self.names[1]}"
        if self.after is None:
            return f"only in {self.names[0]}"
        return f"+{self.added} -{self.removed} lines" if self.lines else "the same"

    def __str__(self) -> str:
        return "\n".join(self.lines) or f"{self.id}: the same in {self.names[0]} and {self.names[1]}"

    def _repr_html_(self) -> str:
        return _html_lines(self.lines) or f"<div>{_safe(str(self))}</div>"


class RunDiff:
    """What differs between two records. Prints as text; in a notebook it shows as HTML."""

    def __init__(self, before: Record, after: Record) -> None:
        self.before = before
        self.after = after
        self.names = side_names(before, after)

    @cached_property
    def artifacts(self) -> tuple[ArtifactDiff, ...]:
        """Every artifact that either side has, in pipeline order; a pair has the same id."""
        sides = [{artifact.id: artifact for artifact in record.artifacts} for record in (self.before, self.after)]
        both = sides[1] | sides[0]
        ids = sorted(both, key=lambda artifact_id: tables.stage_rank(both[artifact_id].stage))
        return tuple(
            ArtifactDiff(key, both[key].stage, self.names, sides[0].get(key), sides[1].get(key)) for key in ids
        )

    def __getitem__(self, name: str) -> ArtifactDiff:
        """The diff of the artifact with this id, or of the first of this stage. Raises KeyError."""
        for artifact in self.artifacts:
            if name in (artifact.id, artifact.stage):
                return artifact
        stages = ", ".join(dict.fromkeys(artifact.stage for artifact in self.artifacts))
        raise KeyError(f"neither side has an artifact or stage {name!r}; they have: {stages or 'nothing'}")

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Ops whose count changed in stages of both sides: `stage`, `op`, a count for each side, and `change`."""
        sides = [tables.ops(record) for record in (self.before, self.after)]
        stages = [stage for stage in sides[0].columns if stage in sides[1].columns]
        counts = [side[stages].stack() for side in sides]
        both = pd.concat(counts, axis=1, keys=("before", "after")).fillna(0).astype("Int64")
        both["change"] = both["after"] - both["before"]
        changed = both[both["change"] != 0].reset_index()[["stage", "op", "before", "after", "change"]]
        ranks = changed["stage"].map(lambda stage: tables.stage_rank(stage)[0])
        order = changed.assign(rank=ranks, size=changed["change"].abs()).sort_values(
            ["rank", "size", "op"], ascending=[True, False, True]
        )
        return changed.loc[order.index].set_axis(["stage", "op", *self.names, "change"], axis=1).reset_index(drop=True)

    def __str__(self) -> str:
        return "\n\n".join([self._heading(), self._stages(), *self._changed_ops(), *self._texts()])

    def _heading(self) -> str:
        sides = zip(self.names, (self.before, self.after), strict=True)
        return "\n".join(
            f"{mark} {name}  {text.settings(record)}" for mark, (name, record) in zip("-+", sides, strict=True)
        )

    def _stages(self) -> str:
        rows = [(artifact.id, artifact.verdict) for artifact in self.artifacts]
        return "\n".join(text.columns([("artifact", "change"), *rows]))

    def _changed_ops(self) -> Iterator[str]:
        if len(self.ops):
            yield self.ops.to_string(index=False)

    def _texts(self) -> Iterator[str]:
        for artifact in self.artifacts:
            if artifact.changed:
                more = len(artifact.lines) - LINES_SHOWN
                note = [f"… {more} more lines: print(diff[{artifact.id!r}])"] if more > 0 else []
                yield "\n".join([*artifact.lines[:LINES_SHOWN], *note])

    def _repr_html_(self) -> str:
        changed = [artifact for artifact in self.artifacts if artifact.changed]
        rest = [f"{artifact.id}: {artifact.verdict}" for artifact in self.artifacts if not artifact.changed]
        parts = [f"<pre>{_safe(self._heading())}</pre>"]
        parts += [self.ops.to_html(index=False, border=0)] if len(self.ops) else []
        parts += [
            f"<details><summary><b>{_safe(artifact.id)}</b> {_safe(artifact.verdict)}</summary>"
            f"{_html_lines(artifact.lines)}</details>"
            for artifact in changed
        ]
        parts += [f"<div>{_safe(line)}</div>" for line in rest]
        return f'<div class="tcompile-diff">{"".join(parts)}</div>'


def side_names(before: Record, after: Record) -> tuple[str, str]:
    """A name for each side that tells them apart: titles, else the options that differ, else first and second."""
    titles = (before.title or "first", after.title or "second")
    if titles[0] != titles[1]:
        return titles
    chosen = [text.changed_options(record.options) for record in (before, after)]
    own = [[option for option in options if option not in chosen[1 - side]] for side, options in enumerate(chosen)]
    if own[0] == own[1]:
        return f"{titles[0]} (first)", f"{titles[1]} (second)"
    named = (" ".join(options) or "default options" for options in own)
    first, second = (f"{title} ({options})" for title, options in zip(titles, named, strict=True))
    return first, second


def _html_lines(lines: tuple[str, ...]) -> str:
    rows = "\n".join(_html_line(text.clip(line, 400)) for line in lines[: LINES_SHOWN * 10])
    more = len(lines) - LINES_SHOWN * 10
    note = f"<div>… {more} more lines: print it</div>" if more > 0 else ""
    return f'<pre style="{_PRE}">{rows}</pre>{note}' if lines else ""


def _html_line(line: str) -> str:
    colour = _ADDED if line.startswith("+") else _REMOVED if line.startswith("-") else ""
    return f'<span style="background-color:{colour}">{_safe(line)}</span>' if colour else _safe(line)


def _safe(content: str) -> str:
    return html.escape(content, quote=False)
