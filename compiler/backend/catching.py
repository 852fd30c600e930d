"""The graphs of one call as AOTAutograd gives them, caught with what they were called with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from compiler.backend.backend import context_of
from compiler.backend.context import Context
from compiler.backend.ir import BackendError
from compiler.backend.options import BackendOptions
from compiler.targets import Target
from compiler.torch_api import fx
from compiler.torch_api.backend import Call, boxed, compile_with_autograd, with_backward
from compiler.torch_api.dynamo import Unheard, observing
from compiler.torch_api.dynamo import compiled as observed
from compiler.torch_api.moving import CPU, Mover
from compiler.torch_api.virtual import DEVICE, virtual_gpu

KINDS = ("forward", "backward", "inference")


@dataclass(frozen=True, slots=True)
class Asked:
    """A call: the function, its arguments, and whether sizes are to be symbolic."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic: bool | None = None

    @property
    def title(self) -> str:
        """What the user would call the function or module."""
        if isinstance(self.fn, torch.nn.Module):
            return type(self.fn).__name__
        name: str = getattr(self.fn, "__qualname__", type(self.fn).__name__)
        return name.rsplit("<locals>.", 1)[-1]

    def compiled(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        """The function, compiled by a backend, with cache entries of its own."""
        found: Callable[..., Any] = observed(self.fn, backend, dynamic=self.dynamic, fullgraph=False)
        return found


@dataclass(frozen=True)
class Caught:
    """A graph of ATen operators, and what its lowering starts with. `inputs` are what it was called with: empty as long
    as it was not. `forward` is the graph that a backward belongs to.
    """

    name: str
    module: GraphModule
    start: Context
    inputs: list[Any] = field(default_factory=list)
    forward: Caught | None = None

    def devices(self) -> Iterator[torch.device]:
        """Where its inputs are."""
        values = map(fx.value_of, self.module.graph.find_nodes(op="placeholder"))
        return (value.device for value in values if isinstance(value, torch.Tensor))

    def call(self, args: list[Any]) -> Sequence[Any]:
        """Run it in eager mode, and keep the arguments of its first call."""
        given = list(args)
        args.clear()
        if not self.inputs:
            self.inputs.extend(given)
        found: Sequence[Any] = self.module(*given)
        return found


def catch(asked: Asked) -> list[Caught]:
    """Run a call, graph by graph in eager mode. Caches, counters and history of torch.compile are put back."""
    found: list[Caught] = []
    errors: list[Exception] = []

    def keep(module: GraphModule, inputs: Sequence[Any], name: str) -> Call:
        number = sum(graph.name.partition("_")[0] == name for graph in found)
        forward = found[-1] if name == "backward" else None
        called = f"{name}_{number + 1}" if number else name
        start = context_of(module, inputs, called, BackendOptions())
        found.append(graph := Caught(called, module, start, forward=forward))
        return boxed(partial(graph.call))

    def backend(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        forward, backward, inference = (partial(keep, name=name) for name in KINDS)
        try:
            return compile_with_autograd(module, inputs, forward, backward, inference)
        except Exception as error:
            errors.append(error)
            raise

    with observing(Unheard()), with_backward():
        asked.compiled(backend)(*asked.args, **asked.kwargs)
    if errors:
        raise errors[0]
    return found


def moved_to(caught: Caught, gpu: Target) -> Caught:
    """A copy of a graph for a GPU that need not be here. Raises BackendError for one that is on a GPU already."""
    if any(device.type != "cpu" for device in caught.devices()):
        raise BackendError("the call is on a GPU that is here: open one whose tensors are on the CPU")
    mode: Any = fx.fake_mode([*map(fx.value_of, caught.module.graph.nodes)])
    module = fx.detached(caught.module)
    with virtual_gpu(gpu), mode:
        Mover(mode, CPU, DEVICE).graph(module)
        inputs = [*map(fx.value_of, module.graph.find_nodes(op="placeholder"))]
        start = context_of(module, inputs, caught.name, BackendOptions())
    return Caught(caught.name, module, start)
