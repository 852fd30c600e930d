"""Watch calls of `nn.Module`s made by plain Python, and redirect the calls of one module.

Watching replaces `Module.__call__`; torch's own is restored while Dynamo compiles and while a module runs. Redirecting
sets the module's `_compiled_call_impl`, as `Module.compile()` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch._C._dynamo import eval_frame
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo import OptimizedModule, trace_rules
from torch._dynamo.decorators import skip
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import Module

Compiled = Callable[..., Any]
_ATTRIBUTE = "_compiled_call_impl"
_MARK = "_is_torch_compile"
_active: list[Compiled] = []


@contextmanager
def watch_calls(on_call: Callable[[Module, tuple[Any, ...], dict[str, Any]], None]) -> Iterator[None]:
    """Call `on_call(module, args, kwargs)` before each outermost module call of this thread.

    Calls inside compiled functions are not reported.
    """
    original: Any = Module.__call__
    thread = threading.get_ident()

    def call(module: Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or callable(eval_frame.get_eval_frame_callback()) or is_traced():
            return original(module, *args, **kwargs)
        with pause_watching():
            on_call(module, args, kwargs)
            return original(module, *args, **kwargs)

    skip(call)
    _active.append(original)
    _set(call)
    try:
        yield
    finally:
        _active.pop()
        _set(original)


def outermost_module(stack: FrameType | None) -> Module | None:
    """The module of the outermost `Module.__call__` on a Python stack, from the given frame outwards."""
    found = None
    while stack is not None:
        if stack.f_code is Module._call_impl.__code__:
            found = stack.f_locals["self"]
        stack = stack.f_back
    return found


def is_traced() -> bool:
    """Whether torch.jit, torch.fx, torch.export or torch.func is tracing or transforming the call.

    Compiled functions can't be called then.
    """
    return (
        torch._C._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or is_fx_symbolic_tracing()
        or get_proxy_mode() is not None
        or peek_interpreter_stack() is not None
    )


@contextmanager
def pause_watching() -> Iterator[None]:
    """Restore torch's own `Module.__call__` in the block: Dynamo would trace any other as user code."""
    watched: Any = Module.__call__
    if not _active or watched is _active[-1]:
        yield
        return
    _set(_active[-1])
    try:
        yield
    finally:
        if _active:
            _set(watched)


def _set(call: Any) -> None:
    Module.__call__ = call  # type: ignore[method-assign]


def is_skipped_by_compile(module: Module) -> bool:
    """Whether `module.compile()` has no effect, because TorchDynamo skips forwards of PyTorch's own modules.

    From torch 2.14 on they are compiled.
    """
    if hasattr(OptimizedModule, "_should_wrap_module_call_impl"):
        return False
    return bool(trace_rules.check(type(module).forward))


class Redirection:
    """Redirects calls of `module` to `target` until `undo`; calls from within `target` run the module itself."""

    def __init__(self, module: Module, target: Compiled) -> None:
        self._own = vars(module)
        self._uncompiled = module._call_impl
        self._target = target
        self._before = {key: value for key, value in self._own.items() if key == _ATTRIBUTE}
        self._own[_ATTRIBUTE] = self._call

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return self._uncompiled(*args, **kwargs)
        del self._own[_ATTRIBUTE]
        try:
            return self._target(*args, **kwargs)
        finally:
            self._own[_ATTRIBUTE] = self._call

    def undo(self) -> None:
        if self._own.get(_ATTRIBUTE) == self._call:
            del self._own[_ATTRIBUTE]
            self._own.update(self._before)


@contextmanager
def without_compiled_call(module: object) -> Iterator[None]:
    """Make calls of a module in the block ignore `module.compile()`."""
    own = vars(module) if isinstance(module, Module) else {}
    compiled = own.pop(_ATTRIBUTE, None)
    try:
        yield
    finally:
        if compiled is not None:
            own[_ATTRIBUTE] = compiled


@contextmanager
def restore_mark(module: object) -> Iterator[None]:
    """At the end of the block, remove torch.compile's mark from a module, unless the module was marked before."""
    own = vars(module) if isinstance(module, Module) else {}
    was_marked = _MARK in own
    yield
    if not was_marked:
        own.pop(_MARK, None)


@contextmanager
def redirect_calls(module: Module, target: Compiled) -> Iterator[None]:
    """Redirect calls of `module` to `target` in the block."""
    redirection = Redirection(module, target)
    try:
        yield
    finally:
        redirection.undo()
