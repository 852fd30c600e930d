"""The frame map: functions, graphs, breaks, functions that resume, and calls, as text and as a graph."""

from __future__ import annotations

import functools
import linecache
from collections.abc import Callable
from typing import Any

import torch

from compiler.engine import Exploration
from compiler.record import Entity, Record
from compiler.record.options import Options
from explorer.findings import findings, with_findings
from explorer.run.payload import Payload
from explorer.run.run import Run
from tests.explorer.explored import mlp_record

BREAKS = 10


def in_a_cell(source: str) -> Callable[..., Any]:
    """The function `f` of a source text, as if defined in a notebook's cell."""
    file = "<tcompile frame map>"
    names: dict[str, Any] = {"torch": torch}
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    function: Callable[..., Any] = names["f"]
    return function


def explored(fn: Callable[..., Any], *calls: torch.Tensor) -> Record:
    with Exploration(Options(stages=("captured",))) as exploration:
        compiled = exploration.compile(fn)
        for argument in calls:
            compiled(argument)
    return exploration.record


@functools.cache
def ten() -> Record:
    body = "".join(f"    x = torch.sin(x * {k})\n    torch._dynamo.graph_break()\n" for k in range(BREAKS))
    return explored(in_a_cell(f"def f(x):\n{body}    return x.sum()\n"), torch.randn(4))


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = x * factor
    torch._dynamo.graph_break()
    return y + 1


def loops(x: torch.Tensor) -> torch.Tensor:
    for k in range(2):
        torch._dynamo.graph_break()
        x = scaled(x, float(k))
    return x


@functools.cache
def looping() -> Record:
    """A function that can't be compiled; it calls one with a break, with two shapes."""
    return explored(loops, torch.randn(4), torch.randn(5))


def shown(record: Record) -> dict[str, Entity]:
    return {entity.id: entity for entity in with_findings(record)["frame_map"].entities}


def labels(entities: dict[str, Entity], names: tuple[str, ...]) -> list[str]:
    return [entities[name].label for name in names]


def test_ten_breaks_are_one_chain_of_graphs() -> None:
    entities = shown(ten())
    last = entities["frame_map.captured[10/0]"]
    chain = [last]
    while chain[-1].inputs:
        (before,) = chain[-1].inputs
        chain.append(entities[before])
    kinds = [entity.kind for entity in reversed(chain)]
    assert kinds == ["function", "graph", *["break", "resume", "graph"] * BREAKS]
    assert len(chain) == len(entities)


def test_frame_map_text_is_readable() -> None:
    lines = with_findings(ten())["frame_map"].text.splitlines()
    assert lines[0] == "11 graphs of 21 ops, 10 breaks, 1 function"
    assert lines[1] == "f  [cell:1]"
    assert lines[2].startswith("  graph 0/0: 2 ops  [captured in ")
    assert lines[3] == "  break: torch._dynamo.graph_break()  [cell:3; 1 tensor (16 B) crosses]"
    assert lines[4] == "f resumes from line 3  [cell:3]"


def test_recompiles_stand_side_by_side_with_their_cause() -> None:
    entities = shown(looping())
    function = next(entity for entity in entities.values() if entity.label == "scaled")
    graphs = [entity for entity in entities.values() if entity.kind == "graph" and function.id in entity.inputs]
    assert len(graphs) == 3
    about = [graph.attrs["about"] for graph in graphs]
    assert about[0].startswith("captured in")
    assert "`factor` was the float 0.0, is now the float 1.0" in about[1]
    assert "size of `x` in dimension 0 was 4, is now 5" in about[2]
    (broken,) = [entity for entity in entities.values() if entity.kind == "break" and graphs[0].id in entity.inputs]
    assert broken.inputs == tuple(graph.id for graph in graphs)


def test_calls_start_from_plain_python() -> None:
    entities = shown(looping())
    function = next(entity for entity in entities.values() if entity.label == "scaled")
    assert labels(entities, function.inputs) == ["plain Python: loops"]


def test_frame_map_part_links_to_lines_and_nodes() -> None:
    record = with_findings(looping())
    known = {entity.id for entity in record.entities()}
    assert all(origin in known for entity in shown(looping()).values() for origin in entity.origins)
    captured = record.of_stage("captured")[0]
    linked = record.linked_ids(f"frame_map.{captured.id}")
    assert {entity.id for entity in captured.entities if entity.kind == "call"} <= linked
    assert any(record_line in linked for record_line in record.of_stage("source")[0].lines[_row(record, "y = x *")])


def _row(record: Record, text: str) -> int:
    source = record.of_stage("source")[0]
    return next(row for row, line in enumerate(source.text.splitlines(), 1) if text in line)


def three_without_tensors(x: torch.Tensor) -> torch.Tensor:
    for _ in range(1):
        torch._dynamo.graph_break()
        one([x]), two([x]), three([x])
    return x.sin()


def one(found: list[torch.Tensor]) -> int:
    return len(found)


def two(found: list[torch.Tensor]) -> int:
    return len(found) + 1


def three(found: list[torch.Tensor]) -> int:
    return len(found) + 2


def test_functions_without_tensors_are_grouped_as_plain_python() -> None:
    record = with_findings(explored(three_without_tensors, torch.randn(4)))
    (part,) = [entity for entity in record["frame_map"].entities if entity.label == "plain Python: 3 functions"]
    assert part.attrs["about"] == "one, two, three"
    text = record["frame_map"].text.splitlines()
    rows = [text[row - 1] for row, names in record["frame_map"].lines.items() if part.id in names]
    assert [row.strip().split("  ")[0] for row in rows] == [f"plain Python: {name}" for name in ("one", "two", "three")]


def test_plain_part_links_to_its_lines() -> None:
    (plain,) = [entity for entity in shown(looping()).values() if entity.kind == "plain"]
    (source,) = looping().of_stage("source")
    (call,) = source.lines[_row(looping(), "x = scaled(x")]
    assert call in plain.origins


def test_frame_map_is_drawable_and_opens_as_map() -> None:
    drawn = Run(ten()).drawing("frame_map").source
    assert drawn.count("<B>break: ") == BREAKS
    assert "11 graphs of 21 ops" in drawn
    stage = next(stage for stage in Payload(ten()).manifest()["stages"] if stage["name"] == "frame_map")
    assert (stage["artifacts"][0]["opens"], stage["count"]) == ("view", 11)


def test_single_frame_record_has_no_frame_map() -> None:
    assert "frame_map" not in {finding.artifact.stage for finding in findings(mlp_record())}
