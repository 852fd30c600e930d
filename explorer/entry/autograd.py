"""`tcompile.autograd`: the autograd graph of a tensor, as a run to display, print and save.

tcompile.autograd(loss)                    an existing graph; its lines and modules are not known
tcompile.autograd(lambda: loss_of(model))  builds the graph and records the line and module of each node
tcompile.autograd(model, x)                the same for a module or function and its arguments

with tcompile.autograd() as recorded:      the same for a block of code
    loss = criterion(model(x), y)
recorded.graph(loss)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, overload

from compiler.record import Record
from explorer.run.autograd_run import AutogradRun

if TYPE_CHECKING:
    from torch import Tensor

    from compiler.autograd.recording import Recording


class AutogradRecording:
    """Context manager that records the autograd graphs of a block: `with tcompile.autograd() as recorded:`.

    `graph(loss)` returns the graph of a tensor made in the block. The recording does not change results.
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
        """The autograd graph of these tensors. Raises ValueError if none of them requires grad."""
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
    """Show the autograd graph of a tensor, with the tensors that it saves for backward.

    >>> print(tcompile.autograd(model, x))   # calls the model, so lines and modules are known
    >>> print(tcompile.autograd(loss))       # a graph that exists already
    >>> with tcompile.autograd() as recorded:
    ...     loss = criterion(model(x), y)
    >>> print(recorded.graph(loss))

    `target` is a tensor, a list of tensors, or a function or module to call with the arguments.

    Each node has its saved tensors, its differentiation rule, and notes on hooks, views and in-place writes. Python
    lines and modules are known only if the graph is built by this call or in the block. Functions compiled by
    torch.compile then run in eager mode, so the graph is that of eager mode.

    With `health`, a backward pass is run like that of `torch.autograd.grad` (your hooks and custom functions run, no
    `.grad` changes), and `.health` has norms, zeros and NaN of every result and gradient.

    Raises ValueError for a tensor that does not require grad, TypeError if there is no tensor, and any exception of
    the call.
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
    """Whether `target` is a function or module to call, and not a tensor."""
    import torch

    return callable(target) and not isinstance(target, torch.Tensor)


def record_call(
    target: Callable[..., Any],
    call: Callable[[], Any],
    frame: FrameType,
    *,
    values: bool,
    tape: AbstractContextManager[Any] | None = None,
) -> tuple[Any, Recording, str]:
    """Make a call and record its autograd graph; return the result, the recording, and the title ("" for a lambda).

    `tape` is entered around the call.
    """
    from compiler.autograd.recording import Recording
    from compiler.engine import title_of

    with Recording(frame, values=values) as recording, tape or nullcontext():
        value = call()
    title = title_of(target)
    return value, recording, "" if "<lambda>" in title else title


def tensors_in(value: Any, whose: str) -> tuple[Tensor, ...]:
    """The tensors in a value. Raises TypeError if there are none; `whose` begins the message."""
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
