"""max-autotune's candidates as an artifact: a table for each operation, and Triton code.

Candidates of one template differ in few lines, so its code is printed once. `candidate_source` returns the code of any
candidate: an entity's `edits` are the rows that differ, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import ne

from compiler.record import Artifact, Decision, Entity
from compiler.torch_api.kernel_choices import Candidate, Selection

TILE = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
"""Configuration keys shown in a candidate's label; templates of other operations have only some of them, or none."""

MOST_EDITS = 16
"""A candidate's code is stored as edits of another candidate's if at most this many lines differ."""

PICKS = "'test_configs.autotune_choice_desc_regex'"
"""Inductor's own setting: a pattern that filters candidates by their descriptions."""


def autotuning_decision(selection: Selection, graph: str, post_grad: str) -> Decision:
    """The `Decision` on which candidate of an operation is shown. `post_grad` is the id of the graph's artifact."""
    shown = selection.candidates[selection.shown]
    templates = sum(candidate.kind == "template" for candidate in selection.candidates)
    return Decision(
        "autotuning", graph, (f"{post_grad}.{selection.node}",) if selection.node else (), label(shown),
        f"{selection.why}. On the GPU Inductor times these for {selection.operation} of {selection.sizes} and takes "
        f"the fastest: {'; '.join(_by_name(selection.candidates))}" if len(selection.candidates) > 1
        else f"{selection.why}: {label(shown)} for {selection.operation} of {selection.sizes}",
        {"candidates": len(selection.candidates), "templates": templates},
    )  # fmt: skip


def label(candidate: Candidate) -> str:
    """A one-line label: "triton_mm BLOCK_M=64 BLOCK_N=64 num_warps=4 num_stages=3"."""
    settings = (f"{name}={candidate.config[name]}" for name in TILE if name in candidate.config)
    return " ".join((candidate.name, *settings))


def _by_name(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield each template with all its configurations: "triton_mm BLOCK_M×BLOCK_N: 64×64, …"."""
    for name in dict.fromkeys(candidate.name for candidate in candidates):
        configs = [candidate.config for candidate in candidates if candidate.name == name]
        keys = [key for key in TILE if key in configs[0]]
        listed = ", ".join("×".join(config.get(key, "?") for key in keys) for config in configs)
        yield f"{name} {'×'.join(keys)}: {listed}" if keys else name


@dataclass(slots=True)
class _Page:
    """A text under construction, with the entities of its lines."""

    rows: list[str] = field(default_factory=list)
    lines: dict[int, tuple[str, ...]] = field(default_factory=dict)
    entities: list[Entity] = field(default_factory=list)

    def add(self, text: str, entity: str = "") -> int:
        """Append lines; return the number of the first one."""
        first = len(self.rows) + 1
        self.rows.extend(text.split("\n"))
        if entity:
            self.lines.update(dict.fromkeys(range(first, len(self.rows) + 1), (entity,)))
        return first


def candidates_artifact(
    selections: Sequence[Selection], *, artifact_id: str, title: str, graph: str, post_grad: str
) -> Artifact:
    """Tables and code of all candidates; equal operations on equal sizes share a table."""
    groups: dict[tuple[object, ...], list[Selection]] = {}
    for selection in selections:
        labels = tuple(map(label, selection.candidates))
        groups.setdefault((selection.operation, selection.sizes, labels), []).append(selection)
    page = _Page()
    for number, group in enumerate(groups.values()):
        origins = tuple(f"{post_grad}.{selection.node}" for selection in group if selection.node)
        _add_group(page, f"{artifact_id}.{group[0].operation}_{number}", group, origins)
    return Artifact(
        artifact_id, "kernels", title, "python", "\n".join(page.rows), graph, page.lines, tuple(page.entities)
    )


def _add_group(page: _Page, identity: str, group: Sequence[Selection], origins: tuple[str, ...]) -> None:
    first = group[0]
    ids = [f"{identity}.{place}" for place in range(len(first.candidates))]
    page.add(f"# {first.operation} of {first.sizes}: {', '.join(selection.node for selection in group)}")
    page.add(f"# {len(first.candidates)} candidates; {first.why}")
    page.add(f"# options={{'max_autotune': True, {PICKS}: 'BLOCK_M=64'}} shows the first with BLOCK_M=64")
    for row, name in zip(_table(first), ("", *ids), strict=True):
        page.add(row, name)
    page.add("")
    printed = _add_sources(page, ids, first.candidates)
    for place, (candidate, name) in enumerate(zip(first.candidates, ids, strict=True)):
        attrs = {"kind": candidate.kind, "config": candidate.config, "shown": place == first.shown} | printed[place]
        page.entities.append(Entity(name, "candidate", label(candidate), attrs, (), origins))


def _table(selection: Selection) -> Iterator[str]:
    """Yield a header and a row for each candidate; settings outside `TILE` are left out if equal in all candidates."""
    configs = [candidate.config for candidate in selection.candidates]
    names = dict.fromkeys(name for config in configs for name in (*(key for key in TILE if key in config), *config))
    varying = [name for name in names if name in TILE or len({c[name] for c in configs if name in c}) > 1]
    width = max(len(candidate.name) for candidate in selection.candidates)
    yield f"#       {'kernel':{width}}  " + "  ".join(varying)
    for place, candidate in enumerate(selection.candidates):
        cells = "  ".join(f"{candidate.config.get(name, ''):>{len(name)}}" for name in varying)
        mark = "shown" if place == selection.shown else ""
        yield f"# {mark:5} {candidate.name:{width}}  {cells}".rstrip()


def _add_sources(page: _Page, ids: Sequence[str], candidates: Sequence[Candidate]) -> list[dict[str, object]]:
    """Print sources, similar ones once; return each candidate's line, number of rows, and edits ({} without source)."""
    bases: list[tuple[int, list[str]]] = []
    found: list[dict[str, object]] = []
    for name, candidate in zip(ids, candidates, strict=True):
        rows = candidate.source.strip("\n").split("\n")
        equal_sized = ((line, base) for line, base in bases if len(base) == len(rows))
        like = next((each for each in equal_sized if sum(map(ne, each[1], rows)) <= MOST_EDITS), None)
        if not candidate.source:
            found.append({})
            continue
        if like is None:
            page.add(f"# {label(candidate)}")
            like = (page.add("\n".join(rows), name), rows)
            page.add("")
            bases.append(like)
        edits = [[row, b] for row, (a, b) in enumerate(zip(like[1], rows, strict=True)) if a != b]
        found.append({"line": like[0], "rows": len(rows), "edits": edits})
    return found


def candidate_source(artifact: Artifact, name: str) -> str:
    """A candidate's Triton code, by its entity's id or name; "" for an ATen kernel. Raises KeyError if unknown."""
    attrs = artifact.entity(name).attrs
    if "line" not in attrs:
        return ""
    rows = artifact.text.split("\n")[attrs["line"] - 1 : attrs["line"] - 1 + attrs["rows"]]
    for row, text in attrs["edits"]:
        rows[row] = text
    return "\n".join(rows)
