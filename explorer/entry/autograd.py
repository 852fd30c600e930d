"""`tcompile.autograd`: the graph that autograd built behind a tensor, as a run that shows, prints and saves.

tcompile.autograd(loss)                    a graph that is there already: its lines and modules are not known
tcompile.autograd(lambda: loss_of(model))  builds it, and knows which line and which module made each node
tcompile.autograd(model, x)                the same for a module or function and its arguments

with tcompile.autograd() as recorded:      the same for a block of code
    loss = criterion(model(x), y)
recorded.graph(loss)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, overload

from compiler.record import Record
from explorer.run.autograd_run import AutogradRun

if TYPE_CHECKING:
    from torch import Tensor

    from compiler.autograd.recording import Recording


class AutogradRecording:
    """Records the autograd graphs of a block of code: `with tcompile.autograd() as recorded:`.

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
        """The graph behind these tensors. Raises ValueError where none of them requires a gradient."""
        value = outputs[0] if len(outputs) == 1 else outputs
        return _make_run(outputs, self._recording, sys._getframe(1), "", value, self._health)


@overload
def autograd(*, health: bool = False) -> AutogradRecording: ...
@overload
def autograd(
    target: Any, /, *args: Any, kwargs: Mapping[str, Any] | None = None, health: bool = False
) -> AutogradRun: ...


def autograd(
    target: Any = None, /, *args: Any, kwargs: Mapping[str, Any] | None = None, health: bool = False
) -> AutogradRun | AutogradRecording:
    """Show the graph that autograd built behind a tensor, and what it saves for backward.

    >>> print(tcompile.autograd(model, x))   # calls the model, so lines and modules are known
    >>> print(tcompile.autograd(loss))       # a graph that exists already
    >>> with tcompile.autograd() as recorded:
    ...     loss = criterion(model(x), y)
    >>> print(recorded.graph(loss))

    `target` is a tensor, a list of tensors, or a function or module that is called with the arguments.

    Nodes come with the tensors that they save, hooks, views and writes in place explained, and the rule that each
    differentiates by. Only a graph that is built here, by the call or in the block, comes with Python lines and
    modules. Functions compiled by torch.compile run as plain Python there: the graph is that of eager mode.

    With `health`, a backward pass is run as `torch.autograd.grad` does (hooks and custom functions of yours run in it,
    no `.grad` changes), and `.health` has norms, zeros and NaN of every result and gradient. Without, none is run.

    Raises ValueError for a tensor that does not require a gradient, TypeError where there is no tensor, and whatever
    the call raises.
    """
    frame = sys._getframe(1)
    if target is None:
        return AutogradRecording(frame, health=health)
    if is_call(target):
        value, recording, name = record_call(target, partial(target, *args, **(kwargs or {})), frame, values=health)
        return _make_run(tensors_in(value, name or "the function"), recording, frame, name, value, health)
    if args or kwargs:
        raise TypeError("tcompile.autograd takes arguments only for a function or module to call")
    return _make_run(tensors_in(target, "tcompile.autograd"), None, frame, "", target, health)


def is_call(target: Any) -> bool:
    """Whether `target` is a function or module to call; a tensor is inspected as it is."""
    import torch

    return callable(target) and not isinstance(target, torch.Tensor)


def record_call(
    target: Callable[..., Any], call: Callable[[], Any], frame: FrameType, *, values: bool
) -> tuple[Any, Recording, str]:
    """Make a call and record the graph that autograd builds: what it returned, the recording, the name of `target`."""
    from compiler.autograd.recording import Recording
    from compiler.engine import title_of

    with Recording(frame, values=values) as recording:
        value = call()
    title = title_of(target)
    return value, recording, "" if "<lambda>" in title else title


def tensors_in(value: Any, whose: str) -> tuple[Tensor, ...]:
    """The tensors in a value. Raises TypeError where there is none."""
    import torch

    from compiler.torch_api.pytrees import tree_leaves

    found = tuple(leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
    if not found:
        raise TypeError(f"{whose} has no tensor to look behind: got {type(value).__name__}")
    return found


def _make_run(
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
