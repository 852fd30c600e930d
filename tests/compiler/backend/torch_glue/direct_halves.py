"""Helpers for tests of training calls without AOTAutograd's wrappers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from compiler.backend.torch_glue.compiling import compile_with_autograd
from compiler.backend.torch_glue.saved import claim_donated_buffers
from compiler.torch_api.aot import Call, mark_boxed, with_backward
from tests.compiler.backend.torch_glue.test_direct import frames


class Halves:
    """A backend whose graphs run in eager mode, and that records their calls.

    For each call it records the half, whether AOTAutograd's wrappers were around it, and the arguments' dtypes, shapes
    and strides.
    """

    def __init__(self, keeps_saved: bool = True) -> None:
        self.keeps_saved = keeps_saved
        self.calls: list[tuple[str, bool]] = []
        self.given: list[list[Any]] = []
        self.modes: list[tuple[bool, bool]] = []
        self.within: Callable[[list[Any]], None] = lambda _: None

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with with_backward():
            halves = (self.half(name) for name in ("forward", "backward", "inference"))
            return compile_with_autograd(module, inputs, *halves)

    def half(self, name: str) -> Callable[[GraphModule, Sequence[Any]], Call]:
        def compiled(module: GraphModule, _: Sequence[Any]) -> Call:
            if name == "forward" and self.keeps_saved:
                claim_donated_buffers()

            def call(args: list[Any]) -> Sequence[Any]:
                self.calls.append((name, any("runtime_wrappers" in frame.f_code.co_filename for frame in frames())))
                self.given.append([described(arg) for arg in args])
                self.modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
                given = list(args)
                args.clear()
                self.within(given)
                found: Sequence[Any] = module(*given)
                return found

            return mark_boxed(call)

        return compiled

    def wrapped(self, half: str) -> list[bool]:
        """Whether the wrappers were around each call of one half."""
        return [is_wrapped for name, is_wrapped in self.calls if name == half]

    def args(self, half: str) -> list[list[Any]]:
        return [given for given, (name, _) in zip(self.given, self.calls, strict=True) if name == half]


def described(arg: Any) -> Any:
    if not isinstance(arg, Tensor):
        return arg
    return (type(arg), arg.dtype, arg.shape, arg.stride(), arg.requires_grad, arg._is_view())


def grown(fn: Callable[..., Any], *args: Tensor) -> tuple[Halves, Callable[..., Any]]:
    """The compiled function after a first step: later calls skip the wrappers."""
    halves = Halves()
    compiled = torch.compile(fn, backend=halves)
    outputs = compiled(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(output.sum() for output in outputs if output.requires_grad).backward()
    for arg in args:
        arg.grad = None
    return halves, compiled


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() * x
