"""What is marked in source lines: graphs, plain Python, the columns that broke, and calls that can be opened."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.options import Options
from explorer.reading.source_marks import source_marks
from explorer.run.both_sides import both_sides
from explorer.run.payload import manifest


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + (
        torch.ones_like(x)
        * 2
    )  # fmt: skip


def decorated(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(fn)
    def inside(x: torch.Tensor) -> torch.Tensor:
        return fn(x) * 2

    return inside


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    @decorated
    def shifted(self: torch.Tensor) -> torch.Tensor:
        return self + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [
            doubled(part)
            for part in (x, x + 1)
        ]  # fmt: skip
        x = self.layers(parts[0] + parts[1])
        torch._dynamo.graph_break()
        x = doubled(x)
        if x.shape[0] > 100:
            x = x.cos()
        return Model.shifted(
            x,
        )


@functools.cache
def record() -> Record:
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(Model())(torch.randn(2, 4))
    return exploration.record


@functools.cache
def marks() -> dict[str, Any]:
    return source_marks(record())


def row(text: str, of: Any = Model) -> int:
    """The row of a line of this file: a short file is shown whole, so rows are line numbers."""
    lines, first = inspect.getsourcelines(of)
    return first + next(number for number, line in enumerate(lines) if line.strip() == text)


def graphs(at: int) -> set[str]:
    (file,) = [artifact.id for artifact in record().of_stage("source") if artifact.title.endswith("test_landed.py")]
    return {graph for graph, rows in marks()["landed"][file].items() if at in rows}


def test_lines_belong_to_their_graphs() -> None:
    assert graphs(row("x = self.layers(parts[0] + parts[1])")) == {"0/0"}
    assert graphs(row("x = doubled(x)")) == {"1/0"}
    assert graphs(row("return fn(x) * 2", decorated)) == {"1/0"}
    assert graphs(row("return self + 1")) == {"1/0"}


def test_function_called_from_two_graphs_belongs_to_both() -> None:
    assert graphs(row("torch.ones_like(x)", doubled)) == {"0/0", "1/0"}


def test_multiline_expression_belongs_to_one_graph() -> None:
    assert graphs(row("* 2", doubled)) == {"0/0", "1/0"}
    assert graphs(row("doubled(part)")) == {"0/0"}
    assert graphs(row("x,")) == {"1/0"}


def test_unreached_lines_and_outer_calls_have_no_graph() -> None:
    assert graphs(row("x = x.cos()")) == set()
    assert graphs(row("exploration.compile(Model())(torch.randn(2, 4))", record.__wrapped__)) == set()


def test_break_has_columns_and_a_plain_python_line() -> None:
    at, code = row("torch._dynamo.graph_break()"), "torch._dynamo.graph_break()"
    ((file, (span,)),) = marks()["spans"].items()
    assert span == [at, 8, 8 + len(code), record().breaks[0].id, True]
    assert marks()["plain"][file] == [at]


def test_calls_link_to_whole_functions_by_name() -> None:
    (calls,) = [calls for file, calls in marks()["calls"].items() if file.endswith("test_landed.py]")]
    names = {at: [name for *_, name in called] for at, called in calls.items()}
    assert names[row("x = doubled(x)")] == ["doubled"]
    assert names[row("doubled(part)")] == ["doubled"]
    assert names[row("return Model.shifted(")] == ["inside"]
    assert names[row("return fn(x) * 2", decorated)] == ["Model.shifted"]
    ((_, first, last, _),) = calls[row("x = doubled(x)")]
    lines, start = inspect.getsourcelines(doubled)
    assert (first, last) == (start, start + len(lines) - 1)


def test_file_of_the_explored_function_comes_first() -> None:
    assert manifest(record())["home"][0].endswith("test_landed.py]")


def test_each_side_has_calls_the_first_has_breaks() -> None:
    (source,) = (artifact for artifact in record().artifacts if artifact.title.endswith("test_landed.py"))
    longer = replace(source, text=f"\n{source.text}", attrs=source.attrs | {"numbers": [0, *source.attrs["numbers"]]},
                     lines={at + 1: ids for at, ids in source.lines.items()})  # fmt: skip
    others = [longer if artifact is source else artifact for artifact in record().artifacts]
    found = source_marks(both_sides(record(), record().with_fields(artifacts=tuple(others)), ("before", "after")))
    assert set(found["spans"]) == {source.id}
    call = row("x = doubled(x)")
    assert [name for *_, name in found["calls"][source.id][call]] == ["doubled"]
    assert [name for *_, name in found["calls"][f"after: {source.id}"][call + 1]] == ["doubled"]


def noisy(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break(

        msg="here"
    )  # fmt: skip
    return x + 1


def test_multiline_break_is_marked_without_indentation_or_blanks() -> None:
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(noisy)(torch.randn(2, 4))
    ((source, spans),) = source_marks(exploration.record)["spans"].items()
    lines = exploration.record[source].text.splitlines()
    marked = [lines[at - 1][start : end if end >= 0 else None] for at, start, end, *_ in spans]
    assert marked == ["torch._dynamo.graph_break(", 'msg="here"', ")"]
