"""Graph breaks: each at its exact location, in plain words, with advice that is applied here and removes the break."""

from __future__ import annotations

import calendar
import contextlib
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.export.pt2_archive._package import AOTICompiledModel
from torch.utils._pytree import tree_structure, treespec_dumps

from compiler.capture.breaks import _first_sentence, graph_break
from compiler.capture.sources import SourceBook
from compiler.engine import Exploration, explore
from compiler.record import Record
from compiler.record.break_facts import BreakFacts, Place
from compiler.record.options import Options
from explorer.findings.breaks import outcome_words
from tests.compiler.broken import FIRST, FOLLOWED, MODERN, TORCH, Broken, captured, function, rewritten, settings
from tests.compiler.capture.break_cases import CASES, body

X_3D = torch.ones(2, 1, 4)
X = torch.ones(4)
X_ARGS = (X,)
ids = [case.name for case in CASES]
since_2_12 = pytest.mark.skipif(torch.__version__.startswith("2.11"), reason="torch 2.11 does otherwise there")
until_2_13 = pytest.mark.skipif(TORCH >= "2.14", reason="torch 2.14 follows random.random()")
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
"""torch's names of some kinds before 2.13."""
IN_C = "C-implemented special method without VariableTracker model"
SINCE_2_14: dict[str, tuple[str, ...]] = {
    "Attempted to call function marked as skipped": ("Call to a time function",),
    "Unhandled args for method": ("Unsupported Tensor.share_memory_() call",),
    "invalid call to builtin op handler": ("min/max with non-constant key",),
    "Attempted to wrap RNN, GRU, or LSTM": ("Unsupported function call (delayed)",),
    "Failed to trace builtin operator": ("Unsupported Tensor.item() call with capture_scalar_outputs=False",),
    "Missing tp_iternext": (IN_C,),
    "missing tp_iter": (IN_C,),
    "missing_mp_subscript": (IN_C,),
    "missing_mp_ass_subscript": (IN_C,),
    "vectorcall_maybe on C method descriptor": (IN_C,),
}
"""torch's names of some kinds from 2.14 on, whose advice is the same."""
OTHER_SINCE_2_14: dict[str, tuple[str, ...]] = {
    "torch.* op returned non-Tensor": ("unsupported hasattr operation",),
    "setattr() on Tensor.requires_grad": ("requires_grad_() intermediate leaked as output",),
}
"""Kinds from 2.14 on whose advice is another."""
ON_PYTHON_3_13: dict[str, tuple[str, ...]] = {"Unsupported function call": ("Unsupported method call",)}
RENAMED = SINCE_2_14 if TORCH >= "2.14" else {}
OTHERWISE = (
    (ON_PYTHON_3_13 if sys.version_info >= (3, 13) else {})
    | ({} if MODERN else UNTIL_2_12)
    | (OTHER_SINCE_2_14 if TORCH >= "2.14" else {})
)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_break_has_its_location_and_a_working_fix(case: Broken) -> None:
    if not MODERN and ("load_state_dict" in case.code or "deepcopy(y)" in case.code):
        pytest.skip("before torch 2.13 it breaks elsewhere: in state_dict(), inside of deepcopy")
    record = captured(case.code, case.args)
    if any(code in case.code for code in FOLLOWED):
        gone(record)
        return
    same = (case.kind, *RENAMED.get(case.kind, ()))
    kinds = (*same, *OTHERWISE.get(case.kind, ()))
    found = next((item for item in record.breaks if item.kind in kinds), None)
    broader = found is not None and found.kind not in same  # its advice is broader, too
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


def test_call_chain_leads_to_the_breaking_code() -> None:
    for case in CASES:
        if case.calls:
            found = next(item for item in captured(case.code, case.args).breaks if len(item.chain) > 1)
            assert tuple(span.code for span in found.chain) == case.calls
            assert (found.line, found.code) == (found.chain[-1].line, case.code.split("\n")[found.line - FIRST].strip())


def test_common_break_kinds_have_advice() -> None:
    assert len({case.kind for case in CASES}) >= 40


TWO_HALVES = """
def f(x):
    y = torch.relu(x) + 1
    z = y.sum()
    print("between")
    return (y * z).exp().sum()
"""


def test_break_names_its_graphs_and_cost() -> None:
    record = captured(TWO_HALVES)
    (found,) = record.breaks
    before, after = record.frames
    assert (found.ended, found.resumed_by) == ("captured[0/0]", (after.id,))
    assert (before.resumes, after.resumes) == ("", found.id)
    assert found.nodes == (3, 3)
    assert (found.crossing, found.crossing_bytes) == (2, 4 * 4 + 4)
    assert found.outcome == "resumed"


def test_operators_after_a_break_are_those_of_one_version() -> None:
    code = "def f(x):\n    y = x + 1\n    print()\n    z = y.sin().cos()\n    print()\n    return z.exp()\n"
    with contextlib.redirect_stdout(io.StringIO()):
        found = explore(
            function(code), calls=[(torch.ones(size, 4),) for size in (2, 3)], options=Options(stages=("captured",))
        ).record.breaks
    assert [(each.frame, each.nodes) for each in found] == [
        ("0/0", (1, 3)), ("1/0", (2, 1)), ("0/1", (1, 3)), ("1/1", (2, 1)),
    ]  # fmt: skip


class Loader:
    """Stands for the loader of a package of AOTInductor, which needs a compiler of C++."""

    def get_call_spec(self) -> list[str]:
        return [treespec_dumps(tree_structure(found)) for found in (((X,), {}), X)]

    def boxed_run(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [inputs[0] * 3]


def test_package_of_aotinductor_is_told_as_compiled_at_its_call() -> None:
    found = captured("def f(x, package):\n    return package(x + 1) * 2\n", (X, AOTICompiledModel(Loader()))).breaks[0]
    assert (found.chain[-1].code, found.line) == ("package(x + 1)", FIRST + 1)
    assert "`package(x + 1)` runs a package of AOTInductor, which is already compiled" in found.what


def test_data_dependent_branch_resumes_in_the_taken_branch() -> None:
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
def test_loop_over_a_data_dependent_size_is_explained() -> None:
    with settings(("torch._dynamo.config.capture_dynamic_output_shape_ops = True",)):
        (found,) = captured(LOOPED).breaks
    assert (found.kind, found.chain[-1].code) == ("UserError", "hits")
    assert found.what == "The number of iterations of the loop over `hits` depends on tensor data."
    assert "torch.where" in found.suggestions[0].text
    gone(captured(MASKED))


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a comprehension is part of the code around it")
@since_2_13
def test_comprehension_break_leaves_surrounding_code_to_python() -> None:
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


def test_break_seen_again_after_restart_is_listed_once() -> None:
    record = captured("layer = nn.LSTM(4, 4)\ndef f(x):\n    y = x + 1\n    return layer(y)[0]\n", (X_3D,))
    assert len(record.breaks) == 1


@since_2_12
def test_restart_without_a_break_is_separate() -> None:
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
"""Code -> torch's reason, and the text of the problem."""


@pytest.mark.parametrize("code", list(SKIPS))
def test_uncompiled_function_has_a_reason(code: str) -> None:
    record = captured(code)
    assert [frame.outcome for frame in record.frames] != ["compiled"]
    reason, words = SKIPS[code]
    assert reason in record.frames[0].reason
    assert any(words in problem.reason for problem in record.problems)


def test_disabled_module_is_reported_at_its_call() -> None:
    code = (
        "class M(nn.Module):\n    @torch.compiler.disable\n    def forward(self, x):\n        return x + 1\nf = M()\n"
    )
    record = captured(code)
    (found,) = record.breaks
    assert (found.line > 0, found.function) == (True, "captured")
    assert "torch.compiler.disable" in found.what
    assert [problem.reason for problem in record.problems] == [f"nothing was compiled: {found.what}"]


@since_2_13
def test_disabled_torch_compile_is_the_reason() -> None:
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


def test_unsupported_bytecode_has_a_break_card() -> None:
    with Exploration(Options(stages=("captured",))) as exploration:
        coroutine = exploration.compile(function(ASYNC))(X)
        with pytest.raises(StopIteration) as finished:
            coroutine.send(None)
    assert torch.equal(finished.value.value, (X + 1) * 2)
    found = exploration.record.breaks[0]
    assert (found.kind, found.outcome, found.chain[-1].code) == ("Missing bytecode handler", "skipped", "Manager()")
    assert found.suggestions[0].text.startswith("Move it out")


def test_nondeterministic_text_is_removed() -> None:
    record = captured("@torch.compiler.disable\ndef g(v):\n    return v\ndef f(x):\n    return g(x + 1) * 2\n")
    assert "0x" not in record.breaks[0].explanation


def test_a_record_with_breaks_survives_json() -> None:
    record = captured(TWO_HALVES)
    assert Record.from_json(record.to_json()) == record


def test_package_code_is_explained_without_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody edits an installed package; settings are suggested all the same."""
    monkeypatch.setattr("compiler.capture.breaks.is_installed", lambda _: True)
    (found,) = captured("def f(x):\n    return x * x.sum().item() * 2\n").breaks
    assert found.what.startswith("`x.sum().item()` asks for the number in a tensor")
    assert not [item.rewrite for item in found.suggestions if item.rewrite]
    assert found.suggestions[-1].settings == ("torch._dynamo.config.capture_scalar_outputs = True",)


def test_skipped_function_problem_does_not_mention_fullgraph() -> None:
    record = captured(WITH_A_COMPREHENSION)
    first = record.problems[0]
    words = "The branch on `x.sum() > i` depends on tensor data."
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


def test_break_cost_is_timed_against_its_own_rewrite(capsys: pytest.CaptureFixture[str]) -> None:
    original = function(COSTLY)
    code = original.__globals__["shown"].__code__
    options = Options(stages=("captured",), backend="eager")
    plain = explore(original, X_ARGS, options=options).record
    record = explore(original, X_ARGS, options=replace(options, time="aot_eager")).record
    assert capsys.readouterr().out.count("mean") == 2  # once per call by the user
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
SCALED = "def scaled(y, s):\n    return y * 2 if s > 3 else y\n"
INNERMOST = """
def make():
    def shown(y):
        print("mean", y.mean())
        return y + 1
    return shown
shown = make()
def f(x):
    return (shown or make())(x) * 2
"""
MOVED = body("y = scaled(y, y.sum().item())", before=SCALED)


@pytest.mark.parametrize(
    ("code", "known", "note"),
    [
        (SETTINGS_ONLY, True, "ms with torch._dynamo.config.capture_dynamic_output_shape_ops = True"),
        (WORDS_ONLY, False, "its advice is in words only: there is no version without this break to time"),
        pytest.param(OTHER_NUMBERS, False, "the call gives another result with line", marks=until_2_13),
        (INNERMOST, True, "ms with line"),
        (MOVED, False, "the break is still there with"),
    ],
)
def test_break_is_timed_only_against_an_equivalent_rewrite(code: str, known: bool, note: str) -> None:
    before = torch._dynamo.config.capture_dynamic_output_shape_ops
    found = captured(code, backend="eager", time="aot_eager").breaks[0]
    assert (found.lost_seconds is not None) == known
    assert note in found.lost_note
    assert torch._dynamo.config.capture_dynamic_output_shape_ops == before


def test_breaks_are_not_timed_unless_requested() -> None:
    (found,) = captured(TWO_HALVES).breaks
    assert (found.lost_seconds, found.lost_note) == (None, "")


BLOCKS = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    def forward(self, x):
        y = x + 1
        print("start")
        for block in self.blocks:
            y = block(y)
            print("block")
        return y * 2
f = M()
"""


def test_untraced_lines_are_named() -> None:
    start, loop = captured(BLOCKS).breaks
    line = FIRST + 7
    assert (start.outcome, start.nodes, start.unread) == ("resumed", (1, 0), (line, line + 4))
    assert (loop.outcome, loop.unread) == ("skipped", (line + 1, line + 4))
    words = outcome_words(start)
    assert f"Lines {line} to {line + 4} of `forward` were not analysed: more breaks may follow there." in words
    assert "no ops of its own" not in words
    (single,) = captured(body('print("hm")')).breaks
    assert single.unread is None


TWO_BEFORE = {
    "loop": BLOCKS.replace('print("start")', 'print("start")\n        print("second")'),
    "three": BLOCKS.replace('print("start")', 'print("start")\n        print("second")\n        print("third")'),
    "try": """
def f(x):
    y = x + 1
    print("start")
    print("second")
    try:
        y = y.cos()
        print("inside")
    finally:
        pass
    return y * 2
""",
}


@pytest.mark.parametrize(("name", "lines"), [("loop", 4), ("three", 4), ("try", 6)])
def test_untraced_lines_below_a_later_break_are_named(name: str, lines: int) -> None:
    *_, before, last, _skipped = breaks = captured(TWO_BEFORE[name]).breaks
    assert [found.outcome for found in breaks] == ["resumed"] * (len(breaks) - 1) + ["skipped"]
    assert before.unread == last.unread == (last.line, last.line + lines)
    assert all(found.unread == last.unread for found in breaks[:-1])
    assert not any("no ops of its own" in outcome_words(found) for found in breaks)


def test_breaks_with_nothing_after_have_no_untraced_lines() -> None:
    assert [found.unread for found in captured(body('print("hm")', 'print("hm")')).breaks] == [None, None]
    without = "def f(x):\n    y = x + 1\n    print(1)\n    print(2)\n    return y\n"
    assert all("no ops of its own" in outcome_words(found) for found in captured(without).breaks)


def test_break_in_torch_code_says_so() -> None:
    w = torch.ones(4, requires_grad=True)
    w.grad = torch.ones(4)
    found = explore(torch.optim.Adam([w]).step, options=Options(stages=("captured",))).record.breaks
    assert found
    assert {item.whose for item in found} == {"torch"}
    for suggestion in (suggestion for item in found for suggestion in item.suggestions):
        assert suggestion.text.startswith("This line is in torch's own code")
        assert (suggestion.rewrite, suggestion.applicability) == ("", "explanation")


def test_torch_hooks_get_no_advice_for_users() -> None:
    hook = "/distributed/fsdp/_fully_shard/_fsdp_state.py"
    place = Place(f"{Path(torch.__file__).parent}{hook}", "_pre_forward", 1)
    facts = BreakFacts("Unsupported function call", "", (), (place,), "")
    found = graph_break("break[0/0].0", "0/0", facts, SourceBook(), registry={})
    (suggestion,) = found.suggestions
    assert "with fully_shard, one graph for each wrapped module is what to expect" in suggestion.text


@pytest.mark.parametrize("in_own_code", [False, True])
def test_break_in_a_library_advises_no_edit(in_own_code: bool) -> None:
    def f(x: torch.Tensor) -> bool:
        return calendar.isleap(x)  # type: ignore[arg-type]

    fn = f if in_own_code else calendar.isleap
    record = explore(fn, (torch.tensor(2000.0),), options=Options(stages=("captured",))).record
    assert record.breaks[0].what.startswith("`calendar.isleap(x)` leads to this") == in_own_code
    suggestions = [item for found in record.breaks for item in found.suggestions]
    assert suggestions
    for item in suggestions:
        assert item.text.startswith("This line is in code of the standard library, so nothing in yours has to change")
        assert (item.rewrite, item.applicability) == ("", "explanation")


def test_library_logging_is_removed_by_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compiler.capture.breaks.is_installed", lambda _: True)
    (found,) = captured(body('log.warning("hm")')).breaks
    library, setting = found.suggestions
    assert library.text.startswith("This line is in code of ")
    assert setting.text == "Or by a setting: Leave such calls out of graphs."
    assert setting.settings


@since_2_13
def test_unknown_library_break_shows_torch_explanation() -> None:
    (found,) = captured(body('logging.getLogger("own")')).breaks
    assert found.whose == "package"
    assert not found.what.endswith("leads to this: ")
    assert found.what in found.explanation


@pytest.mark.parametrize("name", ["SGD", "LBFGS"])
def test_optimizer_breaks_never_advise_editing_torch(name: str) -> None:
    w = torch.ones(4, requires_grad=True)
    w.grad = torch.ones(4)
    optimizer = getattr(torch.optim, name)([w])

    def loss() -> torch.Tensor:
        return (w * w).sum()

    def with_closure() -> None:
        optimizer.step(loss)

    step = with_closure if name == "LBFGS" else optimizer.step
    found = explore(step, options=Options(stages=("captured",))).record.breaks
    told = " ".join(suggestion.text for item in found for suggestion in item.suggestions)
    assert found
    assert "Take the line out" not in told
    assert "decorator" not in told


def test_first_sentence_goes_on_after_an_abbreviation() -> None:
    assert _first_sentence("A branch (e.g. `if x:`) is seen. Dynamo\nstops.") == "A branch (e.g. `if x:`) is seen."
    assert _first_sentence("Only one") == "Only one"
