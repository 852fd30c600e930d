"""Breaks that only a first call has are reported as such, and capturing the call again changes nothing."""

from __future__ import annotations

import pytest
import torch

from compiler.engine import Exploration
from compiler.record import Record
from compiler.record.options import Options
from explorer.findings.cards import all_cards
from tests.compiler.broken import function

LAZY = """
lock = threading.Lock()
calls = []
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(4, 4), None
    def forward(self, x):
        y = self.layer(x)
        if self.table is None:
            with lock:
                self.table = torch.ones(4)
        KEEP
        return y * self.table
f = M()
"""
CACHED = """
table = {}
def f(x):
    y = x * 2
    if "scale" not in table:
        print("initialised")
        table["scale"] = 3
    return y * table["scale"]
"""


def explored(code: str) -> Record:
    module = function(code)
    with Exploration(Options(stages=("captured",))) as exploration:
        exploration.compile(module)(torch.ones(2, 4))
    return exploration.record


@pytest.mark.parametrize("code", [LAZY.replace("KEEP", "pass"), CACHED])
def test_lazy_initialization_break_belongs_to_first_call(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = explored(code)
    assert record.breaks
    assert all(found.first_call for found in record.breaks)
    assert "Only the first call breaks here" in str(all_cards(record)).replace("\n  ", " ")
    assert capsys.readouterr().out.count("initialised") == ("print" in code)


def test_recurring_breaks_are_not_first_call_breaks() -> None:
    (lazy,) = explored(LAZY.replace("KEEP", "print(len(calls))")).breaks
    assert lazy.first_call
    before = explored(LAZY.replace("KEEP", "pass").replace("if self", 'print("on")\n        if self')).breaks
    assert len(before) > 1
    assert not [found.code for found in before if found.first_call]


def test_the_second_capture_is_not_in_the_record() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        record = explored(CACHED.replace("x * 2", "torch.rand_like(x)"))
        after = torch.rand(())
        torch.manual_seed(3)
        torch.rand(2, 4)
        assert torch.equal(after, torch.rand(()))
    assert not record.recompiles
    assert {frame.call_number for frame in record.frames} == {1}


BY_DATA = """
flag = True
def f(x):
    if flag:
        x = x + 1
    return x DEPENDING
"""


@pytest.mark.parametrize("code", ["/ x.max().item()", "[x > 0]"])
def test_data_dependent_breaks_are_not_first_call_breaks(code: str) -> None:
    (found,) = explored(BY_DATA.replace(" DEPENDING", f" {code}" if code[0] == "/" else code)).breaks
    assert not found.first_call
