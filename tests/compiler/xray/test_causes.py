"""Causes of recompilation: the owner of a changing value, and changes that are tried on all calls."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from compiler.engine import Exploration, explore
from compiler.record import Cause
from compiler.record.options import Options
from compiler.xray.cause_fixes import CauseTrials
from compiler.xray.causes import ONE_CALL, CauseSearch, find_causes
from compiler.xray.search import search_sites
from tests.compiler.broken import function

CAPTURED = Options(stages=("captured",), backend="eager")


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def searched(code: str, *calls: Sequence[Any]) -> CauseSearch:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        done = explore(function(code), options=CAPTURED, calls=calls)
        assert done.call is not None
        return find_causes(search_sites(done.call, done.record), Exploration)


def told(found: CauseSearch) -> list[tuple[str, str]]:
    return [(cause.kind, " ".join(cause.span.code.split())) for cause in found.causes]


def tried(found: CauseSearch) -> dict[str, Cause]:
    return {cause.kind: cause for cause in CauseTrials(found).run()}


GROWS = "def f(x, mask):\n    y = x * mask\n    return y.sum(0)\n"


def test_growing_lengths_end_with_the_fewest_marks() -> None:
    x, others = ones(4, 8), [(ones(n, 8), ones(n, 8)) for n in (5, 6)]
    found = searched(GROWS, (x, ones(4, 8)), *others)
    assert [cause.count for cause in found.causes] == [1, 1]
    fix = tried(found)["shape"].fix
    assert fix is not None
    assert (fix.state, fix.before, fix.after) == ("verified", 2, 1)
    assert sorted(fix.code.splitlines()) == [f"torch._dynamo.mark_dynamic({name}, 0)" for name in ("mask", "x")]
    assert not vars(x)


COUNTS = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return x * self.calls
f = M()
"""


def test_counter_is_owned_by_its_statement_and_becomes_symbolic() -> None:
    found = searched(COUNTS, *[(ones(4),)] * 3)
    assert told(found) == [("module attribute", "self.calls += 1")]
    fix = tried(found)["module attribute"].fix
    assert fix is not None
    assert fix.state == "verified"
    assert (fix.after or 0) < (fix.before or 0)


HIDDEN = """
def f(x):
    for n in range(2):
        if x.sum() > 100:
            x = x + 1
    return x * 2
"""


def test_cause_behind_a_break_is_found_from_all_calls() -> None:
    found = searched(HIDDEN, (ones(4),), (ones(6),))
    (cause,) = found.causes
    assert (cause.kind, cause.span.code, cause.as_it_is, cause.calls) == ("shape", "x", False, (2,))


CARRIED = """
def inner(x, cache):
    return x + cache.mean(0)
def f(x):
    cache = x[None]
    for n in range(3):
        x = inner(x, cache)
        cache = torch.cat([cache, x[None]])
        print(n)
    return x
"""


def test_loop_carried_value_is_owned_by_the_loop() -> None:
    found = searched(CARRIED, (ones(4),))
    assert ("shape", "cache = torch.cat([cache, x[None]])") in told(found)
    assert ONE_CALL in found.notes


SELECTS = """
def inner(x):
    return x * 2
def f(x, rows, n):
    y = inner(x[rows])
    print("x")
    return y * len(rows) + n
"""


def test_index_is_not_blamed_for_another_shape() -> None:
    found = searched(SELECTS, (ones(6, 2), [0, 1, 2], 3), (ones(6, 2), [0, 1], 3))
    assert {code for kind, code in told(found) if kind == "shape"} == {"rows"}


@pytest.mark.parametrize(
    ("code", "calls", "kind"),
    [
        ("def f(x):\n    return x * 2\n", [(ones(4, 8),), (ones(4, 8).double(),)], "dtype"),
        ("def f(x):\n    return x * 2\n", [(ones(4),), (ones(4).requires_grad_(),)], "requires_grad"),
    ],
)
def test_kind_of_tensor_is_told_as_what_it_is(code: str, calls: Any, kind: str) -> None:
    fix = tried(searched(code, *calls))[kind].fix
    assert fix is not None
    assert (fix.state, fix.code) == ("no fix known", "")
    assert "need" in fix.words


def test_stride_is_fixed_by_a_contiguous_argument() -> None:
    fix = tried(searched("def f(x):\n    return x * 2\n", (ones(4, 8),), (ones(8, 4).t(),)))["stride"].fix
    assert fix is not None
    assert (fix.state, fix.code, fix.before, fix.after) == ("verified", "x = x.contiguous()", 2, 1)


def test_stance_leaves_the_first_compilation() -> None:
    found = searched(
        "def f(x, name):\n    return x * len(name) + (name == 'b')\n", *((ones(4), name) for name in "abcd")
    )
    (cause,) = tried(found).values()
    assert cause.fix is not None
    assert (cause.fix.state, cause.fix.before, cause.fix.after) == ("verified", 4, 1)
    assert cause.fix.code.startswith("torch.compiler.set_stance('eager_on_recompile')")


def test_objects_are_as_they_were() -> None:
    model = function(COUNTS)
    with contextlib.redirect_stdout(io.StringIO()):
        done = explore(model, options=CAPTURED, calls=[(ones(4),)] * 3)
        assert done.call is not None
        CauseTrials(find_causes(search_sites(done.call, done.record), Exploration)).run()
    assert model.calls == 3
    assert not torch._dynamo.config.allow_unspec_int_on_nn_module
