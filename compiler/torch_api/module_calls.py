"""Calls of `nn.Module`s that plain Python makes: watched at any depth, and the calls of one module redirected.

To watch, `Module.__call__` is replaced; while Dynamo compiles, and while a module runs, it is torch's own. To redirect,
the module gets what `Module.compile()` gives it: `_compiled_call_impl`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    Calls inside of compiled functions do not count.
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


def is_traced() -> bool:
    """Whether torch.jit, torch.fx, torch.export or torch.func traces or transforms the call.

    Compiled functions can't be called there.
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
    """Use torch's own module call in the block: Dynamo takes any other for the user's code."""
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
    """Whether `module.compile()` compiles nothing: its forward is PyTorch's own, which TorchDynamo skips.

    torch 2.15 compiles it.
    """
    if hasattr(OptimizedModule, "_should_wrap_module_call_impl"):
        return False
    return bool(trace_rules.check(type(module).forward))


class Redirection:
    """Sends calls of `module` to `target` until `undo`; within `target` they are its own."""

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
    """Ignore in the block what `module.compile()` made."""
    own = vars(module) if isinstance(module, Module) else {}
    compiled = own.pop(_ATTRIBUTE, None)
    try:
        yield
    finally:
        if compiled is not None:
            own[_ATTRIBUTE] = compiled


@contextmanager
def restore_mark(module: object) -> Iterator[None]:
    """Remove the mark that torch.compile leaves on a module in the block."""
    own = vars(module) if isinstance(module, Module) else {}
    was_marked = _MARK in own
    yield
    if not was_marked:
        own.pop(_MARK, None)
