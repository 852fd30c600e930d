"""Explain why nothing in a cell was compiled, and how to change that."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch.nn import Module

from compiler.record import Problem
from compiler.torch_api import module_calls
from explorer.entry import callee as callees
from explorer.entry.cell import Cell
from explorer.entry.choice import Choice

_SHOWN = 40


def explain_nothing_compiled(cell: Cell, choice: Choice) -> Problem:
    """Explain why TorchDynamo captured nothing in a cell."""
    if choice.chosen:
        return Problem(
            "captured",
            f"nothing was captured of {choice.chosen.callee}: TorchDynamo saw no tensor operations in it",
            "torch.compile captures operations on tensors, in Python code; --fn NAME compiles another call",
        )
    if choice.left_to_cell:
        return Problem(
            "captured",
            f"{choice.left_to_cell}, so that is what is explored; but nothing that it compiled ran in this cell",
            "call the compiled function in the cell, or name with --fn what to compile",
        )
    return Problem("captured", f"nothing was compiled: {_reason(cell, choice)}", _what_to_do(cell, choice))


def explain_second_call(choice: Choice, name: str, callee: object) -> Problem:
    """Explain why a call of the cell was repeated."""
    again = f"{name} was called again, on copies of its arguments: this is what torch.compile makes of it"
    if isinstance(callee, Module) and module_calls.is_skipped_by_compile(callee):
        kind = type(callee).__name__
        reason = f"{name}.compile() compiles nothing: the forward of {kind} is PyTorch's own, which TorchDynamo skips"
        return Problem("captured", f"{reason}. {again}", f"write {name} = torch.compile({name})")
    if choice.compiled_before:
        reason = f"{choice.compiled_before} was compiled before this cell, and what was made then is used again"
        hint = "to see the cell's own call compiled, call torch.compiler.reset() before it"
        return Problem("captured", f"{reason}. {again}", hint)
    left = f"{choice.left_to_cell}, but nothing that it compiled ran" if choice.left_to_cell else ""
    reason = f"{left or 'nothing was compiled as the cell ran'}. {again}"
    return Problem("captured", reason, f"call the compiled function in the cell, or write --fn {name}")


def _reason(cell: Cell, choice: Choice) -> str:
    if not cell.body:
        return "the cell is empty"
    if cell.fn:
        return _refusals(choice) or f"the cell did not get to calling {cell.fn}"
    last = cell.body[-1]
    if isinstance(last, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return f"the last statement defines {last.name} and does not call it"
    if "run_cell_magic" in ast.unparse(last):
        return "the cell is another cell magic's"
    statement = f"the last statement, `{_short(last)}`,"
    refusals = _refusals(choice)
    if _reason_compiled(choice):
        return f"{statement} calls nothing that torch.compile can trace ({refusals})"
    if refusals:
        return f"{statement} calls no nn.Module and no Python function of yours ({refusals})"
    return f"{statement} calls nothing" if not cell.sites else f"{statement} did not get to a call"


def _refusals(choice: Choice) -> str:
    return "; ".join(f"{text} {why}" for text, why in list(choice.refused.items())[:3])


def _reason_compiled(choice: Choice) -> str:
    """The reason for refusing a callee that is already compiled; "" if there is none."""
    return next((why for why in choice.refused.values() if why in callees.ORIGINALS), "")


def _what_to_do(cell: Cell, choice: Choice) -> str:
    found = None if cell.fn else next(filter(cell.can_compile, reversed(cell.sites)), None)
    if found:
        return f"{found.text} is called on line {found.line}, which did not run: explore a run that gets there"
    if compiled := _reason_compiled(choice):
        return callees.ORIGINALS[compiled]
    if "run_cell_magic" in _last_line(cell.body):
        return "write %%tcompile below the other magic's line, right above the code"
    return "end the cell with a call of your function or model, such as f(x); or name another callee with --fn"


def _last_line(body: Sequence[ast.stmt]) -> str:
    return ast.unparse(body[-1]) if body else ""


def _short(node: ast.stmt) -> str:
    first, _, rest = ast.unparse(node).partition("\n")
    return f"{first[:_SHOWN]}…" if rest or len(first) > _SHOWN else first
