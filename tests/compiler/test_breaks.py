"""Graph breaks: each at its exact place, in plain words, with advice that is applied here and takes the break away."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from compiler.engine import Exploration, explore
from compiler.options import Options
from compiler.record import Record
from tests.compiler.break_cases import CASES, body
from tests.compiler.broken import FIRST, MODERN, Broken, captured, function, rewritten, settings

X_3D = torch.ones(2, 1, 4)
X = torch.ones(4)
X_ARGS = (X,)
ids = [case.name for case in CASES]
since_2_12 = pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="torch 2.11 does otherwise there")
since_2_13 = pytest.mark.skipif(not MODERN, reason="torch does otherwise there before 2.13")
UNTIL_2_12: dict[str, tuple[str, ...]] = {
    "Unsupported python_type() call": ("Unsupported method call",),
    "Unsupported method call": ("Attempted to call function marked as skipped",),
    "repr() on tensor": ("Failed to trace builtin operator",),
    "requires_grad_() intermediate leaked as output": ("Unsupported Tensor.requires_grad_() call",),
    "Invalid call to __build_class__": ("Attempted to call function marked as skipped",),
    "Attempted to copy.deepcopy a tensor": ("copy.deepcopy()",),
    "Observed exception": ("Unsupported method call",),
    "Missing tp_iternext": ("Unsupported method call",),
    "missing tp_iter": ("Unsupported method call",),
    "missing_mp_subscript": ("Unsupported method call",),
    "missing_mp_ass_subscript": ("Unsupported method call",),
    "vectorcall_maybe on C method descriptor": ("Unsupported method call",),
}
"""What torch calls some kinds before 2.13."""
ON_PYTHON_3_13: dict[str, tuple[str, ...]] = {"Unsupported function call": ("Unsupported method call",)}
OTHERWISE = (ON_PYTHON_3_13 if sys.version_info >= (3, 13) else {}) | ({} if MODERN else UNTIL_2_12)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_a_break_is_told_where_it_is_and_how_to_be_rid_of_it(case: Broken) -> None:
    if not MODERN and ("load_state_dict" in case.code or "deepcopy(y)" in case.code):
        pytest.skip("before torch 2.13 it breaks elsewhere: in state_dict(), inside of deepcopy")
    record = captured(case.code, case.args)
    kinds = (case.kind, *OTHERWISE.get(case.kind, ()))
    found = next((item for item in record.breaks if item.kind in kinds), None)
    broader = found is not None and found.kind != case.kind  # whose advice is broader, too
    assert found is not None, [(item.kind, item.line, item.code) for item in record.breaks]
    mine = [span for span in found.chain if not span.installed][-1]
    assert (mine.line, mine.column, mine.end_line, mine.end_column) == case.span, mine
    assert mine.function == "f" or case.calls
    assert broader or (found.outcome, found.consequence) == (case.outcome, case.consequence)
    assert found.gb_id
    assert found.link.endswith(f"/gb/{found.gb_id.lower()}.html")
    assert broader or case.word in found.what + " ".join(suggestion.text for suggestion in found.suggestions)
    assert found.suggestions
    applied = 0
    for suggestion in found.suggestions:
        if suggestion.rewrite or suggestion.settings:
            applied += 1
            code = rewritten(case.code, suggestion) if suggestion.rewrite else case.code
            with settings(suggestion.settings):
                gone(captured(code, case.args))
    if case.after:
        applied += 1
        gone(captured(case.after, case.args))
    assert applied, "nothing was tried"


def gone(record: Record) -> None:
    assert not [(item.kind, item.line, item.what) for item in record.breaks]
    assert any(frame.graphs for frame in record.frames)


def test_the_chain_leads_from_the_compiled_function_to_the_culprit() -> None:
    for case in CASES:
        if case.calls:
            found = next(item for item in captured(case.code, case.args).breaks if len(item.chain) > 1)
            assert tuple(span.code for span in found.chain) == case.calls
            assert (found.line, found.code) == (found.chain[-1].line, case.code.split("\n")[found.line - FIRST].strip())


def test_the_common_kinds_have_advice() -> None:
    assert len({case.kind for case in CASES}) >= 40


TWO_HALVES = """
def f(x):
    y = torch.relu(x) + 1
    z = y.sum()
    print("between")
    return (y * z).exp().sum()
"""


def test_a_break_says_which_graph_it_ended_what_goes_on_and_what_it_costs() -> None:
    record = captured(TWO_HALVES)
    (found,) = record.breaks
    before, after = record.frames
    assert (found.ended, found.resumed_by) == ("captured[0/0]", (after.id,))
    assert (before.resumes, after.resumes) == ("", found.id)
    assert found.nodes == (3, 3)
    assert (found.crossing, found.crossing_bytes) == (2, 4 * 4 + 4)
    assert found.outcome == "resumed"


def test_a_data_dependent_branch_goes_on_in_the_branch_that_ran() -> None:
    record = captured("def f(x):\n    if x.sum() > 0:\n        return x * 2\n    return x * 3 + 1\n")
    (found,) = record.breaks
    assert found.resumed_by == ("1/0",)
    assert found.nodes == (2, 1)


WITH_A_COMPREHENSION = """
def f(x):
    for i in range(2):
        if x.sum() > i:
            x = x + 1
    return [x * n + k for k, n in enumerate((2, 3))]
"""


LOOPED = "def f(x):\n    hits = (x > 2).nonzero()\n    for hit in hits:\n        x = x + hit\n    return x\n"
MASKED = (
    "def f(x):\n    hits = x > 2\n    for n in range(4):\n        x = torch.where(hits[n], x + 1, x)\n    return x\n"
)


@since_2_12
def test_a_loop_over_an_open_size_is_told_as_one() -> None:
    with settings(("torch._dynamo.config.capture_dynamic_output_shape_ops = True",)):
        (found,) = captured(LOOPED).breaks
    assert (found.kind, found.chain[-1].code) == ("UserError", "hits")
    assert found.what == "How often the loop over `hits` goes round depends on the numbers in a tensor."
    assert "torch.where" in found.suggestions[0].text
    gone(captured(MASKED))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a comprehension is part of the code around it")
@since_2_13
def test_a_comprehension_is_left_to_python_with_the_code_around_it() -> None:
    branch, inside = captured(WITH_A_COMPREHENSION).breaks
    assert (branch.kind, branch.outcome) == ("Data-dependent branching", "skipped")
    assert (inside.function, inside.chain[-1].code) == ("<listcomp>", "[x * n + k for k, n in enumerate((2, 3))]")
    assert "once the graph break there is gone" in inside.suggestions[0].text
    assert not captured(rewritten(WITH_A_COMPREHENSION, branch.suggestions[0])).breaks


def test_fullgraph_gives_the_card_instead_of_a_traceback() -> None:
    record = captured(TWO_HALVES, fullgraph=True)
    (found,) = record.breaks
    assert (found.kind, found.outcome, found.gb_id) == ("Failed to trace builtin operator", "error", "GB0059")
    assert found.chain[-1].code == 'print("between")'
    assert found.suggestions[0].rewrite == "    torch._higher_order_ops.print('between')"
    assert record.frames[0].outcome == "failed"


def test_a_break_does_not_repeat_what_a_restart_saw_again() -> None:
    record = captured("layer = nn.LSTM(4, 4)\ndef f(x):\n    y = x + 1\n    return layer(y)[0]\n", (X_3D,))
    assert len(record.breaks) == 1


@since_2_12
def test_a_restart_that_is_no_break_is_told_apart() -> None:
    record = captured("def f(x):\n    y = x + 1\n    y.requires_grad_()\n    return y * 2\n")
    assert [found.kind for found in record.breaks] == ["requires_grad_() intermediate leaked as output"]
    assert len(record.frames[0].restarts) == 1
    assert not record.frames[1].restarts


PRINTS_IN_A_LOOP = "def f(x):\n    y = x + 1\n    for i in range(2):\n        print(i)\n    return y\n"
SKIPS = {
    "def f(x):\n    yield x + 1\n": ("Attempt to trace generator", "Attempt to trace generator"),
    "def f(x):\n    return x\n": ("no operation on tensors", "no operation on tensors"),
    PRINTS_IN_A_LOOP: ("Failed to trace builtin", "`print(i)` writes to the terminal, which a graph can't."),
}
"""Code -> torch's reason, and what the problem says."""


@pytest.mark.parametrize("code", list(SKIPS))
def test_where_nothing_is_compiled_the_reason_is_told(code: str) -> None:
    record = captured(code)
    assert [frame.outcome for frame in record.frames] != ["compiled"]
    reason, words = SKIPS[code]
    assert reason in record.frames[0].reason
    assert any(words in problem.reason for problem in record.problems)


def test_a_module_that_is_kept_out_of_graphs_is_told_where_it_is_called() -> None:
    code = (
        "class M(nn.Module):\n    @torch.compiler.disable\n    def forward(self, x):\n        return x + 1\nf = M()\n"
    )
    record = captured(code)
    (found,) = record.breaks
    assert (found.line > 0, found.function) == (True, "captured")
    assert "torch.compiler.disable" in found.what
    assert [problem.reason for problem in record.problems] == [f"nothing was compiled: {found.what}"]


@since_2_13
def test_torch_compile_that_is_switched_off_is_the_reason() -> None:
    with torch._dynamo.config.patch(disable=True):
        record = captured("def f(x):\n    return x + 1\n")
    assert [(frame.function, frame.outcome) for frame in record.frames] == [("f", "skipped")]
    assert "torch.compile is disabled" in record.frames[0].reason
    assert "torch.compile is disabled" in record.problems[0].reason


ASYNC = """
class Manager:
    async def __aenter__(self):
        return self
    async def __aexit__(self, *_):
        pass
def inner(y):
    return y * 2
async def f(x):
    async with Manager():
        return inner(x + 1)
"""


def test_bytecode_that_torch_does_not_read_has_its_card() -> None:
    with Exploration(Options(stages=("captured",))) as exploration:
        coroutine = exploration.compile(function(ASYNC))(X)
        with pytest.raises(StopIteration) as finished:
            coroutine.send(None)
    assert torch.equal(finished.value.value, (X + 1) * 2)
    found = exploration.record.breaks[0]
    assert (found.kind, found.outcome, found.chain[-1].code) == ("Missing bytecode handler", "skipped", "Manager()")
    assert found.suggestions[0].text.startswith("Move it out")


def test_text_that_differs_from_run_to_run_is_left_out() -> None:
    record = captured("@torch.compiler.disable\ndef g(v):\n    return v\ndef f(x):\n    return g(x + 1) * 2\n")
    assert "0x" not in record.breaks[0].explanation


def test_a_record_with_breaks_survives_json() -> None:
    record = captured(TWO_HALVES)
    assert Record.from_json(record.to_json()) == record


def test_code_of_a_package_is_explained_and_not_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody edits a package that is installed; what can be set is told all the same."""
    monkeypatch.setattr("compiler.capture.breaks.is_installed", lambda _: True)
    (found,) = captured("def f(x):\n    return x * x.sum().item() * 2\n").breaks
    assert found.what.startswith("`x.sum().item()` asks for the number in a tensor")
    assert not [item.rewrite for item in found.suggestions if item.rewrite]
    assert found.suggestions[-1].settings == ("torch._dynamo.config.capture_scalar_outputs = True",)


def test_a_function_left_to_python_by_a_break_is_a_problem_without_fullgraph_in_its_words() -> None:
    record = captured(WITH_A_COMPREHENSION)
    first = record.problems[0]
    words = "Which way Python goes on at `x.sum() > i` depends on the numbers in a tensor."
    assert first.reason == f"f (cell:{FIRST + 1}) runs as plain Python, because of a graph break: {words}"
    assert "fullgraph" not in "".join(problem.hint for problem in record.problems)


COSTLY = """
def shown(y):
    print("mean", y.mean())
    return y + 1
def f(x):
    y = shown(torch.relu(x))
    n = y.sum().item()
    return y * n
"""


def test_what_a_break_costs_is_timed_against_its_own_advice(capsys: pytest.CaptureFixture[str]) -> None:
    original = function(COSTLY)
    code = original.__globals__["shown"].__code__
    options = Options(stages=("captured",), backend="eager")
    plain = explore(original, X_ARGS, options=options).record
    record = explore(original, X_ARGS, options=replace(options, time=True)).record
    assert capsys.readouterr().out.count("mean") == 2  # once a call of the user's
    printing, item = record.breaks[0], record.breaks[-1]
    assert all(found.lost_seconds is not None for found in (printing, item))
    assert f"ms with line {printing.line} rewritten" in printing.lost_note
    assert f"ms with line {item.line} rewritten" in item.lost_note
    assert [frame.id for frame in record.frames] == [frame.id for frame in plain.frames]
    assert (record.recompiles, len(record.guards)) == ((), len(plain.guards))
    assert original.__globals__["shown"].__code__ is code
    assert not [name for name in original.__globals__ if name.startswith(("__compiled_fn", "__resume_at"))]


SETTINGS_ONLY = body("i = torch.nonzero(y)", "y = y + i.sum()")
WORDS_ONLY = body('open("/dev/null")')
OTHER_NUMBERS = body("y = y * random.random()")


@pytest.mark.parametrize(
    ("code", "known", "note"),
    [
        (SETTINGS_ONLY, True, "ms with torch._dynamo.config.capture_dynamic_output_shape_ops = True"),
        (WORDS_ONLY, False, "its advice is in words only: there is no version without this break to time"),
        (OTHER_NUMBERS, False, "the call gives another result with line"),
    ],
)
def test_a_break_is_timed_only_where_a_version_without_it_does_the_same(code: str, known: bool, note: str) -> None:
    before = torch._dynamo.config.capture_dynamic_output_shape_ops
    found = captured(code, backend="eager", time=True).breaks[0]
    assert (found.lost_seconds is not None) == known
    assert note in found.lost_note
    assert torch._dynamo.config.capture_dynamic_output_shape_ops == before


def test_nobody_who_did_not_ask_for_times_waits_for_them() -> None:
    (found,) = captured(TWO_HALVES).breaks
    assert (found.lost_seconds, found.lost_note) == (None, "")
