"""Every edit that a break's card offers is applied here, and has the promised applicability."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from compiler.engine import explore
from compiler.record import GraphBreak, Record, Suggestion
from compiler.record.options import Options
from tests.compiler.broken import FOLLOWED, MODERN, captured, function, rewritten, settings

EDIT, SETTING, MAYBE, MAYBE_SETTING = "edit", "setting", "maybe edit", "maybe setting"
NONE: tuple[str, ...] = ()

OFFERED: dict[tuple[str, ...], tuple[str, ...]] = {
    # print: format specifications, conversions, quotes, walrus and comprehensions.
    ('print(f"{x.norm():.3f}")',): (EDIT, SETTING),
    ('print("mean", y.mean())',): (EDIT, SETTING),
    ("print(x)",): (EDIT, SETTING),
    ("print(y.shape, y.dtype, len(x))",): (EDIT,),
    ('print(f"{y.mean():>8.2f} {{}} {x.shape[0]}", "{")',): (EDIT, SETTING),
    ("print(f\"{ {'a': y}['a'].sum():.1f}\")",): (EDIT, SETTING),
    ('print(f"{(n := y.sum()):.1f}")', "y = y * n"): (EDIT, SETTING),
    ('print(f"{sum([v.sum() for v in (x, y)]):.2e} {y.mean():+.0%}")',): (EDIT, SETTING),
    ('print(f"{y.mean()} {x.shape}")',): (MAYBE, SETTING),
    ('n = y.mean()', 'print(f"m {n}")'): (MAYBE, SETTING),
    ('print(f"{y.mean().item():.3f}", "is it")',): (EDIT, SETTING),
    ('print(f"{y.norm():{5}.3f}")',): (SETTING,),
    ('print("{:.3f}".format(y.norm()))',): (SETTING,),
    ('print("a", y, sep=",")',): NONE,
    ('print("a", end="")',): NONE,
    ("print(*[x, y])",): NONE,
    ("print([x, y])",): NONE,
    ("print()",): (SETTING,),
    ("def show(v):", '    print(f"{v.mean():.2f}")', "    return v + 1", "y = show(y)"): (EDIT,),
    ("[print(v) for v in (x, y)]",): (EDIT,) if sys.version_info < (3, 12) else (EDIT, SETTING),
    ("import sys", 'sys.stdout.write(f"{y.mean():.2f}\\n")'): (EDIT,),
    ("import sys", 'sys.stdout.write("no end")'): NONE,
    ('warnings.warn("hm")',): (SETTING,),
    ('warnings.warn("hm", stacklevel=2)',): NONE,
    ("def check(v):", '    warnings.warn("hm")', "    return v + 1", "y = check(y)"): NONE,
    # Numbers.
    ("y = y * y.sum().item()",): (EDIT, SETTING),
    ("y = y * float(y.mean())",): (EDIT, SETTING),
    ("s = y[0].item()", "y = y * s + y"): (EDIT, SETTING),
    ("y *= (y + 1).max().item()",): (EDIT, SETTING),
    ("s = 2", "if s > 1:", "    y = y * s", "s = y[0].item()", "y = y * s"): (EDIT, SETTING),
    ("y = sum([v * y.sum().item() for v in (x, y)])",): (MAYBE, MAYBE_SETTING),
    ("s = y.sum().item()", "n = s * 2", "y = y * n"): (MAYBE, MAYBE_SETTING),
    ("y = y * math.sqrt(y.sum().item())",): (MAYBE, MAYBE_SETTING),
    ("y = torch.full_like(y, y.mean().item())",): (MAYBE_SETTING,),
    ("y = torch.clamp(y, min=y.min().item(), max=3.0)",): (MAYBE_SETTING,),
    ("v = [round(v.item(), 2) for v in y]", "y = y * v[0]"): (MAYBE_SETTING,),
    ("y = y.add(y.sum().item())",): (MAYBE, MAYBE_SETTING),
    ("out = []", "for v in y:", "    out.append(v.item())", "y = y * sum(out)"): (MAYBE, MAYBE_SETTING),
    ("k = int(y.sum() > 0)", "y = y * k"): NONE,
    ("y = y * int(y.sum())",): (SETTING,),
    ('s = "%.2f" % y.sum().item()', "y = y * len(s)"): NONE,
    ('s = "{:.2f}".format(y.sum().item())', "y = y * len(s)"): NONE,
    ("s = y.sum().item()", "if s > 3:", "    y = y * 2"): NONE,
    ("for i in range(int(y.sum())):", "    y = y + 1"): NONE,
    ("y = y[: int(x[0])]",): (MAYBE_SETTING,),
    ("y = y * random.random()",): (MAYBE,),
    ("if random.random() < 2:", "    y = y * 2"): NONE,
    ("v = y.tolist()", "y = y * v[0]"): (MAYBE,),
    # Comparisons.
    ("y = y * torch.allclose(y, x, atol=1e3)",): (MAYBE,),
    ("same = y.allclose(x, rtol=9)", "y = y * same"): (MAYBE,),
    ("y = y * torch.equal(y, x)",): (MAYBE,),
    ("y = y * y.equal(x)",): (MAYBE,),
    ("if torch.allclose(y, x):", "    y = y * 2"): (MAYBE,),
    ("lo = sorted([y[0], y[1]], reverse=True)", "y = y * lo[0]"): NONE,
    # Sizes.
    ("where = torch.nonzero(y)", "y = y * where.sum()"): (MAYBE_SETTING,),
    ("for i in torch.nonzero(y):", "    y = y + i"): NONE,
    ("hits = torch.nonzero(y)", "for i in hits:", "    y = y + i"): NONE,
    ("y = y * torch.masked_select(y, y > 3).sum()",): (MAYBE, MAYBE_SETTING),
    # Branches and checks.
    ("if y.sum() > 0:", "    y = y * 3", "else:", "    y = y - 1"): (EDIT,),
    ("y = y / 2 if y.sum() > 0 else y",): (MAYBE,),
    ("if y.sum() and y.mean():", "    y = y * 2"): NONE,
    ("if y.sum() > 0 or not y.mean() > 1:", "    y = y * 2"): (EDIT,),
    ('assert not torch.isnan(y).any(), "nan in y"',): (MAYBE,),
    ('assert y.sum() > 0 and y.mean() < 99, f"{y}"',): (MAYBE,),
    ("if torch.isnan(y).any():", '    raise ValueError("nan")'): (MAYBE,),
    ("if y.sum() > 3:", "    return y * 3"): (MAYBE,),
    ("import math", "if not math.isfinite(y.sum().item()):", '    raise ValueError("inf")'): (MAYBE,),
    ("z = x", "if y.sum() > 3:", "    y += x", "    z = x * 2", "y = y * z"): (MAYBE,),
    ("if y.sum().item() > 99:", '    raise ValueError("large")'): (MAYBE,),
    ("try:", "    if y.sum() > 3:", "        raise ValueError", "except ValueError:", "    y = y - 1"): NONE,
    ("torch._dynamo.graph_break()",): (EDIT,),
    ("y = copy.deepcopy(y.detach())",): (EDIT,),
}  # fmt: skip
"""Lines of a function, and the kinds of edits that the cards of their breaks offer, in order."""


@dataclass(frozen=True)
class Ran:
    """A call's results: its value, the gradient of its argument, its output, and its record."""

    value: torch.Tensor
    gradient: torch.Tensor | None
    printed: str
    record: Record | None = None


def code_of(lines: tuple[str, ...]) -> str:
    inside = "".join(f"    {line}\n" for line in lines)
    return f"import math\ndef f(x):\n    y = x + 1\n{inside}    return y * 2\n"


def ran(code: str, compiled: bool, grad: bool) -> Ran:
    fn, printed = function(code), io.StringIO()
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=grad)
    with contextlib.redirect_stdout(printed), pytest.warns() if "warn(" in code else contextlib.nullcontext():
        explored = explore(fn, (x,), options=Options(stages=("captured",))) if compiled else None
        value = explored.value if explored else fn(x)
    gradient = torch.autograd.grad(value.sum(), x)[0] if grad and value.requires_grad else None
    text = re.sub(r", (grad_fn=<\w+>|requires_grad=True)", "", printed.getvalue())
    return Ran(value.detach(), gradient, text, explored.record if explored else None)


def kind_of(suggestion: Suggestion) -> str:
    what = "edit" if suggestion.rewrite else "setting"
    return what if suggestion.applicability == "machine-applicable" else f"maybe {what}"


def edits(record: Record) -> list[tuple[GraphBreak, Suggestion]]:
    offered = [(found, item) for found in record.breaks for item in found.suggestions]
    return [(found, item) for found, item in offered if item.rewrite or item.settings]


@pytest.mark.parametrize("lines", list(OFFERED), ids="; ".join)
def test_each_edit_works_as_offered(lines: tuple[str, ...]) -> None:
    code = code_of(lines)
    if any(followed in code for followed in FOLLOWED):
        pytest.skip("this version of torch follows it")
    if not MODERN and "deepcopy" in code:
        pytest.skip("before torch 2.13 the break does not say whether a tensor is copied")
    record = captured(code)
    assert record.breaks
    offered = edits(record)
    assert tuple(dict.fromkeys(kind_of(item) for _, item in offered)) == OFFERED[lines]
    assert all(item.caveat for _, item in offered if item.applicability == "maybe")
    for found, item in offered:
        check_edit(code, record, found, item)


def check_edit(code: str, record: Record, found: GraphBreak, item: Suggestion) -> None:
    """Apply one edit, and check that there are fewer breaks; a machine-applicable one must keep the behaviour."""
    new = rewritten(code, item) if item.rewrite else code
    for grad in (False, True):
        before = ran(code, compiled=False, grad=grad)
        with settings(item.settings):
            after = ran(new, compiled=True, grad=grad)
        assert after.record is not None
        assert len(after.record.breaks) < len(record.breaks), [each.what for each in after.record.breaks]
        if item.applicability == "machine-applicable":
            assert (found.kind, found.code) not in {(each.kind, each.code) for each in after.record.breaks}
            torch.testing.assert_close(after.value, before.value, rtol=0, atol=0)
            assert after.printed == before.printed
            same = after.gradient is before.gradient is None
            assert same or torch.equal(as_tensor(after.gradient), as_tensor(before.gradient))


def as_tensor(value: Any) -> torch.Tensor:
    assert isinstance(value, torch.Tensor)
    return value


def test_assertion_in_the_graph_raises() -> None:
    code = code_of(('assert not torch.isnan(y).any(), "nan in y"',))
    (found,) = captured(code).breaks
    assert not any("torch.cond" in item.text for item in found.suggestions)
    fn = function(rewritten(code, found.suggestions[0]))
    with pytest.raises(RuntimeError, match="nan in y"):
        explore(fn, (torch.tensor([float("nan")]),), options=Options(stages=("captured",)))
