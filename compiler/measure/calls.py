"""A call that can be repeated without the user noticing: random state, gradients and buffers are put back."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch

from compiler.torch_api.pytrees import tree_leaves, tree_map


@dataclass(frozen=True)
class Call:
    """What the user called, eager and compiled, with which arguments."""

    fn: Callable[..., Any]
    compiled: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

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
    return tensor if tensor.requires_grad else tensor.detach().clone()


class _Nowhere(io.TextIOBase):
    """Takes text, and keeps none of it."""

    def write(self, text: str) -> int:
        return len(text)


@contextmanager
def unnoticed(call: Call) -> Iterator[None]:
    """Put back random state and the module's buffers; what the call prints goes nowhere. `.data` leaves autograd's
    version counters alone.
    """
    buffers = list(call.fn.buffers()) if isinstance(call.fn, torch.nn.Module) else []
    saved = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng(), redirect_stdout(_Nowhere()):
        try:
            yield
        finally:
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.data.copy_(value)
