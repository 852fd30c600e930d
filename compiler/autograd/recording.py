"""Record the Python line and module of each autograd node while the user's code runs.

Autograd numbers nodes in creation order, so the numbers before and after a torch call delimit the nodes that the call
made; they get the call's stack and module. torch's own anomaly detection formats a traceback for each node, and does
not record modules.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode, resolve_name

from compiler.autograd.stops import Stops
from compiler.autograd.values import Value
from compiler.torch_api import autograd_nodes
from compiler.torch_api.aten_calls import unheard
from compiler.torch_api.eager import run_eagerly
from compiler.torch_api.fx import SourceFrame
from compiler.torch_api.pytrees import tree_leaves

_OWN = tuple(str(Path(__file__).parents[2] / name) + "/" for name in ("compiler", "explorer"))
_TORCH = str(Path(torch.__file__).parent) + "/"
_HOOKS = {
    torch.Tensor.register_hook: "",
    torch.Tensor.register_post_accumulate_grad_hook: " (post-accumulate)",
    torch.Tensor.retain_grad: "retain_grad",
}

_CREATE_GRAPH = {torch.autograd.grad: 4, torch.Tensor.backward: 3}
"""Functions that run a backward pass, with the position of `create_graph` among their arguments."""


@dataclass(frozen=True, slots=True)
class Call:
    """One torch call. `stack` has the user's frames, outermost first; `module` is the path of the innermost module."""

    op: str
    stack: tuple[SourceFrame, ...] = ()
    module: str = ""
    module_type: str = ""

    @property
    def in_place(self) -> bool:
        name = self.op.rsplit(".", 1)[-1]
        is_operator = name.startswith("__i") and name.endswith("__") and name not in ("__invert__", "__index__")
        return is_operator or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Recording:
    """Context manager that records the torch calls of a block without changing their results.

    Compiled functions run in eager mode in the block: torch.compile would compile the recording too.
    Afterwards `calls.find(number)` returns the call that made a node; `roots` are the modules that were called, by path
    prefix. With `values`, `value(number, output)` returns a call's result as it was when the call ended.
    """

    def __init__(self, stop: FrameType | None = None, *, values: bool = False) -> None:
        self._stop = stop
        self.keeps_values = values
        self._values: dict[tuple[int, int], Value] = {}
        self._mode = _RecordingMode(self)
        self._stack = ExitStack()
        self._open: list[torch.nn.Module] = []
        self._paths: dict[int, str] = {}
        self.roots: dict[str, torch.nn.Module] = {}
        self.calls: autograd_nodes.Spans[Call] = autograd_nodes.Spans()
        self.hooks: defaultdict[int | None, list[str]] = defaultdict(list)
        """Names of the hooks registered on results, by node number."""
        self.stops = Stops()
        self.second_order = SecondOrder()
        self._seen = 0
        self._thread = threading.get_ident()

    def __enter__(self) -> Recording:
        with ExitStack() as stack:
            stack.enter_context(run_eagerly())
            # `always_call`: the end hook also runs after an error, so the stack of open modules stays balanced.
            stack.callback(register_module_forward_pre_hook(self._on_module_start).remove)
            stack.callback(register_module_forward_hook(self._on_module_end, always_call=True).remove)
            stack.enter_context(autograd_nodes.give_frames_to_custom_functions())
            stack.enter_context(self._mode)
            self._stack = stack.pop_all()
        self._seen = autograd_nodes.next_number()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
        self._stop = None
        self._open.clear()

    def _on_module_start(self, module: torch.nn.Module, _: Any) -> None:
        if threading.get_ident() == self._thread:  # global module hooks run in all threads
            if id(module) not in self._paths and not self._open:
                self._name_under(module)
            self._open.append(module)

    def _on_module_end(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        if threading.get_ident() == self._thread and module in self._open:
            while self._open.pop() is not module:
                pass

    def _name_under(self, root: torch.nn.Module) -> None:
        """Record the paths of a root's modules; paths of further roots are prefixed with the class name."""
        prefix = ""
        if self.roots:
            name = type(root).__name__
            prefix = name if name not in self.roots else f"{name}_{len(self.roots)}"
        self.roots[prefix] = root
        for path, module in root.named_modules(prefix=prefix):
            self._paths.setdefault(id(module), _without_wrapper(path))

    def note_start(self, first: int) -> None:
        """Record the start of a call, and nodes made between calls.

        Nodes made between calls are from custom functions: a TorchFunctionMode does not see `Function.apply`, which
        makes its node before it calls `forward`.
        """
        if first > self._seen:
            frame = _apply_frame(sys._getframe(2))
            if frame is not None:
                self._add(self._seen, first, "torch.autograd.Function.apply", frame)
            self._seen = first

    def note_call(self, first: int, function: Callable[..., Any], given: Any, result: Any) -> None:
        """Record a finished call if it made a node, and the gradient stops among its arguments and results."""
        self._seen = autograd_nodes.next_number()
        frame = sys._getframe(2)
        module = self._paths.get(id(self._open[-1]), "") if self._open else ""
        where = lambda: (op_name(function), self._users_stack(frame), module)  # noqa: E731
        self.stops.note_call((first, self._seen), function, given, result, where)
        if self._seen > first:
            self._add(first, self._seen, op_name(function), frame)
            if self.keeps_values:
                self._keep(first, result)

    def _keep(self, first: int, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None:
                number = autograd_nodes.number_of(leaf.grad_fn)
                if number is not None and number >= first:
                    self._values[number, leaf.output_nr] = Value.of_tensor(leaf)

    def value(self, number: int | None, output: int) -> Value | None:
        """An output of the forward operation with this node number; None if it was not recorded."""
        return None if number is None else self._values.get((number, output))

    def _add(self, first: int, end: int, op: str, frame: FrameType) -> None:
        module = self._open[-1] if self._open else None
        path = self._paths.get(id(module), "") if module is not None else ""
        kind = type(module).__name__ if module is not None and path else ""
        self.calls.add(first, end, Call(op, self._users_stack(frame), path, kind))

    def note_hook(self, tensor: torch.Tensor, function: Callable[..., Any], hook: Any) -> None:
        if tensor.grad_fn is not None:
            name = autograd_nodes.hook_name(hook) + _HOOKS[function] if hook is not None else _HOOKS[function]
            self.hooks[autograd_nodes.number_of(tensor.grad_fn)].append(name)

    def _users_stack(self, innermost: FrameType) -> tuple[SourceFrame, ...]:
        """The user's frames inside the recorded block, outermost first, without frames of torch's files and ours."""
        found: list[SourceFrame] = []
        frame: FrameType | None = innermost
        while frame is not None:
            file = frame.f_code.co_filename
            if is_users(file):
                found.append(SourceFrame(file, frame.f_lineno, frame.f_code.co_name, ""))
            if frame is self._stop:
                break
            frame = frame.f_back
        return tuple(reversed(found))

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers of the modules that were called, by path."""
        for prefix, root in self.roots.items():
            for path, tensor in [*root.named_parameters(prefix=prefix), *root.named_buffers(prefix=prefix)]:
                yield _without_wrapper(path), tensor


def _without_wrapper(path: str) -> str:
    """Remove `_orig_mod`, torch.compile's name for a wrapped module, from a path."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")


class _RecordingMode(TorchFunctionMode):
    """Reports every torch call of the user's code to a recording."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        first = autograd_nodes.next_number()
        self._recording.note_start(first)
        with self._recording.second_order.watch(func, args, kwargs or {}):
            result = func(*args, **(kwargs or {}))
        with unheard():
            self._recording.note_call(first, func, (args, kwargs), result)
        if func in _HOOKS:
            hook = (*args[1:], *(kwargs or {}).values(), None)[0]
            self._recording.note_hook(args[0], func, hook)
        return result


def is_users(file: str) -> bool:
    """Whether a file is the user's, neither torch's nor ours."""
    return not file.startswith(_OWN) and not file.startswith(_TORCH)


def _apply_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of `Function.apply` around this one, or None."""
    while frame is not None:
        if autograd_nodes.is_frame_of_apply(frame):
            return frame
        frame = frame.f_back
    return None


def op_name(function: Callable[..., Any]) -> str:
    """The public name of a torch function: `torch.nn.functional.linear`, `torch.Tensor.mul_`."""
    return resolve_name(function) or getattr(function, "__qualname__", type(function).__name__)


class SecondOrder:
    """For each node made by a backward pass with `create_graph=True`, records the node whose derivative includes it.

    Such a pass builds a second graph, to be differentiated again: gradient penalties, Hessians, meta-learning. While it
    runs, hooks on the first graph's nodes record the sequence numbers of the nodes that each node makes.
    """

    def __init__(self) -> None:
        self._spans: autograd_nodes.Spans[Any] = autograd_nodes.Spans()

    @contextmanager
    def watch(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Watch `function` if it is a backward pass with `create_graph=True`."""
        with ExitStack() as stack:
            if _creates_graph(function, args, kwargs):
                outputs = tree_leaves(args[0] if args else kwargs.get("outputs"))
                roots = (each.grad_fn for each in outputs if isinstance(each, torch.Tensor))
                for node in autograd_nodes.nodes_behind(roots):
                    if autograd_nodes.leaf_of(node) is None:
                        enter, leave = self._hooks(node)
                        stack.callback(node.register_prehook(enter).remove)
                        stack.callback(node.register_hook(leave).remove)
            yield

    def _hooks(self, node: Any) -> tuple[Callable[[Any], None], Callable[[Any, Any], None]]:
        """Hooks that record the nodes made while this node runs."""
        started: list[int] = []

        def enter(_: Any) -> None:
            started.append(autograd_nodes.next_number())

        def leave(_: Any, __: Any) -> None:
            if started:
                self._spans.add(started[-1], autograd_nodes.next_number(), node)

        return enter, leave

    def node_of(self, number: int | None) -> Any:
        """The node whose derivative includes the node with this sequence number; None if there is none."""
        return self._spans.find(number)


def _creates_graph(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    place = _CREATE_GRAPH.get(function)
    return place is not None and bool(kwargs.get("create_graph", args[place] if len(args) > place else False))
