"""run.diff of TorchDynamo's findings: a fixed break is gone, its graphs are one, and nothing else is reported."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

import explorer
from explorer.run.capture_diff import GONE, NEW, _changes
from explorer.run.run import Run

X = torch.ones(4)


def printing(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    print("between")  # noqa: T201
    z = y + 1
    torch._dynamo.graph_break()
    return z * 2


def quiet(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    z = y + 1
    torch._dynamo.graph_break()
    return z * 2


def rewritten(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    return (y + 1) * 2


def unlike(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n


@functools.cache
def explored(fn: object) -> Run:
    return explorer.explore(fn, X, stages=("captured",))  # type: ignore[arg-type]


def repeated(x: torch.Tensor, times: str) -> torch.Tensor:
    return x * int(times)


def called(*calls: tuple, fn: Callable[..., torch.Tensor] = scaled, **options: object) -> Run:
    return explorer.explore(fn, calls=calls, stages=("captured",), **options)


def test_fixed_break_is_gone_despite_moved_lines() -> None:
    breaks = explored(printing).diff(explored(quiet)).breaks
    (row,) = breaks.to_dict("records")
    line = printing.__code__.co_firstlineno + 2
    assert (row["change"], row["where"], row["code"]) == ("gone", f"test_capture_diff.py:{line}", 'print("between")')


def test_break_is_new_in_the_reverse_diff() -> None:
    assert explored(quiet).diff(explored(printing)).breaks["change"].to_list() == ["new"]


def test_graphs_split_by_the_break_are_merged() -> None:
    assert explored(printing).diff(explored(quiet)).merged == {"0/0": ("0/0", "1/0")}
    assert explored(quiet).diff(explored(printing)).merged == {}


def test_rewritten_lines_are_in_the_merged_graph() -> None:
    assert explored(printing).diff(explored(rewritten)).merged == {"0/0": ("0/0", "1/0", "2/0")}


def test_graphs_of_other_code_are_not_merged() -> None:
    assert explored(printing).diff(explored(unlike)).merged == {}


def test_diff_text_starts_with_captures() -> None:
    diff = explored(printing).diff(explored(quiet))
    assert str(diff).split("\n\n")[1] == diff.capture
    there = diff.capture.splitlines()
    assert there[:3] == [
        "captured graphs: 3 (1, 1, 1 ops) -> 2 (2, 1 ops)",
        "  0/0, 1/0 of printing are one in quiet: 0/0",
        "graph breaks: 2 -> 1, 1 gone, 0 new",
    ]
    assert "`print" in there[3]
    back = str(explored(quiet).diff(explored(printing)))
    assert "  0/0 of quiet is cut up in printing: 0/0, 1/0\n" in back


def test_equal_runs_have_no_differences() -> None:
    diff = explored(quiet).diff(explored(quiet))
    assert [len(table) for table in (diff.breaks, diff.guards, diff.recompiles)] == [0, 0, 0]
    assert diff.capture == ""
    assert "captured graphs" not in str(diff)


def test_guards_of_every_compilation_count() -> None:
    diff = explored(rewritten).diff(explored(printing))
    counts = [sum(not guard.internal for guard in side.guards) for side in (diff.before, diff.after)]
    assert f"guards of all compilations: {counts[0]} -> {counts[1]}, " in diff.capture
    assert (diff.guards.change == NEW).sum() - (diff.guards.change == GONE).sum() == (
        len(diff.after.guards) - len(diff.before.guards)
    )


def test_guards_of_one_side_alone_come_first_and_equal_lines_are_one() -> None:
    lines = explored(printing).diff(explored(rewritten)).capture.splitlines()
    guards = lines[next(place for place, line in enumerate(lines) if line.startswith("guards of all")) + 1 :]
    assert guards[0].startswith("  - `y` is float32")
    assert guards[-1] == "  - grad mode is on, autocast is off, and torch's other settings are the same  (2 times)"


def test_fixed_recompile_and_its_guards_are_gone() -> None:
    calls = ((X, 2), (torch.ones(6), 2))
    before, after = called(*calls), called(*calls, dynamic=True)
    diff = before.diff(after)
    (row,) = diff.recompiles.to_dict("records")
    assert (row["change"], row["function"], row["cause"], row["argument"]) == ("gone", "scaled", "shape", "x")
    gone = diff.guards[(diff.guards.change == "gone") & ~diff.guards.internal]
    assert "`x` is float32, contiguous, 4, on cpu" in gone.words.to_list()
    assert "recompilations: 1 -> 0, 1 gone, 0 new" in str(diff)
    assert "recompilations: 1 -&gt; 0" in diff._repr_html_()


def test_recompile_diff_compares_with_the_closest_graph() -> None:
    run = called((X, 2), (torch.ones(6), 2))
    (found,) = run.record.recompiles
    assert (found.closest, found.frame) == ("0/0", "0/1")
    lines = str(run.diff("")).splitlines()
    assert lines[:2] == ["--- 0/0: captured[0/0]", "+++ 0/1: captured[0/1]"]
    assert any(line.startswith('-def forward(self, l_x_: "f32[4]') for line in lines)
    assert any(line.startswith("+def forward(self, s") for line in lines)
    assert run.diff("0/1") == run.diff("")
    assert f"graph, against 0/0: {found.graph_change} (run.diff('0/1')" in " ".join(str(run.cards).split())
    assert run.recompiles.graph_change.to_list() == [found.graph_change]
    with pytest.raises(KeyError, match="no recompilation 7/7 in this record; it has: 0/1"):
        run.diff("7/7")
    with pytest.raises(KeyError, match="no recompilation at all"):
        called((X, 2)).diff("")


def test_recompile_limit_card_lists_the_plain_python_calls() -> None:
    numbers = [*range(2, 13), 5, 12]
    run = called(*((torch.ones(2), str(number)) for number in numbers), fn=repeated)
    text = " ".join(run.cards[-1].split())
    assert "the recompile_limit of 8 is reached; calls 9 to 11 and 13 ran as plain Python" in text
    assert run.recompiles.plain_calls.dropna().to_list() == ["9; 10; 11; 13"]


def test_finding_counts_include_both_sides() -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    sides = [
        explorer.explore(breaks, torch.ones(4), stages=("captured",), backend=name) for name in ("eager", "aot_eager")
    ]
    stages = sides[0].diff(sides[1]).widget().manifest["stages"]
    found = next(stage for stage in stages if stage["name"] == "breaks")
    assert (found["count"], found["sides"], found["unit"]) == (2, [1, 1], "breaks")


def test_what_happens_less_often_is_gone_as_often() -> None:
    """The same break in a loop, three times before and once after."""
    assert list(_changes("aaab", "abc", str)) == [(GONE, "a"), (GONE, "a"), (NEW, "c")]
