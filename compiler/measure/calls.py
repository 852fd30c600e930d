"""A call that can be repeated without the user noticing: random state, gradients and buffers are put back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch

from compiler.torch_api.pytrees import tree_leaves, tree_map

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is on around a call and changes what it computes: gradients, inference mode, autocast by device."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, torch.dtype], ...]

    @classmethod
    def now(cls) -> Surroundings:
        devices = (device for device in DEVICES if torch.is_autocast_enabled(device))
        autocast = tuple((device, torch.get_autocast_dtype(device)) for device in devices)
        return cls(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)

    @contextmanager
    def again(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for device, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype))
            yield


@dataclass(frozen=True)
class Call:
    """What the user called, eager and compiled, with which arguments; and what is on around it, by default now."""

    fn: Callable[..., Any]
    compiled: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings.now)

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and tensor arguments that want gradients, in a stable order."""
        return [leaf for leaf in self._leaves() if leaf.requires_grad and leaf.is_leaf]

    def _leaves(self) -> list[torch.Tensor]:
        own = list(self.fn.parameters()) if isinstance(self.fn, torch.nn.Module) else []
        return [leaf for leaf in [*own, *tree_leaves((self.args, dict(self.kwargs)))] if isinstance(leaf, torch.Tensor)]

    def copied_arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Arguments that the call may change in place. Parameters and leaves that want gradients are shared; a tensor
        that is passed twice is one tensor in the copies too.
        """
        copies: dict[int, Any] = {}

        def copied(value: Any) -> Any:
            return copies.setdefault(id(value), _copied(value)) if isinstance(value, torch.Tensor) else value

        return tree_map(copied, (tuple(self.args), dict(self.kwargs)))

    def devices(self) -> set[str]:
        return {leaf.device.type for leaf in self._leaves()}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Guards ask for the same strides, and whether it was made in inference mode."""
    if tensor.requires_grad:
        return tensor
    with torch.inference_mode(tensor.is_inference()):
        tensor = tensor.detach()
        if tensor.layout != torch.strided or 0 in tensor.stride():
            return tensor.clone()
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)


class _Nowhere(io.TextIOBase):
    """Takes text, and keeps none of it."""

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def unnoticed(call: Call) -> Iterator[None]:
    """The block runs as the call did: with its gradient mode and autocast. After it random state and the module's
    buffers are put back; what the call prints goes nowhere. `.data` leaves autograd's version counters alone.
    """
    buffers = list(call.fn.buffers()) if isinstance(call.fn, torch.nn.Module) else []
    saved = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng(), redirect_stdout(_Nowhere()), call.surroundings.again():
        try:
            yield
        finally:
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.data.copy_(value)
