"""Fixes that are tried: their states, what is compared, and the patch of those that hold together."""

from __future__ import annotations

import contextlib
import functools
import io
import linecache
from typing import Any

import pytest
import torch

from compiler.engine import explore
from compiler.record import Fix
from compiler.record.options import Options
from compiler.xray.fixes import UNTRIED
from compiler.xray.outcomes import Outcome, compare_outcomes
from explorer.run.run import Run
from explorer.run.xray import XRayed
from tests.compiler.broken import MODERN, NUMBERS, function, settings
from tests.compiler.xray.programs import FOLDER, module

CAPTURED = Options(stages=("captured",), backend="eager")
X = torch.tensor([1.0, 2.0, 3.0, 4.0])


def x_rayed(fn: Any, *calls: Any) -> XRayed:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        done = explore(fn, options=CAPTURED, calls=calls)
        return Run(done.record, call=done.call).xray()


def tried(code: str, *calls: Any) -> dict[str, Fix]:
    found = x_rayed(function(code), *(calls or [(X,)])).try_fixes()
    return {" ".join(site.span.code.split()): fix for site, fix in zip(found.sites, found.fixes, strict=True)}


def only(code: str) -> Fix:
    (fix,) = tried(code).values()
    return fix


def test_verified_fix_leaves_results_and_effects() -> None:
    fix = only("def f(x):\n    y = x * 2\n    y = y * y.sum().item()\n    return y\n")
    assert (fix.state, fix.together) == ("verified", True)
    assert fix.suggestion is not None
    assert fix.suggestion.rewrite.strip() == "y = y * y.sum().detach()"


def test_print_in_the_graph_is_verified() -> None:
    assert only('def f(x):\n    y = x * 2\n    print("sum", y)\n    return y + 1\n').state == "verified"


def test_check_in_the_graph_raises_another_error() -> None:
    fix = only('def f(x):\n    if (x > 1e30).any():\n        raise ValueError("large")\n    return x * 2\n')
    assert fix.state == "changes when a side effect happens"
    assert fix.words.startswith("It raises RuntimeError when the graph runs")


def printed(text: str) -> Outcome:
    return Outcome(said=(("printed", text),))


def test_only_numbers_that_vary_by_themselves_may_differ() -> None:
    first, second = printed("step 1: loss 2.5 in 0.31 s"), printed("step 1: loss 2.5 in 0.29 s")
    assert compare_outcomes(first, second, printed("step 1: loss 2.5 in 0.44 s")) == ("", "")
    assert compare_outcomes(first, second, printed("step 1: loss 7.5 in 0.44 s"))[0].startswith("it prints")


def test_compiled_code_prints_no_grad_fn() -> None:
    first, mine = printed("loss tensor(2.5, grad_fn=<NegBackward0>) at 3"), printed("loss tensor(2.5) at 3")
    assert compare_outcomes(first, first, mine) == ("", "")
    assert compare_outcomes(first, first, printed("loss tensor(2.6) at 3"))[0].startswith("it prints")
    again = printed("loss tensor(2.5, grad_fn=<NegBackward0>) at 4")
    assert compare_outcomes(first, again, printed("loss tensor(2.5) at 9")) == ("", "")
    assert compare_outcomes(first, again, printed("loss tensor(2.6) at 9"))[0].startswith("it prints")


def test_new_attribute_is_a_difference() -> None:
    before = Outcome(held={"self.steps": 1})
    after = Outcome(held={"self.steps": 1, "self.extra": 1})
    assert compare_outcomes(before, before, after)[0] == "`self.extra` is new"
    assert compare_outcomes(before, before, Outcome(held={"self.steps": 1, "operator.name": "a"})) == ("", "")


LOOPS = """
def f(x):
    total = x.new_zeros(())
    for row in x.reshape(2, 2):
        if row.sum() < 0:
            continue
        total = total + row.sum() ** 2
    for n in range(3):
        x = torch.tanh(x) + 0.1 * n  # one step
        if x.sum() > 1.0:
            break
    return x * total
"""


def test_loops_that_data_end_run_to_their_end() -> None:
    fixes = tried(LOOPS, (X,), (X - 2.4,))
    assert {fix.state for fix in fixes.values()} == {"verified"}
    lines = [line.strip() for fix in fixes.values() for each in fix.suggestions for line in each.rewrite.splitlines()]
    assert "total = torch.where(is_skipped, total, total + row.sum() ** 2)" in lines
    assert "x = torch.where(is_done, x, torch.tanh(x) + 0.1 * n)  # one step" in lines


UNKNOWN_LENGTHS = """
def f(x):
    v = x * 2
    for n in range((x > 1).sum().item()):
        v = v + n * x  # more
    while v.abs().max() > 0.5:
        scale = 0.5  # halve
        v = v * scale
    return v
"""
UNKNOWN_ROWS = """
def f(x):
    total = torch.zeros(())
    for part in x.split(2):
        rows = part[part > 2]
        if len(rows) == 0:
            print("none of", 2)
            continue
        total = total + rows.sum()
    return total
"""


def test_loops_of_unknown_length_are_in_the_graph() -> None:
    for code in (UNKNOWN_ROWS, UNKNOWN_LENGTHS):
        found = x_rayed(function(code), (X,)).try_fixes(600.0)
        assert [(fix.state, fix.words) for fix in found.fixes if fix.state != "verified"] == []
        assert not found.left
    assert "        v = v + n * x  # more" in found.patch()
    assert "_, v = torch.while_loop(is_unfinished, next_step, (torch.zeros(" in found.patch()
    assert "v, = torch.while_loop(is_unfinished, next_step, (v,))" in found.patch()


CHOICES = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.bad = 1.0, 0
    def forward(self, x):
        if x.sum() > 9:
            self.scale *= 0.5
            self.bad += 1
        y = x * self.scale
        if torch.equal(y, x * 3):
            return y, x
        z = y + 1
        return z, x
f = M()
"""


def test_choices_of_numbers_and_early_returns_are_made_in_the_graph() -> None:
    found = x_rayed(function(CHOICES), (X,)).try_fixes(600.0)
    assert [(fix.state, fix.together) for fix in found.fixes] == [("verified", True)] * len(found.sites)
    assert "self.scale = torch.where(is_so, torch.scalar_tensor(self.scale * 0.5, dtype=torch.float64)" in found.patch()
    assert "return torch.where(is_early, y, z), x" in found.patch()


def test_nothing_is_tried_after_the_time_is_over() -> None:
    found = x_rayed(function(RARE.replace("35", "1")), (X,)).try_fixes(0.0)
    assert [fix.words for fix in found.fixes] == [UNTRIED]
    assert found.try_fixes(600.0).fixes[0].words != UNTRIED


RARE = "def f(x):\n    if x.sum() > 35:\n        x += 1\n    return x * 2\n"


def test_fix_is_compared_on_inputs_that_take_the_other_branch() -> None:
    assert only(RARE).state == "no fix known"


TRAINS = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.seen = nn.Parameter(torch.ones(4)), set()
    def forward(self, x):
        loss = (x * self.weight).sum()
        loss.backward()
        self.seen.add(loss.item())
        return loss
f = M()
"""


def test_effects_are_compared_though_the_call_runs_backward() -> None:
    fix = tried(TRAINS)["loss.item()"]
    assert not (fix.suggestion and fix.suggestion.rewrite) or fix.state == "no fix known"


def test_moved_break_is_mended_too() -> None:
    fixes = tried("def f(x):\n    k = x.sum().item()\n    m = k + 1\n    if m > 2:\n        x = x * 2\n    return x\n")
    fix = fixes["x.sum().item()"]
    assert (fix.state, fix.together) == ("verified", True)
    assert [each.rewrite.strip() for each in fix.also] == ["x = torch.where(m > 2, x * 2, x)"]


def test_moved_break_is_named() -> None:
    fixes = tried("def f(x):\n    k = x.sum().long()\n    for n in range(k.item()):\n        print(n)\n    return x\n")
    fix = fixes["k.item()"]
    assert fix.state in ("moves the break", "no fix known")
    assert fix.words


def test_log_that_is_left_out_is_no_verified_fix() -> None:
    fix = only('def f(x):\n    y = x * 2\n    log.info("hello")\n    return y + 1\n')
    assert fix.suggestion is not None
    assert not fix.suggestion.settings


ATTRIBUTE = """
class M(nn.Module):
    def forward(self, x):
        self.total = x.sum().item()
        return x * 2
f = M()
"""


def test_attribute_of_another_type_is_no_verified_fix() -> None:
    fix = only(ATTRIBUTE)
    assert fix.suggestion is not None
    assert not fix.suggestion.rewrite or fix.state != "verified"


BRANCH = "def f(x):\n    y = x * 2\n    if x.sum() > 0:\n        y = y[:2]\n    return y\n"


def test_fix_is_compared_on_other_inputs() -> None:
    fix = only(BRANCH)
    assert fix.state == "no fix known"


def test_words_only_are_given_as_the_reason() -> None:
    fix = only("names = []\ndef f(x):\n    names.append(uuid.uuid4().hex)\n    return x * 2\n")
    assert fix.state == "no fix known"
    assert fix.words.startswith("this has to be changed by hand: Make it before the compiled function")


@functools.cache
def fixed_program(name: str) -> XRayed:
    fn, calls = module(name).program()
    return x_rayed(fn, *calls).try_fixes(600.0)


@pytest.mark.skipif(not MODERN, reason="the lists are those of torch 2.13")
def test_patched_program_has_the_breaks_that_are_promised() -> None:
    """One of the twelve programs; `python -m benchmarks.xray` tries all."""
    name = "graph_network"
    found = fixed_program(name)
    assert len(found.left) <= len(found.sites) - 3
    file = str(FOLDER / f"{name}.py")
    text = patched(found.patch(), linecache.getlines(file))
    with settings(()):
        names: dict[str, Any] = {"__name__": "patched"}
        exec(compile(text, cached(text), "exec"), names)
        fn, calls = names["program"]()
        after = x_rayed(fn, *calls)
    assert [(site.function, site.kind) for site in after.sites] == [(site.function, site.kind) for site in found.left]


def cached(text: str) -> str:
    file = f"<tcompile patched {next(NUMBERS)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return file


def patched(diff: str, lines: list[str]) -> str:
    """The lines with a unified diff applied."""
    text, position = list[str](), 0
    for line in diff.splitlines(keepends=True):
        if line.startswith(("---", "+++", "#")):
            continue
        if line.startswith("@@"):
            start = int(line.split()[1].split(",")[0][1:]) - 1
            text += lines[position:start]
            position = start
        elif line.startswith("+"):
            text.append(line[1:])
        else:
            assert lines[position] == line[1:]
            text += [line[1:]] if line.startswith(" ") else []
            position += 1
    return "".join([*text, *lines[position:]])


def test_patch_keeps_comments_and_changes_no_file() -> None:
    before = (FOLDER / "graph_network.py").read_text()
    diff = fixed_program("graph_network").patch()
    assert (FOLDER / "graph_network.py").read_text() == before
    removed = [line[1:] for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert all(line in before for line in removed)
    assert patched(diff, before.splitlines(keepends=True)).count("\n") >= before.count("\n") - 3


def test_patch_without_fixes_is_empty() -> None:
    assert x_rayed(function("def f(x):\n    return x * id(x)\n"), (X,)).patch() == ""
