"""`explorer.autograd`: the graph that autograd built behind a tensor, as a run that shows, prints and saves.

explorer.autograd(loss)                    a graph that is there already: its lines and modules are not known
explorer.autograd(lambda: loss_of(model))  builds it, and knows which line and which module made each node
explorer.autograd(model, x)                the same for a module or function and its arguments

with explorer.autograd() as recorded:      the same for a block of code
    loss = criterion(model(x), y)
recorded.graph(loss)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, overload

from compiler.record import Record
from explorer.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from compiler.autograd.recording import Recording


LINES_SHOWN = 60


class AutogradRun(Run):
    """The graph that autograd built: prints as the program that backward runs, shows as a graph, saves as a page.

    `nodes`, `saved` and `leaves` are DataFrames; `value` is what was called returned.
    """

    @property
    def nodes(self) -> pd.DataFrame:
        """One row a node, in the order in which backward runs them: op, rule, line, module, what it saves."""
        return _tables().nodes(self.record)

    @property
    def saved(self) -> pd.DataFrame:
        """One row a tensor that a node keeps: shape, bytes, what it is, which others share its memory."""
        return _tables().saved(self.record)

    @property
    def leaves(self) -> pd.DataFrame:
        """One row a leaf: its name, how many gradients are added there and where they come from, hooks, version."""
        return _tables().leaves(self.record)

    @property
    def stops(self) -> pd.DataFrame:
        """One row a place where gradients stop: what was detached, was computed under `torch.no_grad()`, or is a frozen
        parameter. Autograd keeps no trace of these: they are known where the graph was built here.
        """
        return _tables().stops(self.record)

    @property
    def health(self) -> pd.DataFrame:
        """One row a node: norm, share of zeros, NaN and infinities of its result and its gradient, and where what is
        not finite appears first (`first`). Raises ValueError where it was not asked for: `health=True`.
        """
        if not any("health" in artifact.attrs for artifact in self.record.of_stage("autograd")):
            raise ValueError(
                "health was not measured, as it takes a backward pass: explorer.autograd(..., health=True)"
            )
        return _tables().health(self.record)

    def __str__(self) -> str:
        graphs = self.record.of_stage("autograd")
        told = [line for artifact in graphs for line in artifact.attrs.get("health", ())]
        return "\n".join([artifact.text for artifact in graphs] + told)

    def _repr_mimebundle_(self, **options: object) -> dict[str, str]:
        """As that of any run; the text is cut, as a saved notebook holds it beside the HTML."""
        return super()._repr_mimebundle_(**options) | {"text/plain": first_lines(str(self))}

    def __repr__(self) -> str:
        count = sum(
            entity.kind not in ("placeholder", "stop")
            for each in self.record.of_stage("autograd")
            for entity in each.entities
        )
        return f"<AutogradRun {self.record.title}: {count:,} nodes; print it to read the backward pass>"


class AutogradRecording:
    """A block of code whose autograd graphs are wanted: `with explorer.autograd() as recorded:`.

    `graph(loss)` gives the graph of a tensor made inside. The code runs as it would without.
    """

    def __init__(self, frame: FrameType | None = None, *, health: bool = False) -> None:
        from compiler.autograd.recording import Recording

        self._health = health
        self._recording = Recording(frame, values=health)

    def __enter__(self) -> AutogradRecording:
        self._recording.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording.__exit__(kind, error, traceback)

    def graph(self, *outputs: Tensor) -> AutogradRun:
        """The graph behind these tensors. Raises ValueError where none of them wants a gradient."""
        value = outputs[0] if len(outputs) == 1 else outputs
        return _explored(outputs, self._recording, sys._getframe(1), "", value, self._health)


@overload
def autograd(*, health: bool = False) -> AutogradRecording: ...
@overload
def autograd(
    target: Any, /, *args: Any, kwargs: Mapping[str, Any] | None = None, health: bool = False
) -> AutogradRun: ...


def autograd(
    target: Any = None, /, *args: Any, kwargs: Mapping[str, Any] | None = None, health: bool = False
) -> AutogradRun | AutogradRecording:
    """The graph that autograd built behind `target`: a tensor (or several in a list), or a function or module that is
    called with the arguments and gives them; without `target`, a recording for use in a `with` statement.

    Nodes come with the tensors that they save, hooks, views and writes in place explained, and the rule that each
    differentiates by. Only a graph that is built here, by the call or in the block, comes with Python lines and
    modules. Functions compiled by torch.compile run as plain Python there: the graph is that of eager mode.

    With `health`, a backward pass is run as `torch.autograd.grad` does (hooks and custom functions of yours run in it,
    no `.grad` changes), and `.health` has norms, zeros and NaN of every result and gradient. Without, none is run.

    Raises ValueError for a tensor that nothing wants a gradient of, TypeError for what gives no tensor, and whatever
    the call raises.
    """
    frame = sys._getframe(1)
    if target is None:
        return AutogradRecording(frame, health=health)
    if is_call(target):
        return _called(target, args, kwargs or {}, frame, health)
    if args or kwargs:
        raise TypeError("explorer.autograd takes arguments only for a function or module to call")
    return _explored(tensors_in(target, "explorer.autograd"), None, frame, "", target, health)


def is_call(target: Any) -> bool:
    """Whether `target` is to be called, rather than looked at: a tensor is callable by no one."""
    import torch

    return callable(target) and not isinstance(target, torch.Tensor)


def _called(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType, health: bool
) -> AutogradRun:
    from compiler.autograd.recording import Recording
    from compiler.engine import title_of

    recording = Recording(frame, values=health)
    with recording:
        value = function(*args, **kwargs)
    title = title_of(function)
    name = "" if "<lambda>" in title else title
    return _explored(tensors_in(value, name or "the function"), recording, frame, name, value, health)


def tensors_in(value: Any, whose: str) -> tuple[Tensor, ...]:
    """The tensors in a value, those that want gradients first choice. Raises TypeError where there is none."""
    import torch

    from compiler.torch_api.pytrees import tree_leaves

    found = tuple(leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    if not found:
        raise TypeError(f"{whose} has no tensor to look behind: got {type(value).__name__}")
    return found


def _explored(
    outputs: Sequence[Tensor],
    recording: Recording | None,
    frame: FrameType,
    title: str,
    value: Any,
    health: bool,
) -> AutogradRun:
    from compiler.autograd.explore import autograd_record

    record: Record = autograd_record(outputs, recording=recording, frame=frame, title=title, health=health)
    return AutogradRun(record, value)


def first_lines(text: str) -> str:
    """The first lines of a text, and how many there are more."""
    lines = text.splitlines()
    more = [f"… and {len(lines) - LINES_SHOWN:,} more lines: print it"] if len(lines) > LINES_SHOWN else []
    return "\n".join([*lines[:LINES_SHOWN], *more])


def _tables() -> Any:
    from explorer import autograd_tables

    return autograd_tables
