"""Run a cell bare and under %%tcompile, in real IPython shells, and compare what a user sees."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from explorer.run.run import Run


@dataclass(frozen=True)
class Outcome:
    """The visible results of a cell."""

    result: object
    error: str
    output: str
    namespace: dict[str, object]
    random_state: object


class NoOutput:
    widget = None

    def begin(self) -> None:
        pass

    def hear(self, *_: object) -> None:
        pass

    def end(self, run: Run) -> None:
        pass


class Comparison:
    """A shell with the magics, in which a cell is run bare and under %%tcompile, each in a fresh namespace."""

    def __init__(self, shell: InteractiveShell, setup: str) -> None:
        self.shell = shell
        self.setup = setup

    def set_up(self) -> None:
        torch.compiler.reset()  # it keeps objects in the namespace, and complains if they are gone before it is
        self.shell.reset()
        random.seed(0)
        self.shell.run_cell(self.setup, store_history=True)

    def bare(self, code: str) -> Outcome:
        self.set_up()
        return outcome(self.shell, code)

    def magic(self, code: str, line: str = "--backend eager") -> Outcome:
        self.set_up()
        return outcome(self.shell, f"%%tcompile {line}\n{code}")

    def printed(self, cell: str) -> str:
        """The output of a cell, without the output of earlier cells."""
        with capture_output() as captured:
            self.shell.run_cell(cell, store_history=True)
        return captured.stdout


def outcome(shell: InteractiveShell, code: str) -> Outcome:
    with capture_output() as captured:
        result = shell.run_cell(code, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    names = {name: value for name, value in shell.user_ns.items() if not name.startswith("_") or name == "_"}
    names = {name: plain(value) for name, value in names.items() if name not in ("In", "Out", "exit", "quit", "open")}
    shown = [str(output.data) for output in captured.outputs]
    text = "\n".join([comparable(captured.stdout), comparable(captured.stderr), *shown])
    state = torch.get_rng_state().tolist(), random.getstate()
    return Outcome(plain(result.result), comparable(f"{type(error).__name__}: {error}"), text, names, state)


def plain(value: object) -> object:
    """A comparable form of a value: tensors by their numbers, objects by their type."""
    if isinstance(value, torch.Tensor):
        gradient = plain(value.grad) if value.is_leaf else None
        return (str(value.dtype), tuple(value.shape), value.tolist(), value.requires_grad, gradient)
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
        return (type(value).__name__, value.training, [plain(tensor) for tensor in tensors])
    if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        return (type(value).__name__, plain(value.state_dict()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(item) for item in value])
    if isinstance(value, dict):
        return ("dict", [(plain(key), plain(item)) for key, item in value.items()])
    return value if isinstance(value, int | float | str | bytes | None) else type(value).__name__


def comparable(text: str) -> str:
    """Remove intended differences: line numbers count from the magic's line, which tracebacks show as a comment."""
    text = re.sub(r"<ipython-input-\d+-\w+>", "<cell>", text)
    lines = [line for line in text.splitlines() if "# %%tcompile" not in line]
    text = "\n".join(re.sub(r"^(-*>? *)\d+ ?", r"\1", line) for line in lines)
    text = re.sub(r"line \d+", "line N", re.sub(r"Cell In\[\d+\]", "Cell In", text))
    return re.sub(r"0x[0-9a-f]+|^ +(?=\S)", "…", text, flags=re.MULTILINE)
