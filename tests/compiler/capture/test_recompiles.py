"""Recompilations: all failed guards, old and new values, the cause, and advice that is applied here and ends them."""

from __future__ import annotations

import sys

import pytest
import torch

from compiler.capture.recompile_advice import other_conditions
from compiler.capture.recompiles import recompile
from compiler.engine import Exploration, explore
from compiler.record import GuardFailure, Recompile, Record
from compiler.record.options import Options
from compiler.torch_api.dynamo import EntryFailures
from compiler.torch_api.guards import FailedGuard
from tests.compiler.broken import MODERN, function, settings
from tests.compiler.capture.recompile_cases import CASES, DOUBLE, Again


def called(code: str, calls: str, **options: object) -> Record:
    """The record of running `calls`, with the `f` that `code` defines; `names` are the global names of the code."""
    original = function(code)
    names = getattr(original, "__globals__", {})
    more = {"make": names["make"]} if "make" in names else {}
    with Exploration(Options(stages=("captured",), **options)) as exploration:
        compiled = exploration.compile(original)
        exec(calls, {"f": compiled, "module": original, "names": names, "torch": torch, "nn": torch.nn, **more})
    return exploration.record


@pytest.mark.parametrize("case", CASES, ids=[f"{case.cause} {case.argument} {case.new}" for case in CASES])
def test_change_is_blamed_and_the_advice_prevents_it(case: Again) -> None:
    if torch.__version__.startswith("2.11") and "requires_grad_(False)" in case.calls:
        pytest.skip("torch 2.11 does not guard whether a parameter requires a gradient")
    if not MODERN and case.argument == "an intermediate value" and sys.version_info < (3, 12):
        pytest.skip("before torch 2.13, torch resumes without such a guard in Python 3.11")
    found = called(case.code, case.calls, **case.start).recompiles[-1]
    assert (found.cause, found.argument) == (case.cause, case.argument), found.failures
    blamed = next(item for item in found.failures if (item.cause, item.argument) == (case.cause, case.argument))
    assert (blamed.old, blamed.new) == (case.old, case.new)
    assert case.word in found.advice
    tried = []
    if case.fixed or case.fixed_calls:
        tried.append(called(case.fixed or case.code, case.fixed_calls or case.calls, **case.start))
    if case.options and not case.settings:
        tried.append(
            called(case.fixed or case.code, case.calls if not case.fixed else case.fixed_calls, **case.options)
        )
    if case.settings:
        with settings(found.settings):
            tried.append(called(case.code, case.calls, **case.start, **case.options))
    assert tried, "the advice was not tried"
    for record in tried:
        assert not [item.failures for item in record.recompiles]
        assert any(frame.graphs for frame in record.frames)


def test_advice_names_everything_else_that_changed() -> None:
    calls = "f(torch.ones(4, 8), 2)\nf(torch.ones(6, 8, requires_grad=True, dtype=torch.float64), 3)"
    found = called("def f(x, n):\n    return x * n\n", calls).recompiles[-1]
    assert found.cause == "shape"
    more = "dtype of `x` was float32, is now float64; requires_grad of `x` was False, is now True."
    assert found.advice.endswith(
        f"It takes more than that: {more}"
    )  # nothing about `n`: it becomes symbolic with the sizes
    again = called("def f(x, n):\n    return x * n\n", calls, dynamic=True).recompiles[-1]
    assert [item.cause for item in again.failures] == ["dtype", "requires_grad"]


def test_dtype_is_blamed_before_stride() -> None:
    calls = "f(torch.ones(4, 8), 2)\nf(torch.ones(4, 8, 2, dtype=torch.float64)[:, :, 0], 2)"
    found = called("def f(x, n):\n    return x * n\n", calls).recompiles[-1]
    assert [item.cause for item in found.failures] == ["dtype", "stride"]
    assert (found.cause, found.argument) == ("dtype", "x")


def test_every_failed_guard_of_every_entry_is_listed() -> None:
    calls = "f(torch.ones(4, 8), 2)\nf(torch.ones(4, 8).double(), 2)\nf(torch.ones(6, 8, dtype=torch.float16), 3)"
    record = called("def f(x, n):\n    return x * n\n", calls)
    last = record.recompiles[-1]
    of_entry = {entry: [item.cause for item in last.failures if item.entry == entry] for entry in ("0/0", "0/1")}
    assert of_entry == {"0/0": ["shape", "dtype", "number"], "0/1": ["shape", "dtype", "number"]}
    assert [item.words for item in last.failures if item.entry == "0/0"] == [
        "size of `x` in dimension 0 was 4, is now 6",
        "dtype of `x` was float32, is now float16",
        "`n` was the int 2, is now the int 3",
    ]


def test_calling_line_is_recorded() -> None:
    def many(f: object) -> None:
        f(torch.ones(4))
        f(torch.ones(5))

    with Exploration(Options(stages=("captured",))) as exploration:
        many(exploration.compile(function(DOUBLE)))
    call = exploration.record.recompiles[0].call
    assert call is not None
    assert (call.function, call.code) == ("many", "f(torch.ones(5))")


def test_recompile_limit_is_reported_without_a_break() -> None:
    calls = "for n in [*range(11), 3, 11]:\n    f(torch.ones(4), f'{n}')"
    record = called("def f(x, s):\n    return x * 2 if s == 'a' else x * int(s)\n", calls)
    assert not record.breaks
    limited = [item for item in record.recompiles if item.limit]
    assert [item.limit for item in limited] == ["the recompile_limit of 8"]
    assert limited[0].plain_calls == (9, 10, 11, 13)
    assert record.frames[-1].outcome == "skipped"
    assert record.frames[-1].reason == "it reached the recompile_limit of 8"
    assert any("recompile_limit" in problem.hint for problem in record.problems)


def test_higher_recompile_limit_is_respected() -> None:
    calls = "for n in range(12):\n    f(torch.ones(4), f'{n}')"
    with torch._dynamo.config.patch(recompile_limit=16):
        record = called("def f(x, s):\n    return x * 2 if s == 'a' else x * int(s)\n", calls)
    assert not [item for item in record.recompiles if item.limit]
    assert [frame.outcome for frame in record.frames] == ["compiled"] * 12


def test_several_calls_are_explored_in_one_go() -> None:
    explored = explore(
        function(DOUBLE), options=Options(stages=("captured",)), calls=[(torch.ones(4),), (torch.ones(6),)]
    )
    assert [tuple(value.shape) for value in explored.value] == [(4,), (6,)]
    assert [item.cause for item in explored.record.recompiles] == ["shape"]


def test_matching_second_call_does_not_compile() -> None:
    record = called(DOUBLE, "f(torch.ones(4))\nf(torch.ones(4))")
    assert (len(record.frames), record.recompiles) == (1, ())


def test_recompiles_survive_json() -> None:
    record = called(DOUBLE, "f(torch.ones(4))\nf(torch.ones(6))")
    assert Record.from_json(record.to_json()) == record


GRAPHS = """
def f(x, mask=None, k=2):
    y = torch.relu(x) * k
    if mask is not None:
        y = y * mask + 1
    return y.sum()
"""


def test_recompile_describes_the_graph_change() -> None:
    four, six = "torch.ones(4, 8)", "torch.ones(6, 8)"
    record = called(GRAPHS, f"f({four})\nf({six})\nf({six}, {six})\nf({six}, None, 3)")
    told = [(found.closest, found.graph_change) for found in record.recompiles]
    assert [closest for closest, _ in told] == ["0/0", "0/1", "0/1"]
    changes = [change for _, change in told]
    assert changes[0].startswith("the same ops on other sizes or types; s")
    assert changes[0].endswith(" symbolic")
    assert changes[1].startswith("2 ops more (operator.add, operator.mul); s")
    assert changes[1].endswith(" fixed")
    assert changes[2].startswith("the same ops with other arguments; s")


def test_changed_global_state_is_blamed_by_name_alone() -> None:
    """torch before 2.13 says which parts of its state differ, but not their values."""
    guard = FailedGuard("GLOBAL_STATE", "L", ("___check_global_state()", "GLOBAL_STATE changed: grad_mode "), None)
    known = Recompile("recompile[0/1]", "0/1", "f", "cell", 1, ())
    with torch.no_grad():
        found = recompile(known, [EntryFailures((0, 0), (guard,))], lambda key: f"{key[0]}/{key[1]}", "{}")
    assert (found.cause, found.argument) == ("grad mode", "grad mode")
    assert [(item.entry, item.words) for item in found.failures] == [("0/0", "grad mode was on, is now off")]


def test_torch_module_recompile_is_blamed_on_forward_arguments() -> None:
    """torch compiles it through a wrapper with the arguments `args` and `kwargs`."""
    record = called("f = nn.Sequential(nn.Linear(8, 8), nn.Dropout())\n", "f(torch.ones(4, 8))\nf(torch.ones(6, 8))")
    (found,) = record.recompiles
    assert (found.cause, found.argument) == ("shape", "input")
    assert "mark_dynamic(input, 0)" in found.advice
    assert found.graph_change.startswith("the same ops on other sizes or types; s")
    assert [symbol.source for symbol in record.symbols] == ["input.size(0)"]
    shown = {guard.argument for guard in record.guards if not guard.internal}
    assert shown == {"", "input", "self", "self.1.training"}


NESTED = """
class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.load, self.scale = nn.Linear(8, 8), [], 0.5
    def forward(self, x):
        KEEP
        return self.layer(x) * self.scale
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
    def forward(self, x):
        return self.router(x)
f = M()
"""
THRICE = "for n in range(3):\n    f(torch.ones(4, 8))"


@pytest.mark.parametrize(
    "kept", ["self.load.append(0.5)", "self.load.append(x.shape[0])", "self.load.append(x.mean())"]
)
def test_growing_list_is_not_blamed_on_module_structure(kept: str) -> None:
    found = called(NESTED.replace("KEEP", kept), THRICE).recompiles[-1]
    assert (found.cause, found.argument) == ("length", "self.router.load")
    assert found.failures[0].words == "`self.router.load` had 1 item, now has 2 items"
    assert "append it outside" in found.advice
    assert not found.settings
    outside = NESTED.replace("KEEP", "self.last = x.mean()")
    assert not called(outside, "load = []\n" + THRICE + "\n    load.append(module.router.last)").recompiles


def test_growing_global_is_no_argument() -> None:
    found = called("LOG = []\ndef f(x):\n    LOG.append(x.mean())\n    return x * 2\n", THRICE).recompiles[-1]
    assert (found.cause, found.argument) == ("global", "global LOG")
    assert "append it outside" in found.advice


def test_module_floats_get_no_advice_for_ints() -> None:
    calls = "for n in range(3):\n    module.router.scale = n + 0.25\n    f(torch.ones(4, 8))"
    found = called(NESTED.replace("KEEP", "pass"), calls).recompiles[-1]
    assert (found.cause, found.argument, found.settings) == ("module attribute", "self.router.scale", ())
    assert found.applicability == "explanation"
    assert "ints" not in found.advice


def test_advice_with_more_to_do_is_two_sentences() -> None:
    code = "class M(nn.Module):\n    n = 0\n    def forward(self, x):\n        return x * self.n\nf = M()\n"
    found = called(code, "f(torch.ones(4))\nmodule.n = 2\nf(torch.ones(4).double())").recompiles[-1]
    assert ": It takes" not in found.advice
    assert "It takes more than that" in found.advice


def test_codes_of_the_user_are_no_part_of_an_exploration() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = torch.compile(f, backend="eager", dynamic=False)
    for size in (3, 4, 5):
        compiled(torch.ones(size))
    calls = [(torch.ones(6),), (torch.ones(7),)]
    (found,) = explore(f, calls=calls, options=Options(stages=("captured",))).record.recompiles
    assert [item.entry for item in found.failures] == ["0/0"]
    assert len(found.reasons) == 1


def test_requires_grad_of_a_dtensor_is_one_change() -> None:
    first = GuardFailure("0/0", "requires_grad", "x._local_tensor", "False", "True", "requires_grad of `x` was False")
    attribute = GuardFailure("0/0", "flag", "x.requires_grad", "the bool False", "True", "`x.requires_grad` was False")
    length = GuardFailure("0/0", "length", "xs", "1", "2", "`xs` had 1 item, now has 2 items")
    assert other_conditions(first, [first, attribute]) == ""
    assert other_conditions(first, [first, attribute, length]) == f" It takes more than that: {length.words}."


BLOCKS = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return x
f = M()
"""


def test_first_block_without_gradient_needs_no_change() -> None:
    (found,) = called(BLOCKS, "f(torch.ones(4))").recompiles
    assert (found.cause, found.argument, found.applicability) == ("requires_grad", "x", "explanation")
    assert "two compilations, and no more" in found.advice
    assert "detach" not in found.advice


TIMED = """
def f(x):
    started = time.perf_counter()
    y = x * 2
    print("between")
    return y * (time.perf_counter() - started) + x.sum().item() * y
"""


def test_stack_values_are_named_after_locals() -> None:
    record = called(TIMED, "f(torch.ones(4))\nf(torch.ones(4))")
    named = [failure for found in record.recompiles for failure in found.failures]
    assert "`started`" in " ".join(failure.words for failure in named)
    assert any(failure.argument == "started" and "___stack" in failure.source for failure in named)
    words = " ".join([*(failure.words for failure in named), *(guard.words for guard in record.guards)])
    assert "under way" not in words
    assert "an intermediate value" in words
