"""Fixes that run code as an operator of the graph, or once while it is captured: their code, and what they leave."""

from __future__ import annotations

import ast
import linecache
import re
from functools import cache
from typing import Any

import pytest
import torch

from compiler.record import Fix
from compiler.xray.operators import _Operator
from compiler.xray.outline import Outline
from compiler.xray.value_kinds import ValueKind
from explorer.run.xray import XRayed
from tests.compiler.broken import function
from tests.compiler.xray.test_fixes import X, only, tried, x_rayed

LOG = """
def f(x):
    y = x * 2
    log.info("sum %s of %d", y.sum().item(), len(x))
    return y + 1
"""
NUMPY = """
def f(x):
    order = np.argpartition(x.numpy(), 2)
    return torch.from_numpy(order) + x
"""
METRICS = """
def f(x):
    logs = {"loss": x.sum().item(), "rate": 0.1}
    log.info("logs %s", logs)
    logs["loss"] = 0.0
    return x * 2
"""
CONSTANT = """
names = []
def f(x):
    names.append(hashlib.md5(str(tuple(x.shape)).encode()).hexdigest())
    return x * 2
"""
CALL = """
def pick(values, limit):
    kept = []
    for n, value in enumerate(values.tolist()):
        if value > limit:
            kept.append(n)
    return kept
def f(x):
    y = x * 2
    return y[pick(y, 3.0)] + 1
"""
ABSORBED = """
def f(x):
    generator = torch.Generator().manual_seed(0)
    return x + torch.randn(x.shape, generator=generator)
"""
EFFECT_BRANCH = """
def f(x):
    y = x * 2
    if y.sum() > 1:
        print("large", len(x))
    return y + 1
"""
GRADIENT = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
    def forward(self, x):
        y = x * self.weight
        log.info("mean %.3f", y.mean().item())
        return y * random.gauss(0.0, 1.0)
f = M()
"""


@cache
def fixed(code: str) -> tuple[XRayed, Any]:
    """The fixes of a function, tried, and the function."""
    fn = function(code)
    return x_rayed(fn, (X,)).try_fixes(), fn


def definition(fix: Fix) -> str:
    return "".join(text for each in fix.suggestions for text in each.definitions)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (LOG, r"def info_line_\d+\(y: torch.Tensor, \w+: \w+(\.\w+)?\) -> None:"),
        (NUMPY, r"return torch.empty\(\(\w+\.shape\[0\],\), dtype=torch.int64"),
        (CONSTANT, r"@torch.compiler.assume_constant_result"),
        (CALL, r"return torch.tensor\(pick\(y, 3.0\), dtype=torch.int64\)"),
        (ABSORBED, r"generator = torch.Generator\(\).manual_seed\(0\)\n    return \(torch.randn\(x.shape"),
        (EFFECT_BRANCH, r"if y.sum\(\) > 1:\n        print\('large', len\(x\)\)"),
        (GRADIENT, r"return torch.tensor\(random.gauss\(0.0, 1.0\), dtype=torch.float64\)|def info_line"),
    ],
    ids=["log", "numpy", "constant", "call", "absorbed", "effect", "gradient"],
)
def test_code_runs_as_an_operator(code: str, words: str) -> None:
    found, fn = fixed(code)
    assert {fix.state for fix in found.fixes} == {"verified"}
    assert not found.left
    assert not any("_line_" in name for name in getattr(fn, "forward", fn).__globals__)
    assert re.search(words, "\n".join(map(definition, found.fixes)))


def test_dict_of_numbers_is_an_argument() -> None:
    fix = tried(METRICS)['log.info("logs %s", logs)']
    assert fix.state == "verified"
    assert "dict(zip(('loss', 'rate'), [number.item() for number in logs]))" in definition(fix)


def test_clock_is_read_at_another_time() -> None:
    fix = only("times = []\ndef f(x):\n    import time as t\n    times.append(t.time())\n    return x * 2\n")
    assert fix.state == "changes when a side effect happens"
    assert "The clock is read when the graph runs" in fix.words
    assert fix.suggestion is not None
    assert "return torch.tensor(time.time_ns())" in fix.suggestion.definitions[0]
    assert "torch.empty((), dtype=torch.int64)" in fix.suggestion.definitions[0]


def test_random_number_of_python_chooses_in_the_graph() -> None:
    fn = function("def f(x):\n    if random.gauss(0.0, 1.0) > 0:\n        x = x.flip(0)\n    return x * 2\n")
    again = function_with_file_of(fn)
    found = x_rayed(fn, (X,)).try_fixes()
    assert [(fix.state, fix.together) for fix in found.fixes] == [("verified", True)]
    assert "x = torch.where(gauss_line_" in found.patch()
    assert not any("_line_" in name for name in again.__globals__)


def function_with_file_of(fn: Any) -> Any:
    """The same file, run once more: a second module with functions of the same code."""
    file = fn.__code__.co_filename
    names: dict[str, Any] = {"__name__": "again"}
    exec(compile("".join(linecache.getlines(file)), file, "exec"), names)
    return names["f"]


def test_state_of_torchs_generator_is_in_no_operator() -> None:
    assert only("def f(x):\n    state = torch.get_rng_state()\n    return x + len(state)\n").state == "no fix known"


def test_operator_that_changes_its_argument_is_no_fix() -> None:
    fix = only("def f(x):\n    y = x * 2\n    np.add.at(y.numpy(), [0], 9.0)\n    return y + 1\n")
    assert not fix.suggestion or not fix.suggestion.definitions or fix.state == "no fix known"


def test_operator_has_data_dependent_rows_although_they_were_alike() -> None:
    pair = ValueKind("tensors", tuple, parts=(ValueKind("tensor", torch.Tensor, (2,), torch.int64, "cpu"),) * 2)
    outline = Outline((), (), ast.parse("torch.where(mask)", mode="eval").body, ())
    text = _Operator("where_line_1", "own", outline, [pair, pair], (), True).definition([], lambda _: False)
    empty = "torch.empty((size,), dtype=torch.int64, device='cpu')"
    assert f"    size = torch.library.get_ctx().new_dynamic_size()\n    return {empty}, {empty},\n" in text


def test_operators_are_forgotten() -> None:
    found, fn = fixed(LOG)
    assert set(fn.__globals__) == set(function(LOG).__globals__)
    namespace, _, name = re.findall(r'custom_op\("(.*?)(::)(.*?)"', definition(found.fixes[-1]))[0]
    assert not hasattr(getattr(torch.ops, namespace), name)


def test_costs_are_counted_before_and_after() -> None:
    found = fixed(LOG)[0].found
    assert found.cost is not None
    assert found.cost_after is not None
    assert (found.cost.graphs, found.cost_after.graphs) == (2, 1)
    assert found.cost.breaks >= 1
    assert found.cost_after.breaks == 0
