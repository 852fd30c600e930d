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
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, overload

from compiler.record import Record
from explorer.run.autograd_run import AutogradRun

if TYPE_CHECKING:
    from torch import Tensor

    from compiler.autograd.recording import Recording
    from explorer.entry.living_graph import Recorded


class AutogradRecording:
    """Context manager that records the autograd graphs of a block: `with tcompile.autograd() as recorded:`.

    `graph(loss)` returns the graph of a tensor made in the block. The recording does not change results.
    """

    def __init__(self, frame: FrameType | None = None, *, health: bool = False) -> None:
        from compiler.autograd.recording import Recording
        from compiler.autograd.tape import TapeRecorder
        from explorer.entry.living_graph import Recorded

        self._health = health
        self._recorded = Recorded(Recording(frame, values=health), TapeRecorder(frame))
        self._stack = ExitStack()

    def __enter__(self) -> AutogradRecording:
        self._stack.enter_context(self._recorded.recording)
        self._stack.enter_context(self._recorded.tape)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)

    def graph(self, *outputs: Tensor) -> AutogradRun:
        """The autograd graph of these tensors. Raises ValueError if none of them requires grad."""
        value = outputs[0] if len(outputs) == 1 else outputs
        return _make_run(outputs, self._recorded, sys._getframe(1), value, self._health)


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

    In a notebook and on a page the living graph of `tcompile.chain_rule` is beside that of a call or block, unless a
    backward pass would run code of yours (hooks, custom functions, checkpoints) or the graph has more than 300 nodes.

    With `health`, a backward pass is run like that of `torch.autograd.grad` (your hooks and custom functions run, no
    `.grad` changes), and `.health` has norms, zeros and NaN of every result and gradient.

    Raises ValueError for a tensor that does not require grad, TypeError if there is no tensor, and any exception of
    the call.
    """
    frame = sys._getframe(1)
    if target is None:
        return AutogradRecording(frame, health=health)
    if is_call(target):
        from compiler.autograd.tape import TapeRecorder
        from explorer.entry.living_graph import Recorded

        tape, call = TapeRecorder(frame), partial(target, *args, **(kwargs or {}))
        value, recording, name = record_call(target, call, frame, values=health, tape=tape)
        outputs = tensors_in(value, name or "the function")
        return _make_run(outputs, Recorded(recording, tape, name), frame, value, health)
    if args or kwargs:
        raise TypeError("tcompile.autograd takes arguments only for a function or module to call")
    return _make_run(tensors_in(target, "tcompile.autograd"), None, frame, target, health)


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
    from compiler.capture.function_names import title_of

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
    outputs: Sequence[Tensor], recorded: Recorded | None, frame: FrameType, value: Any, health: bool
) -> AutogradRun:
    from compiler.autograd.explore import autograd_record

    recording, title = (recorded.recording, recorded.title) if recorded else (None, "")
    record: Record = autograd_record(outputs, recording=recording, frame=frame, title=title, health=health)
    run = AutogradRun(record, value)
    return run if recorded is None else _with_canvas(run, outputs, recorded, frame)


def _with_canvas(run: AutogradRun, outputs: Sequence[Tensor], recorded: Recorded, frame: FrameType) -> AutogradRun:
    """The run, with the living graph if a backward pass runs no code of the user's."""
    from compiler.autograd.backward_run import FreedGraphError
    from compiler.autograd.eager_graph import without_inner
    from compiler.record import Problem
    from explorer.entry.living_graph import living_graph, runs_no_code_of_users

    outputs = [output for output in without_inner(outputs) if output.requires_grad]
    if not runs_no_code_of_users(outputs, recorded.recording):
        return run
    try:
        living = living_graph(outputs, recorded, frame)
    except (FreedGraphError, RuntimeError) as error:
        problem = Problem("chain_rule", str(error).partition("\n")[0])
        run.compiler.replace(run.record.with_fields(problems=(*run.record.problems, problem)))
        return run
    beside = replace(living.artifact, attrs={**living.artifact.attrs, "beside": True})
    run.compiler.replace(run.record.with_fields(artifacts=(*run.record.artifacts, beside)))
    run.compiler.evaluate = living.evaluate
    return run
