"""Why nothing of a cell was compiled, and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from compiler.record import Problem
from explorer.cell import Cell
from explorer.choice import Choice
from explorer.lookup import compilable_calls

_SHOWN = 40


def nothing_compiled(cell: Cell, choice: Choice) -> Problem:
    """The problem that stands for a cell of which TorchDynamo saw nothing."""
    if choice.chosen:
        return Problem(
            "captured",
            f"nothing was captured of {choice.chosen.text}: TorchDynamo saw no tensor operations in it",
            "torch.compile captures operations on tensors, in Python code; --fn NAME compiles another call",
        )
    if choice.compiled_before:
        return Problem(
            "captured",
            f"{choice.compiled_before} was compiled before this cell, and what was made then is used again",
            "call torch.compiler.reset() in the cell, before the call; or explore the function that was compiled",
        )
    if choice.left_to_cell:
        return Problem(
            "captured",
            f"{choice.left_to_cell}, so that is what is explored; but nothing that it compiled ran in this cell",
            "call the compiled function in the cell, or name with --fn what to compile",
        )
    return Problem("captured", f"nothing was compiled: {_reason(cell, choice)}", _what_to_do(cell))


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
    if refusals:
        return f"{statement} calls no nn.Module and no Python function of yours ({refusals})"
    return f"{statement} calls nothing" if not cell.sites else f"{statement} did not get to a call"


def _refusals(choice: Choice) -> str:
    return "; ".join(f"{text} {why}" for text, why in list(choice.refused.items())[:3])


def _what_to_do(cell: Cell) -> str:
    found = {} if cell.fn else {site.text: site.line for site in compilable_calls(cell.body, cell.shell.user_ns)}
    if found:
        name, line = next(reversed(found.items()))
        return f"{name} is called on line {line}: write --fn {name}, or make that call the last statement"
    if "run_cell_magic" in _last_line(cell.body):
        return "write %%tcompile below the other magic's line, right above the code"
    return "end the cell with a call of your function or model, such as f(x); or name another callee with --fn"


def _last_line(body: Sequence[ast.stmt]) -> str:
    return ast.unparse(body[-1]) if body else ""


def _short(node: ast.stmt) -> str:
    first, _, rest = ast.unparse(node).partition("\n")
    return f"{first[:_SHOWN]}…" if rest or len(first) > _SHOWN else first
